"""Parts: files of the archive table as tasks write them, of one account, queue and day each.

Rows come sorted by these, so a task has one part open at a time, and writes it to its full size.

A part is durable when it is returned, but not yet in a version of the table. A part that never gets
into one is an orphan, which `runs.sweep` removes; its name has the run that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lake.archive_schema import ARCHIVE, SEGMENT, TABLE_PARTITIONS, BatchId, arrow_schema
from storage.lake.table import Lake

Partition = tuple[str, str, str]
"""Account, queue and day (as text)."""

PART_BYTES = 256 << 20
"""Size of the rows from which Spark and compact make a file."""


class Limits(NamedTuple):
    """Limits of a task's memory and files."""

    part_bytes: int = 2 * PART_BYTES
    """A larger file is ended. Seldom reached, since it would leave a small one behind it."""
    pending_bytes: int = 32 << 20
    """Rows gathered before they are written: a row group, if they are of one partition."""


COLUMNS: pa.Schema = arrow_schema(
    {name: kind for name, kind in SEGMENT.items() if name not in TABLE_PARTITIONS}
)
"""Columns of a part; the partition's are in its path."""
_ZSTD_LEVEL = 3
"""The default of zstd and Spark; Arrow's default, 1, takes 10 % more disk."""
_REPEATED = [
    "source",
    "shard",
    "batch",
    "region",
    "reason",
    "sender_id",
    "message_group_id",
    "dead_letter_queue_source_arn",
]
"""Columns that a dictionary makes smaller."""
_ROW_GROUP_BYTES = 32 << 20
_INSTANTS = ("sent_at", "removed_at")
"""Columns with minimum and maximum in the table's log."""


class Part(NamedTuple):
    """A file for the table, by its path there. `batches` has rows and checksum of each batch."""

    path: str
    size: int
    partition: Partition
    rows: int
    stats: str
    batches: dict[BatchId, tuple[int, int]]


class PartWriter:
    """Writes rows as parts, one for each partition if they are sorted.

    Removes its draft if the block ends with an error.
    """

    def __init__(self, lake: Lake, name: str, limits: Limits = Limits()) -> None:  # noqa: B008
        self._limits = limits
        self._lake = lake
        self._name = name
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._open: _OpenPart | None = None
        self._begun = 0
        self._finished: list[Part] = []

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.stack.__exit__(kind, error, traceback)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of a segment; account, queue and sent_at are never null. Raises LakeUnusable."""
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._limits.pending_bytes:
            self._write()

    def finish(self) -> list[Part]:
        """Write the remaining rows; all parts. Raises LakeUnusable."""
        self._write()
        self._end()
        return self._finished

    def _write(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        for partition, some in runs(rows):
            if self._open is None or self._open.partition != partition:
                self._end()
                self._open = self._begin(partition)
            self._open.write(some.select(COLUMNS.names))
            if self._open.size >= self._limits.part_bytes:
                self._end()

    def _begin(self, partition: Partition) -> _OpenPart:
        self._begun += 1
        folder = "/".join(f"{k}={v}" for k, v in zip(TABLE_PARTITIONS, partition, strict=True))
        return _OpenPart(self._lake, f"{folder}/{self._name}-{self._begun}.parquet", partition)

    def _end(self) -> None:
        if self._open is None:
            return
        part, self._open = self._open, None
        with part.stack:
            finished = part.finish()
        self._finished.append(finished)


class _OpenPart:
    """A part being written. `stack` has its writer and its draft, and renames it on success."""

    def __init__(self, lake: Lake, path: str, partition: Partition) -> None:
        self._path = path
        self.partition = partition
        self._rows = 0
        self._batches: dict[BatchId, tuple[int, int]] = {}
        self._ranges: dict[str, tuple[datetime, datetime]] = {}
        self.stack = ExitStack()
        self._draft: Path = self.stack.enter_context(lake.draft(f"{ARCHIVE}/{path}"))
        writer = pq.ParquetWriter(
            self._draft,
            COLUMNS,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=_REPEATED,
            write_page_checksum=True,
        )
        self._writer = self.stack.enter_context(writer)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._draft.stat().st_size

    def write(self, rows: pa.Table) -> None:
        """Append rows (at least one) as row groups."""
        at_once = max(1, _ROW_GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1))
        self._writer.write_table(rows, row_group_size=at_once)
        self._rows += rows.num_rows
        for batch, count, checksum in _checksums(rows):
            before = self._batches.get(batch, (0, 0))
            self._batches[batch] = before[0] + count, before[1] + checksum
        for name in _INSTANTS:
            low, high = pc.min_max(rows[name]).as_py().values()
            if low is not None:
                known = self._ranges.get(name, (low, high))
                self._ranges[name] = min(low, known[0]), max(high, known[1])

    def finish(self) -> Part:
        self._writer.close()
        written = pq.read_metadata(self._draft).num_rows
        assert written == self._rows, f"{written} of {self._rows} rows were written"
        return Part(self._path, self.size, self.partition, written, self._stats(), self._batches)

    def _stats(self) -> str:
        """Delta's statistics: instants in milliseconds, rounded outwards, and batches."""
        last = timedelta(microseconds=999)
        ranges = self._ranges.items()
        batches = [batch.number for batch in self._batches]
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {name: _text(low) for name, (low, _) in ranges}
                | {"batch": min(batches)},
                "maxValues": {name: _text(high + last) for name, (_, high) in ranges}
                | {"batch": max(batches)},
                "nullCount": {},
            }
        )


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _checksums(rows: pa.Table) -> Iterator[tuple[BatchId, int, int]]:
    """Number of rows and sum of checksums of each batch."""
    columns = ["source", "shard", "batch"]
    sums = rows.group_by(columns).aggregate([("checksum", "count"), ("checksum", "sum")])
    for row in sums.select([*columns, "checksum_count", "checksum_sum"]).to_pylist():
        source, shard, batch, count, checksum = row.values()
        yield BatchId(source, shard, batch), count, checksum


def runs(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Successive rows of the same account, queue and day."""
    days = rows["sent_at"].cast(pa.date32()).cast(pa.string())
    keys = pc.binary_join_element_wise(rows["account"], rows["queue"], days, "/")
    encoded = pc.run_end_encode(keys.combine_chunks())
    begin = 0
    for key, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        account, queue, day = key.split("/")
        yield (account, queue, day), rows.slice(begin, end - begin)
        begin = end
