"""Typed reads see recorded changes, of the running Turn and under way; known damage is skipped."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from storage.rows import stored_rows
from storage.rows.stored_rows import StoredRows
from storage.tests.store_places import Place, changes_of, commit, everything, message, sent
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import (
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    group_key,
    group_line_key,
    message_key,
    pair_key,
    queue_key,
)
from visibility.rows.row_values import NOWHERE, GroupRow, Quarantined, Remembered
from visibility.rows.state_rows import load_archive
from visibility.rules.groups import GroupChange, GroupsChanged
from visibility.rules.kept_queues import QueueDropped
from visibility.rules.message_events import MessagesDelayed, MessagesSent
from visibility.rules.quarantine import (
    BlockedGroup,
    MessagesQuarantined,
    QuarantineEnded,
    quarantine_in,
)
from visibility.rules.remembered_ids import DeduplicationRecorded
from visibility.state.archive_state import ArchiveState
from visibility.state.queue_state import Blocked, QueueState
from visibility.state.rows import DamagedPlace

RUBBISH = b"\x01rubbish"
G = b"g" * 16
NOW_MS = 1_700_000_000_000
Read = Callable[[StoredRows], object]


def grouped(sequence: int) -> StoredMessage:
    return msgspec.structs.replace(message(sequence), group=G)


MINE = msgspec.structs.replace(grouped(1), clock_ms=5, original_sequence=1)
USED = Remembered(NOW_MS, "id", 1)
CHANGES = (
    GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(1, 1, 1))]),
    MessagesSent(1, 1, [MINE]),
    MessagesDelayed(1, 9, [7], [message(9)]),
    DeduplicationRecorded(1, [(G, USED)]),
)
READS: list[tuple[Read, object, object]] = [
    (lambda rows: rows.messages(1, [1]), [MINE], [None]),
    (lambda rows: rows.unless_quarantined(QueueState(1), [1]), [(1, MINE)], []),
    (lambda rows: rows.line(1, 1, 9, messages=9, size=9).messages, [(1, MINE)], []),
    (lambda rows: rows.delayed(1, 9), [(7, 9, message(9))], []),
    (lambda rows: rows.instants(CLOCK, 1, 9), [(5, 1)], []),
    (lambda rows: rows.group(1, G), GroupRow(1, 1, 1), None),
    (lambda rows: rows.group_line(1, G, 1, 9), [(1, None)], []),
    (lambda rows: rows.ready_groups(1, 0, 9), [(1, G)], []),
    (lambda rows: rows.alias(1, 1), 1, None),
    (lambda rows: rows.remembered(1, [G], NOW_MS), {G: USED}, {}),
]


@pytest.mark.parametrize("read", READS)
async def test_every_read_sees_what_was_recorded_before_it_is_in_the_rows(
    place: Place, read: tuple[Read, object, object]
) -> None:
    look, expected, nothing = read
    store = place.open()
    rows = StoredRows(store)
    assert look(rows) == nothing

    for event in CHANGES:
        event.record(rows.changes)
    assert look(rows) == expected
    under_way = rows.take_changes()
    assert look(rows) == expected
    QueueDropped(1).record(rows.changes)
    assert look(rows) == nothing
    dropped = rows.take_changes()
    assert everything(store) == {}

    await commit(store, under_way)
    rows.forget(under_way)
    assert look(rows) == nothing
    assert look(StoredRows(store)) == expected
    await commit(store, dropped)
    rows.forget(dropped)
    assert look(rows) == look(StoredRows(store)) == nothing


@pytest.mark.parametrize("limit", ["changes", "bytes"])
async def test_a_turn_is_full_at_a_number_of_changes_or_bytes_until_it_ends(
    place: Place, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = MessagesSent(1, 1, [MINE])
    changes = changes_of(sent)
    if limit == "changes":
        monkeypatch.setattr(stored_rows, "CHANGES_MAX", len(changes) + 1)
        rows = StoredRows(place.open())
    else:
        rows = StoredRows(place.open(), changes.size + 1)

    sent.record(rows.changes)
    assert not rows.is_full()
    sent.record(rows.changes)
    assert rows.is_full()

    assert rows.take_changes().ops == changes.ops * 2
    assert not rows.is_full()


async def test_a_turn_that_recorded_nothing_leaves_no_layer(place: Place) -> None:
    store = place.open()
    rows = StoredRows(store)

    assert not rows.take_changes()
    sent(1, 1).record(rows.changes)
    changes = rows.take_changes()
    for _ in range(3):
        assert not rows.take_changes()
    await commit(store, changes)
    rows.forget(changes)
    sent(1, 2).record(rows.changes)

    assert rows.messages(1, [1, 2]) == [message(1), message(2)]


async def test_a_queues_own_row_and_its_changed_spans_are_recorded(place: Place) -> None:
    store = place.open()
    rows = StoredRows(store)
    queue = QueueState(1)
    queue.next_sequence, queue.waiting = 9, 4
    queue.spans = {0: 3, 7: 1}
    queue.changed_spans.update({0, 5})

    queue.record(rows.changes, NOW_MS)

    ((queue_id, row),) = rows.queues()
    assert (queue_id, row.next_sequence, row.waiting, row.stamp_ms) == (1, 9, 4, NOW_MS)
    assert dict(rows.spans(1)) == {0: 3}


async def test_what_the_shard_knows_of_its_archive_is_recorded(place: Place) -> None:
    rows = StoredRows(place.open())
    assert load_archive(rows.store) == (None, [])
    archive = ArchiveState()
    archive.source, archive.next_position, archive.discarded = "5f", 7, 2

    archive.record(rows.changes)

    row, batches = load_archive(rows.store)
    assert row is not None
    assert (row.source, row.next_position, row.discarded, batches) == ("5f", 7, 2, [])


# -- damage ----------------------------------------------------------------------------------------


async def test_a_damaged_row_belongs_to_a_message_or_a_group_or_neither(place: Place) -> None:
    rows = StoredRows(place.open())
    places = {
        message_key(3, 9): DamagedPlace(3, 9, 10),
        pair_key(3, DELAYED, 7, 9): DamagedPlace(3, 9, 10, is_delayed=True),
        group_key(3, GROUP, G): DamagedPlace(3, 0, 0, G, is_group_row=True),
        group_line_key(3, GROUP_LINE, G, 9): DamagedPlace(3, 0, 0, G),
        queue_key(3): None,
    }

    for key, expected in places.items():
        assert rows.place_of(DamagedRecord(key, "it is rubbish")) == expected


async def test_a_damaged_message_is_passed_by_once_it_is_quarantined(place: Place) -> None:
    store = place.open()
    rubbish = Changes()
    rubbish.put(message_key(1, 2), RUBBISH)
    rubbish.put(pair_key(1, DELAYED, 7, 5), RUBBISH)
    clocked = [msgspec.structs.replace(message(n), clock_ms=n) for n in (1, 2, 3)]
    delayed = MessagesDelayed(1, 5, [7, 8], [message(5), message(6)])
    await commit(store, MessagesSent(1, 1, clocked), delayed, rubbish)
    rows = StoredRows(store)
    for read in (
        lambda: rows.line(1, 1, 9, messages=9, size=1 << 20),
        lambda: rows.delayed(1, 9),
        lambda: rows.unless_quarantined(QueueState(1), [3, 2]),
    ):
        with pytest.raises(DamagedRecord):
            read()
    late = pair_key(1, DELAYED, 7, 5)[9:]
    delayed_record = Quarantined(NOWHERE, 1, 9, delayed=[(late, late + b"\0")])
    records = [Quarantined(0, 1, 9, [2]), delayed_record]
    assert rows.survey_delayed(QueueState(1)).damaged == delayed_record.delayed
    MessagesQuarantined(1, records, [], []).record(rows.changes)
    queue = QueueState(1)
    queue.quarantined = known = quarantine_in(rows, 1)

    page = rows.line(1, 1, 9, messages=9, size=1 << 20, quarantined=known)

    assert page.messages == [(1, clocked[0]), (3, clocked[2])]
    assert rows.unless_quarantined(queue, [3, 2]) == [(3, clocked[2])]
    assert rows.delayed(1, 9, quarantined=known) == [(8, 6, message(6))]
    assert rows.instants(CLOCK, 1, 9, quarantined=known) == [(1, 1), (3, 3)]
    assert known.messages == 2


async def test_what_is_quarantined_is_a_row_until_it_ends(place: Place) -> None:
    store = place.open()
    lease = Lease(2, 0, 0, 0, 0, 0, G)
    record = Quarantined(0, 1, 9, [2])
    row = GroupRow(3, 1, 0, 1)
    waiting = [msgspec.structs.replace(message(n), group=G) for n in (1, 2, 3)]
    await commit(
        store,
        MessagesSent(1, 1, waiting),
        GroupsChanged(1, True, [GroupChange(G, 0, row)]),
        MessagesQuarantined(1, [record], [lease], [BlockedGroup(G, 9)]),
    )

    known = quarantine_in(StoredRows(store), 1)

    assert known.spans == {0: record}
    assert known.groups == {G: Blocked(9, 3, 1)}
    assert (known.lost, known.blocked, known.blocked_delayed, known.messages) == (1, 3, 1, 5)
    assert store.get(message_key(1, 2)) is not None, "the message's own row stays"
    assert StoredRows(store).in_groups(1, G) == [(G, 1), (G, 3)]

    await commit(store, QuarantineEnded(1, [record], [G]))

    known = quarantine_in(StoredRows(store), 1)
    assert (known.spans, known.groups) == ({}, {})
    assert store.get(message_key(1, 2)) is None
