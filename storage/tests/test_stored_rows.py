"""Typed reads, over every store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from storage.engines.store import Store
from storage.rows.changes import Changes
from storage.rows.keys import (
    DELAYED,
    GROUP,
    GROUP_LINE,
    group_key,
    group_line_key,
    message_key,
    pair_key,
    queue_key,
)
from storage.rows.stored_rows import StoredRows
from storage.tests.places import Place, changes_of, commit, everything, message
from visibility.state.archive_state import ArchiveState
from visibility.state.events import (
    GroupChange,
    GroupRow,
    GroupsChanged,
    IdsRemembered,
    Lease,
    LeasesEnded,
    MessagesDelayed,
    MessagesReceived,
    MessagesSent,
    QueueDropped,
    Remembered,
    StoredMessage,
)
from visibility.state.grouping import group_digest
from visibility.state.rows import DamagedPlace, DamagedRecord
from visibility.state.state import QueueState

LEASE_1 = Lease(1, 30_000, 1, 0, 5, 5)
RUBBISH = b"\x01rubbish"
G = b"g" * 16
H = b"h" * 16
I = b"i" * 16  # noqa: E741
NOBODYS = b"n" * 16
NOW_MS = 1_700_000_000_000
MINUTES_5 = 300_000
Read = Callable[[StoredRows], object]


def sent(queue_id: int, sequence: int, size: int = 10) -> MessagesSent:
    return MessagesSent(queue_id, sequence, [message(sequence, size)])


def grouped(sequence: int) -> StoredMessage:
    return msgspec.structs.replace(message(sequence), group=G)


def sequences(
    store: Store, queue_id: int = 1, *, most: int = 100, size: int = 1 << 20
) -> list[int]:
    page = StoredRows(store).line(queue_id, 1, 1_000, messages=most, size=size)
    return [sequence for sequence, _ in page.messages]


# -- messages -----------------------------------------------------------------------------------------------------------


async def test_messages_are_read_by_name_in_the_order_of_the_question(place: Place) -> None:
    store = place.open()
    await commit(store, *[sent(1, sequence) for sequence in (1, 2, 3)], sent(2, 4))
    rows = StoredRows(store)

    assert rows.messages(1, [2, 1]) == [message(2), message(1)]
    assert rows.messages(1, [3, 9, 1, 4, 2]) == [message(3), None, message(1), None, message(2)]
    assert rows.messages(2, [4]) == [message(4)]
    assert rows.messages(9, [1]) == [None]
    assert rows.messages(1, []) == []


async def test_a_page_has_at_most_the_messages_asked_for(place: Place) -> None:
    store = place.open()
    await commit(store, *[sent(1, sequence) for sequence in (1, 2, 5, 9)])
    rows = StoredRows(store)

    page = rows.line(1, 1, 10, messages=2, size=1 << 20)
    rest = rows.line(1, page.next_sequence or 0, 10, messages=2, size=1 << 20)

    assert page[:2] == ([(1, message(1)), (2, message(2))], 5)
    assert rest[:2] == ([(5, message(5)), (9, message(9))], None)


async def test_a_page_ends_once_it_holds_the_bytes_asked_for_but_has_at_least_one_message(
    place: Place,
) -> None:
    store = place.open()
    await commit(store, *[sent(1, sequence, size=100) for sequence in range(1, 5)])

    assert sequences(store, size=1) == [1]
    assert sequences(store, size=100) == [1]
    assert sequences(store, size=101) == [1, 2]
    assert sequences(store, size=400) == [1, 2, 3, 4]
    assert StoredRows(store).line(1, 1, 9, messages=9, size=200).next_sequence == 3


async def test_a_page_stays_within_its_range_and_its_queue(place: Place) -> None:
    store = place.open()
    await commit(
        store,
        *[sent(queue_id, sequence) for queue_id in (1, 2, 3) for sequence in (1, 2, 3, 4)],
        MessagesReceived(2, 5, [LEASE_1]),
        MessagesDelayed(2, 5, [9], [message(5)]),
    )
    rows = StoredRows(store)

    page = rows.line(2, 2, 4, messages=10, size=1 << 20)

    assert page[:2] == ([(2, message(2)), (3, message(3))], None)
    assert rows.line(2, 4, 4, messages=10, size=1 << 20)[:2] == ([], None)
    assert rows.line(9, 1, 4, messages=10, size=1 << 20)[:2] == ([], None)
    assert sequences(store, 2) == [1, 2, 3, 4], "received ones are among them, delayed ones not"


async def test_a_damaged_message_is_reported_and_not_guessed(place: Place) -> None:
    store = place.open()
    rubbish = Changes()
    rubbish.put(message_key(1, 2), RUBBISH)
    await commit(store, *[sent(1, sequence) for sequence in range(1, 7)], rubbish)
    rows = StoredRows(store)

    for asked in ([2], [1, 2, 3, 4, 5]):
        with pytest.raises(DamagedRecord, match=message_key(1, 2).hex()) as caught:
            rows.messages(1, asked)
        assert caught.value.key == message_key(1, 2)
    with pytest.raises(DamagedRecord):
        sequences(store)
    assert sequences(store, most=1) == [1]


async def test_delayed_messages_are_read_by_their_time(place: Place) -> None:
    store = place.open()
    await commit(
        store,
        MessagesDelayed(1, 1, [900, 300, 300, 600], [message(n) for n in (1, 2, 3, 4)]),
        MessagesDelayed(2, 1, [1], [message(9)]),
        sent(1, 5),
    )
    rows = StoredRows(store)

    in_order = [(300, 2, message(2)), (300, 3, message(3)), (600, 4, message(4))]
    assert rows.delayed(1, 3) == in_order
    assert rows.delayed(1, 9) == [*in_order, (900, 1, message(1))]
    assert rows.delayed(1, 9, after=(300, 2)) == [*in_order[1:], (900, 1, message(1))]
    assert rows.delayed(1, 9, after=(900, 1)) == []
    assert rows.delayed(3, 9) == []


async def test_delayed_messages_of_a_fifo_queue_are_read_in_the_order_they_were_sent(
    place: Place,
) -> None:
    store = place.open()
    await commit(store, MessagesDelayed(1, 1, [0, 0, 0], [message(n) for n in (1, 2, 3)]))
    rows = StoredRows(store)

    assert [sequence for _, sequence, _ in rows.delayed(1, 9)] == [1, 2, 3]
    assert rows.delayed(1, 9, after=(0, 1)) == [(0, 2, message(2)), (0, 3, message(3))]


async def test_a_page_of_delayed_messages_is_bounded_in_bytes(place: Place) -> None:
    store = place.open()
    large = [message(number, size=1 << 20) for number in range(6)]
    for number, each in enumerate(large, 1):
        await commit(store, MessagesDelayed(1, number, [7], [each]))
    rows = StoredRows(store)

    page = rows.delayed(1, 100)

    assert [sequence for _, sequence, _ in page] == [1, 2, 3, 4]
    rest = rows.delayed(1, 100, after=page[-1][:2])
    assert [sequence for _, sequence, _ in rest] == [5, 6]


async def test_clocks_are_read_oldest_first(place: Place) -> None:
    store = place.open()
    clocks = [70, 0, 50, 60]
    messages = [msgspec.structs.replace(message(at), clock_ms=at) for at in clocks]
    await commit(store, MessagesSent(1, 1, messages), MessagesSent(2, 1, messages[:1]))
    rows = StoredRows(store)

    assert rows.clocks(1, 9) == [(50, 3), (60, 4), (70, 1)]
    assert rows.clocks(1, 2) == [(50, 3), (60, 4)]
    assert rows.clocks(3, 9) == []


# -- groups -------------------------------------------------------------------------------------------------------------


async def test_a_group_is_read_by_its_digest(place: Place) -> None:
    store = place.open()
    await commit(store, GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(2, 1, 1))]))
    rows = StoredRows(store)

    assert rows.group(1, G) == GroupRow(2, 1, 1)
    assert rows.group(1, H) is None
    assert rows.group(2, G) is None


async def test_the_line_of_a_group_has_its_waiting_messages_with_their_history(
    place: Place,
) -> None:
    store = place.open()
    lease = Lease(2, 30_000, 1, 0, 5, 5, G)
    await commit(store, MessagesSent(1, 1, [grouped(n) for n in (1, 2, 3)]))
    other = msgspec.structs.replace(message(4), group=H)
    await commit(
        store,
        MessagesSent(1, 4, [other]),
        MessagesSent(2, 9, [grouped(9)]),
        MessagesReceived(1, 5, [lease, Lease(3, 30_000, 1, 0, 5, 5, G)]),
        LeasesEnded(1, 6, [lease]),
    )
    rows = StoredRows(store)

    assert rows.group_line(1, G, 1, 9) == [(1, None), (2, lease)]
    assert rows.group_line(1, G, 2, 9) == [(2, lease)]
    assert rows.group_line(1, G, 1, 1) == [(1, None)]
    assert rows.group_line(1, G, 3, 9) == []
    assert rows.group_line(1, H, 1, 9) == [(4, None)]


async def test_heads_are_read_by_their_order(place: Place) -> None:
    store = place.open()
    changes = [GroupChange(G, 0, GroupRow(1, 7, 7)), GroupChange(H, 0, GroupRow(1, 3, 3))]
    await commit(store, GroupsChanged(1, True, changes), GroupsChanged(2, True, changes[:1]))
    rows = StoredRows(store)

    assert rows.heads(1, 0, 9) == [(3, H), (7, G)]
    assert rows.heads(1, 0, 1) == [(3, H)]
    assert rows.heads(1, 4, 9) == [(7, G)]
    assert rows.heads(1, 8, 9) == []
    assert rows.heads(3, 0, 9) == []


async def test_an_alias_says_where_a_message_is_now(place: Place) -> None:
    store = place.open()
    await commit(
        store, MessagesSent(1, 8, [msgspec.structs.replace(message(8), handle_sequence=2)])
    )
    rows = StoredRows(store)

    assert rows.alias(1, 2) == 8
    assert rows.alias(1, 8) is None
    assert rows.alias(2, 2) is None


# -- ids ----------------------------------------------------------------------------------------------------------------


async def test_an_id_is_remembered_for_five_minutes(place: Place) -> None:
    store = place.open()
    used = {
        group_digest(str(step)): Remembered(NOW_MS + step, str(step), 1)
        for step in range(0, 310_000, 7_901)
    }
    await commit(store, *[IdsRemembered(1, [named]) for named in used.items()])
    rows = StoredRows(store)

    for digest, remembered in used.items():
        at_ms = remembered.at_ms
        for age_ms in (0, 1, MINUTES_5 // 2, MINUTES_5 - 1):
            assert rows.remembered(1, [digest], at_ms + age_ms) == {digest: remembered}
        for age_ms in (MINUTES_5, MINUTES_5 + 1, 2 * MINUTES_5):
            assert rows.remembered(1, [digest], at_ms + age_ms) == {}
        assert rows.remembered(2, [digest], at_ms) == {}
    assert rows.remembered(1, [H], NOW_MS) == {}


async def test_ids_are_looked_up_together_and_those_that_are_known_are_found(
    place: Place,
) -> None:
    store = place.open()
    old, known, twice = (Remembered(NOW_MS + at, "id", at) for at in (1, 200_000, 250_000))
    await commit(store, IdsRemembered(1, [(G, old), (H, known)]), IdsRemembered(1, [(I, twice)]))
    rows = StoredRows(store)

    assert rows.remembered(1, [], NOW_MS) == {}
    now_ms = NOW_MS + MINUTES_5
    assert rows.remembered(1, [I, H, G, NOBODYS], now_ms) == {G: old, H: known, I: twice}
    assert rows.remembered(1, [I, H, G, NOBODYS], now_ms + 1) == {H: known, I: twice}
    assert rows.remembered(1, [H, H], now_ms) == {H: known}


async def test_an_id_that_was_used_again_after_five_minutes_stands_for_the_later(
    place: Place,
) -> None:
    store = place.open()
    first, second = Remembered(NOW_MS, "a", 1), Remembered(NOW_MS + MINUTES_5, "b", 2)
    await commit(store, IdsRemembered(1, [(G, first)]), IdsRemembered(1, [(G, second)]))
    rows = StoredRows(store)

    assert rows.remembered(1, [G], NOW_MS + MINUTES_5) == {G: second}
    assert rows.remembered(1, [G], NOW_MS + 2 * MINUTES_5 - 1) == {G: second}
    assert rows.remembered(1, [G], NOW_MS + 2 * MINUTES_5) == {}


# -- what the running Turn recorded, and Entries under way ----------------------------------------------------------------


MINE = msgspec.structs.replace(grouped(1), clock_ms=5, handle_sequence=1)
USED = Remembered(NOW_MS, "id", 1)
CHANGES = (
    GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(1, 1, 1))]),
    MessagesSent(1, 1, [MINE]),
    MessagesDelayed(1, 9, [7], [message(9)]),
    IdsRemembered(1, [(G, USED)]),
)
READS: list[tuple[Read, object, object]] = [
    (lambda rows: rows.messages(1, [1]), [MINE], [None]),
    (lambda rows: rows.readable_messages(1, [1]), [(1, MINE)], []),
    (lambda rows: rows.line(1, 1, 9, messages=9, size=9).messages, [(1, MINE)], []),
    (lambda rows: rows.delayed(1, 9), [(7, 9, message(9))], []),
    (lambda rows: rows.clocks(1, 9), [(5, 1)], []),
    (lambda rows: rows.group(1, G), GroupRow(1, 1, 1), None),
    (lambda rows: rows.group_line(1, G, 1, 9), [(1, None)], []),
    (lambda rows: rows.heads(1, 0, 9), [(1, G)], []),
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
        rows.record(event)
    assert look(rows) == expected
    under_way = rows.take_changes()
    assert look(rows) == expected
    rows.record(QueueDropped(1))
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


async def test_what_a_turn_recorded_is_counted_until_it_ends(place: Place) -> None:
    rows = StoredRows(place.open())
    assert rows.recorded() == (0, 0)

    rows.record(MessagesSent(1, 1, [MINE]))

    changes = changes_of(MessagesSent(1, 1, [MINE]))
    assert rows.recorded() == (len(changes), changes.size) == (4, changes.size)
    assert changes.size > MINE.size
    assert rows.take_changes().ops == changes.ops
    assert rows.recorded() == (0, 0)


async def test_a_turn_that_recorded_nothing_leaves_no_layer(place: Place) -> None:
    store = place.open()
    rows = StoredRows(store)

    assert not rows.take_changes()
    rows.record(sent(1, 1))
    changes = rows.take_changes()
    for _ in range(3):
        assert not rows.take_changes()
    await commit(store, changes)
    rows.forget(changes)
    rows.record(sent(1, 2))

    assert rows.messages(1, [1, 2]) == [message(1), message(2)]


async def test_a_queues_own_row_and_its_changed_spans_are_recorded(place: Place) -> None:
    store = place.open()
    rows = StoredRows(store)
    queue = QueueState(1)
    queue.next_sequence, queue.waiting = 9, 4
    queue.spans = {0: 3, 7: 1}
    queue.changed_spans.update({0, 5})

    rows.record_queue(queue, NOW_MS)

    ((queue_id, row),) = rows.queues()
    assert (queue_id, row.next_sequence, row.waiting, row.stamp_ms) == (1, 9, 4, NOW_MS)
    assert dict(rows.spans(1)) == {0: 3}


async def test_what_the_shard_knows_of_its_archive_is_recorded(place: Place) -> None:
    rows = StoredRows(place.open())
    assert rows.archive() == (None, [])
    archive = ArchiveState()
    archive.source, archive.next_position, archive.discarded = "5f", 7, 2

    rows.record_archive(archive)

    row, batches = rows.archive()
    assert row is not None
    assert (row.source, row.next_position, row.discarded, batches) == ("5f", 7, 2, [])


# -- damage -------------------------------------------------------------------------------------------------------------


async def test_a_damaged_row_belongs_to_a_message_or_a_group_or_neither(place: Place) -> None:
    rows = StoredRows(place.open())
    places = {
        message_key(3, 9): DamagedPlace(3, 9, b"", False),
        pair_key(3, DELAYED, 7, 9): DamagedPlace(3, 9, b"", True),
        group_key(3, GROUP, G): DamagedPlace(3, 0, G, False),
        group_line_key(3, GROUP_LINE, G, 9): DamagedPlace(3, 0, G, False),
        queue_key(3): None,
    }

    for key, expected in places.items():
        assert rows.place_of(DamagedRecord(key, "it is rubbish")) == expected


async def test_a_damaged_message_is_passed_by_once_that_is_known(place: Place) -> None:
    store = place.open()
    rubbish = Changes()
    rubbish.put(message_key(1, 2), RUBBISH)
    rubbish.put(pair_key(1, DELAYED, 7, 5), RUBBISH)
    clocked = [msgspec.structs.replace(message(n), clock_ms=n) for n in (1, 2, 3)]
    delayed = MessagesDelayed(1, 5, [7, 8], [message(5), message(6)])
    await commit(store, MessagesSent(1, 1, clocked), delayed, rubbish)
    rows = StoredRows(store)
    for key in (message_key(1, 2), pair_key(1, DELAYED, 7, 5)):
        assert rows.pass_by(DamagedRecord(key, "it is rubbish"))
        assert not rows.pass_by(DamagedRecord(key, "it is rubbish"))

    page = rows.line(1, 1, 9, messages=9, size=1 << 20)

    assert (page.messages, page.misses_some) == ([(1, clocked[0]), (3, clocked[2])], True)
    assert rows.readable_messages(1, [3, 2]) == [(3, clocked[2])]
    assert rows.delayed(1, 9) == [(8, 6, message(6))]
    assert rows.clocks(1, 9) == [(1, 1), (3, 3)]
