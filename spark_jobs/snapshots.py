"""Snapshots and flows as the service writes them: which there are for each hour, and how tasks read them.

What is noted at a full hour belongs to the hour that ends. A snapshot is counted where it is read, in Arrow and NumPy:
only counts by queue and bucket go to Spark, which is faster than to bring it the messages, and the same for a folder and
an object store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.histograms import buckets_of
from storage.archive_schema import CHECKSUM_MODULUS, FLOW, FLOWS, SNAPSHOTS, Columns, arrow_schema
from storage.lake import Lake, LakeFile

HOUR_MS = 3_600_000
_BATCH_ROWS = 1 << 17
_PART_BYTES = 16 << 20
"""About two million messages, so that an hour of one large shard is work for several processors."""
_CELLS_MAX = 1 << 20
"""So many counts are kept before they are added up."""
_READ = ["taken_at", "account", "region", "queue", "receivable", "sent_at", "receive_count"]
_NAMES = ["account", "region", "queue"]
_TIMES_IN_QUEUE = ["time_in_queue_buckets", "time_in_queue_counts"]

RECEIVE_CLASSES = (0, 1, 2, 3, 4, 10)
"""Messages are counted by how often they were received: 0, 1, 2, 3, 4 to 9, 10 or more times."""

CELL: Columns = {
    "account": "string",
    "region": "string",
    "queue": "string",
    "hour": "instant",
    "snapshots": "int32",
    "kind": "int32",
    "bucket": "int64",
    "count": "int64",
    "oldest_ms": "int64",
    "oldest_receivable_ms": "int64",
}
"""So many messages of a queue and an hour, in one shard; `kind` says which. AGES: their ages are in this bucket, in any of
the hour's snapshots. RECEIVES: they are of this class of RECEIVE_CLASSES, in the last of them. TIMES: they were deleted, and
had been there for so long. `snapshots` is how many the hour has."""
AGES, RECEIVES, TIMES = range(3)

MOVEMENT: Columns = FLOW | {"hour": "instant", "begun_at": "instant", "ended_at": "instant"}
"""A flow with its hour. The shard was watched in it from `begun_at`, null where it is not known, until `ended_at`, which is
the hour's last flow of the shard."""

