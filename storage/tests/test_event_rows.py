"""The rows that each event changes on disk: these and no others."""

from __future__ import annotations

import msgspec
import pytest

from storage.engines.store import Store
from storage.tests.store_places import Place, commit, everything, message
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows import row_keys
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_values import (
    REMEMBER_BUCKET_MS,
    THE_SHARD,
    ArchivedMessage,
    GroupRow,
    QueueRow,
    Remembered,
    SealedBatch,
)
from visibility.rows.state_rows import write_queue
from visibility.rules import message_events
from visibility.rules.archive_batches import BatchesArchived, BatchSealed, MessagesHandedOver
from visibility.rules.events import Event
from visibility.rules.groups import GroupChange, GroupsChanged
from visibility.rules.kept_queues import QueueContinued, QueueDropped
from visibility.rules.move_tasks import MoveTaskChanged
from visibility.rules.remembered_ids import DeduplicationForgotten, DeduplicationRecorded
from visibility.state.shard_state import ShardState

G = b"g" * 16
H = b"h" * 16
PLAIN = message(1)
GROUPED = msgspec.structs.replace(message(2), group=G)
INDEXED = msgspec.structs.replace(message(3), group=G, clock_ms=77, original_sequence=1)
LEASE_1 = Lease(1, 30_000, 1, 0, 5, 5)
LEASE_2 = Lease(2, 30_000, 1, 0, 5, 5, G)
LEASE_3 = Lease(3, 30_000, 4, 0, 5, 5, G, 77, 1)
BUCKET = REMEMBER_BUCKET_MS

MESSAGE_1 = {row_keys.row_key(1, row_keys.MESSAGE, 1): encode_row(PLAIN)}
MESSAGE_2 = {row_keys.row_key(1, row_keys.MESSAGE, 2): encode_row(GROUPED)}
LINE_2 = {row_keys.group_line_key(1, row_keys.GROUP_LINE, G, 2): b""}
MESSAGE_3 = {row_keys.row_key(1, row_keys.MESSAGE, 3): encode_row(INDEXED)}
LINE_3 = {row_keys.group_line_key(1, row_keys.GROUP_LINE, G, 3): b""}
INDEX_3 = {
    row_keys.pair_key(1, row_keys.CLOCK, 77, 3): b"",
    row_keys.row_key(1, row_keys.ALIAS, 1): encode_row(3),
}
SENT = MESSAGE_1 | MESSAGE_2 | LINE_2 | MESSAGE_3 | LINE_3 | INDEX_3
TWO = [PLAIN, GROUPED]
THREE_SENT = message_events.MessagesSent(1, 1, [PLAIN, GROUPED, INDEXED])


def leased(*leases: Lease) -> dict[bytes, bytes]:
    return {
        row_keys.row_key(1, row_keys.LEASE, lease.sequence): encode_row(lease) for lease in leases
    }


async def rows_after(place: Place, *events: Event) -> dict[bytes, bytes]:
    """All rows after these events, each in a separate Entry."""
    store: Store = place.open()
    for event in events:
        await commit(store, event)
    return everything(await place.reopen(store))


async def test_sent_messages_are_in_the_line_and_in_the_indexes_that_concern_them(
    place: Place,
) -> None:
    assert await rows_after(place, THREE_SENT) == SENT


async def test_delayed_messages_lie_by_their_time_and_in_no_index(place: Place) -> None:
    event = message_events.MessagesDelayed(1, 7, [900, 0], [PLAIN, INDEXED])

    assert await rows_after(place, event) == {
        row_keys.pair_key(1, row_keys.DELAYED, 900, 7): encode_row(PLAIN),
        row_keys.pair_key(1, row_keys.DELAYED, 0, 8): encode_row(INDEXED),
    }


async def test_received_messages_have_a_lease_and_leave_the_line_of_their_group(
    place: Place,
) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_1, LEASE_2, LEASE_3])

    assert await rows_after(place, THREE_SENT, received) == (
        MESSAGE_1 | MESSAGE_2 | MESSAGE_3 | INDEX_3 | leased(LEASE_1, LEASE_2, LEASE_3)
    )


