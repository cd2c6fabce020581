"""The contract of `storage/store.py`, over RocksStore at each durability and over MemoryStore."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.appliers import APPLIERS, write_queue
from storage.codec import DamagedRecord, QueueRow
from storage.keys import message_key
from storage.memory import MemoryStore
from storage.rocks import Durability, RocksStore
from storage.store import Store, StoredQueue, StoreFailed
from visibility.events import (
    Event,
    Lease,
    MessageDeadLettered,
    MessagesDeleted,
    MessagesReceived,
    MessagesSent,
    QueueDropped,
    QueuePurged,
    StoredMessage,
    VisibilityChanged,
)

KINDS = (*Durability, "MemoryStore")
ROW = QueueRow(4, 2, 1, 0)
LEASE = Lease(1, 30_000, 1, 0, 5, 5)


class Place:
    """Where a store lies, so that it can be opened again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.failures: list[StoreFailed] = []
        self.memory = MemoryStore()
        self.opened: list[RocksStore] = []

    def open(self) -> Store:
        if self.kind == "MemoryStore":
            return self.memory
        store = RocksStore(self.folder, Durability(self.kind), self.failures.append)
        self.opened.append(store)
        return store

    def reopen(self, store: Store) -> Store:
        store.close()
        if isinstance(store, RocksStore):
            self.opened.remove(store)
        self.memory.crash()
        return self.open()

    def reopen_after_abandon(self, store: Store) -> Store:
        store.abandon()
        if isinstance(store, RocksStore):
            self.opened.remove(store)
        self.memory.sync()
        self.memory.crash()
        return self.open()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path / "shard-0")
    yield made
    for store in made.opened:
        store.abandon()


def message(number: int, size: int = 10) -> StoredMessage:
    return StoredMessage(f"id-{number}", 1_000 + number, size, bytes([65]) * size)


def sent(queue_id: int, sequence: int, size: int = 10, visible_at_ms: int = 0) -> MessagesSent:
    return MessagesSent(
        queue_id, sequence, [message(sequence, size)], [visible_at_ms] if visible_at_ms else []
    )


def put(store: Store, *events: Event, moved: StoredMessage | None = None) -> None:
    for event in events:
        APPLIERS[type(event)](store.batch, event, moved)


async def committed(store: Store) -> None:
    released = asyncio.get_running_loop().create_future()
    store.commit(lambda: released.set_result(None))
    await asyncio.wait_for(released, 10)


def sequences(
    store: Store, queue_id: int = 1, *, most: int = 100, size: int = 1 << 20
) -> list[int]:
    page = store.read_page(queue_id, 1, 1_000, messages=most, size=size)
    return [sequence for sequence, _ in page.messages]


# -- reading ------------------------------------------------------------------------------------------------------------


async def test_what_was_committed_can_be_read_before_it_is_durable(place: Place) -> None:
    store = place.open()
    durable = asyncio.Event()
    put(store, sent(1, 1), sent(1, 2))
    write_queue(store.batch, 1, ROW)
    store.commit(durable.set)

    assert store.read_messages([(1, 2), (1, 1)]) == [message(2), message(1)]
    assert sequences(store) == [1, 2]
    assert list(store.load()) == [StoredQueue(1, ROW, [])]
    await asyncio.wait_for(durable.wait(), 10)


async def test_messages_without_their_queues_row_are_damage(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1))
    await committed(store)

    with pytest.raises(DamagedRecord, match="no row of its own"):
        list(store.load())


async def test_reads_see_nothing_of_the_open_batch(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1))
    write_queue(store.batch, 1, ROW)
    await committed(store)

    put(store, sent(1, 2), MessagesDeleted(1, [1]), sent(2, 1))
    write_queue(store.batch, 2, ROW)

    assert store.read_messages([(1, 1), (1, 2)]) == [message(1), None]
    assert sequences(store) == [1]
    assert [queue.queue_id for queue in store.load()] == [1]


