"""Requests of one pass of the loop that cross to their leader as one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from cluster.encoded_requests import decode_requests, encode_context, encode_requests
from cluster.peers import forwarded
from cluster.peers.forwarded import BUNDLE, REQUEST_HEAD, VERSION, ForwardedRequests
from cluster.peers.link import Call, Link
from cluster.peers.peer_outcomes import NotSent, OnOutcome, Reason, Refusal
from cluster.peers.peer_settings import Channel
from cluster.shards.router import takes_all
from cluster.shards.turn_timing import PASSES_MAX
from cluster.tests.peers.peer_hosts import (
    QUEUE,
    RECEIVE,
    SEND,
    Host,
    running,
    the_cluster,
)
from cluster.tests.peers.test_unknown_outcomes import losing
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, pass_time
from visibility.contract import operations as op
from visibility.contract.errors import InternalError, ServiceUnavailable
from visibility.contract.model import Receipt
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageResult
from visibility.rules.arrivals import AcceptMessages
from visibility.tests import prepared


class Crossing:
    """The requests that cross any link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies: list[bytes] = []
        request = Link.request

        def note(link: Link, body: bytes, on_outcome: OnOutcome, timeout_s: float) -> int | NotSent:
            self.bodies.append(body)
            return request(link, body, on_outcome, timeout_s)

        monkeypatch.setattr(Link, "request", note)

    @property
    def sizes(self) -> list[int]:
        """Of the bundles, 0 for a request by itself."""
        return [self._size(body) for body in self.bodies]

    def _size(self, body: bytes) -> int:
        if REQUEST_HEAD.unpack_from(body)[1] != BUNDLE:
            return 0
        return len(decode_requests(body, {QUEUE.queue_id: QUEUE}.get, REQUEST_HEAD.size))


@pytest.fixture
def crossing(monkeypatch: pytest.MonkeyPatch) -> Crossing:
    return Crossing(monkeypatch)


def sends(host: Host, *bodies: str) -> list[AskedShard]:
    return [host.ask(prepared.send(QUEUE, body)) for body in bodies]


async def stored(host: Host) -> list[str]:
    """The messages, in order."""
    received = host.ask(prepared.receive(QUEUE, 10))
    await pass_time(0.01)
    return sorted(received.bodies)


@virtual
async def test_sends_of_a_pass_cross_as_one(crossing: Crossing) -> None:
    async with running(the_cluster()) as (a, b):
        asked = sends(a, "1", "2", "3")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [SendMessageResult] * 3
        assert (crossing.sizes, a.router.forwarded) == ([3], 3)
        sent = [each.answers[0] for each in asked]
        assert len({each.message_id for each in sent if isinstance(each, SendMessageResult)}) == 3
        assert await stored(b) == ["1", "2", "3"]


@virtual
async def test_one_by_itself_crosses_as_before(crossing: Crossing) -> None:
    async with running(the_cluster()) as (a, b):
        sends(a, "1")
        await pass_time(0.01)

        assert crossing.sizes == [0]
        assert await stored(b) == ["1"]


@virtual
async def test_a_bundle_waits_while_more_come(crossing: Crossing) -> None:
    async with running(the_cluster()) as (a, b):
        for body in "abcdefgh":
            sends(a, body, body)
            await asyncio.sleep(0)
        await pass_time(0.01)

        assert sum(crossing.sizes) == 16
        assert crossing.sizes[0] == 2 * (PASSES_MAX + 1)
        assert len(await stored(b)) == 10


@virtual
async def test_other_contexts_are_other_bundles(crossing: Crossing) -> None:
    async with running(the_cluster()) as (a, b):
        late = op.SendMessage(delay_seconds=60)
        for delayed in (False, True, False, True):
            send = prepared.send(QUEUE, "x")
            if delayed:
                send = msgspec.structs.replace(send, operation=late)
            a.ask(send)
        a.ask(RECEIVE)  # a client may give it up
        await pass_time(0.01)

        assert crossing.sizes == [0, 2, 2]
        assert len(await stored(b)) <= 2