async def test_a_change_of_visibility_replaces_the_lease(place: Place) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_1, LEASE_2])
    longer = msgspec.structs.replace(LEASE_1, visible_at_ms=99_000)
    changed = message_events.VisibilityChanged(1, 6, [longer])

    expected = {key: value for key, value in SENT.items() if key not in LINE_2}
    assert await rows_after(place, THREE_SENT, received, changed) == (
        expected | leased(longer, LEASE_2)
    )


async def test_a_change_of_visibility_of_a_waiting_message_takes_it_out_of_its_group(
    place: Place,
) -> None:
    """One that went to the back is named by a handle from before."""
    changed = message_events.VisibilityChanged(1, 6, [LEASE_3])

    expected = {key: value for key, value in SENT.items() if key not in LINE_3}
    assert await rows_after(place, THREE_SENT, changed) == expected | leased(LEASE_3)


async def test_ended_leases_wait_in_their_groups_with_their_history(place: Place) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_2])
    ended = message_events.LeasesEnded(1, 30_000, [LEASE_2])
    line = {row_keys.group_line_key(1, row_keys.GROUP_LINE, G, 2): encode_row(LEASE_2)}

    assert await rows_after(place, THREE_SENT, received, ended) == SENT | line


async def test_deleted_messages_leave_nothing(place: Place) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_1, LEASE_2, LEASE_3])
    deleted = message_events.MessagesDeleted(1, 6, [LEASE_1, LEASE_2, LEASE_3])

    assert await rows_after(place, THREE_SENT, received, deleted) == {}


async def test_a_deleted_message_leaves_its_neighbours(place: Place) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_1])

    assert await rows_after(
        place, THREE_SENT, received, message_events.MessagesDeleted(1, 6, [LEASE_1])
    ) == {key: value for key, value in SENT.items() if key not in MESSAGE_1}


async def test_expired_messages_leave_nothing_whether_they_waited_or_not(place: Place) -> None:
    received = message_events.MessagesReceived(1, 5, [LEASE_2])
    made_up = [Lease(1, 0, 0, 0, 0, 0), LEASE_2, Lease(3, 0, 0, 0, 0, 0, G, 77, 1)]

    assert (
        await rows_after(place, THREE_SENT, received, message_events.MessagesExpired(1, made_up))
        == {}
    )


async def test_an_expired_message_of_a_fifo_queue_leaves_the_line_it_came_back_to(
    place: Place,
) -> None:
    events = [
        message_events.MessagesSent(1, 2, [GROUPED]),
        message_events.MessagesReceived(1, 5, [LEASE_2]),
        message_events.LeasesEnded(1, 6, [LEASE_2]),
        message_events.MessagesExpired(1, [Lease(2, 0, 0, 0, 0, 0, G)]),
    ]

    assert await rows_after(place, *events) == {}


async def test_a_dead_letter_is_the_same_message_with_its_history(place: Place) -> None:
    dead = StoredMessage("id-3", 1_003, 10, INDEXED.data, 9, "arn:q", 4, 5, H, 1_003, 0, 0)
    move = message_events.Move(LEASE_3, -1, 2, 40, dead)
    received = message_events.MessagesReceived(1, 5, [LEASE_3])

    rows = await rows_after(place, THREE_SENT, received, message_events.MessagesMoved(1, 9, [move]))

    moved = msgspec.structs.replace(dead, joined_at_ms=9)
    assert rows == MESSAGE_1 | MESSAGE_2 | LINE_2 | {
        row_keys.row_key(2, row_keys.MESSAGE, 40): encode_row(moved),
        row_keys.group_line_key(2, row_keys.GROUP_LINE, H, 40): b"",
        row_keys.pair_key(2, row_keys.CLOCK, 1_003, 40): b"",
    }


async def test_a_message_that_was_resealed_is_written_as_the_move_says(place: Place) -> None:
    resealed = msgspec.structs.replace(
        INDEXED, data=b"sealed anew", sealed=9, group=b"", clock_ms=0
    )
    move = message_events.Move(LEASE_3, -1, 2, 40, resealed, True)

    rows = await rows_after(place, THREE_SENT, message_events.MessagesMoved(1, 9, [move]))

    moved = msgspec.structs.replace(resealed, joined_at_ms=9)
    assert rows[row_keys.row_key(2, row_keys.MESSAGE, 40)] == encode_row(moved)


