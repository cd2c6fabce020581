"""When the disk or a decision fails, every caller gets one answer, and the shard is reloaded."""

from __future__ import annotations

import asyncio

import pytest

from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, settled
from storage.engines.store import StoreFailed
from visibility.contract.errors import InternalError, QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.operations import SendMessage
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageResult
from visibility.rows.row_changes import Changes
from visibility.state.queue_state import QueueState
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

Q = prepared.queue_named("q", 1, VisibilityTimeout="5")
OTHER = prepared.queue_named("other", 2)
FIFO = prepared.queue_named("f.fifo", 3, ContentBasedDeduplication="true")
REOPENED_S = 1.1


def impossible() -> Request:
    """A request that no gateway makes: a send without its content."""
    return prepared.prepared(Q, SendMessage())


def fail_in_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug in what each Turn that changes something calls."""

    def failing(self: QueueState, changes: Changes, now_ms: int) -> None:
        raise RuntimeError("a bug where a Turn ends")

    monkeypatch.setattr(QueueState, "record", failing)


def is_ready(world: World) -> bool:
    return world.shard.ready


@virtual
async def test_a_failed_sync_refuses_everybody_once_and_nothing_of_it_remains() -> None:
    world = await World(auto_sync=False).start()
    kept, parked = await world.asked(prepared.send(Q, "kept"), prepared.receive(OTHER, wait_s=20))
    await world.sync()
    held, inbox = await world.asked(prepared.send(Q, "lost"), prepared.counters(Q))

    world.store.fail_to_sync()
    refused_at_once = world.ask(prepared.counters(Q))
    await settled()

    assert kept.refusal is SendMessageResult
    for asked in (parked, held, inbox, refused_at_once):
        assert asked.refusal is ServiceUnavailable
    assert not is_ready(world)

    await pass_time(REOPENED_S)
    (counted,) = await world.asked(prepared.counters(Q))

    assert is_ready(world)
    assert counted.answers == [QueueCounters(1, 0, 0)]
    assert world.store.abandoned == 1


@virtual
async def test_a_refused_write_refuses_the_turn_and_the_shard_serves_again() -> None:
    world = await World().start()
    world.store.fails = True

    sent, counted = await world.asked(prepared.send(Q, "a"), prepared.counters(OTHER))
    await pass_time(REOPENED_S)
    (later,) = await world.asked(prepared.send(Q, "b"))

    assert sent.refusal is counted.refusal is ServiceUnavailable
    assert later.refusal is SendMessageResult
    assert world.opened == 2


@virtual
async def test_opening_anew_is_tried_until_it_works() -> None:
    world = await World().start()
    world.store.fails = True
    world.refuse_opening = 3
    await world.asked(prepared.send(Q, "a"))

    await pass_time(3.5)
    assert not is_ready(world)

    await pass_time(REOPENED_S)
    assert is_ready(world)


@virtual
async def test_timers_go_on_after_the_shard_was_loaded_anew() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "a", delay_s=10))
    world.store.fails = True
    await world.asked(prepared.send(Q, "b"))
    await pass_time(REOPENED_S)
    (waiting,) = await world.asked(prepared.receive(Q, wait_s=20))

    await pass_time(9)

    assert waiting.bodies == ["a"]


@virtual
async def test_a_bug_in_a_decision_loses_no_request() -> None:
    world = await World().start()
    (parked,) = await world.asked(prepared.receive(OTHER, wait_s=20))

    all_asked = await world.asked(
        prepared.send(Q, "before"), impossible(), prepared.send(Q, "behind"), prepared.counters(Q)
    )

    assert all(len(asked.answers) == 1 for asked in all_asked)
    before, bug, behind, counted = all_asked
    assert bug.refusal is InternalError
    refused = [issubclass(sent.refusal, QueueError) for sent in (before, behind)]
    assert refused == [False, False], "only the request with the bug is lost"
    assert counted.answers == [QueueCounters(2, 0, 0)]
    assert parked.answers == [], "and nobody else is disturbed"


@virtual
async def test_the_request_that_met_the_bug_gets_an_internal_error() -> None:
    world = await World().start()

    (asked,) = await world.asked(impossible())

    assert asked.refusal is InternalError


@virtual
async def test_a_store_that_is_ready_too_late_after_a_bug_releases_nothing() -> None:
    world = await World(auto_sync=False).start()
    (sent,) = await world.asked(prepared.send(Q, "a"))
    await world.asked(impossible())

    await world.sync()

    assert len(sent.answers) == 1


@virtual
async def test_stopping_ends_although_the_store_failed_while_polls_were_parked() -> None:
    world = await World().start()
    (parked,) = await world.asked(prepared.receive(OTHER, wait_s=20))
    world.store.fails = True
    await world.asked(prepared.send(Q, "a"))

    await asyncio.wait_for(world.shard.stop(), 5)

    assert parked.refusal is ServiceUnavailable


@virtual
async def test_a_stopped_shard_is_not_opened_again() -> None:
    world = await World().start()
    world.store.fails = True
    await world.asked(prepared.send(Q, "a"))
    await world.shard.stop()

    await pass_time(5)

    assert world.opened == 1


@virtual
async def test_a_shard_whose_backup_is_not_done_when_it_fails_is_opened_after_it() -> None:
    world = await World().start()
    world.store.copied_for = 2
    world.store.fails = True
    (lost,) = await world.asked(prepared.send(Q, "a"))
    assert issubclass(lost.refusal, QueueError)

    await pass_time(2.5)
    assert not is_ready(world)
    await pass_time(1)

    assert is_ready(world)
    assert (world.store.abandoned, world.opened) == (1, 2)


@virtual
async def test_a_turn_that_fails_at_its_very_end_refuses_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World().start()

    fail_in_record(monkeypatch)
    (sent,) = await world.asked(prepared.send(Q, "a"))
    monkeypatch.undo()
    await pass_time(REOPENED_S)
    (counted,) = await world.asked(prepared.counters(Q))

    assert sent.refusal is ServiceUnavailable
    assert counted.answers == [QueueCounters(0, 0, 0)]


@virtual
async def test_a_start_whose_first_entry_is_refused_opens_the_store_once_more() -> None:
    """A crash left two purges undone, and the disk refuses the Entry that makes up for the
    first."""
    queues = KnownQueues(Q, OTHER)
    world = World(definitions=queues)
    await world.start()
    for queue in (Q, OTHER):
        await world.asked(prepared.send(queue, "a"))
        queues.purge(queue)

    world.store.fails = True
    await world.asked(prepared.send(Q, "b"))
    world.store.fails = True
    await pass_time(REOPENED_S)
    assert not is_ready(world)
    await pass_time(10)

    assert is_ready(world)
    assert world.opened == 3
    assert world.shard.report().failures == 2
    (counted,) = await world.asked(prepared.counters(queues.queues[Q.queue_id + 1_000]))
    assert counted.answers == [QueueCounters(0, 0, 0)]


def with_an_unfinished_purge() -> KnownQueues:
    """Definitions of which a shard that held messages of Q has not heard."""
    queues = KnownQueues(Q, OTHER)
    queues.purge(Q)
    return queues


@virtual
async def test_a_start_that_cannot_finish_a_purge_lets_go_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = await World().start()
    await before.asked(prepared.send(Q, "a"))
    await before.shard.stop()
    world = World(store=before.store, definitions=with_an_unfinished_purge())

    fail_in_record(monkeypatch)
    with pytest.raises(RuntimeError, match="a bug where a Turn ends"):
        await world.start()
    monkeypatch.undo()

    assert not is_ready(world)
    assert world.store.abandoned == 1
    (refused,) = await world.asked(prepared.counters(OTHER))
    assert refused.refusal is ServiceUnavailable
    await world.start()
    assert is_ready(world)


@virtual
async def test_a_shard_that_cannot_finish_a_purge_when_it_is_loaded_anew_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = KnownQueues(Q, OTHER)
    world = await World(definitions=queues).start()
    await world.asked(prepared.send(Q, "a"))
    queues.purge(Q)
    world.store.fails = True
    await world.asked(prepared.send(OTHER, "b"))

    fail_in_record(monkeypatch)
    await pass_time(2.5)
    assert not is_ready(world)
    assert world.store.abandoned == world.opened, "none is left open beside the next"
    monkeypatch.undo()
    await pass_time(REOPENED_S)

    assert is_ready(world)
    assert world.store.abandoned == world.opened - 1


@virtual
async def test_a_shard_that_stops_while_it_is_failed_lets_go_of_its_store() -> None:
    world = await World().start()
    world.store.fails = True
    await world.asked(prepared.send(Q, "a"))

    await world.shard.stop()

    assert (world.opened, world.store.abandoned) == (1, 1)


@virtual
async def test_a_stop_amid_a_reopening_closes_what_was_opened() -> None:
    world = await World().start()
    world.store.fails = True
    await world.asked(prepared.send(Q, "a"))
    world.may_open.clear()
    await pass_time(REOPENED_S)
    stopping = asyncio.create_task(world.shard.stop())
    await settled()
    world.may_open.set()
    await stopping

    assert (world.opened, world.store.abandoned, world.store.closed) == (2, 1, 1)


@pytest.mark.parametrize("queue", [Q, FIFO], ids=["standard", "fifo"])
@virtual
async def test_a_receive_that_is_refused_although_it_is_durable_is_given_back(
    queue: QueueDefinition,
) -> None:
    world = await World(auto_sync=False).start()
    await world.asked(prepared.send(queue, "a", group="g" if queue is FIFO else None))
    await world.sync()
    (received,) = await world.asked(prepared.receive(queue))
    world.store.commit_unnoticed()
    world.shard.on_failed(StoreFailed("its sync was interrupted"))
    await settled()
    assert received.refusal is ServiceUnavailable

    world.store.auto_sync = True
    await pass_time(REOPENED_S)
    counted, again = await world.asked(prepared.counters(queue), prepared.receive(queue))

    assert counted.answers == [QueueCounters(1, 0, 0)]
    (answer,) = again.answers
    assert isinstance(answer, Deliveries)
    assert [lease.receive_count for lease in answer.leases] == [1]


@virtual
async def test_a_refused_receive_is_given_back_although_the_shard_fails_once_more() -> None:
    world = await World(auto_sync=False).start()
    await world.asked(prepared.send(Q, "a"))
    await world.sync()
    await world.asked(prepared.receive(Q))
    world.store.commit_unnoticed()
    world.shard.on_failed(StoreFailed("its sync was interrupted"))
    await pass_time(REOPENED_S)
    assert is_ready(world)
    world.store.fail_to_sync()

    world.store.auto_sync = True
    await pass_time(REOPENED_S)
    (counted,) = await world.asked(prepared.counters(Q))

    assert counted.answers == [QueueCounters(1, 0, 0)]
