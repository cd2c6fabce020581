"""Reads of messages that go on where a scan cannot.

RocksDB cannot seek past a damaged block to rows of other files behind it, as messages that were
sent later. Within the stretch that a scan cannot pass, messages are looked up one by one: filters
exclude those that are not in the damaged file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from storage.rows.damage import UnreadableRows, gap_of, walk_rows
from visibility.contract.stored_message import StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import MESSAGE, SPAN_BITS, message_key, number_of, queue_of, row_key
from visibility.state.queue_state import Quarantine
from visibility.state.rows import Survey


def walk_messages(
    rows: RowReader, begin: bytes, end: bytes, passed_by: Quarantine, spans: Collection[int] | None
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a table of messages; see `Rows.line`. Raises UnreadableRows where one is not
    known as quarantined."""
    for found in walk_rows(rows, begin, end):
        if isinstance(found, UnreadableRows):
            yield from _looked_up(rows, found, passed_by, spans)
        else:
            yield found


def _looked_up(
    rows: RowReader, stretch: UnreadableRows, passed_by: Quarantine, spans: Collection[int] | None
) -> Iterator[tuple[bytes, bytes]]:
    queue_id = queue_of(stretch.key)
    first, until = gap_of(stretch)
    if spans is None:
        spans = range(first >> SPAN_BITS, (until >> SPAN_BITS) + 1)
    for span in sorted(spans):
        begin, end = span << SPAN_BITS, span + 1 << SPAN_BITS
        for sequence in range(max(first, begin), min(until, end)):
            if sequence in passed_by:
                continue
            key = row_key(queue_id, MESSAGE, sequence)
            try:
                value = rows.get(key)
            except DamagedRecord as error:
                raise UnreadableRows(key, stretch.until, error.reason) from error
            if value is not None:
                yield key, value


def survey_messages(rows: RowReader, queue_id: int, first: int, until: int) -> Survey:
    """See `Rows.survey`."""
    survey = Survey({}, [], [])
    for found in walk_rows(rows, message_key(queue_id, first), message_key(queue_id, until)):
        if isinstance(found, UnreadableRows):
            _add_stretch(survey, rows, queue_id, *gap_of(found))
        else:
            _add(survey, *found)
    return survey


def _add_stretch(survey: Survey, rows: RowReader, queue_id: int, first: int, until: int) -> None:
    for sequence in range(first, until):
        key = row_key(queue_id, MESSAGE, sequence)
        value = None
        with suppress(DamagedRecord):
            value = rows.get(key)
        if value is not None:
            _add(survey, key, value)
            _add_gap(survey, first, sequence)
            first = sequence + 1
    _add_gap(survey, first, until)


def _add(survey: Survey, key: bytes, value: bytes) -> None:
    sequence = number_of(key)
    try:
        survey.groups[sequence] = decode_row(StoredMessage, key, value).group
    except DamagedRecord:
        survey.damaged.append(sequence)


def _add_gap(survey: Survey, first: int, until: int) -> None:
    if first < until:
        survey.gaps.append((first, until))
