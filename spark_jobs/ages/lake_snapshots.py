"""Snapshots and flows as the service writes them: find them by hour, and count them with Spark.

A file of exactly a full hour belongs to the hour that ends then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from zlib import crc32

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.ages.counting import (
    CELL,
    MOVEMENT,
    Count,
    ShardHour,
    SnapshotPart,
    count_snapshots,
    count_times,
    read_all,
    read_flows,
)
from storage.lake.archive_schema import CHECKSUM_MODULUS, FLOWS, SNAPSHOTS, Columns, arrow_schema
from storage.lake.table import Lake, LakeFile

HOUR_MS = 3_600_000
_PART_BYTES = 16 << 20
"""About two million messages, so that several processors share an hour of a large shard."""

_Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class Hour:
    """The files of an hour."""

    shards: dict[str, ShardHour] = field(default_factory=dict)

    @property
    def files(self) -> list[LakeFile]:
        """All files of the hour."""
        return [f for shard in self.shards.values() for f in (*shard.snapshots, *shard.flows)]

    @property
    def checksum(self) -> int:
        """A checksum of the files' names, to see if they have changed since an earlier run."""
        return sum(crc32(file.path.encode()) for file in self.files) % CHECKSUM_MODULUS


def find_hours(lake: Lake) -> dict[int, Hour]:
    """The hours with files in the lake, by their start in epoch ms. Raises LakeUnusable."""
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
    """The start of the hour to which an instant belongs."""
    return (at_ms - 1) // HOUR_MS * HOUR_MS


# -- Spark -----------------------------------------------------------------------------------------


def count_cells(
    session: SparkSession, lake: Lake, hours: Sequence[Hour], count_bytes: Count
) -> DataFrame:
    """CELL of the hours' snapshots and flows."""
    shards = [shard for hour in hours for shard in hour.shards.values()]
    reads = [
        *(partial(count_snapshots, part) for shard in shards for part in _snapshot_parts(shard)),
        *(partial(count_times, shard) for shard in shards if shard.flows),
    ]
    size = sum(file.size for hour in hours for file in hour.files)
    return _frame(session, partial(read_all, reads, lake, count_bytes), len(reads), CELL, size)


def movements(
    session: SparkSession, lake: Lake, hours: Sequence[Hour], count_bytes: Count
) -> DataFrame:
    """MOVEMENT of the hours' flows."""
    shards = [shard for hour in hours for shard in hour.shards.values() if shard.flows]
    reads = [partial(read_flows, shard) for shard in shards]
    size = sum(file.size for shard in shards for file in shard.flows)
    return _frame(session, partial(read_all, reads, lake, count_bytes), len(reads), MOVEMENT, size)


def _frame(
    session: SparkSession, rows: _Rows, reads: int, columns: Columns, size: int
) -> DataFrame:
    """A DataFrame of the rows of all reads, by number; `size` is the bytes of all files."""
    schema = from_arrow_schema(arrow_schema(columns))
    if not reads:
        return session.createDataFrame([], schema)
    tasks = max(size // _PART_BYTES, session.sparkContext.defaultParallelism)
    return session.range(0, reads, 1, min(tasks, reads)).mapInArrow(rows, schema)


def _snapshot_parts(shard: ShardHour) -> Iterator[SnapshotPart]:
    if not shard.snapshots:
        return
    last = shard.snapshots[-1].path
    files: list[LakeFile] = []
    for file in shard.snapshots:
        files.append(file)
        if sum(each.size for each in files) >= _PART_BYTES or file.path == last:
            ends_hour = last if file.path == last else None
            yield SnapshotPart(files, shard.hour_ms, len(shard.snapshots), ends_hour)
            files = []
