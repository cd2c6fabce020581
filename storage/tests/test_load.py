"""The data that a start reads, over every store, and its report of damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from storage.rows.stored_rows import StoredRows
from storage.tests.store_places import Place, changes_of, commit, message, sent, sequences
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Lease
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_keys import (
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
from visibility.rows.row_values import REMEMBER_BUCKET_MS, QueueRow
from visibility.rows.state_rows import write_queue
from visibility.rules.message_events import (
    MessagesDelayed,
    MessagesDeleted,
    MessagesReceived,
    VisibilityChanged,
)
from visibility.rules.move_tasks import MOVE_TASKS, MoveTaskChanged

ROW = QueueRow(4, 2, 1, 0)
LEASE_1 = Lease(1, 30_000, 1, 0, 5, 5)
RUBBISH = b"\x01rubbish"
G = b"g" * 16
NOW_MS = 1_700_000_000_000
Read = Callable[[StoredRows], object]


class StoredQueue(NamedTuple):
    """All that a start reads of one queue."""

    queue_id: int
    row: QueueRow
    leases: list[Lease]
    move_tasks: list[MoveTask]
    spans: dict[int, int]


def load(rows: StoredRows) -> list[StoredQueue]:
    return [
        StoredQueue(
            queue_id,
            row,
            list(rows.leases(queue_id)),
            [task for _, task in MOVE_TASKS.read(rows.store, queue_id)],
            dict(rows.spans(queue_id)),
        )
        for queue_id, row in rows.queues()
    ]


async def test_load_equals_what_was_written(place: Place) -> None:
    store = place.open()
    tasks = [MoveTask(number, "task", "arn:s", None, 0, 5, 4, 9) for number in (1, 2)]
    events = [
        *[sent(1, sequence) for sequence in (1, 2, 3)],
        sent(3, 1),
        MessagesReceived(1, 5, [LEASE_1, Lease(2, 40_000, 1, 0, 5, 5)]),
        VisibilityChanged(1, 6, [Lease(1, 6, 1, 0, 5, 5)]),
        MessagesDeleted(1, 7, [Lease(2, 40_000, 1, 0, 5, 5)]),
        MessagesDelayed(3, 2, [77], [message(2)]),
        *[MoveTaskChanged(3, task) for task in tasks],
    ]
    full = QueueRow(3, 1, 1, 8, 1, 5, 6, NOW_MS, True, NOW_MS + 1)
    changes = changes_of(*events)
    write_queue(changes, 1, ROW, {0: 2, 1: 1})
    write_queue(changes, 2, QueueRow(1, 1, 0, 99), {})
    write_queue(changes, 3, full, {7: 1})
    await commit(store, changes)

    store = await place.reopen(store)

    assert load(StoredRows(store)) == [
        StoredQueue(1, ROW, [Lease(1, 6, 1, 0, 5, 5)], [], {0: 2, 1: 1}),
        StoredQueue(2, QueueRow(1, 1, 0, 99), [], [], {}),
        StoredQueue(3, full, [], tasks, {7: 1}),
    ]
    assert sequences(store) == [1, 3]


async def test_load_of_nothing(place: Place) -> None:
    assert load(StoredRows(place.open())) == []


async def test_messages_without_their_queues_row_are_damage(place: Place) -> None:
    store = place.open()
    await commit(store, sent(1, 1))

    with pytest.raises(DamagedRecord, match="no row of its own"):
        load(StoredRows(store))


@pytest.mark.parametrize(
    "key",
    [queue_key(1), row_key(1, LEASE, 1), row_key(1, MOVE_TASK, 1), row_key(1, SPAN, 0)],
    ids=["queue", "lease", "move task", "span"],
)
async def test_a_load_that_meets_damage_says_where(place: Place, key: bytes) -> None:
    store = place.open()
    changes = Changes()
    write_queue(changes, 1, ROW, {})
    changes.put(key, RUBBISH)
    await commit(store, changes)

    with pytest.raises(DamagedRecord) as caught:
        load(StoredRows(store))

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
    changes = Changes()
    for key, _ in damaged:
        changes.put(key, encode_row("something else"))
    await commit(store, changes)

    for key, read in damaged:
        with pytest.raises(DamagedRecord) as caught:
            read(StoredRows(store))
        assert caught.value.key == key