async def test_a_message_that_goes_to_the_back_is_found_by_its_old_sequence(place: Place) -> None:
    received = msgspec.structs.replace(
        INDEXED, receive_count=4, received_here=4, first_received_at_ms=5
    )
    move = message_events.Move(LEASE_3, -1, 1, 4, received)

    rows = await rows_after(
        place,
        THREE_SENT,
        message_events.MessagesReceived(1, 5, [LEASE_3]),
        message_events.MessagesMoved(1, 9, [move]),
    )

    assert rows == MESSAGE_1 | MESSAGE_2 | LINE_2 | {
        row_keys.row_key(1, row_keys.MESSAGE, 4): encode_row(received),
        row_keys.group_line_key(1, row_keys.GROUP_LINE, G, 4): b"",
        row_keys.pair_key(1, row_keys.CLOCK, 77, 4): b"",
        row_keys.row_key(1, row_keys.ALIAS, 1): encode_row(4),
    }


async def test_a_delayed_message_whose_time_came_is_in_the_line_under_its_new_sequence(
    place: Place,
) -> None:
    delayed = message_events.MessagesDelayed(1, 7, [900, 901], [GROUPED, PLAIN])
    clock_ms = GROUPED.sent_at_ms
    waiting = msgspec.structs.replace(GROUPED, clock_ms=clock_ms)
    move = message_events.Move(Lease(7, 0, 0, 0, 0, 0), 900, 1, 9, waiting)

    rows = await rows_after(place, delayed, message_events.MessagesMoved(1, 900, [move]))

    assert rows == {
        row_keys.pair_key(1, row_keys.DELAYED, 901, 8): encode_row(PLAIN),
        row_keys.row_key(1, row_keys.MESSAGE, 9): encode_row(waiting),
        row_keys.group_line_key(1, row_keys.GROUP_LINE, G, 9): b"",
        row_keys.pair_key(1, row_keys.CLOCK, clock_ms, 9): b"",
    }


async def test_groups_that_change_have_one_row_and_are_listed_under_one_order(place: Place) -> None:
    listed = GroupsChanged(
        1,
        True,
        [GroupChange(G, 0, GroupRow(2, 1, 1)), GroupChange(H, 0, GroupRow(1, 3, 0, 4))],
    )
    rows = {
        row_keys.group_key(1, row_keys.GROUP, G): encode_row(GroupRow(2, 1, 1)),
        row_keys.group_key(1, row_keys.GROUP, H): encode_row(GroupRow(1, 3, 0, 4)),
    }
    head = {row_keys.row_key(1, row_keys.HEAD, 1): G}

    assert await rows_after(place, listed) == rows | head

    store = place.opened[-1] if place.opened else place.memory
    taken = GroupRow(1, 2, 0)
    await commit(store, GroupsChanged(1, True, [GroupChange(G, 1, taken)]))
    rows[row_keys.group_key(1, row_keys.GROUP, G)] = encode_row(taken)
    assert everything(store) == rows, "it is blocked"

    again, same = GroupRow(1, 2, 50), GroupRow(7, 2, 50)
    await commit(
        store,
        GroupsChanged(1, True, [GroupChange(G, 0, again)]),
        GroupsChanged(1, True, [GroupChange(G, 50, same)]),
    )
    rows[row_keys.group_key(1, row_keys.GROUP, G)] = encode_row(same)
    assert everything(store) == rows | {row_keys.row_key(1, row_keys.HEAD, 50): G}

    await commit(
        store,
        GroupsChanged(1, True, [GroupChange(G, 50, GroupRow(0, 9, 0))]),
        GroupsChanged(1, True, [GroupChange(H, 0, GroupRow(0, 9, 0, 1))]),
    )
    assert everything(store) == {
        row_keys.group_key(1, row_keys.GROUP, H): encode_row(GroupRow(0, 9, 0, 1))
    }