@virtual
async def test_bundles_are_bounded(crossing: Crossing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarded, "REQUESTS_MAX", 2)
    async with running(the_cluster()) as (a, b):
        asked = sends(a, "1", "2", "3", "x" * (forwarded.BYTES_MAX + 1), "5")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [SendMessageResult] * 5
        assert crossing.sizes == [0, 2, 2]  # the large one first: it waits for none
        assert len(await stored(b)) == 5


@virtual
async def test_a_host_of_an_earlier_version_gets_them_one_by_one(crossing: Crossing) -> None:
    cluster = the_cluster()
    cluster.hosts[1].transport._versions = (1,)
    async with running(cluster) as (a, _):
        asked = sends(a, "1", "2")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert crossing.sizes == [0, 0]


@virtual
async def test_a_host_that_came_back_with_an_earlier_version_gets_them_one_by_one(
    crossing: Crossing,
) -> None:
    async with running(the_cluster()) as (a, _):
        asked = sends(a, "1", "2")
        link = a.transport.link("b", Channel.REQUESTS)
        assert link is not None
        link.version = 1
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert crossing.sizes == [0, 0]


@virtual
async def test_each_has_its_own_answer(crossing: Crossing) -> None:
    async with running(the_cluster()) as (a, b):
        sends(b, "1", "2")
        received = b.ask(prepared.receive(QUEUE, 2))
        await pass_time(0.01)
        (deliveries,) = received.answers
        assert isinstance(deliveries, Deliveries)
        known = [Receipt(lease.sequence, lease.receive_count) for lease in deliveries.leases]
        no_message = Receipt(known[0].sequence, known[0].delivery + 7)

        asked = [a.ask(prepared.delete(QUEUE, each)) for each in (known[0], no_message, known[1])]
        there = b.ask(prepared.delete(QUEUE, no_message))
        await pass_time(0.01)

        assert crossing.sizes == [3]
        assert [each.refusal for each in asked] == [type(None), there.refusal, type(None)]
        assert b.shard.counters()[QUEUE.queue_id].visible == 0


@virtual
async def test_a_refusal_for_want_of_space_is_that_of_each() -> None:
    async with running(the_cluster()) as (a, b):
        b.disk_is_short = True
        asked = sends(a, "1", "2")
        await pass_time(0.01)

        for each in asked:
            (refusal,) = each.answers
            assert isinstance(refusal, ServiceUnavailable)
            assert refusal.message == "short"


@virtual
async def test_what_was_not_decided_is_tried_again_where_the_leader_is(crossing: Crossing) -> None:
    async with running(the_cluster("abc")) as (a, b, c):
        await b.fall()
        await c.lead()
        b.leaders.learn("c")

        asked = sends(a, "1", "2", "3")  # to b, which says who leads
        await pass_time(0.1)

        assert [each.refusal for each in asked] == [SendMessageResult] * 3
        assert crossing.sizes == [3, 3]
        assert await stored(c) == ["1", "2", "3"]


@virtual
async def test_a_leader_that_knows_an_older_version_catches_up_first(crossing: Crossing) -> None:
    newer = msgspec.structs.replace(QUEUE, version=2)
    async with running(the_cluster()) as (a, b):
        a.view.define(newer)
        b.view.news = lambda: b.view.define(newer)

        asked = [a.ask(prepared.send(newer, body)) for body in "12"]
        await pass_time(0.1)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert len(crossing.bodies) == 1


@virtual
async def test_a_host_that_knows_an_older_version_decides_anew() -> None:
    newer = msgspec.structs.replace(QUEUE, version=2)
    async with running(the_cluster()) as (a, b):
        b.view.define(newer)
        a.view.news = lambda: a.view.define(newer)

        asked = sends(a, "1", "2")
        await pass_time(0.1)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert [each.ticket.request.queue for each in asked] == [newer] * 2


@pytest.mark.parametrize("kind", ["crash", "deposed"])
@virtual
async def test_a_lost_bundle_is_not_sent_twice(kind: str) -> None:
    async with losing(kind) as lost:
        others = sends(lost.a, "1", "2")
        asked = await lost.ask(prepared.send(QUEUE, "3"))

        assert [each.refusal for each in (*others, asked)] == [SendMessageResult] * 3
        assert len(lost.messages) == 3


