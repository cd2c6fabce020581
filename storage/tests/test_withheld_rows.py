"""Rows of messages that operators withhold."""

from __future__ import annotations

from storage.tests.places import Place
from storage.tests.test_event_rows import LEASE_2, LINE_2, SENT, THREE_SENT, leased, rows_after
from visibility.contract.stored_message import Withheld
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import WITHHELD, row_key
from visibility.rules.withhold import MessagesWithheld, WithholdingEnded


async def test_a_withheld_message_has_a_lease_and_a_mark_that_ends_by_itself(place: Place) -> None:
    mark = Withheld(2, 5, "ann", "T-1", 7)
    withheld = MessagesWithheld(1, 5, [mark], [LEASE_2])
    marked = {row_key(1, WITHHELD, 2): encode_row(mark)}
    no_line = {key: value for key, value in SENT.items() if key not in LINE_2}

    assert await rows_after(place, THREE_SENT, withheld) == no_line | leased(LEASE_2) | marked


async def test_the_end_of_withholding_removes_the_mark_only(place: Place) -> None:
    withheld = MessagesWithheld(1, 5, [Withheld(2, 5, "ann")], [LEASE_2])
    no_line = {key: value for key, value in SENT.items() if key not in LINE_2}

    rows = await rows_after(place, THREE_SENT, withheld, WithholdingEnded(1, [2, 9]))

    assert rows == no_line | leased(LEASE_2)
