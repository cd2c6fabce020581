"""Deleted queues keep their messages until their window is over, in an engine and a catalog without
a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from cluster.catalog.queue_view import QueueChange
from cluster.tests.world import state_of
from sqs_api.tests.keeping import HOUR_MS, MINUTE_MS, Kept, keeping
from sqs_api.tests.serving import until
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import QueueDoesNotExist
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rules.kept_queues import RestoreMessages
from visibility.state.waiters import Ticket
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION


async def test_messages_stay_within_the_window_and_go_with_it(kept: Kept) -> None:
    first, second = await kept.make("a"), await kept.make("b")
    await kept.delete("a")
    kept.clock.at_ms += MINUTE_MS
    await kept.delete("b")

    kept.clock.at_ms += HOUR_MS - MINUTE_MS - 1
    await kept.look()
    assert kept.stored() == {first.queue_id, second.queue_id}
    kept.clock.at_ms += 1
    await kept.look()
    assert kept.stored() == {second.queue_id}
    kept.clock.at_ms += MINUTE_MS
    await kept.look()
    assert kept.stored() == set()
    assert list(kept.catalog.kept) == []


async def test_a_restored_queue_holds_its_messages(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()
    kept.clock.at_ms += MINUTE_MS

    restored = await kept.deletions.restore(queue.queue_id)

    counters = await kept.router.ask(prepared.counters(restored))
    assert counters == QueueCounters(1, 0, 0)
    kept.clock.at_ms += 10 * HOUR_MS
    await kept.look()
    assert kept.stored() == {queue.queue_id}


async def test_without_a_window_messages_go_at_once(kept: Kept) -> None:
    kept.catalog.kept.window_ms = 0
    queue = await kept.make()

    await kept.delete()
    await kept.deletions.settle()

    assert kept.stored() == set()
    with pytest.raises(QueueDoesNotExist):
        await kept.deletions.restore(queue.queue_id)


async def test_the_end_of_a_window_is_told(kept: Kept) -> None:
    await kept.make()
    await kept.delete()

    (deleted,) = kept.deletions.all()

    assert deleted.deleted_at_ms == kept.clock.at_ms
    assert kept.deletions.restorable_until_ms(deleted) == kept.clock.at_ms + HOUR_MS


async def test_what_a_stopped_shard_could_not_drop_is_tried_again(kept: Kept) -> None:
    await kept.make()
    await kept.delete()
    kept.clock.at_ms += HOUR_MS
    await kept.shard.stop()

    await kept.look()
    assert kept.catalog.restorable_queues() == []
    await kept.shard.start()
    assert kept.stored() == {1}
    await kept.look()

    assert kept.stored() == set()


async def test_a_queue_is_restored_also_while_its_shard_is_stopped(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()
    await kept.shard.stop()

    restored = await kept.deletions.restore(queue.queue_id)

    assert kept.catalog.queue_of_id(queue.queue_id) is restored


async def test_a_restore_is_finished_when_who_asked_for_it_is_gone(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()

    begun, goes_on = asyncio.Event(), asyncio.Event()
    restore_queue = kept.catalog.restore_queue

    async def held(queue_id: int) -> QueueDefinition:
        begun.set()
        await goes_on.wait()
        return await restore_queue(queue_id)

    kept.catalog.restore_queue = held  # type: ignore[method-assign]
    asked = asyncio.create_task(kept.deletions.restore(queue.queue_id))
    await begun.wait()
    asked.cancel()
    await asyncio.wait([asked])
    goes_on.set()
    await kept.deletions.settle()

    assert asked.cancelled()
    restored = kept.catalog.queue_of_id(queue.queue_id)
    assert restored is not None
    assert await kept.router.ask(prepared.counters(restored)) == QueueCounters(1, 0, 0)


# -- purges ----------------------------------------------------------------------------------------


async def test_a_purged_queue_is_empty_and_can_have_its_messages_back(kept: Kept) -> None:
    await kept.make()
    await kept.purge()
    assert await kept.received() == []
    await kept.router.ask(prepared.send(kept.queue(), "new"))

    (purged,) = kept.deletions.all()
    restored = await kept.deletions.restore(purged.queue.queue_id)

    assert restored == kept.queue()
    assert await kept.received() == ["new", "x"], "they queue up behind what came since"
    await kept.deletions.settle()
    assert list(kept.catalog.kept) == []
    assert list(kept.shard.counters()) == [restored.queue_id]


async def test_a_purge_that_is_undone_lets_no_send_be_repeated(kept: Kept) -> None:
    name = (ACCOUNT, REGION, "q.fifo")
    queue = await kept.catalog.create_queue(name, {"FifoQueue": "true"}, {})
    ids = ["first", "purged and sent again", *map(str, range(410))]
    first = [await kept.send_once(queue, each) for each in ids]
    await kept.purge("q.fifo")
    kept.clock.at_ms += 4 * MINUTE_MS
    again = await kept.send_once(kept.queue("q.fifo"), ids[1])

    await kept.deletions.restore(queue.queue_id)
    await kept.deletions.settle()

    successor = kept.queue("q.fifo")
    sent = [await kept.send_once(successor, each) for each in ids]
    assert sent == [first[0], again, *first[2:]], "a purge forgets ids until it is undone"
    kept.clock.at_ms += MINUTE_MS
    assert await kept.send_once(successor, ids[0]) != first[0], "five minutes are over"
    assert await kept.send_once(successor, ids[1]) == again


async def test_a_restore_that_takes_long_is_answered_and_goes_on(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would not wait until millions of messages were moved."""
    monkeypatch.setattr("sqs_api.gateway.deletions.ANSWER_S", 0.01)
    await kept.make()
    await kept.purge()
    (purged,) = kept.deletions.all()
    may_go_on, ask_here = asyncio.Event(), kept.router.ask_here

    async def held(request: Request) -> Answer:
        if isinstance(request.operation, RestoreMessages):
            await may_go_on.wait()
        return await ask_here(request)

    kept.router.ask_here = held  # type: ignore[method-assign]
    restored = await kept.deletions.restore(purged.queue.queue_id)

    assert restored == kept.queue()
    assert not kept.deletions.all()
    assert [each.queue for each in kept.deletions.restoring()] == [purged.queue]
    assert kept.deletions.messages(kept.deletions.restoring()) == [1]
    may_go_on.set()
    await kept.deletions.settle()
    assert not kept.deletions.restoring()
    assert await kept.received() == ["x"]