@virtual
async def test_without_a_connection_they_are_held(crossing: Crossing) -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        asked = sends(a, "1", "2")
        cluster.network.cut("a", "b")
        for end in cluster.network.open_ends("a"):
            end.abort()
        await pass_time(0.5)
        assert not any(each.answers for each in asked)
        cluster.network.mend()
        await pass_time(5)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert await stored(b) == ["1", "2"]


@pytest.mark.parametrize("answer", [b"", b"\x00", b"\x01", b"\x02", b"\x00\x90", b"\x01\x04None"])
@virtual
async def test_other_bytes_are_no_answers(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(the_cluster()) as (a, _):
        monkeypatch.setattr(forwarded.Bundle, "_outcomes", lambda bundle: answer)
        asked = sends(a, "1", "2")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [InternalError] * 2


@virtual
async def test_other_bytes_are_no_bundle() -> None:
    async with running(the_cluster()) as (a, _):
        link = a.transport.link("b", Channel.REQUESTS)
        assert link is not None
        outcomes: list[object] = []
        none = encode_context(SEND, op.SendMessage())
        for rest in (b"", b"\x00\x00\x00\x00", none, none + b"\x90"):
            link.request(REQUEST_HEAD.pack(0, BUNDLE) + rest, outcomes.append, 5.0)
        await pass_time(0.01)

        assert [getattr(each, "reason", "") for each in outcomes] == [Refusal.UNREADABLE] * 4


class _Refused(Call):
    """A call that is refused."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.refused = ""

    @override
    def refuse(self, reason: str, detail: str = "") -> bool:
        self.refused = reason
        return True


async def refusal_of(body: bytes, allowed: Collection[type[op.Operation]] | None = None) -> str:
    """The reason for which a leader refuses such a bundle."""
    (host,) = the_cluster("a").hosts
    await host.lead()
    decided = ForwardedRequests({0: host.shard}, host.leaders, host.view, refusal=takes_all)
    call = _Refused(REQUEST_HEAD.pack(0, BUNDLE) + body)
    decided._decide(call, allowed=allowed)
    await host.shard.stop()
    return call.refused


@virtual
async def test_what_may_not_join_does_not_come_in_a_bundle() -> None:
    """Such as messages of an outbox, which a gateway may not bring."""
    for operation in (AcceptMessages([]), op.ReceiveMessage(), op.DeleteMessage()):
        body = encode_requests(encode_context(SEND, operation), [SEND, SEND])
        assert await refusal_of(body) == Refusal.UNREADABLE


@virtual
async def test_what_a_role_may_not_ask_for_is_refused_in_a_bundle_too() -> None:
    body = encode_requests(encode_context(SEND, op.SendMessage()), [SEND, SEND])
    assert await refusal_of(body, {op.DeleteMessage}) == Refusal.NOT_ALLOWED


@virtual
async def test_a_callback_with_a_bug_costs_its_own_request_only() -> None:
    async with running(the_cluster()) as (a, _):

        def bug(answer: object) -> None:
            raise RuntimeError("a bug")

        a.router.submit(msgspec.structs.replace(SEND, request_id="r"), bug)
        asked = sends(a, "1", "2")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2


@virtual
async def test_what_cannot_be_encoded_is_answered_and_keeps_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(context: bytes, sent: object) -> bytes:
        monkeypatch.undo()
        raise TypeError("a bug")

    async with running(the_cluster()) as (a, b):
        monkeypatch.setattr(forwarded, "encode_requests", bug)
        asked = sends(a, "1", "2")
        late = msgspec.structs.replace(SEND, operation=op.SendMessage(delay_seconds=60))
        others = [a.ask(late), a.ask(late)]  # another bundle of the same pass
        with capture_logs() as logs:
            await pass_time(0.01)

        assert [each.refusal for each in asked] == [ServiceUnavailable] * 2
        assert [each.refusal for each in others] == [SendMessageResult] * 2
        events = [each["event"] for each in logs]
        assert events.count("requests_not_encoded") == 1
        assert events.count("request_given_up") == 2
        assert await stored(b) == []


@virtual
async def test_answers_that_cannot_be_encoded_are_asked_for_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(answers: object) -> bytes:
        raise TypeError("a bug")

    async with running(the_cluster()) as (a, b):
        monkeypatch.setattr(forwarded, "encode_alike", bug)
        with capture_logs() as logs:
            asked = sends(a, "1", "2")
            await pass_time(0.5)  # far less than an answer is waited for

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert [each["event"] for each in logs].count("answers_not_encoded") == 1
        assert await stored(b) == ["1", "2"], "none is done twice"


@virtual
async def test_a_full_outbox_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [NotSent(Reason.FULL)]
    request = Link.request

    def full_once(
        link: Link, body: bytes, on_outcome: OnOutcome, timeout_s: float
    ) -> int | NotSent:
        return refusals.pop() if refusals else request(link, body, on_outcome, timeout_s)

    monkeypatch.setattr(Link, "request", full_once)
    async with running(the_cluster()) as (a, b):
        asked = sends(a, "1", "2")
        await pass_time(0.5)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert await stored(b) == ["1", "2"]


@virtual
async def test_an_expired_handle_of_a_fifo_queue_is_named_wherever_it_is_refused() -> None:
    queue = prepared.queue_named("q.fifo", 2)
    sent = prepared.send(queue, "1", group="g", deduplication_id="1")
    cluster = the_cluster()
    cluster.define(sent)
    async with running(cluster) as (a, b):
        b.ask(sent)
        received = b.ask(prepared.receive(queue, timeout_s=1))
        await pass_time(2)
        (deliveries,) = received.answers
        assert isinstance(deliveries, Deliveries)
        (lease,) = deliveries.leases
        delete = prepared.delete(queue, Receipt(lease.sequence, lease.receive_count))
        asked = [a.ask(delete), a.ask(msgspec.structs.replace(delete, request_id="again"))]
        asked.append(b.ask(msgspec.structs.replace(delete, request_id="direct")))
        await pass_time(0.5)

        texts = {str(each.answers[0]) for each in asked}
        assert texts == {
            "Value handle for parameter ReceiptHandle is invalid. "
            "Reason: The receipt handle has expired."
        }


def test_the_bytes_of_requests_in_a_bundle_are_those_of_the_version() -> None:
    """Whoever changes them raises the version: hosts of two builds are one cluster for a while."""
    delete = prepared.delete(QUEUE, Receipt(5, 1))
    found = [encode_requests(b"", [each]) for each in (SEND, delete)]
    md5 = b"\xb3md5_of_message_body\xd9 " + b"0" * 32
    assert (VERSION, found) == (
        3,
        [
            b"\x91\x92\xa7request\x91\x83\xa4data\xc4\x05hello\xa4size\x05" + md5,
            b"\x91\x92\xa7request\x91\x82\xa8sequence\x05\xa8delivery\x01",
        ],
    )


@virtual
async def test_urls_and_handles_of_deletes_stay_where_they_are(crossing: Crossing) -> None:
    """The leader has the receipts. No frame would have room for three such URLs."""
    async with running(the_cluster()) as (a, b):
        for body in "1234":
            b.ask(prepared.send(QUEUE, body))
        received = b.ask(prepared.receive(QUEUE, 4))
        await pass_time(0.01)
        (deliveries,) = received.answers
        assert isinstance(deliveries, Deliveries)
        asked = []
        for number, lease in enumerate(deliveries.leases):
            delete = prepared.delete(QUEUE, Receipt(lease.sequence, lease.receive_count))
            url = "http://" + "x" * (6 << 20) * (number > 0) + "/000000000000/q"
            operation = msgspec.structs.replace(delete.operation, queue_url=url)
            asked.append(a.ask(msgspec.structs.replace(delete, operation=operation)))
        await pass_time(0.5)

        assert [each.refusal for each in asked] == [type(None)] * 4
        assert crossing.sizes == [4]
        assert len(crossing.bodies[0]) < 1_000