Numbers = np.ndarray[Any, Any]
_Read = Callable[[Lake], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class ShardHour:
    """The files of a shard and an hour, in order of time."""

    hour_ms: int
    snapshots: list[LakeFile] = field(default_factory=list)
    flows: list[LakeFile] = field(default_factory=list)
    begun_ms: int | None = None
    """When the shard was looked at last before this hour, if that was in the hour before."""


@dataclass(slots=True)
class Hour:
    """The files of an hour."""

    shards: dict[str, ShardHour] = field(default_factory=dict)

    @property
    def files(self) -> list[LakeFile]:
        """All of them."""
        return [f for shard in self.shards.values() for f in (*shard.snapshots, *shard.flows)]

    @property
    def checksum(self) -> int:
        """Tells whether these are other files than those of a run before."""
        return sum(crc32(file.path.encode()) for file in self.files) % CHECKSUM_MODULUS


def find_hours(lake: Lake) -> dict[int, Hour]:
    """The hours that the lake has files of, by their beginning in epoch milliseconds. Raises LakeUnusable."""
    hours: dict[int, Hour] = defaultdict(Hour)
    instants: dict[str, set[int]] = defaultdict(set)
    for kind in (SNAPSHOTS, FLOWS):
        for file in lake.list(kind):
            folder, _, name = file.path.removeprefix(f"{kind}/").rpartition("/")
            instant = name.removesuffix(".parquet")
            if not instant.isdecimal():
                continue
            shard, at_ms = folder.rpartition("/")[0], int(instant)
            hour_ms = hour_of(at_ms)
            files = hours[hour_ms].shards.setdefault(shard, ShardHour(hour_ms))
            (files.snapshots if kind == SNAPSHOTS else files.flows).append(file)
            instants[shard].add(at_ms)
    for shard, found in instants.items():
        for before_ms, at_ms in pairwise(sorted(found)):
            hour_ms = hour_of(at_ms)
            if hour_of(before_ms) == hour_ms - HOUR_MS:
                hours[hour_ms].shards[shard].begun_ms = before_ms
    return dict(hours)


def hour_of(at_ms: int) -> int:
    """The beginning of the hour that an instant belongs to."""
    return (at_ms - 1) // HOUR_MS * HOUR_MS


# -- for Spark --------------------------------------------------------------------------------------------------------


class _SnapshotPart(NamedTuple):
    files: list[LakeFile]
    hour_ms: int
    snapshots: int
    last: str | None
    """The last snapshot of the hour, if it is among these."""


def count_cells(session: SparkSession, lake: Lake, hours: Sequence[Hour]) -> DataFrame:
    """CELL of the hours' snapshots and flows."""
    shards = [shard for hour in hours for shard in hour.shards.values()]
    reads = [
        *(partial(_count_snapshots, part) for shard in shards for part in _snapshot_parts(shard)),
        *(partial(_count_times, shard) for shard in shards if shard.flows),
    ]
    return _frame(
        session, lake, reads, CELL, sum(file.size for hour in hours for file in hour.files)
    )


def movements(session: SparkSession, lake: Lake, hours: Sequence[Hour]) -> DataFrame:
    """MOVEMENT of the hours' flows."""
    shards = [shard for hour in hours for shard in hour.shards.values() if shard.flows]
    reads = [partial(_read_flows, shard) for shard in shards]
    size = sum(file.size for shard in shards for file in shard.flows)
    return _frame(session, lake, reads, MOVEMENT, size)


def _frame(
    session: SparkSession, lake: Lake, reads: Sequence[_Read], columns: Columns, size: int
) -> DataFrame:
    """The rows that are read, of so many bytes in all."""
    schema = from_arrow_schema(arrow_schema(columns))
    if not reads:
        return session.createDataFrame([], schema)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reads[number](lake)

    tasks = max(size // _PART_BYTES, session.sparkContext.defaultParallelism)
    return session.range(0, len(reads), 1, min(tasks, len(reads))).mapInArrow(rows, schema)


def _snapshot_parts(shard: ShardHour) -> Iterator[_SnapshotPart]:
    if not shard.snapshots:
        return
    last = shard.snapshots[-1].path
    files: list[LakeFile] = []
    for file in shard.snapshots:
        files.append(file)
        if sum(each.size for each in files) >= _PART_BYTES or file.path == last:
            ends_hour = last if file.path == last else None
            yield _SnapshotPart(files, shard.hour_ms, len(shard.snapshots), ends_hour)
            files = []


# -- in tasks ---------------------------------------------------------------------------------------------------------


def _count_snapshots(part: _SnapshotPart, lake: Lake) -> Iterator[pa.RecordBatch]:
    queues = _Queues()
    cells: list[pa.Table] = []
    kept = 0
    for file in part.files:
        for rows in _batches(lake, file.path):
            numbered = _numbered(rows, queues)
            cells.append(
                _counted(numbered, buckets_of(numbered["oldest_ms"].to_numpy()), kind=AGES)
            )
            if file.path == part.last:
                receives = rows.column("receive_count").to_numpy()
                classes = np.searchsorted(RECEIVE_CLASSES, receives, "right") - 1
                cells.append(_counted(numbered, classes, kind=RECEIVES))
            kept += sum(map(len, cells[-2:]))
            if kept > _CELLS_MAX:
                cells, kept = [_summed(cells)], 0
    if cells:
        yield from _named(_summed(cells), queues, part).to_batches()


class _Queues:
    """Numbers for the queues of a part, since numbers are grouped faster than names."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def numbers(self, rows: pa.RecordBatch) -> Numbers:
        """The number of each row's queue."""
        columns = [rows.column(name) for name in _NAMES]
        codes = np.zeros(rows.num_rows, np.int64)
        for column in columns:
            codes = codes * len(column.dictionary) + column.indices.to_numpy()
        found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        named = zip(*(column.take(first).to_pylist() for column in columns), strict=True)
        known = [self._numbers.setdefault(names, len(self._numbers)) for names in named]
        assert len(found) == len(known)
        return np.array(known, np.int64)[inverse]

    def names(self) -> dict[str, pa.Array]:
        """Their names, in order of the numbers."""
        columns = zip(*self._numbers, strict=True)
        return {name: pa.array(column) for name, column in zip(_NAMES, columns, strict=True)}


def _batches(lake: Lake, path: str) -> Iterator[pa.RecordBatch]:
    with lake.open(path) as stream:
        file = pq.ParquetFile(stream, read_dictionary=_NAMES)
        yield from file.iter_batches(_BATCH_ROWS, columns=_READ, use_threads=False)


def _numbered(rows: pa.RecordBatch, queues: _Queues) -> pa.Table:
    """Of each message: its queue's number, its age, and that again if it could be received."""
    taken_at, sent_at = (rows.column(name).cast(pa.int64()) for name in ("taken_at", "sent_at"))
    age_ms = np.maximum(taken_at.to_numpy() - sent_at.to_numpy(), 0) // 1000
    ages = pa.array(age_ms)
    return pa.table(
        {
            "queue": queues.numbers(rows),
            "oldest_ms": ages,
            "oldest_receivable_ms": pc.if_else(rows.column("receivable"), ages, None),
        }
    )


def _counted(numbered: pa.Table, buckets: Numbers, *, kind: int) -> pa.Table:
    """Cells of one batch, with the queues' numbers."""
    rows = pa.table(
        {
            "queue": numbered["queue"],
            "kind": pa.repeat(pa.scalar(kind, pa.int32()), len(numbered)),
            "bucket": buckets,
            "count": pa.repeat(1, len(numbered)),
            "oldest_ms": numbered["oldest_ms"],
            "oldest_receivable_ms": numbered["oldest_receivable_ms"],
        }
    )
    return _summed([rows])


def _summed(cells: list[pa.Table]) -> pa.Table:
    groups = pa.concat_tables(cells).group_by(["queue", "kind", "bucket"], use_threads=False)
    sums = [("count", "sum"), ("oldest_ms", "max"), ("oldest_receivable_ms", "max")]
    return groups.aggregate(sums).rename_columns(cells[0].column_names)


def _named(cells: pa.Table, queues: _Queues, part: _SnapshotPart) -> pa.Table:
    """CELL, from cells with the queues' numbers."""
    names = {name: column.take(cells["queue"]) for name, column in queues.names().items()}
    counted = {name: cells[name] for name in cells.column_names if name != "queue"}
    return _completed(pa.table(counted | names), part.hour_ms, snapshots=part.snapshots)


def _completed(cells: pa.Table, hour_ms: int, **same: int) -> pa.Table:
    """CELL: what is not there is the same in all rows, or null."""
    schema = arrow_schema(CELL)
    values = {"hour": hour_ms * 1000} | same
    return pa.table(
        [
            cells[column.name].cast(column.type)
            if column.name in cells.column_names
            else pa.repeat(pa.scalar(values.get(column.name), column.type), len(cells))
            for column in schema
        ],
        schema=schema,
    )


def _count_times(shard: ShardHour, lake: Lake) -> Iterator[pa.RecordBatch]:
    rows: list[pa.Table] = []
    for file in shard.flows:
        with lake.open(file.path) as stream:
            flows = pq.read_table(stream, columns=[*_NAMES, *_TIMES_IN_QUEUE])
        buckets, counts = (flows[name].combine_chunks() for name in _TIMES_IN_QUEUE)
        names = flows.select(_NAMES).take(pc.list_parent_indices(buckets))
        pairs = {"bucket": pc.list_flatten(buckets), "count": pc.list_flatten(counts)}
        rows.append(pa.table(dict(zip(_NAMES, names.columns, strict=True)) | pairs))
    sums = pa.concat_tables(rows).group_by([*_NAMES, "bucket"], use_threads=False)
    cells = sums.aggregate([("count", "sum")]).rename_columns([*_NAMES, "bucket", "count"])
    yield from _completed(cells, shard.hour_ms, kind=TIMES, snapshots=0).to_batches()


def _read_flows(shard: ShardHour, lake: Lake) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(MOVEMENT)
    ended_ms = int(shard.flows[-1].path.rpartition("/")[2].removesuffix(".parquet"))
    instants = {"hour": shard.hour_ms, "begun_at": shard.begun_ms, "ended_at": ended_ms}
    for file in shard.flows:
        with lake.open(file.path) as stream:
            rows = pq.read_table(stream, schema=arrow_schema(FLOW))
        for name, at_ms in instants.items():
            value = pa.scalar(at_ms and at_ms * 1000, schema.field(name).type)
            rows = rows.append_column(schema.field(name), pa.repeat(value, len(rows)))
        yield from rows.to_batches()
