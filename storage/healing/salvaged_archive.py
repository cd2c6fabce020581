"""A damaged shard's messages for the archive, under new positions without gaps."""

from __future__ import annotations

from storage.checks.readable_rows import ReadableRows
from storage.healing.salvaged_queue import Target
from visibility.rows.archive_rows import write_archive
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVE, ARCHIVED, BATCH, row_key
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, ArchiveRow, SealedBatch


def copy_archive(rows: ReadableRows, target: Target) -> int:
    """Copy all readable messages; returns their number. O(messages).

    Nothing is sealed: the copy has a new source, with batches of its own.
    """
    own = rows.row(row_key(THE_SHARD, ARCHIVE, 0), ArchiveRow)
    batches = [batch.number for _, batch in rows.table(THE_SHARD, BATCH, SealedBatch)]
    position, size, since_ms = 1, 0, 0
    for _, message in rows.table(THE_SHARD, ARCHIVED, ArchivedMessage):
        value = encode_row(message)
        target.put(row_key(THE_SHARD, ARCHIVED, position), value)
        position, size = position + 1, size + len(value)
        since_ms = since_ms or message.removed_at_ms
    if own is None and position == 1:
        return 0
    next_batch = max([own.next_batch if own else 1, *(number + 1 for number in batches)])
    row = ArchiveRow(
        source="",
        next_position=position,
        next_batch=next_batch,
        archived=next_batch - 1,
        open_first=1,
        open_size=size,
        open_since_ms=since_ms,
        discarded=own.discarded if own else 0,
    )
    write_archive(target.batch, row)
    target.write()
    return position - 1
