"""Rows of the state of a queue, of a shard's archive and of its outbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import (
    ARCHIVE,
    BATCH,
    DEPARTURE,
    OUTBOX,
    SPAN,
    number_of,
    queue_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import (
    THE_SHARD,
    ArchiveRow,
    Departure,
    OutboxRow,
    QueueRow,
    SealedBatch,
)

ARCHIVE_KEY = row_key(THE_SHARD, ARCHIVE, 0)
DEPARTED_LOST = "messages on their way to other shards are missing"
"""The damage of a queue that counts more of them than there are."""
OUTBOX_KEY = row_key(THE_SHARD, OUTBOX, 0)


def write_queue(changes: Changes, queue_id: int, row: QueueRow, spans: Mapping[int, int]) -> None:
    """Record a queue's own row and its changed span counts: once, after its events."""
    changes.put(queue_key(queue_id), encode_row(row))
    for span, count in spans.items():
        key = row_key(queue_id, SPAN, span)
        if count:
            changes.put(key, encode_row(count))
        else:
            changes.delete(key)


def write_archive(changes: Changes, row: ArchiveRow) -> None:
    """Put what the shard knows of its archive into the changes: once, after its events."""
    changes.put(ARCHIVE_KEY, encode_row(row))


def load_archive(rows: RowReader) -> tuple[ArchiveRow | None, list[SealedBatch]]:
    """A shard's archive state, None if it never had one, and its waiting batches. Raises
    DamagedRecord."""
    value = rows.get(ARCHIVE_KEY)
    if value is None:
        return None, []
    batches = rows.scan(*table_range(THE_SHARD, BATCH))
    row = decode_row(ArchiveRow, ARCHIVE_KEY, value)
    return row, [decode_row(SealedBatch, k, v) for k, v in batches]


def write_outbox(changes: Changes, row: OutboxRow) -> None:
    """Put the outbox's state into the changes."""
    changes.put(OUTBOX_KEY, encode_row(row))


def departures(rows: RowReader) -> Iterator[tuple[int, Departure]]:
    """(number, departure) of the messages in the outbox. Raises DamagedRecord."""
    for key, value in rows.scan(*table_range(THE_SHARD, DEPARTURE)):
        yield number_of(key), decode_row(Departure, key, value)


def outbox_row(rows: RowReader) -> OutboxRow | None:
    """The outbox's state, None if nothing ever departed. Raises DamagedRecord."""
    value = rows.get(OUTBOX_KEY)
    return None if value is None else decode_row(OutboxRow, OUTBOX_KEY, value)
