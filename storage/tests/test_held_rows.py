"""Rows of messages that operators hold."""

from __future__ import annotations

from storage.tests.store_places import Place
from storage.tests.test_event_rows import LEASE_2, LINE_2, SENT, THREE_SENT, leased, rows_after
from visibility.contract.stored_message import Hold
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import HOLD, row_key
from visibility.rules.hold_messages import HoldsEnded, MessagesHeld


async def test_a_held_message_has_a_lease_and_a_mark_that_ends_by_itself(place: Place) -> None:
    mark = Hold(2, 5, "ann", "T-1", 7)
    held = MessagesHeld(1, 5, [mark], [LEASE_2])
    marked = {row_key(1, HOLD, 2): encode_row(mark)}
    no_line = {key: value for key, value in SENT.items() if key not in LINE_2}

    assert await rows_after(place, THREE_SENT, held) == no_line | leased(LEASE_2) | marked


async def test_the_end_of_holding_removes_the_mark_only(place: Place) -> None:
    held = MessagesHeld(1, 5, [Hold(2, 5, "ann")], [LEASE_2])
    no_line = {key: value for key, value in SENT.items() if key not in LINE_2}

    rows = await rows_after(place, THREE_SENT, held, HoldsEnded(1, [2, 9]))

    assert rows == no_line | leased(LEASE_2)
