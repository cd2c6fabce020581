"""The rows of a shard's archive state and of its batches."""

from __future__ import annotations

from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import ARCHIVE, BATCH, row_key, table_range
from visibility.rows.row_values import THE_SHARD, ArchiveRow, SealedBatch

ARCHIVE_KEY = row_key(THE_SHARD, ARCHIVE, 0)


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