async def test_a_purge_is_final_when_its_window_is_over(kept: Kept) -> None:
    await kept.make()
    await kept.purge()
    kept.clock.at_ms += HOUR_MS

    await kept.look()

    assert kept.stored() == set()
    assert kept.deletions.all() == []
    await kept.router.ask(prepared.send(kept.queue(), "new"))
    assert await kept.received() == ["new"]


async def test_a_message_that_was_deleted_after_a_purge_does_not_come_back(kept: Kept) -> None:
    queue = await kept.make()
    await kept.router.ask(prepared.send(queue, "y"))
    assert await kept.received() == ["x", "y"]
    await kept.purge()

    await kept.router.ask(prepared.delete(kept.queue(), Receipt(1, 1)))
    kept.clock.at_ms += MINUTE_MS
    await kept.deletions.restore(queue.queue_id)

    assert await kept.received() == ["y"]


async def test_a_message_in_flight_is_restored_when_its_lease_is_over(kept: Kept) -> None:
    queue = await kept.make()
    await kept.received()
    await kept.purge()

    await kept.deletions.restore(queue.queue_id)
    assert await kept.received() == [], "it is somebody's still"
    kept.clock.at_ms += MINUTE_MS
    await kept.deletions.stop()
    await kept.look()

    assert await kept.received() == ["x"]


async def test_a_long_poll_goes_on_at_the_queue_that_continues(kept: Kept) -> None:
    queue = await kept.make()
    assert await kept.received() == ["x"]
    poll = asyncio.create_task(kept.router.ask(prepared.receive(queue, wait_s=20)))
    await until(lambda: bool(state_of(kept.shard).waits.by_queue))
    await kept.purge()

    await kept.router.ask(prepared.send(kept.queue(), "new"))

    deliveries = await poll
    assert isinstance(deliveries, Deliveries)
    assert [message.data for message in deliveries.messages] == [b"new"]


async def test_many_queues_are_dropped_a_few_at_a_time(kept: Kept) -> None:
    for number in range(20):
        await kept.make(f"q{number}")
        await kept.delete(f"q{number}")
    kept.clock.at_ms += HOUR_MS
    under_way, most = 0, 0
    ask = kept.router.ask_here

    async def counted(request: Request) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        answer = await ask(request)
        under_way -= 1
        return answer

    kept.router.ask_here = counted  # type: ignore[method-assign]
    await kept.look()

    assert (kept.stored(), most) == (set(), 2)