async def test_ids_are_remembered_by_buckets_and_forgotten_with_them(place: Place) -> None:
    at = [Remembered(ms, "id", 1) for ms in (BUCKET, 2 * BUCKET - 1, 2 * BUCKET, 3 * BUCKET)]
    remembered = DeduplicationRecorded(1, [(G, at[0]), (H, at[1]), (G, at[2]), (G, at[3])])
    another = DeduplicationRecorded(2, [(G, at[0])])
    rows = {
        row_keys.remembered_key(1, row_keys.REMEMBERED, BUCKET, G): encode_row(at[0]),
        row_keys.remembered_key(1, row_keys.REMEMBERED, BUCKET, H): encode_row(at[1]),
        row_keys.remembered_key(1, row_keys.REMEMBERED, 2 * BUCKET, G): encode_row(at[2]),
        row_keys.remembered_key(1, row_keys.REMEMBERED, 3 * BUCKET, G): encode_row(at[3]),
        row_keys.remembered_key(2, row_keys.REMEMBERED, BUCKET, G): encode_row(at[0]),
    }
    assert await rows_after(place, remembered, another) == rows

    store = place.opened[-1] if place.opened else place.memory
    await commit(store, DeduplicationForgotten(1, 2 * BUCKET))

    assert everything(store).keys() == rows.keys() - {
        row_keys.remembered_key(1, row_keys.REMEMBERED, BUCKET, G),
        row_keys.remembered_key(1, row_keys.REMEMBERED, BUCKET, H),
    }


async def test_an_id_that_is_used_again_in_the_same_bucket_stands_for_the_later(
    place: Place,
) -> None:
    first, second = Remembered(BUCKET, "a", 1), Remembered(BUCKET + 1, "b", 2)

    rows = await rows_after(
        place, DeduplicationRecorded(1, [(G, first)]), DeduplicationRecorded(1, [(G, second)])
    )

    assert rows == {row_keys.remembered_key(1, row_keys.REMEMBERED, BUCKET, G): encode_row(second)}


async def test_a_move_task_is_kept_until_it_is_forgotten(place: Place) -> None:
    tasks = [MoveTask(number, "task", "arn:s", None, 0, 5, 4, 9) for number in (1, 2, 3)]
    running = msgspec.structs.replace(tasks[1], moved=3)

    rows = await rows_after(
        place,
        MoveTaskChanged(1, tasks[0]),
        MoveTaskChanged(1, tasks[1]),
        MoveTaskChanged(1, running),
        MoveTaskChanged(1, tasks[2], forgotten=1),
    )

    assert rows == {
        row_keys.row_key(1, row_keys.MOVE_TASK, 2): encode_row(running),
        row_keys.row_key(1, row_keys.MOVE_TASK, 3): encode_row(tasks[2]),
    }


def one_of_each(queue_id: int) -> dict[bytes, tuple[bytes, bytes]]:
    """A row in each table, by table."""
    made = {row_keys.QUEUE: row_keys.queue_key(queue_id)}
    made |= {
        table: row_keys.row_key(queue_id, table, 5)
        for table in (
            row_keys.MESSAGE,
            row_keys.HEAD,
            row_keys.LEASE,
            row_keys.ALIAS,
            row_keys.SPAN,
        )
    }
    made |= {
        table: row_keys.pair_key(queue_id, table, 5, 6)
        for table in (row_keys.CLOCK, row_keys.DELAYED)
    }
    made[row_keys.GROUP] = row_keys.group_key(queue_id, row_keys.GROUP, G)
    made[row_keys.GROUP_LINE] = row_keys.group_line_key(queue_id, row_keys.GROUP_LINE, G, 5)
    made[row_keys.REMEMBERED] = row_keys.remembered_key(queue_id, row_keys.REMEMBERED, 5, G)
    made[row_keys.MOVE_TASK] = row_keys.row_key(queue_id, row_keys.MOVE_TASK, 5)
    made[row_keys.HOLD] = row_keys.row_key(queue_id, row_keys.HOLD, 5)
    return {table: (key, table) for table, key in made.items()}


async def filled(place: Place) -> Store:
    store = place.open()
    changes = Changes()
    for queue_id in (1, 2, 3):
        for key, value in one_of_each(queue_id).values():
            changes.put(key, value)
    await commit(store, changes)
    return store


