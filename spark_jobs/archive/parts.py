"""Parts: files of the archive table as tasks write them, of one account, queue and day each.

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

from storage.lake.archive_schema import ARCHIVE, SEGMENT, TABLE_PARTITIONS, arrow_schema
from storage.lake.table import Lake

BatchId = tuple[str, int, int]
"""Source, shard, number."""
Partition = tuple[str, str, str]
"""Account, queue and day (as text)."""

PART_BYTES = 256 << 20
"""Approximate size of a full file."""


class Limits(NamedTuple):
    """Limits of a task's memory and files."""

    part_bytes: int = PART_BYTES
    pending_bytes: int = 96 << 20
    """Rows gathered before they are split by partition; needs twice as much memory."""
    open_files: int = 200


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
    """Splits rows among parts. Removes its drafts if the block ends with an error."""

    def __init__(self, lake: Lake, name: str, limits: Limits = Limits()) -> None:  # noqa: B008
        self._limits = limits
        self._lake = lake
        self._name = name
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._open: dict[Partition, _OpenPart] = {}
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
        for part in self._open.values():
            part.stack.__exit__(kind, error, traceback)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of a segment; account, queue and sent_at are never null. Raises LakeUnusable."""
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._limits.pending_bytes:
            self._split()

    def finish(self) -> list[Part]:
        """Write the remaining rows; all parts. Raises LakeUnusable."""
        self._split()
        for partition in list(self._open):
            self._finish(partition)
        return self._finished

    def _split(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        for partition, some in _by_partition(rows):
            if partition not in self._open:
                if len(self._open) >= self._limits.open_files:
                    self._finish(next(iter(self._open)))
                self._open[partition] = self._begin(partition)
            part = self._open[partition]
            part.write(some.select(COLUMNS.names))
            if part.size >= self._limits.part_bytes:
                self._finish(partition)

    def _begin(self, partition: Partition) -> _OpenPart:
        self._begun += 1
        folder = "/".join(f"{k}={v}" for k, v in zip(TABLE_PARTITIONS, partition, strict=True))
        return _OpenPart(self._lake, f"{folder}/{self._name}-{self._begun}.parquet", partition)

    def _finish(self, partition: Partition) -> None:
        part = self._open.pop(partition)
        with part.stack:
            finished = part.finish()
        self._finished.append(finished)


class _OpenPart:
    """A part being written. `stack` has its writer and its draft, and renames it on success."""

    def __init__(self, lake: Lake, path: str, partition: Partition) -> None:
        self._path = path
        self._partition = partition
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
        return Part(self._path, self.size, self._partition, written, self._stats(), self._batches)

    def _stats(self) -> str:
        """Delta's statistics: minimum and maximum in milliseconds, rounded outwards."""
        last = timedelta(microseconds=999)
        ranges = self._ranges.items()
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {name: _text(low) for name, (low, _) in ranges},
                "maxValues": {name: _text(high + last) for name, (_, high) in ranges},
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
        yield (source, shard, batch), count, checksum


def _by_partition(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """The rows of each account, queue and day, in order."""
    days = rows["sent_at"].cast(pa.date32()).cast(pa.string())
    keys = pc.binary_join_element_wise(rows["account"], rows["queue"], days, "/").combine_chunks()
    encoded = keys.dictionary_encode()
    partitions = [_partition(key) for key in encoded.dictionary.to_pylist()]
    if len(partitions) == 1:
        yield partitions[0], rows
        return
    rows = rows.combine_chunks()
    order = pc.sort_indices(encoded.indices)
    counts = pc.value_counts(encoded.indices.take(order)).field("counts").to_pylist()
    begin = 0
    for partition, count in zip(partitions, counts, strict=True):
        yield partition, rows.take(order.slice(begin, count))
        begin += count


def _partition(key: str) -> Partition:
    account, queue, day = key.split("/")
    return account, queue, day
