"""Two hosts that know different versions of a queue."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.peers.peer_hosts import POLL, QUEUE, SEND, running, the_cluster
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from visibility.contract.errors import QueueDoesNotExist, ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import MovePlan
from visibility.contract.results import SendMessageResult
from visibility.rules.move_plans import PlanMove
from visibility.tests import prepared
from visibility.tests.prepared import CALLER

NEWER = msgspec.structs.replace(QUEUE, version=2)


@virtual
async def test_a_leader_that_knows_an_older_version_catches_up_first() -> None:
    async with running(the_cluster()) as (a, b):
        a.view.define(NEWER)
        b.view.news = lambda: b.view.define(NEWER)

        sent = a.ask(prepared.send(NEWER, "x"))
        await pass_time(0.1)

        assert sent.refusal is SendMessageResult
        assert a.router.forwarded == 1


@virtual
async def test_a_host_that_knows_an_older_version_decides_anew_with_the_later_one() -> None:
    async with running(the_cluster()) as (a, b):
        b.view.define(NEWER)
        a.view.news = lambda: a.view.define(NEWER)

        sent = a.ask(SEND)
        await pass_time(0.1)

        assert sent.refusal is SendMessageResult
        assert sent.ticket.request.queue == NEWER
        assert a.router.forwarded == 2


@virtual
async def test_a_move_is_decided_anew_with_the_later_destination() -> None:
    source = prepared.queue_named("dead", 2)
    async with running(the_cluster()) as (a, b):
        a.view.define(source)
        b.view.define(source)
        b.view.define(NEWER)
        a.view.news = lambda: a.view.define(NEWER)

        moved = a.ask(Request(PlanMove(sequences=[]), source, CALLER, "r", destination=QUEUE))
        await pass_time(0.1)

        assert moved.refusal is MovePlan


@virtual
async def test_views_that_do_not_meet_are_unavailable() -> None:
    async with running(the_cluster()) as (a, b):
        b.view.define(NEWER)

        sent = a.ask(SEND)
        await pass_time(0.2)

        assert sent.refusal is ServiceUnavailable
        assert a.router.forwarded == 2


@virtual
async def test_a_queue_that_was_deleted_meanwhile() -> None:
    async with running(the_cluster()) as (a, b):
        del b.view.queues[1]
        a.view.news = lambda: a.view.queues.clear()

        sent = a.ask(SEND)
        await pass_time(0.1)

        assert sent.refusal is QueueDoesNotExist


@pytest.mark.parametrize("is_behind", [False, True])
@virtual
async def test_a_poll_that_waits_while_its_queue_is_purged(is_behind: bool) -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)
        await pass_time(0.01)
        successor = b.view.purge(QUEUE)
        if is_behind:
            a.view.news = lambda: a.view.purge(QUEUE)
        else:
            a.view.purge(QUEUE)
        b.ask(prepared.purge(QUEUE, successor))
        b.ask(prepared.send(successor, "later"))
        await pass_time(0.1)

        assert poll.bodies == ["later"]
        assert poll.ticket.request.queue == successor


@virtual
async def test_a_poll_of_a_purged_queue_that_this_host_never_hears_of() -> None:
    async with running(the_cluster()) as (a, b):
        poll = a.ask(POLL)
        await pass_time(0.01)
        successor = b.view.purge(QUEUE)
        b.ask(prepared.purge(QUEUE, successor))
        b.ask(prepared.send(successor, "later"))
        await pass_time(0.1)

        assert poll.refusal is ServiceUnavailable


@virtual
async def test_a_client_hangs_up_while_its_host_catches_up() -> None:
    async with running(the_cluster()) as (a, b):
        b.view.define(NEWER)
        a.view.news = lambda: a.view.define(NEWER)
        poll = a.ask(POLL)
        await pass_time(0.035)

        assert a.router.cancel(poll.ticket) is False
        await pass_time(0.1)

        assert (poll.bodies, b.shard.report().parked) == ([], 0)


@virtual
async def test_a_client_hangs_up_while_the_leader_catches_up() -> None:
    async with running(the_cluster()) as (a, b):
        a.view.define(NEWER)
        b.view.news = lambda: b.view.define(NEWER)
        poll = a.ask(msgspec.structs.replace(POLL, queue=NEWER))
        await pass_time(0.005)

        assert a.router.cancel(poll.ticket) is False
        await pass_time(0.1)

        assert (poll.bodies, b.shard.report().parked) == ([], 0)


@virtual
async def test_an_operation_on_a_purged_queue_never_reaches_the_queue_that_continues_it() -> None:
    async with running(the_cluster()) as (a, b):
        successor = b.view.purge(QUEUE)
        a.view.purge(QUEUE)
        b.ask(prepared.purge(QUEUE, successor))
        b.ask(prepared.send(successor, "kept"))
        await pass_time(0.1)

        dropped = a.ask(prepared.drop(QUEUE))
        await pass_time(0.2)

        received = b.ask(prepared.receive(successor))
        await pass_time(0.1)
        assert dropped.refusal is ServiceUnavailable
        assert received.bodies == ["kept"]
