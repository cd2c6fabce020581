"""Leaders come and go while requests are under way: hosts with real shards, in virtual time."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.peers.peer_settings import ForwardingSettings
from cluster.shards.answers import NotDecided
from cluster.tests.peers.peer_hosts import (
    COUNT,
    FORWARDING,
    POLL,
    QUEUE,
    RECEIVE,
    SEND,
    running,
    the_cluster,
)
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time, settled
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters
from visibility.contract.results import SendMessageResult
from visibility.tests import prepared

GIVEN_UP_S = FORWARDING.hold_s + FORWARDING.retry_max_s


@virtual
async def test_requests_are_held_until_there_is_a_leader() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()
        asked = [a.ask(SEND), b.ask(SEND), a.ask(COUNT)]
        await pass_time(5.0)
        assert not any(each.answers for each in asked)

        await a.lead()
        cluster.learn("a")
        await pass_time(0.01)

        assert [each.refusal for each in asked] == [
            SendMessageResult,
            SendMessageResult,
            QueueCounters,
        ]


@virtual
async def test_requests_of_a_leader_that_falls_before_it_decides_go_to_the_next() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):

        def bug(answer: object) -> None:
            raise RuntimeError("a bug")

        b.shard.submit(msgspec.structs.replace(SEND, request_id="x"), bug)
        asked = [b.ask(prepared.send(QUEUE, body)) for body in "12"]
        cluster.learn(None)
        with capture_logs() as logs:
            await b.fall()
        assert [line["event"] for line in logs].count("answer_failed") == 1
        assert not any(each.answers for each in asked)

        await a.lead()
        cluster.learn("a")
        await pass_time(1.0)

        assert [each.refusal for each in asked] == [SendMessageResult] * 2
        assert b.router.forwarded == 2
        assert a.shard.counters()[QUEUE.queue_id].visible == 2


@virtual
async def test_a_request_that_came_back_from_a_shard_can_be_given_up() -> None:
    cluster = the_cluster()
    async with running(cluster) as (_, b):
        asked = b.ask(prepared.receive(QUEUE))
        cluster.learn(None)
        await b.fall()
        assert len(b.router.retries) == 1

        assert b.router.cancel(asked.ticket)
        assert len(b.router.retries) == 0


@virtual
async def test_a_request_without_a_leader_is_unavailable_after_a_bounded_time() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()
        asked = a.ask(SEND)
        await pass_time(FORWARDING.hold_s - 0.1)
        assert not asked.answers

        with capture_logs() as logs:
            await pass_time(0.1 + FORWARDING.retry_max_s)

        assert asked.refusal is ServiceUnavailable
        assert [line["event"] for line in logs] == ["request_given_up"]
        assert not len(a.router.retries)


@virtual
@pytest.mark.parametrize(("wait_s", "ends_s"), [(20, 25.0), (3, FORWARDING.hold_s)])
async def test_a_long_poll_without_a_leader_lasts_little_longer_than_its_wait_or_the_hold(
    wait_s: int, ends_s: float
) -> None:
    """The SDK for Java waits 30 s for the answer to a poll of 20 s."""
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()
        asked = a.ask(prepared.receive(QUEUE, wait_s=wait_s))
        await pass_time(ends_s - 0.1)
        assert not asked.answers

        await pass_time(0.1 + FORWARDING.retry_max_s)

        assert asked.refusal is ServiceUnavailable


@virtual
async def test_long_polls_survive_a_change_of_the_leader_and_keep_their_time() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        there, here = a.ask(POLL), b.ask(POLL)
        await pass_time(5.0)
        await b.fall()
        await pass_time(3.0)
        assert (there.answers, here.answers) == ([], [])

        await a.lead()
        cluster.learn("a")
        await pass_time(0.01)
        assert a.shard.report().parked == 2
        b.ask(SEND)
        await pass_time(0.01)

        first, second = sorted((there, here), key=lambda each: len(each.answers))
        assert (first.answers, second.bodies) == ([], ["hello"])
        await pass_time(11.8)
        assert not first.answers
        await pass_time(1.2)
        assert first.bodies == []


@virtual
async def test_a_leader_that_crashes_costs_no_request() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, b, c):
        poll = a.ask(POLL)
        await pass_time(1.0)
        for end in cluster.network.open_ends("b"):
            end.pause_reading()  # it hangs first
        sent, counted = a.ask(SEND), a.ask(COUNT)
        await pass_time(0.1)
        cluster.network.crash("b")
        b.world.refuse_opening = 1 << 30
        await b.fall()
        await c.lead()
        await pass_time(0.1)
        assert not sent.answers
        assert not counted.answers

        cluster.learn("c")
        await pass_time(0.1)

        assert counted.refusal is QueueCounters
        assert sent.refusal is SendMessageResult
        assert poll.bodies == ["hello"]


@virtual
async def test_what_a_fallen_leader_did_not_decide_is_sent_to_the_next() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, b, c):
        b.shard.undecided = NotDecided  # type: ignore[method-assign]
        cluster.store.auto_sync = False
        b.ask(SEND)  # under way, so that the others stay in the inbox
        await pass_time(0.1)
        asked = [a.ask(SEND), b.ask(SEND)]
        await pass_time(0.1)

        await b.fall()
        cluster.store.auto_sync = True
        await c.lead()
        cluster.learn("c")
        await pass_time(1.0)

        assert [each.refusal for each in asked] == 2 * [SendMessageResult]


@virtual
async def test_a_silent_leader_is_noticed_and_its_successor_asked() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, b, c):
        poll = a.ask(POLL)
        await pass_time(1.0)

        cluster.network.cut("a", "b")
        cluster.network.cut("b", "a")
        await b.fall()
        await c.lead()
        cluster.learn("c")
        await pass_time(3.0)

        assert c.shard.report().parked == 1
        c.ask(SEND)
        await pass_time(0.01)
        assert poll.bodies == ["hello"]


@virtual
async def test_a_host_that_does_not_lead_names_the_leader_and_forwards_nothing() -> None:
    async with running(the_cluster("abc"), leader=2) as (a, b, c):
        a.leaders.learn("b")  # a is behind

        sent = a.ask(SEND)
        await pass_time(0.01)

        assert sent.refusal is SendMessageResult
        assert b.router.forwarded == 0
        assert a.router.forwarded == 2
        assert c.ask(RECEIVE).ticket


@virtual
async def test_two_hosts_that_take_each_other_for_the_leader_are_asked_at_a_measured_pace() -> None:
    cluster = the_cluster("abc")
    async with running(cluster, leader=1) as (a, b, c):
        await b.fall()
        b.leaders.learn("c")
        c.leaders.learn("b")

        asked = a.ask(SEND)
        await pass_time(GIVEN_UP_S)

        assert asked.refusal is ServiceUnavailable
        assert a.router.forwarded < 100


@virtual
async def test_no_more_requests_are_held_than_allowed() -> None:
    cluster = the_cluster(forwarding=ForwardingSettings(held_max=3))
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()

        asked = [a.ask(SEND) for _ in range(5)]
        await settled()

        assert [len(each.answers) for each in asked] == [0, 0, 0, 1, 1]
        assert asked[4].refusal is ServiceUnavailable


@virtual
async def test_long_polls_take_no_room_from_other_requests() -> None:
    """A leader that falls leaves all that waited there at once."""
    cluster = the_cluster(forwarding=ForwardingSettings(held_max=3))
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()

        polls = [a.ask(POLL) for _ in range(10)]
        assert a.router.cancel(polls.pop().ticket)
        sends = [a.ask(SEND) for _ in range(3)]
        await settled()

        assert not any(each.answers for each in [*polls, *sends])
        await a.lead()
        cluster.learn("a")
        await pass_time(0.1)
        assert {each.refusal for each in sends} == {SendMessageResult}
        assert len(a.router.retries) == 0


@virtual
async def test_many_held_requests_are_tried_a_part_at_a_time() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        cluster.learn(None)
        await b.fall()
        asked = [a.ask(SEND) for _ in range(1500)]
        cancelled = asked.pop()

        await a.lead()
        cluster.learn("a")
        assert a.router.cancel(cancelled.ticket)
        await pass_time(0.1)

        assert {each.refusal for each in asked} == {SendMessageResult}
        assert not cancelled.answers
        assert a.router.ready
