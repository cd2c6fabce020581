"""Requests that reach the wrong host: two or three hosts with real shards, in virtual time."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from auth.auth_errors import AccessDenied
from auth.caller import Caller
from cluster.encoded_requests import encode_answer
from cluster.peers.held_requests import Routed
from cluster.peers.link import Call
from cluster.peers.peer_outcomes import Outcome, Refusal, Refused
from cluster.peers.peer_settings import Channel, ForwardingSettings, PeerSettings
from cluster.tests.peers.peer_hosts import (
    COUNT,
    POLL,
    QUEUE,
    RECEIVE,
    SEND,
    Cluster,
    Host,
    running,
    the_cluster,
)
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time, settled
from visibility.contract import operations as op
from visibility.contract.errors import (
    InternalError,
    QueueError,
    RequestThrottled,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.model import QueueCounters, Receipt, Request
from visibility.contract.outcomes import Accepted, Deliveries
from visibility.contract.results import SendMessageBatchResult, SendMessageResult
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.handing_out import COUNTED_BYTES_MIN
from visibility.tests import prepared


def raw(host: Host, peer: Host, body: bytes) -> list[Outcome]:
    """Any bytes as a forwarded request."""
    link = host.transport.link(peer.name, Channel.REQUESTS)
    outcomes: list[Outcome] = []
    assert link is not None
    link.request(body, outcomes.append, 5.0)
    return outcomes


def of_shard(operation: op.Operation, request_id: str) -> Request:
    return Request(operation, the_shard(0), Caller("", "", "deliveries"), request_id)


@virtual
async def test_a_send_through_the_wrong_host_reaches_the_leader() -> None:
    async with running(the_cluster()) as (a, b):
        sent = a.ask(SEND)
        await pass_time(0.01)
        received = b.ask(RECEIVE)
        await pass_time(0.01)

        assert sent.refusal is SendMessageResult
        assert received.bodies == ["hello"]
        assert (a.router.forwarded, b.router.forwarded) == (1, 0)


@virtual
async def test_readable_bodies_stay_on_the_host_that_sealed_them() -> None:
    async with running(the_cluster()) as (a, b):
        attributes = {"a": op.MessageAttributeValue("String", "readable")}
        single = op.SendMessage(message_body="readable", message_attributes=attributes)
        entries = [
            op.SendMessageBatchRequestEntry(
                name, "readable", delay_s, attributes, attributes, "readable", "readable"
            )
            for name, delay_s in (("one", None), ("two", 60))
        ]
        batch = op.SendMessageBatch(entries=entries)
        parts = [prepared.content("sealed 1"), prepared.content("sealed 2")]
        asked = [
            a.ask(prepared.prepared(QUEUE, single, parts[:1])),
            a.ask(prepared.prepared(QUEUE, batch, parts)),
        ]
        await pass_time(0.01)

        for each in asked:
            assert isinstance(each.ticket, Routed)
            assert b"sealed" in each.ticket.body
            assert b"readable" not in each.ticket.body
        (answer,) = asked[1].answers
        assert isinstance(answer, SendMessageBatchResult)
        assert [entry.id for entry in answer.successful or ()] == ["one", "two"]
        received = b.ask(prepared.receive(QUEUE, 10))
        await pass_time(0.01)
        assert received.bodies == ["sealed 1", "sealed 1"]  # the other is delayed


@virtual
async def test_messages_of_an_outbox_reach_the_leader_of_their_shard_once() -> None:
    async with running(the_cluster()) as (a, b):
        content = prepared.content("a dead letter")
        letter = StoredMessage("the id", 1, content.size, content.data)
        arrival = Arrival(b"the origin".ljust(16), 1, QUEUE.queue_id, QUEUE.arn, letter)
        accept = AcceptMessages([arrival], [(arrival.origin, 1)])
        asked = [a.ask(of_shard(accept, f"try {number}")) for number in range(2)]
        await pass_time(0.01)

        taken = Accepted([(arrival.origin, 1, "")])
        assert [each.answers for each in asked] == [[taken], [taken]]
        received = b.ask(prepared.receive(QUEUE, 10))
        await pass_time(0.01)
        assert received.bodies == ["a dead letter"]


@virtual
async def test_a_refusal_crosses() -> None:
    async with running(the_cluster()) as (a, b):
        there, here = (host.ask(prepared.change(QUEUE, Receipt(1, 1), 5)) for host in (a, b))
        await pass_time(0.01)

        ((refusal,), (same,)) = there.answers, here.answers
        assert isinstance(refusal, QueueError)
        assert isinstance(same, QueueError)
        assert (type(refusal), refusal.message) == (type(same), same.message)


@virtual
async def test_what_a_role_may_not_ask_for_is_refused_with_a_sentence() -> None:
    """A gateway asks hosts only for what clients ask for."""
    async with running(the_cluster()) as (a, b):

        def refuse(call: Call) -> None:
            call.refuse(Refusal.NOT_ALLOWED, "SendMessage")

        b.requests.on_request = refuse

        asked = a.ask(SEND)
        await pass_time(0.01)

        (refusal,) = asked.answers
        assert isinstance(refusal, UnsupportedOperation)
        assert "SendMessage" in refusal.message
        assert "Ask a host" in refusal.message


@virtual
async def test_only_receives_need_the_room_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose receive found none can send, delete and undo all the same."""
    async with running(the_cluster()) as (a, b):
        b.ask(prepared.send(QUEUE, "x" * COUNTED_BYTES_MIN))
        await pass_time(0.01)
        monkeypatch.setattr(Call, "has", lambda call, size, messages: False)

        refused, sent = a.ask(RECEIVE), a.ask(SEND)
        await pass_time(0.01)
        counted = a.ask(COUNT)
        await pass_time(0.01)

        assert (refused.refusal, sent.refusal) == (RequestThrottled, SendMessageResult)
        assert counted.answers == [QueueCounters(2, 0, 0)]