async def test_a_purge_that_a_crash_kept_from_the_shard_is_finished_by_the_start(
    kept: Kept,
) -> None:
    """Otherwise the sequences, which receipt handles name, would begin again."""
    queue = await kept.make()
    await kept.catalog.purge_queue(queue)
    await kept.shard.stop()

    await kept.shard.start()

    await kept.router.ask(prepared.send(kept.queue(), "new"))
    successor = state_of(kept.shard).queues.get(kept.queue().queue_id)
    assert successor is not None
    assert (successor.first_sequence, successor.next_sequence) == (2, 3)
    await kept.router.ask(prepared.delete(kept.queue(), Receipt(1, 1)))
    assert await kept.received() == ["new"]


async def test_a_purge_whose_caller_is_gone_reaches_the_shard_all_the_same(kept: Kept) -> None:
    await kept.make()
    purge = asyncio.create_task(kept.purge())

    def cancel(change: QueueChange) -> None:
        purge.cancel()

    kept.catalog.subscribe(cancel)
    await asyncio.wait([purge])
    assert purge.cancelled()

    await kept.router.ask(prepared.send(kept.queue(), "new"))

    successor = state_of(kept.shard).queues.get(kept.queue().queue_id)
    assert successor is not None
    assert (kept.queue().queue_id, successor.first_sequence) == (2, 2)


async def test_what_changed_while_the_shard_was_away_it_finds_out_when_it_loads(
    kept: Kept,
) -> None:
    await kept.make()
    await kept.shard.stop()

    await kept.purge()
    await kept.catalog.set_attributes(kept.queue(), {"DelaySeconds": "9"})
    await kept.shard.start()

    assert await kept.received() == []
    await kept.router.ask(prepared.send(kept.queue(), "new"))
    successor = state_of(kept.shard).queues.get(kept.queue().queue_id)
    assert successor is not None
    assert successor.first_sequence == 2


async def test_no_request_names_a_changed_queue_before_its_shard_has_heard(kept: Kept) -> None:
    queue = await kept.make()
    first: list[str] = []
    submit = kept.shard.submit

    def noted(request: Request, *more: Any, **options: Any) -> Ticket:
        first.append(type(request.operation).__name__)
        return submit(request, *more, **options)

    kept.shard.submit = noted  # type: ignore[method-assign]

    async def send_once_purged() -> None:
        while kept.queue() == queue:  # noqa: ASYNC110  as soon as a request could name it
            await asyncio.sleep(0)
        await kept.router.ask(prepared.send(kept.queue(), "new"))

    await asyncio.gather(kept.purge(), send_once_purged())

    assert first == ["ContinueQueue", "SendMessage"]


async def test_a_purge_after_a_purge_goes_on_counting(kept: Kept) -> None:
    await kept.make()
    for number in range(3):
        await kept.purge()
        kept.clock.at_ms += MINUTE_MS
        await kept.router.ask(prepared.send(kept.queue(), str(number)))

    assert [each.queue.queue_id for each in kept.deletions.all()] == [3, 2, 1]
    state = state_of(kept.shard).queues.get(kept.queue().queue_id)
    assert state is not None
    assert (state.counts.sent, state.counts.purged, state.next_sequence) == (4, 3, 5)


async def test_restoring_goes_on_after_a_restart(tmp_path: Path) -> None:
    file, store = tmp_path / "catalog.sqlite", MemoryStore()
    async with keeping(file, store) as before:
        queue = await before.make()
        await before.purge()
        await before.shard.stop()
        await before.catalog.restore_queue(queue.queue_id)
        await before.deletions.stop()

    async with keeping(file, store) as kept:
        assert await kept.received() == []
        await kept.look()

        assert await kept.received() == ["x"]
        assert list(kept.catalog.kept) == []


async def test_a_short_disk_takes_the_oldest_first(kept: Kept) -> None:
    first = await kept.make("a")
    second = await kept.make("b")
    await kept.delete("a")
    kept.clock.at_ms += 1
    await kept.purge("b")

    await kept.look(disk_is_short=True)
    assert first.queue_id not in kept.stored()
    assert second.queue_id in kept.stored()
    await kept.look(disk_is_short=True)

    assert kept.stored() == set()


async def test_queues_that_the_catalog_does_not_know_are_reported_and_kept(kept: Kept) -> None:
    await kept.make()
    await kept.router.ask(prepared.send(prepared.queue_named("lost", 9), "x"))

    with structlog.testing.capture_logs() as lines:
        kept.deletions.report_unknown()

    assert [(line["event"], line["queue_id"], line["messages"]) for line in lines] == [
        ("queue_unknown", 9, 1)
    ]
    assert kept.stored() == {1, 9}
