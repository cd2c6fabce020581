"""Rows of deletes that transactions of other shards prepared."""

from __future__ import annotations

from storage.tests.store_places import Place
from storage.tests.test_codec import DEPARTURE
from storage.tests.test_event_rows import LEASE_2, LINE_2, SENT, THREE_SENT, leased, rows_after
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import DEPARTURE as DEPARTURES
from visibility.rows.row_keys import OUTBOX, row_key
from visibility.rows.row_values import THE_SHARD, OutboxRow
from visibility.rules.prepared_deletes import DeletesPrepared, MessagesPrepared, PreparedAsked


async def test_a_prepared_message_has_a_lease_and_is_in_no_line(place: Place) -> None:
    no_line = {key: value for key, value in SENT.items() if key not in LINE_2}

    rows = await rows_after(place, THREE_SENT, MessagesPrepared(1, 5, [LEASE_2]))

    assert rows == no_line | leased(LEASE_2)


async def test_a_question_is_in_the_outbox_and_its_asking_leaves_no_row(place: Place) -> None:
    prepared, asked = DeletesPrepared(THE_SHARD, 7, DEPARTURE), PreparedAsked(THE_SHARD, [7])
    question = {
        row_key(THE_SHARD, DEPARTURES, 7): encode_row(DEPARTURE),
        row_key(THE_SHARD, OUTBOX, 0): encode_row(OutboxRow(DEPARTURE.origin, 8)),
    }

    assert await rows_after(place, THREE_SENT, prepared, asked) == SENT | question