@virtual
async def test_requests_of_one_pass_are_one_turn_of_the_leader() -> None:
    async with running(the_cluster()) as (a, b):
        turns = sum(b.shard.report().turn_s.buckets)

        asked = [a.ask(SEND) for _ in range(100)]
        await pass_time(0.01)

        assert {each.refusal for each in asked} == {SendMessageResult}
        assert sum(b.shard.report().turn_s.buckets) == turns + 1


@virtual
async def test_a_long_poll_waits_at_the_leader() -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)
        await pass_time(5.0)
        assert (poll.answers, b.shard.report().parked) == ([], 1)

        b.ask(SEND)
        await pass_time(0.01)

        assert poll.bodies == ["hello"]


@virtual
async def test_a_long_poll_ends_empty_in_time() -> None:
    async with running(the_cluster()) as (a, _):
        poll = a.ask(POLL)
        await pass_time(19.9)
        assert not poll.answers

        await pass_time(0.2)

        assert poll.bodies == []


@virtual
async def test_a_client_that_hangs_up_is_taken_out_at_the_leader() -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)
        await pass_time(0.01)

        assert a.router.cancel(poll.ticket) is False
        await pass_time(0.01)

        assert b.shard.report().parked == 0
        assert poll.bodies == []
        await pass_time(30.0)
        assert len(poll.answers) == 1


@virtual
async def test_a_client_that_hangs_up_before_its_request_left() -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)

        assert a.router.cancel(poll.ticket) is True
        await pass_time(30.0)

        assert (poll.answers, b.shard.report().parked) == ([], 0)


@virtual
async def test_a_client_that_hangs_up_at_the_leader_or_while_its_request_is_held() -> None:
    async with running(the_cluster()) as (a, b):
        here = b.ask(POLL)
        await pass_time(0.01)
        assert b.router.cancel(here.ticket) is True
        assert b.shard.report().parked == 0
        a.leaders.learn(None)
        held = a.ask(POLL)
        assert len(a.router.retries) == 1

        assert a.router.cancel(held.ticket) is True

        assert len(a.router.retries) == 0
        await pass_time(40.0)
        assert (here.answers, held.answers) == ([], [])


@virtual
async def test_a_send_whose_client_hung_up_is_not_answered_like_a_receive() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, _):
        cluster.network.cut("a", "b")
        sent = a.ask(SEND)
        await pass_time(0.01)

        assert a.router.cancel(sent.ticket) is False
        await pass_time(10.0)

        (answer,) = sent.answers
        assert isinstance(answer, ServiceUnavailable)


@virtual
async def test_a_node_that_stops_waits_for_nothing_at_other_hosts() -> None:
    async with running(the_cluster()) as (a, b):
        parked = a.ask(POLL)
        await pass_time(0.01)
        unsent = a.ask(POLL)

        a.router.end_waiting()
        await pass_time(0.01)

        assert (parked.bodies, unsent.bodies, b.shard.report().parked) == ([], [], 0)


