"""The tables of the messages that wait for the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from visibility.contract.naming import parse_arn
from visibility.contract.stored_message import StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVE, ARCHIVED, BATCH, number_of, row_key, table_range
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, ArchiveRow, SealedBatch
from visibility.rows.state_rows import ARCHIVE_KEY, load_archive
from visibility.rules.tables import (
    NUMBER_KEY,
    Finding,
    Kept,
    Put,
    ShardTables,
    SoundRows,
    Table,
    has_its_number,
)
from visibility.state.shard_state import ShardState


def _load(shard: ShardState, rows: RowReader) -> None:
    row, batches = load_archive(rows)
    if row is None:
        return
    archive = shard.archive
    for name in row.__struct_fields__:
        setattr(archive, name, getattr(row, name))
    archive.batches = {batch.number: batch for batch in batches}
    archive.sealed_size = sum(batch.size for batch in batches)


def check_archive(rows: RowReader) -> Iterator[Finding]:
    """Positions waiting for the archive without a message. O(messages). Raises DamagedRecord."""
    archive, batches = load_archive(rows)
    if archive is None:
        waiting = rows.scan(table_range(THE_SHARD, ARCHIVED)[0], ARCHIVE_KEY)
        if next(waiting, None) is not None:
            yield Finding(ARCHIVE_KEY, "messages wait for the archive, but its row is missing")
        return
    at = first = batches[0].first if batches else archive.open_first
    for batch in batches:
        key = row_key(THE_SHARD, BATCH, batch.number)
        if batch.first != at:
            yield Finding(key, f"it begins at {batch.first}, the one before ends at {at}")
        if not archive.archived < batch.number < archive.next_batch:
            yield Finding(key, f"batches {archive.archived + 1} to {archive.next_batch - 1} wait")
        at = batch.until
    if at != archive.open_first:
        what = f"the next batch begins at {archive.open_first}, the one before ends at {at}"
        yield Finding(ARCHIVE_KEY, what)
    expected = first
    for key, _ in rows.scan(*table_range(THE_SHARD, ARCHIVED)):
        if number_of(key) != expected:
            yield Finding(row_key(THE_SHARD, ARCHIVED, expected), "it is missing")
        expected = number_of(key) + 1
    if expected != archive.next_position:
        yield Finding(row_key(THE_SHARD, ARCHIVED, expected), "it is missing")


def salvage_archive(rows: SoundRows, put: Put) -> Kept:
    """Write all readable messages under new positions without gaps. O(messages).

    Nothing is sealed: the copy has a new source, with batches of its own.
    """
    own = rows.row(ARCHIVE_KEY, ArchiveRow)
    batches = [batch.number for _, batch in rows.table(THE_SHARD, BATCH, SealedBatch)]
    position, since_ms = 1, 0
    sizes: Counter[str] = Counter()
    for _, message in rows.table(THE_SHARD, ARCHIVED, ArchivedMessage):
        value = encode_row(message)
        put(row_key(THE_SHARD, ARCHIVED, position), value)
        position += 1
        arn = parse_arn(message.queue_arn)
        sizes[arn.account if arn else ""] += len(value)
        since_ms = since_ms or message.removed_at_ms
    if own is None and position == 1:
        return Kept()
    next_batch = max([own.next_batch if own else 1, *(number + 1 for number in batches)])
    row = ArchiveRow(
        source="",
        next_position=position,
        next_batch=next_batch,
        archived=next_batch - 1,
        open_first=1,
        open_size=sizes.total(),
        open_since_ms=since_ms,
        discarded=own.discarded if own else 0,
        open_by_account=dict(sizes),
    )
    put(ARCHIVE_KEY, encode_row(row))
    return Kept(archived=position - 1)


def _message(row: ArchivedMessage) -> StoredMessage:
    return row.message


ARCHIVE_TABLES = ShardTables(
    (
        Table(ARCHIVED, "archived", NUMBER_KEY, ArchivedMessage, message=_message),
        Table(BATCH, "batch", NUMBER_KEY, SealedBatch, names_itself=has_its_number),
        Table(ARCHIVE, "archive", NUMBER_KEY, ArchiveRow),
    ),
    load=_load,
    salvage=salvage_archive,
    check=check_archive,
)
