"""Bounds of a connection between two hosts: full outboxes, slow readers, peers that do not
answer."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from cluster.peers.frames import HEAD, Kind
from cluster.peers.peer_outcomes import NotSent, Reason, Refused, Unknown
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import KEPT
from cluster.tests.peers.peers import SETTINGS, SHARD, pair
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time, settled

SILENCE_S = SETTINGS.heartbeat_s * (SETTINGS.silent_beats + 1)


@virtual
async def test_a_full_outbox_fails_at_once_and_does_not_grow() -> None:
    async with pair(outbox_max=4 << 20, frame_max=3 << 20, requests_max=100) as (a, b, network):
        for end in network.open_ends("b"):
            end.pause_reading()
        asked = []
        for _ in range(8):
            asked.append(a.ask(b, bytes(2 << 20)))
            await settled()

        refused = [each for each in asked if isinstance(each.number, NotSent)]

        assert 4 <= len(refused) <= 6
        assert {each.outcome for each in refused} == {NotSent(Reason.FULL)}
        assert a.ask(b, bytes(4 << 20)).outcome == NotSent(Reason.TOO_LARGE)
        for end in network.open_ends("b"):
            end.resume_reading()
        await pass_time(0.1)
        assert all(isinstance(each.outcome, bytes) for each in asked if each not in refused)


@virtual
async def test_large_requests_and_answers_in_both_directions_do_not_wait_for_each_other() -> None:
    async with pair() as (a, b, network):
        network.piece = 1 << 16
        asked = []
        for _ in range(4):
            asked += [a.ask(b, bytes(3 << 20)), b.ask(a, bytes(3 << 20))]
            await settled()

        await pass_time(1.0)

        assert all(isinstance(each.outcome, bytes) for each in asked)


@virtual
async def test_the_other_channel_does_not_wait_for_a_slow_one() -> None:
    async with pair(outbox_max=4 << 20) as (a, b, network):
        requests = [end for end in network.open_ends("b", "a") if end.writes]
        a.ask(b, b"which")
        before = {end: end.writes for end in requests}
        await pass_time(0.01)
        (answering,) = [end for end in requests if end.writes > before[end]]
        answering.pause_reading()
        for _ in range(3):
            a.ask(b, bytes(2 << 20))
            await settled()
        assert a.ask(b, bytes(3 << 20)).outcome == NotSent(Reason.FULL)

        assert a.link(b, Channel.REPLICATION).message(SHARD, b"an Entry") is None
        await pass_time(0.01)

        assert b.messages == [("a", b"an Entry")]
        answering.resume_reading()


@virtual
async def test_a_peer_that_does_not_read_loses_its_connection() -> None:
    async with pair() as (a, b, network):
        for end in network.open_ends("a"):
            end.pause_reading()
        asked = a.ask(b, bytes(4 << 20))

        await pass_time(SILENCE_S + 0.1)

        assert isinstance(asked.outcome, Unknown)


@virtual
async def test_an_answer_without_room_is_refused_alone() -> None:
    async with pair(outbox_max=4 << 20, frame_max=3 << 20) as (a, b, network):
        b.holds = True
        asked = [a.ask(b, b"x") for _ in range(4)]
        await pass_time(0.01)
        for end in network.open_ends("a"):
            end.pause_reading()
        told = []
        for call in b.calls[:3]:
            told.append(call.answer(bytes(2 << 20)))
            await settled()
        told.append(b.calls[3].answer(b"small"))
        assert told == [True, True, False, True]
        assert b.calls[0].answer(b"twice") is False

        for end in network.open_ends("a"):
            end.resume_reading()
        await pass_time(0.1)

        assert isinstance(asked[1].outcome, bytes)
        assert isinstance(asked[2].outcome, Refused)
        assert asked[2].outcome.reason == Reason.FULL
        assert asked[3].outcome == b"small"


@virtual
async def test_an_answer_that_is_too_large_is_refused() -> None:
    async with pair(frame_max=1 << 20) as (a, b, _):
        b.holds = True
        asked = a.ask(b, b"x")
        await pass_time(0.01)

        assert b.calls[0].answer(bytes(2 << 20)) is False
        await pass_time(0.01)

        assert isinstance(asked.outcome, Refused)
        assert asked.outcome.reason == Reason.TOO_LARGE


@virtual
async def test_more_requests_than_are_served_at_a_time_are_refused() -> None:
    async with pair() as (a, b, _):
        b.holds = True
        b.transport._settings = SETTINGS
        for incoming in b.transport._incoming:
            incoming._settings = type(SETTINGS)(requests_max=2)
        asked = [a.ask(b, b"%d" % number) for number in range(3)]
        await pass_time(0.01)

        assert asked[2].outcome == Refused(Reason.BUSY)
        assert [call.body for call in b.calls] == [b"0", b"1"]
        assert not asked[0].outcomes


@virtual
async def test_more_requests_than_may_be_open_are_not_sent() -> None:
    async with pair(requests_max=2) as (a, b, _):
        b.holds = True
        asked = [a.ask(b, b"x") for _ in range(3)]

        assert asked[2].outcome == NotSent(Reason.FULL)


@virtual
async def test_a_peer_that_does_not_answer_is_left_alone_for_a_while() -> None:
    async with pair(breaker_failures=3, breaker_s=4.0) as (a, b, _):
        b.holds = True
        for _ in range(3):
            a.ask(b, b"x", timeout_s=1.0)
        await pass_time(2.0)

        assert a.ask(b, b"x").outcome == NotSent(Reason.BREAKER_OPEN)

        b.holds = False
        await pass_time(4.0)
        trying = a.ask(b, b"try")
        assert a.ask(b, b"x").outcome == NotSent(Reason.BREAKER_OPEN)
        await pass_time(0.01)
        assert trying.outcome == b"re:try"
        again = a.ask(b, b"again")
        await pass_time(0.01)
        assert again.outcome == b"re:again"


@virtual
async def test_a_stranger_that_says_nothing_is_cut_off() -> None:
    async with pair(connections_max=len(KEPT) + 4) as (_, b, network):
        strangers = [asyncio.Protocol() for _ in range(4)]
        for stranger in strangers:
            await network.of("c").connect("b", b.address, stranger)
        await pass_time(0.1)

        assert len(network.open_ends("c")) == 4
        await network.of("c").connect("b", b.address, asyncio.Protocol())
        await pass_time(0.1)
        assert len(network.open_ends("c")) == 4

        with capture_logs() as logs:
            await pass_time(SETTINGS.handshake_s)
        assert not network.open_ends("c")
        assert [line["reason"] for line in logs] == 4 * [Reason.SILENT]


@virtual
async def test_a_stranger_that_only_sends_heartbeats_is_cut_off() -> None:
    async with pair() as (_, b, network):
        await network.of("c").connect("b", b.address, asyncio.Protocol())
        (end,) = network.open_ends("c")
        with capture_logs() as logs:
            for _beat in range(6):
                end.write(HEAD.pack(0, Kind.HEARTBEAT, 0))
                await pass_time(1.0)

        assert not network.open_ends("c")
        assert [line["reason"] for line in logs] == [Reason.NO_HANDSHAKE]