@virtual
async def test_a_node_that_stops_waits_a_little_for_the_next_leader() -> None:
    async with running(the_cluster()) as (a, b):
        a.leaders.learn(None)
        held, poll = a.ask(SEND), a.ask(POLL)
        await pass_time(1.0)
        assert not held.answers

        a.router.end_waiting()
        await pass_time(0.5)
        assert (held.answers, poll.bodies) == ([], [])
        a.leaders.learn(b.name)
        await pass_time(0.1)

        assert held.refusal is SendMessageResult


@virtual
async def test_a_node_that_stops_gives_up_held_requests_soon() -> None:
    async with running(the_cluster()) as (a, _):
        a.leaders.learn(None)
        held = a.ask(SEND)
        await pass_time(1.0)

        a.router.end_waiting()
        late = a.ask(SEND)
        await pass_time(2.6)

        assert (held.refusal, late.refusal) == (ServiceUnavailable, ServiceUnavailable)


@virtual
async def test_messages_meet_a_client_that_hung_up() -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)
        await pass_time(0.01)
        b.ask(SEND)
        await settled()  # the answer is on its way

        assert a.router.cancel(poll.ticket) is False
        await pass_time(0.01)

        assert poll.bodies == ["hello"]  # for the gateway to give back


@virtual
async def test_messages_of_a_host_that_dies_are_given_back_at_once() -> None:
    cluster = Cluster("ab", auto_sync=False)
    cluster.define(SEND)
    async with running(cluster) as (a, b):
        sent = b.ask(SEND)
        for _ in range(3):
            await settled()
            cluster.store.sync_all()
        assert sent.refusal is SendMessageResult
        received = a.ask(RECEIVE)
        await pass_time(0.01)

        cluster.network.crash("a")
        cluster.network.cut("a", "b")
        await pass_time(0.01)
        cluster.store.auto_sync = True
        cluster.store.sync_all()
        await pass_time(0.1)

        assert not received.answers
        again = b.ask(RECEIVE)
        await pass_time(0.01)
        assert again.bodies == ["hello"]
        (answer,) = again.answers
        assert isinstance(answer, Deliveries)
        assert answer.leases[0].receive_count == 1


@virtual
async def test_an_asking_host_that_dies_leaves_no_long_polls() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        a.ask(POLL)
        await pass_time(0.01)
        assert b.shard.report().parked == 1

        cluster.network.crash("a")
        await pass_time(0.01)

        assert b.shard.report().parked == 0


# -- what cannot be read ---------------------------------------------------------------------------


@virtual
async def test_bytes_that_are_no_request_are_refused() -> None:
    async with running(the_cluster()) as (a, b):
        unreadable = [raw(a, b, body) for body in (b"", b"abc", bytes(4) + b"rubbish")]
        elsewhere = raw(a, b, b"\xff" * 10)
        await pass_time(0.01)

        for (outcome,) in unreadable:
            assert isinstance(outcome, Refused)
            assert outcome.reason == Refusal.UNREADABLE
        assert elsewhere == [Refused(Refusal.NOT_LEADER)]


@pytest.mark.parametrize(
    "rubbish", [b"", b"short", bytes(8) + b"rubbish", bytes(8) + encode_answer(AccessDenied())]
)
@virtual
async def test_an_answer_that_cannot_be_read_is_an_internal_error(rubbish: bytes) -> None:
    async with running(the_cluster()) as (a, b):

        def answer_rubbish(call: Call) -> None:
            call.answer(rubbish)

        b.requests.on_request = answer_rubbish

        with capture_logs() as logs:
            asked = a.ask(SEND)
            await pass_time(0.01)

        assert asked.refusal is InternalError
        assert [line["event"] for line in logs] == ["answer_unreadable"]


@virtual
async def test_a_leader_that_does_not_answer_costs_its_time_and_no_more() -> None:
    settings = ForwardingSettings(answer_s=2.0, hold_s=2.0)
    cluster = Cluster("ab", settings, settings=PeerSettings(breaker_failures=2))
    cluster.define(SEND)
    async with running(cluster) as (a, b):
        b.requests.on_request = lambda call: None

        asked = [a.ask(SEND)]
        await settled()
        asked.append(a.ask(SEND))
        await pass_time(3.0)
        assert [each.refusal for each in asked] == 2 * [ServiceUnavailable]
        link = a.transport.link("b", Channel.REQUESTS)
        assert link is not None
        assert link.breaker.is_open

        await pass_time(0.1)
        held = a.ask(SEND)
        await settled()
        assert not held.answers