async def test_a_purged_queue_keeps_its_rows_and_hands_on_its_tasks(place: Place) -> None:
    store = await filled(place)
    before = everything(store)
    task = MoveTask(5, "task", "arn", None, 0, 1, 2, 3)

    await commit(store, QueueContinued(2, 4, 9, [task]))

    after = everything(await place.reopen(store))
    assert before.keys() - after.keys() == {one_of_each(2)[row_keys.MOVE_TASK][0]}
    assert after.keys() - before.keys() == {row_keys.row_key(4, row_keys.MOVE_TASK, 5)}


async def test_a_dropped_queue_leaves_no_row_and_its_neighbours_stay(place: Place) -> None:
    store = await filled(place)

    await commit(store, QueueDropped(2))

    expected = dict([*one_of_each(1).values(), *one_of_each(3).values()])
    assert everything(await place.reopen(store)) == expected


async def test_a_queue_that_is_used_again_in_the_entry_that_emptied_it(place: Place) -> None:
    store = await filled(place)

    await commit(store, QueueDropped(2), message_events.MessagesSent(2, 1, [PLAIN]))

    rows = everything(store)
    assert {key for key in rows if key[:8] == row_keys.queue_key(2)[:8]} == {
        row_keys.row_key(2, row_keys.MESSAGE, 1)
    }


async def test_a_queues_own_row_is_written_with_the_spans_that_changed(place: Place) -> None:
    store = place.open()
    first, second = QueueRow(9, 1, 4, 0), QueueRow(9, 2, 3, 0)

    changes = Changes()
    write_queue(changes, 1, first, {0: 4_096, 1: 2})
    await commit(store, changes)
    assert everything(store) == {
        row_keys.queue_key(1): encode_row(first),
        row_keys.row_key(1, row_keys.SPAN, 0): encode_row(4_096),
        row_keys.row_key(1, row_keys.SPAN, 1): encode_row(2),
    }

    changes = Changes()
    write_queue(changes, 1, second, {0: 0, 7: 0})
    await commit(store, changes)
    assert everything(store) == {
        row_keys.queue_key(1): encode_row(second),
        row_keys.row_key(1, row_keys.SPAN, 1): encode_row(2),
    }


async def test_messages_for_the_archive_have_a_row_each_until_their_batch_is_archived(
    place: Place,
) -> None:
    handed = MessagesHandedOver(1, 7, "deleted", "arn:q", "1", True, 5, 20, [LEASE_1, LEASE_2], TWO)
    batches = [SealedBatch(number, first, first + 2, 20, 9) for number, first in ((2, 5), (3, 7))]
    kept = ArchivedMessage("arn:q", "deleted", 7, 1, 1, 5, PLAIN)
    second = ArchivedMessage("arn:q", "deleted", 7, 2, 1, 5, GROUPED)
    store = place.open()

    await commit(store, handed, *[BatchSealed(THE_SHARD, batch) for batch in batches])

    rows = {
        row_keys.row_key(THE_SHARD, row_keys.ARCHIVED, 5): encode_row(kept),
        row_keys.row_key(THE_SHARD, row_keys.ARCHIVED, 6): encode_row(second),
        row_keys.row_key(THE_SHARD, row_keys.BATCH, 2): encode_row(batches[0]),
        row_keys.row_key(THE_SHARD, row_keys.BATCH, 3): encode_row(batches[1]),
    }
    assert everything(store) == rows
    later = msgspec.structs.replace(handed, sequence_numbers=False, first_position=7)
    await commit(store, later, BatchesArchived(THE_SHARD, 2, 7))
    assert everything(store) == {
        row_keys.row_key(THE_SHARD, row_keys.ARCHIVED, 7): encode_row(
            msgspec.structs.replace(kept, sequence=0)
        ),
        row_keys.row_key(THE_SHARD, row_keys.ARCHIVED, 8): encode_row(
            msgspec.structs.replace(second, sequence=0)
        ),
        row_keys.row_key(THE_SHARD, row_keys.BATCH, 3): encode_row(batches[1]),
    }


def test_an_event_without_its_row_changes_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="the event Half defines no method record"):

        class Half(Event, frozen=True):
            def apply(self, shard: ShardState) -> None:
                pass
