"""What a start reads, over every store, and what it says of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.engines.store import Store
from storage.rows.appliers import write_queue
from storage.rows.codec import DamagedRecord, QueueRow, encode_row
from storage.rows.keys import (
    ALIAS,
    DELAYED,
    GROUP,
    GROUP_LINE,
    LEASE,
    MOVE_TASK,
    REMEMBERED,
    SPAN,
    group_key,
    group_line_key,
    pair_key,
    queue_key,
    remembered_key,
    row_key,
)
from storage.rows.stored_rows import StoredQueue, StoredRows
from storage.tests.places import Place, committed, message, put
from visibility.state.events import (
    REMEMBER_BUCKET_MS,
    Lease,
    MessagesDelayed,
    MessagesDeleted,
    MessagesReceived,
    MessagesSent,
    MoveTask,
    MoveTaskChanged,
    VisibilityChanged,
)

ROW = QueueRow(4, 2, 1, 0)
LEASE_1 = Lease(1, 30_000, 1, 0, 5, 5)
RUBBISH = b"\x01rubbish"
G = b"g" * 16
NOW_MS = 1_700_000_000_000
Read = Callable[[StoredRows], object]


def sent(queue_id: int, sequence: int, size: int = 10) -> MessagesSent:
    return MessagesSent(queue_id, sequence, [message(sequence, size)])


def sequences(
    store: Store, queue_id: int = 1, *, most: int = 100, size: int = 1 << 20
) -> list[int]:
    page = StoredRows(store).line(queue_id, 1, 1_000, messages=most, size=size)
    return [sequence for sequence, _ in page.messages]


async def test_load_equals_what_was_written(place: Place) -> None:
    store = place.open()
    put(store, *[sent(1, sequence) for sequence in (1, 2, 3)], sent(3, 1))
    put(store, MessagesReceived(1, 5, [LEASE_1, Lease(2, 40_000, 1, 0, 5, 5)]))
    put(store, VisibilityChanged(1, 6, [Lease(1, 6, 1, 0, 5, 5)]))
    put(store, MessagesDeleted(1, 7, [Lease(2, 40_000, 1, 0, 5, 5)]))
    put(store, MessagesDelayed(3, 2, [77], [message(2)]))
    tasks = [MoveTask(number, "task", "arn:s", None, 0, 5, 4, 9) for number in (1, 2)]
    put(store, *[MoveTaskChanged(3, task) for task in tasks])
    full = QueueRow(3, 1, 1, 8, 1, 5, 6, NOW_MS, True, NOW_MS + 1)
    write_queue(store.batch, 1, ROW, {0: 2, 1: 1})
    write_queue(store.batch, 2, QueueRow(1, 1, 0, 99), {})
    write_queue(store.batch, 3, full, {7: 1})
    await committed(store)

    store = place.reopen(store)

    assert list(StoredRows(store).load()) == [
        StoredQueue(1, ROW, [Lease(1, 6, 1, 0, 5, 5)], [], {0: 2, 1: 1}),
        StoredQueue(2, QueueRow(1, 1, 0, 99), [], [], {}),
        StoredQueue(3, full, [], tasks, {7: 1}),
    ]
    assert sequences(store) == [1, 3]


async def test_load_of_nothing(place: Place) -> None:
    assert list(StoredRows(place.open()).load()) == []


async def test_messages_without_their_queues_row_are_damage(place: Place) -> None:
    store = place.open()
    put(store, sent(1, 1))
    await committed(store)

    with pytest.raises(DamagedRecord, match="no row of its own"):
        list(StoredRows(store).load())


async def test_a_batch_that_was_read_before_its_commit_reaches_the_disk_whole_or_not_at_all(
    place: Place,
) -> None:
    """A move reads in the middle of a batch; the queue's row comes at its end."""
    store = place.open()
    put(store, sent(1, 1))
    StoredRows(store).messages(1, [1])
    sequences(store)

    store = place.reopen_after_abandon(store)

    assert sequences(store) == []


@pytest.mark.parametrize(
    "key",
    [queue_key(1), row_key(1, LEASE, 1), row_key(1, MOVE_TASK, 1), row_key(1, SPAN, 0)],
    ids=["queue", "lease", "move task", "span"],
)
async def test_a_load_that_meets_damage_says_where(place: Place, key: bytes) -> None:
    store = place.open()
    write_queue(store.batch, 1, ROW, {})
    store.batch.put(key, RUBBISH)
    await committed(store)

    with pytest.raises(DamagedRecord) as caught:
        list(StoredRows(store).load())

    assert caught.value.key == key


async def test_a_read_that_meets_damage_says_where(place: Place) -> None:
    store = place.open()
    bucket_ms = NOW_MS // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
    damaged: list[tuple[bytes, Read]] = [
        (pair_key(1, DELAYED, 5, 1), lambda rows: rows.delayed(1, 9)),
        (group_key(1, GROUP, G), lambda rows: rows.group(1, G)),
        (group_line_key(1, GROUP_LINE, G, 1), lambda rows: rows.group_line(1, G, 1, 9)),
        (row_key(1, ALIAS, 1), lambda rows: rows.alias(1, 1)),
        (
            remembered_key(1, REMEMBERED, bucket_ms, G),
            lambda rows: rows.remembered(1, [G], NOW_MS),
        ),
    ]
    for key, _ in damaged:
        store.batch.put(key, encode_row("something else"))
    await committed(store)

    for key, read in damaged:
        with pytest.raises(DamagedRecord) as caught:
            read(StoredRows(store))
        assert caught.value.key == key