async def test_a_batch_that_was_read_before_its_commit_reaches_the_disk_whole_or_not_at_all(
    place: Place,
) -> None:
    """A dead-letter move reads in the middle of a batch; the queue's row comes at its end."""
    store = place.open()
    put(store, sent(1, 1))
    store.read_messages([(1, 1)])
    sequences(store)

    store = place.reopen_after_abandon(store)

    assert sequences(store) == []


async def test_a_page_has_at_most_the_messages_asked_for(place: Place) -> None:
    store = place.open()
    put(store, *[sent(1, sequence) for sequence in (1, 2, 5, 9)])
    await committed(store)

    page = store.read_page(1, 1, 10, messages=2, size=1 << 20)
    rest = store.read_page(1, page.next_sequence or 0, 10, messages=2, size=1 << 20)

    assert page == ([(1, message(1)), (2, message(2))], 5)
    assert rest == ([(5, message(5)), (9, message(9))], None)


async def test_a_page_ends_once_it_holds_the_bytes_asked_for_but_has_at_least_one_message(
    place: Place,
) -> None:
    store = place.open()
    put(store, *[sent(1, sequence, size=100) for sequence in range(1, 5)])
    await committed(store)

    assert sequences(store, size=1) == [1]
    assert sequences(store, size=100) == [1]
    assert sequences(store, size=101) == [1, 2]
    assert sequences(store, size=400) == [1, 2, 3, 4]
    assert store.read_page(1, 1, 9, messages=9, size=200).next_sequence == 3


async def test_a_page_stays_within_its_range_and_its_queue(place: Place) -> None:
    store = place.open()
    put(store, *[sent(queue_id, sequence) for queue_id in (1, 2, 3) for sequence in (1, 2, 3, 4)])
    put(store, MessagesReceived(2, 5, [LEASE]))
    await committed(store)

    page = store.read_page(2, 2, 4, messages=10, size=1 << 20)

    assert page == ([(2, message(2)), (3, message(3))], None)
    assert store.read_page(2, 4, 4, messages=10, size=1 << 20) == ([], None)
    assert store.read_page(9, 1, 4, messages=10, size=1 << 20) == ([], None)


async def test_a_message_that_does_not_exist_is_none_in_its_place(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1))
    await committed(store)

    assert store.read_messages([(1, 2), (1, 1), (2, 1)]) == [None, message(1), None]
    assert store.read_messages([]) == []


async def test_a_damaged_message_is_reported_and_not_guessed(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1), sent(1, 2))
    store.batch.put(message_key(1, 2), b"\x01rubbish")
    await committed(store)

    with pytest.raises(DamagedRecord, match=message_key(1, 2).hex()):
        store.read_messages([(1, 2)])
    with pytest.raises(DamagedRecord):
        sequences(store)
    assert sequences(store, most=1) == [1]


# -- changing -----------------------------------------------------------------------------------------------------------


async def test_the_next_turn_may_be_committed_in_the_release(place: Place) -> None:
    store = place.open()
    done = asyncio.get_running_loop().create_future()

    def commit_next(turns: int) -> None:
        put(store, sent(1, turns))
        store.commit(lambda: commit_next(turns - 1) if turns > 1 else done.set_result(None))

    commit_next(20)
    await asyncio.wait_for(done, 10)

    assert sequences(store) == list(range(1, 21))


async def test_changes_of_one_batch_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1), sent(1, 2, visible_at_ms=9), QueuePurged(1, 5), sent(1, 3))
    put(store, sent(2, 1), QueueDropped(2))
    await committed(store)

    assert sequences(store) == [3]
    assert sequences(store, 2) == []


async def test_load_equals_what_was_written(place: Place) -> None:
    store = place.open()
    put(store, *[sent(1, sequence) for sequence in (1, 2, 3)], sent(3, 1, visible_at_ms=77))
    put(store, MessagesReceived(1, 5, [LEASE, Lease(2, 40_000, 1, 0, 5, 5)]))
    put(store, VisibilityChanged(1, 6, [Lease(1, 6, 1, 0, 5, 5)]), MessagesDeleted(1, [2]))
    write_queue(store.batch, 1, ROW)
    write_queue(store.batch, 2, QueueRow(1, 1, 0, 99))
    write_queue(store.batch, 3, QueueRow(2, 1, 0, 0))
    await committed(store)

    store = place.reopen(store)

    assert list(store.load()) == [
        StoredQueue(1, ROW, [Lease(1, 6, 1, 0, 5, 5)]),
        StoredQueue(2, QueueRow(1, 1, 0, 99), []),
        StoredQueue(3, QueueRow(2, 1, 0, 0), [Lease(1, 77, 0, 0, 0, 0)]),
    ]
    assert sequences(store) == [1, 3]


