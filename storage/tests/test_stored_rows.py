"""Typed reads, over every store."""

from __future__ import annotations

import msgspec
import pytest

from storage.rows.stored_rows import StoredRows
from storage.tests.store_places import Place, commit, message, sent, sequences
from visibility.content.id_digests import group_digest
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import CLOCK, message_key
from visibility.rows.row_values import GroupRow, Remembered
from visibility.rules.groups import GroupChange, GroupsChanged
from visibility.rules.message_events import (
    LeasesEnded,
    MessagesDelayed,
    MessagesReceived,
    MessagesSent,
)
from visibility.rules.remembered_ids import DeduplicationRecorded

LEASE_1 = Lease(1, 30_000, 1, 0, 5, 5)
RUBBISH = b"\x01rubbish"
G = b"g" * 16
H = b"h" * 16
I = b"i" * 16  # noqa: E741
NOBODYS = b"n" * 16
NOW_MS = 1_700_000_000_000
MINUTES_5 = 300_000


def grouped(sequence: int) -> StoredMessage:
    return msgspec.structs.replace(message(sequence), group=G)


# -- messages --------------------------------------------------------------------------------------


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
    large = [message(number, size=1 << 18) for number in range(6)]
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

    assert rows.instants(CLOCK, 1, 9) == [(50, 3), (60, 4), (70, 1)]
    assert rows.instants(CLOCK, 1, 2) == [(50, 3), (60, 4)]
    assert rows.instants(CLOCK, 3, 9) == []


# -- groups ----------------------------------------------------------------------------------------


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
    assert rows.group_line(1, G, 0, 1) == [(1, None)], "the line begins later"
    assert rows.group_line(1, G, 2, 1) == [(2, lease)]
    assert rows.group_line(1, G, 3, 9) == []
    assert rows.group_line(1, H, 1, 9) == [(4, None)]


async def test_heads_are_read_by_their_order(place: Place) -> None:
    store = place.open()
    changes = [GroupChange(G, 0, GroupRow(1, 7, 7)), GroupChange(H, 0, GroupRow(1, 3, 3))]
    await commit(store, GroupsChanged(1, True, changes), GroupsChanged(2, True, changes[:1]))
    rows = StoredRows(store)

    assert rows.ready_groups(1, 0, 9) == [(3, H), (7, G)]
    assert rows.ready_groups(1, 0, 1) == [(3, H)]
    assert rows.ready_groups(1, 4, 9) == [(7, G)]
    assert rows.ready_groups(1, 8, 9) == []
    assert rows.ready_groups(3, 0, 9) == []


async def test_an_alias_says_where_a_message_is_now(place: Place) -> None:
    store = place.open()
    await commit(
        store, MessagesSent(1, 8, [msgspec.structs.replace(message(8), original_sequence=2)])
    )
    rows = StoredRows(store)

    assert rows.alias(1, 2) == 8
    assert rows.alias(1, 8) is None
    assert rows.alias(2, 2) is None


# -- ids -------------------------------------------------------------------------------------------


async def test_an_id_is_remembered_for_five_minutes(place: Place) -> None:
    store = place.open()
    used = {
        group_digest(str(step)): Remembered(NOW_MS + step, str(step), 1)
        for step in range(0, 310_000, 7_901)
    }
    await commit(store, *[DeduplicationRecorded(1, [named]) for named in used.items()])
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
    await commit(
        store,
        DeduplicationRecorded(1, [(G, old), (H, known)]),
        DeduplicationRecorded(1, [(I, twice)]),
    )
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
    await commit(
        store, DeduplicationRecorded(1, [(G, first)]), DeduplicationRecorded(1, [(G, second)])
    )
    rows = StoredRows(store)

    assert rows.remembered(1, [G], NOW_MS + MINUTES_5) == {G: second}
    assert rows.remembered(1, [G], NOW_MS + 2 * MINUTES_5 - 1) == {G: second}
    assert rows.remembered(1, [G], NOW_MS + 2 * MINUTES_5) == {}
