"""Parts: the files of the archive table, as tasks write them: one for each account, queue and day, of bounded size.

A part is durable when it is returned, and is in no version of the table yet. One that never gets into a version is an
orphan, which `sweep` removes; its name says which run wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.segments import Damaged
from storage.archive_schema import ARCHIVE, SEGMENT, TABLE_PARTITIONS, arrow_schema
from storage.lake import Lake

BatchId = tuple[str, int, int]
"""Source, shard, number."""
Partition = tuple[str, str, str]
"""Account, queue and day, as texts."""

PART_BYTES = 256 << 20
"""About as large a file becomes."""


class Limits(NamedTuple):
    """What bounds a task's memory and its files."""

    part_bytes: int = PART_BYTES
    pending_bytes: int = 96 << 20
    """Of rows that wait in memory, since many at a time make better row groups."""
    row_group_bytes: int = 24 << 20
    open_files: int = 200


COLUMNS: pa.Schema = arrow_schema(
    {name: kind for name, kind in SEGMENT.items() if name not in TABLE_PARTITIONS}
)
"""Of a part: what its path says is not in it."""
_ZSTD_LEVEL = 3
"""What zstd itself and Spark take; Arrow takes 1, which costs a tenth more disk."""
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
"""Columns that become smaller by a dictionary."""
_INSTANTS = ("sent_at", "removed_at")
"""Columns whose least and greatest values the table knows of each file."""
_SAFE = re.compile(r"[A-Za-z0-9_.-]+")


class Part(NamedTuple):
    """A file of the table, by its path in it. `batches` has of each batch how many rows went into it, and their
    checksum."""

    path: str
    size: int
    partition: Partition
    rows: int
    stats: str
    batches: dict[BatchId, tuple[int, int]]


class PartWriter:
    """Splits rows among parts. Leaves nothing behind where its block ends with an error."""

    def __init__(self, lake: Lake, name: str, limits: Limits = Limits()) -> None:  # noqa: B008
        self._limits = limits
        self._lake = lake
        self._name = name
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

    def add(self, rows: pa.RecordBatch, batch: BatchId) -> None:
        """Take rows of one batch, with their account and queue. Raises Damaged, LakeUnusable."""
        for partition, some in _by_partition(rows):
            self.add_to(partition, some.select(COLUMNS.names), batch)

    def add_to(self, partition: Partition, rows: pa.RecordBatch, batch: BatchId) -> None:
        """Take rows of one batch and one partition. Raises LakeUnusable."""
        part = self._open.get(partition)
        if part is None:
            part = self._open[partition] = self._begin(partition)
        part.add(rows, batch)
        if part.pending_bytes >= self._limits.row_group_bytes:
            part.flush()
        if part.written_bytes >= self._limits.part_bytes:
            self._finish(partition)
        while sum(each.pending_bytes for each in self._open.values()) > self._limits.pending_bytes:
            max(self._open.values(), key=lambda each: each.pending_bytes).flush()
        while sum(each.has_file for each in self._open.values()) > self._limits.open_files:
            self._finish(next(key for key, each in self._open.items() if each.has_file))

    def finish(self) -> list[Part]:
        """Have all parts on disk."""
        for partition in list(self._open):
            self._finish(partition)
        return self._finished

    def _begin(self, partition: Partition) -> _OpenPart:
        self._begun += 1
        folder = "/".join(f"{k}={v}" for k, v in zip(TABLE_PARTITIONS, partition, strict=True))
        return _OpenPart(self._lake, f"{folder}/{self._name}-{self._begun}.parquet", partition)

    def _finish(self, partition: Partition) -> None:
        self._finished.append(self._open[partition].finish())
        del self._open[partition]


class _OpenPart:
    """A part that still grows. Its file is made when there are enough rows for it."""

    def __init__(self, lake: Lake, path: str, partition: Partition) -> None:
        self._lake = lake
        self._path = path
        self._partition = partition
        self._draft: Path | None = None
        self._writer: pq.ParquetWriter | None = None
        self.stack = ExitStack()
        """Has the writer and the draft, which takes its place when this ends without an error."""
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._batches: dict[BatchId, tuple[int, int]] = {}
        self._ranges: dict[str, tuple[datetime, datetime]] = {}
        self.pending_bytes = 0
        self.written_bytes = 0

    @property
    def has_file(self) -> bool:
        return self._draft is not None

    def add(self, rows: pa.RecordBatch, batch: BatchId) -> None:
        self._pending.append(rows)
        self.pending_bytes += rows.nbytes
        self._rows += rows.num_rows
        count, checksum = self._batches.get(batch, (0, 0))
        added = pc.sum(rows["checksum"]).as_py() or 0
        self._batches[batch] = count + rows.num_rows, checksum + added
        for name in _INSTANTS:
            low, high = pc.min_max(rows[name]).as_py().values()
            if low is not None:
                before = self._ranges.get(name, (low, high))
                self._ranges[name] = min(low, before[0]), max(high, before[1])

    def flush(self) -> None:
        """Write what is pending as a row group."""
        if self._draft is None:
            self._draft = self.stack.enter_context(self._lake.draft(f"{ARCHIVE}/{self._path}"))
            writer = pq.ParquetWriter(
                self._draft,
                COLUMNS,
                compression="zstd",
                compression_level=_ZSTD_LEVEL,
                use_dictionary=_REPEATED,
            )
            self._writer = self.stack.enter_context(writer)
        assert self._writer is not None
        rows = pa.Table.from_batches(self._pending, COLUMNS)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.written_bytes = self._draft.stat().st_size
        self._pending, self.pending_bytes = [], 0

    def finish(self) -> Part:
        if self._pending or self._draft is None:
            self.flush()
        assert self._draft is not None
        assert self._writer is not None
        self._writer.close()
        written = pq.read_metadata(self._draft).num_rows
        assert written == self._rows, f"{written} of {self._rows} rows were written"
        size = self._draft.stat().st_size
        self.stack.close()
        return Part(self._path, size, self._partition, written, self._stats(), self._batches)

    def _stats(self) -> str:
        """As Delta wants them: in milliseconds, rounded outwards."""
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": {name: _text(low) for name, (low, _) in self._ranges.items()},
                "maxValues": {
                    name: _text(high + timedelta(microseconds=999))
                    for name, (_, high) in self._ranges.items()
                },
                "nullCount": {},
            }
        )


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _by_partition(rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each account, queue and day, in their order. Raises Damaged where one has none."""
    days = rows["sent_at"].cast(pa.date32()).cast(pa.string())
    keys = pc.binary_join_element_wise(rows["account"], rows["queue"], days, "/")
    if keys.null_count:
        raise Damaged("it has rows without account, queue or sent_at")
    encoded = keys.dictionary_encode()
    partitions = [_partition(key) for key in encoded.dictionary.to_pylist()]
    if len(partitions) == 1:
        yield partitions[0], rows
        return
    order = pc.sort_indices(encoded.indices)
    counts = pc.value_counts(encoded.indices.take(order)).field("counts").to_pylist()
    begin = 0
    for partition, count in zip(partitions, counts, strict=True):
        yield partition, rows.take(order.slice(begin, count))
        begin += count


def _partition(key: str) -> Partition:
    account, _, rest = key.partition("/")
    queue, _, day = rest.partition("/")
    if not all(_SAFE.fullmatch(each) for each in (account, queue, day)):
        raise Damaged(f"{queue!r} of {account!r} is no name of a queue")
    return account, queue, day
