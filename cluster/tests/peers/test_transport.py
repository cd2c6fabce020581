"""Connections of two hosts: outcomes, bounds, cuts, and ends in order. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from cluster.peers.frames import HEAD, Kind
from cluster.peers.peer_outcomes import NotSent, Reason, Refused, Unknown
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import KEPT, ask
from cluster.tests.peers.peers import SETTINGS, SHARD, TIMEOUT_S, Peer, pair, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time, settled

SILENCE_S = SETTINGS.heartbeat_s * (SETTINGS.silent_beats + 1)


@virtual
async def test_a_request_is_answered_and_a_message_arrives() -> None:
    async with pair() as (a, b, _):
        asked = a.ask(b, b"x")
        assert a.link(b, Channel.REPLICATION).message(SHARD, b"y") is None
        await pass_time(0.01)

        assert asked.outcome == b"re:x"
        assert b.messages == [("a", b"y")]
        link = a.link(b)
        assert (link.version, link.peer and link.peer.host) == (1, "b")


@virtual
async def test_each_shard_gets_its_own_messages_in_order() -> None:
    async with pair() as (a, b, _):
        got: dict[int, list[tuple[str, bytes]]] = {7: [], 8: []}
        for shard, messages in got.items():
            b.replicas.join(shard, lambda *message, to=messages: to.append(message))

        for number in range(3):
            for shard in (7, 8, 9):
                assert a.replicas.send("b", shard, b"%d.%d" % (shard, number)) is None
        assert a.replicas.send("z", 7, b"lost") == NotSent(Reason.NOT_CONNECTED)
        await pass_time(0.01)

        assert got == {n: [("a", b"%d.%d" % (n, number)) for number in range(3)] for n in (7, 8)}
        b.replicas.leave(7)
        a.replicas.send("b", 7, b"too late")
        await pass_time(0.01)
        assert len(got[7]) == 3


@virtual
async def test_frames_of_one_pass_leave_in_one_write() -> None:
    async with pair() as (a, b, network):
        (end,) = [each for each in network.open_ends("a") if each.writes][:1]
        before = [each.writes for each in network.open_ends("a")]

        asked = [a.ask(b, b"%d" % number) for number in range(50)]
        await settled()

        assert sum(each.writes for each in network.open_ends("a")) == sum(before) + 1
        await pass_time(0.01)
        assert [each.outcome for each in asked] == [b"re:%d" % number for number in range(50)]
        assert end.writes < 50


@virtual
async def test_bytes_that_arrive_one_by_one() -> None:
    network = SimulatedNetwork()
    network.piece = 1
    async with pair(network) as (a, b, _):
        asked = a.ask(b, b"slowly")
        await pass_time(0.01)

        assert asked.outcome == b"re:slowly"


@virtual
async def test_without_a_connection_nothing_is_sent() -> None:
    network = SimulatedNetwork()
    a, b = Peer("a", network, SETTINGS), Peer("b", network, SETTINGS)
    a.transport.set_peers({"a": a.address, "b": b.address})
    await pass_time(1.0)

    asked = a.ask(b, b"x")

    assert asked.outcome == NotSent(Reason.NOT_CONNECTED)
    assert a.transport.link("b", Channel.REPLICATION) is None
    await start([b])
    b.transport.set_peers({"a": a.address, "b": b.address})
    await pass_time(SETTINGS.reconnect_max_s)
    again = a.ask(b, b"x")
    await pass_time(0.01)
    assert again.outcome == b"re:x"
    await asyncio.gather(a.transport.stop(), b.transport.stop())


@virtual
async def test_a_crash_leaves_sent_requests_unknown_and_unsent_ones_not_sent() -> None:
    async with pair() as (a, b, network):
        b.holds = True
        sent = a.ask(b, b"sent")
        await pass_time(0.01)
        unsent = a.ask(b, b"unsent")

        network.crash("b")
        await pass_time(0.01)

        assert sent.outcome == Unknown(Reason.LOST)
        assert isinstance(unsent.outcome, Unknown | NotSent)
        assert a.ask(b, b"later").outcome == NotSent(Reason.NOT_CONNECTED)


@virtual
async def test_a_request_that_never_left_the_outbox_was_not_sent() -> None:
    async with pair() as (a, b, network):
        for end in network.open_ends("b"):
            end.pause_reading()
        filling = a.ask(b, bytes(2 << 20))
        await settled()  # the transport takes no more from here on
        waiting = a.ask(b, b"waiting")
        await settled()

        network.crash("b")
        await pass_time(0.01)

        assert filling.outcome == Unknown(Reason.LOST)
        assert waiting.outcome == NotSent(Reason.NOT_CONNECTED)


@virtual
async def test_a_connection_that_ends_within_a_frame() -> None:
    async with pair() as (a, b, network):
        for end in network.open_ends("b", "a"):
            end.break_after = HEAD.size + 2  # of the answer
        asked = a.ask(b, b"x")
        await pass_time(0.01)

        assert asked.outcome == Unknown(Reason.LOST)
        await pass_time(SETTINGS.reconnect_s)
        again = a.ask(b, b"x")
        await pass_time(0.01)
        assert again.outcome == b"re:x"


@pytest.mark.parametrize("direction", ["ab", "ba"])
@virtual
async def test_a_silent_cut_is_noticed_in_bounded_time(direction: str) -> None:
    async with pair() as (a, b, network):
        network.cut(*direction)
        asked = a.ask(b, b"x", timeout_s=60.0)

        await pass_time(SILENCE_S + 0.01)

        # Either side may notice first, and its end may reach the other.
        assert asked.outcome in (Unknown(Reason.SILENT), Unknown(Reason.LOST))
        assert not a.reaches(b)
        network.mend()
        await pass_time(SETTINGS.reconnect_max_s + 0.1)
        again = a.ask(b, b"again")
        await pass_time(0.01)
        assert again.outcome == b"re:again"


@pytest.mark.slow
@virtual
async def test_an_idle_connection_stays() -> None:
    async with pair() as (a, b, network):
        ends = list(network.ends)

        await pass_time(600.0)

        assert network.ends == ends
        assert a.reaches(b)


@virtual
async def test_a_host_that_lost_its_connection_unnoticed_is_let_in_again() -> None:
    async with pair() as (a, b, network):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)
        cancelled: list[bytes] = []
        (call,) = b.calls
        call.on_cancel = lambda: cancelled.append(call.body)
        network.cut("a", "b")  # b does not learn of the end
        for end in network.open_ends("a"):
            end.abort()
        await pass_time(0.01)
        network.mend()

        await pass_time(SETTINGS.reconnect_s + 0.01)

        assert asked.outcome == Unknown(Reason.LOST)
        assert cancelled == [b"x"]
        assert len(network.open_ends("b")) == 2 * len(KEPT)


@virtual
async def test_a_channel_that_is_rarely_used_is_open_while_it_is_used() -> None:
    async with pair() as (a, b, network):
        assert len(network.open_ends("b")) == 2 * len(KEPT)

        for body in (b"one", b"two"):
            assert await ask(a.transport, "b", Channel.STATUS, body, TIMEOUT_S) == b"re:" + body
            assert len(network.open_ends("b")) == 2 * len(KEPT) + 1

        a.transport.close_idle()
        a.transport.close_idle()
        await pass_time(1)
        assert len(network.open_ends("b")) == 2 * len(KEPT), "the others stay"
        assert await ask(a.transport, "b", Channel.STATUS, b"three", TIMEOUT_S) == b"re:three"
        assert await ask(a.transport, "a", Channel.STATUS, b"?", TIMEOUT_S) == NotSent(
            Reason.NOT_CONNECTED
        )
        b.transport.set_peers({})
        a.transport.set_peers({})
        await pass_time(1)
        assert not network.ends


@virtual
async def test_a_missing_answer_is_unknown_at_its_deadline_and_the_peer_hears_of_it() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x", timeout_s=3.0)
        await pass_time(2.9)
        assert not asked.outcomes

        await pass_time(1.2)

        assert asked.outcome == Unknown(Reason.DEADLINE)
        (call,) = b.calls
        assert call.is_cancelled
        call.answer(b"too late")
        await pass_time(0.01)
        assert len(asked.outcomes) == 1


@virtual
async def test_a_cancelled_request_is_answered_all_the_same() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)
        assert asked.cancel() is False
        await pass_time(0.01)

        (call,) = b.calls
        assert call.is_cancelled
        assert call.refuse("cancelled")
        await pass_time(0.01)
        assert asked.outcome == Refused("cancelled")
        assert asked.cancel() is False


@virtual
async def test_a_request_that_is_cancelled_before_it_left_has_no_outcome() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x")
        assert asked.cancel() is True
        await pass_time(TIMEOUT_S * 2)

        assert (asked.outcomes, b.calls) == ([], [])


@virtual
async def test_a_request_that_is_overdue_before_it_left_was_not_sent() -> None:
    async with pair() as (a, b, network):
        for end in network.open_ends("b"):
            end.pause_reading()
        a.ask(b, bytes(2 << 20))
        await settled()
        waiting = a.ask(b, b"waiting", timeout_s=0.5)
        await pass_time(1.1)

        assert waiting.outcome == NotSent(Reason.DEADLINE)
        b.holds = True
        for end in network.open_ends("b"):
            end.resume_reading()
        await pass_time(0.1)
        assert [len(call.body) for call in b.calls] == [2 << 20]


@virtual
async def test_a_request_that_left_can_be_cancelled_twice_and_has_an_outcome() -> None:
    async with pair() as (a, b, network):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)
        for end in network.open_ends("b"):
            end.pause_reading()
        a.ask(b, bytes(2 << 20))
        await settled()
        assert asked.cancel() is False  # waits in the outbox
        assert asked.cancel() is False
        for end in network.open_ends("b"):
            end.resume_reading()
        await pass_time(0.1)
        b.calls[0].answer(b"done")
        await pass_time(0.1)

        assert asked.outcome == b"done"


@virtual
async def test_a_bug_costs_one_request() -> None:
    async with pair() as (a, b, _):
        with capture_logs() as logs:
            asked, other = a.ask(b, b"bug"), a.ask(b, b"x")
            await pass_time(0.01)

        assert (asked.outcome, other.outcome) == (Refused(Reason.FAILED), b"re:x")
        assert [line["event"] for line in logs] == ["request_failed"]


@virtual
async def test_a_bug_costs_one_message() -> None:
    async with pair() as (a, b, network):
        ends = list(network.ends)
        link = a.link(b, Channel.REPLICATION)
        with capture_logs() as logs:
            for body in (b"one", b"bug", b"two"):
                assert link.message(SHARD, body) is None
            await pass_time(0.01)

        assert b.messages == [("a", b"one"), ("a", b"two")]
        assert [line["event"] for line in logs] == ["message_failed"]
        assert network.ends == ends


@virtual
async def test_a_bug_while_connecting_costs_an_attempt() -> None:
    network = SimulatedNetwork()
    a, b = Peer("a", network, SETTINGS), Peer("b", network, SETTINGS)
    del a.log_ids  # a bug: its hello fails
    with capture_logs() as logs:
        await start([a, b])
        assert {line["event"] for line in logs} >= {"link_failed"}
        assert not a.reaches(b)

        a.log_ids = {}
        await pass_time(1.0)

    assert a.reaches(b)
    await asyncio.gather(a.transport.stop(), b.transport.stop())


@virtual
async def test_a_stop_waits_for_the_answers_under_way() -> None:
    async with pair() as (a, b, network):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)

        stopping = asyncio.create_task(b.transport.stop())
        await pass_time(0.1)
        assert not stopping.done()
        assert a.ask(b, b"late").outcome == NotSent(Reason.NOT_CONNECTED)
        b.calls.pop().answer(b"in time")
        await stopping

        assert asked.outcome == b"in time"
        await pass_time(0.1)
        assert not network.ends


@virtual
async def test_a_request_that_crosses_with_the_end_was_not_done_for_certain() -> None:
    async with pair() as (a, b, network):
        network.delay_s = 0.2
        on_its_way = a.ask(b, b"x")
        await settled()
        served = len(b.calls)

        stopping = asyncio.create_task(b.transport.stop())
        await pass_time(0.1)
        later = a.ask(b, b"y")  # a has not heard of the end
        await stopping
        await pass_time(1.0)

        assert on_its_way.outcome == later.outcome == Refused(Reason.CLOSING)
        assert len(b.calls) == served


@virtual
async def test_a_stop_does_not_wait_for_ever() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x", timeout_s=100.0)
        await pass_time(0.01)

        await b.transport.stop()
        await pass_time(0.01)

        assert isinstance(asked.outcome, Unknown)


@virtual
async def test_the_asking_host_stops() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)
        stopping = asyncio.create_task(a.transport.stop())
        await pass_time(0.1)

        b.calls.pop().answer(b"in time")
        await stopping

        assert asked.outcome == b"in time"


@virtual
async def test_new_certificates_are_shown_on_new_connections_and_no_request_is_lost() -> None:
    async with pair() as (a, b, network):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)
        old = set(network.ends)
        b.network.has_new_certificates = True

        b.transport.reload()
        await pass_time(1.0)

        again = a.ask(b, b"again")
        await pass_time(0.01)
        for call in b.calls:
            call.answer(b"re:" + call.body)
        await pass_time(0.1)
        assert (asked.outcome, again.outcome) == (b"re:x", b"re:again")
        assert not old & set(network.ends)
        b.transport.reload()
        kept = set(network.ends)
        await pass_time(1.0)
        assert set(network.ends) == kept


@virtual
async def test_a_removed_host_is_let_go_and_not_admitted() -> None:
    async with pair() as (a, b, network):
        with capture_logs() as logs:
            b.transport.set_peers({"b": b.address})
            await pass_time(0.1)

            assert not network.ends
            assert b.transport.link("a", Channel.REQUESTS) is None
            await pass_time(10.0)
        assert Reason.NOT_A_MEMBER in {line.get("reason") for line in logs}
        assert not a.reaches(b)


@virtual
async def test_frames_that_are_not_expected_end_the_connection() -> None:
    async with pair() as (a, b, _):
        for kind in (99, Kind.HELLO, Kind.WELCOME, Kind.ANSWER):
            connection = a.link(b)
            connection.wire.send(kind, 1, b"rubbish")
            await pass_time(0.01)
            assert connection.wire.is_over
            await pass_time(SETTINGS.reconnect_s)
        assert a.reaches(b)


@virtual
async def test_a_connection_that_falls_silent_is_reported_once() -> None:
    async with pair() as (a, b, network):
        lost: list[tuple[str, Channel]] = []
        a.transport.on_lost.append(lambda host, channel: lost.append((host, channel)))
        network.cut("a", "b")
        network.cut("b", "a")
        await pass_time(SILENCE_S + 3.0)

        assert sorted(lost) == sorted((b.name, channel) for channel in KEPT)