async def test_a_dropped_queue_leaves_no_row_and_its_neighbours_stay(place: Place) -> None:
    store = place.open()
    for queue_id in (1, 2, 3):
        put(store, sent(queue_id, 1, visible_at_ms=5))
        write_queue(store.batch, queue_id, ROW)
    await committed(store)

    put(store, QueueDropped(2))
    await committed(store)
    store = place.reopen(store)

    assert [queue.queue_id for queue in store.load()] == [1, 3]
    assert (sequences(store, 1), sequences(store, 2), sequences(store, 3)) == ([1], [], [1])


async def test_a_purged_queue_keeps_its_own_row(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1), sent(1, 2, visible_at_ms=5), QueuePurged(1, 5))
    write_queue(store.batch, 1, ROW)
    await committed(store)

    store = place.reopen(store)

    assert list(store.load()) == [StoredQueue(1, ROW, [])]
    assert sequences(store) == []


async def test_a_dead_letter_is_the_same_message_with_its_history(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 7), MessagesReceived(1, 5, [Lease(7, 6, 3, 0, 5, 5)]))
    put(store, MessageDeadLettered(1, 7, 2, 1, "arn:q", 3, 5), moved=message(7))
    write_queue(store.batch, 1, ROW)
    await committed(store)

    (moved,) = store.read_messages([(2, 1)])

    assert moved is not None
    assert sequences(store, 1) == []
    assert next(iter(store.load())).leases == []
    assert (moved.message_id, moved.data) == (message(7).message_id, message(7).data)
    assert (moved.dead_letter_source_arn, moved.receive_count) == ("arn:q", 3)
    assert (moved.first_received_at_ms, moved.sent_at_ms) == (5, message(7).sent_at_ms)


async def test_closing_makes_everything_durable(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1))
    await committed(store)
    put(store, sent(1, 2))

    store = place.reopen(store)

    assert sequences(store) == [1, 2]


async def test_batches_survive_several_openings(place: Place) -> None:
    store = place.open()

    for sequence in range(1, 5):
        put(store, sent(1, sequence))
        await committed(store)
        store = place.reopen(store)

    assert sequences(store) == [1, 2, 3, 4]
    assert not place.failures


# -- one store only -------------------------------------------------------------------------------------------------------


async def test_a_second_opening_of_a_folder_is_refused(tmp_path: Path) -> None:
    failures: list[StoreFailed] = []
    store = RocksStore(tmp_path, Durability.FSYNC, failures.append)

    with pytest.raises(StoreFailed, match="cannot open"):
        RocksStore(tmp_path, Durability.FSYNC, failures.append)

    store.close()
    RocksStore(tmp_path, Durability.FSYNC, failures.append).close()


async def test_abandoned_rocks_releases_nothing_any_more(tmp_path: Path) -> None:
    released: list[int] = []
    failures: list[StoreFailed] = []
    store = RocksStore(tmp_path, Durability.FSYNC, failures.append)
    put(store, sent(1, 1))
    store.commit(lambda: released.append(1))

    store.abandon()
    for _ in range(5):
        await asyncio.sleep(0)

    assert released == []


def test_a_power_loss_forgets_what_was_not_synced_and_releases_nothing() -> None:
    store = MemoryStore(auto_sync=False)
    released: list[int] = []

    put(store, sent(1, 1))
    store.commit(lambda: released.append(1))
    store.sync()
    put(store, sent(1, 2))
    store.commit(lambda: released.append(2))
    put(store, sent(1, 3))

    store.crash()
    store.sync()

    assert released == [1]
    assert sequences(store) == [1]
