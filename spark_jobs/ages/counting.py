"""Count snapshots and flows in Spark tasks. Imports only pyarrow and NumPy, as executors need.

A snapshot is counted where it is read, and Spark gets counts by queue and bucket. That is faster
than passing on the messages, and works alike for a folder and an object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.lake.archive_schema import BUCKETS_PER_DOUBLING, FLOW, Columns, arrow_schema
from storage.lake.table import Lake, LakeFile

RECEIVE_CLASSES = (0, 1, 2, 3, 4, 10)
"""Lower ends of the classes of receive counts: 0, 1, 2, 3, 4 to 9, 10 or more."""

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
"""The count of a queue's messages in one bucket, hour and shard, by `kind`. AGES: by age, in all
snapshots of the hour. RECEIVES: by class of RECEIVE_CLASSES, in the last snapshot. TIMES: deleted
messages, by their time in the queue. `snapshots` is the number of snapshots of the hour."""
AGES, RECEIVES, TIMES = range(3)

MOVEMENT: Columns = FLOW | {"hour": "instant", "begun_at": "instant", "ended_at": "instant"}
"""A flow with its hour, which the shard's flows cover from `begun_at` to `ended_at`, the end of the
last one."""

_BATCH_ROWS = 1 << 17
_CELLS_MAX = 1 << 20
"""Counts kept before they are summed up."""
_READ = ["taken_at", "account", "region", "queue", "receivable", "sent_at", "receive_count"]
_NAMES = ["account", "region", "queue"]
_TIMES_IN_QUEUE = ["time_in_queue_buckets", "time_in_queue_counts"]

Count = Callable[[int], None]
"""Counts the bytes of files that were read. Of flows, which are read twice, one reader does."""
Read = Callable[[Lake, Count], Iterator[pa.RecordBatch]]
"""Reads some files of the lake."""
Numbers = np.ndarray[Any, Any]


@dataclass(slots=True)
class ShardHour:
    """The files of a shard and an hour, by time."""

    hour_ms: int
    snapshots: list[LakeFile] = field(default_factory=list)
    flows: list[LakeFile] = field(default_factory=list)
    begun_ms: int | None = None
    """The shard's last file of the previous hour; None if it has none."""


class SnapshotPart(NamedTuple):
    """Some snapshots of a shard and an hour; `snapshots` is the number of all."""

    files: list[LakeFile]
    hour_ms: int
    snapshots: int
    last: str | None
    """The last snapshot of the hour, if it is one of these."""


def count_snapshots(part: SnapshotPart, lake: Lake, count_bytes: Count) -> Iterator[pa.RecordBatch]:
    """CELL of AGES, and of RECEIVES if the last snapshot is in the part. Raises LakeUnusable."""
    queues = _Queues()
    cells: list[pa.Table] = []
    kept_max = _CELLS_MAX
    for file in part.files:
        for rows in _batches(lake, file, count_bytes):
            numbered = _numbered(rows, queues)
            buckets = buckets_of(numbered["oldest_ms"].to_numpy())
            cells.append(_counted(numbered, buckets, kind=AGES))
            if file.path == part.last:
                receives = rows.column("receive_count").to_numpy()
                classes = np.searchsorted(RECEIVE_CLASSES, receives, "right") - 1
                cells.append(_counted(numbered, classes, kind=RECEIVES))
            if sum(map(len, cells)) > kept_max:
                cells = [_summed(cells)]
                kept_max = max(_CELLS_MAX, 2 * len(cells[0]))
    if cells:
        yield from _named(_summed(cells), queues, part).to_batches()


class _Queues:
    """Numbers for the queues of a part, since numbers group faster than names."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}

    def numbers(self, rows: pa.RecordBatch) -> Numbers:
        """The queue number of each row."""
        columns = [rows.column(name) for name in _NAMES]
        codes = np.zeros(rows.num_rows, np.int64)
        for column in columns:
            codes = codes * len(column.dictionary) + column.indices.to_numpy()
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        named = zip(*(column.take(first).to_pylist() for column in columns), strict=True)
        known = [self._numbers.setdefault(names, len(self._numbers)) for names in named]
        return np.array(known, np.int64)[inverse]

    def names(self) -> dict[str, pa.Array]:
        """The queues' names, ordered by number."""
        columns = zip(*self._numbers, strict=True)
        return {name: pa.array(column) for name, column in zip(_NAMES, columns, strict=True)}


def _batches(lake: Lake, file: LakeFile, count_bytes: Count) -> Iterator[pa.RecordBatch]:
    with lake.open(file.path) as stream:
        opened = pq.ParquetFile(stream, read_dictionary=_NAMES, page_checksum_verification=True)
        left = file.size
        for rows in opened.iter_batches(_BATCH_ROWS, columns=_READ, use_threads=False):
            yield rows
            read = file.size * rows.num_rows // opened.metadata.num_rows
            count_bytes(read)
            left -= read
        count_bytes(left)


def _numbered(rows: pa.RecordBatch, queues: _Queues) -> pa.Table:
    """Queue number and age of each message, and the age again if the message is receivable."""
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
    """Cells of one batch, by queue number."""
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


def _named(cells: pa.Table, queues: _Queues, part: SnapshotPart) -> pa.Table:
    """CELL, from cells by queue number."""
    names = {name: column.take(cells["queue"]) for name, column in queues.names().items()}
    counted = {name: cells[name] for name in cells.column_names if name != "queue"}
    return _completed(pa.table(counted | names), part.hour_ms, snapshots=part.snapshots)


def _completed(cells: pa.Table, hour_ms: int, **constants: int) -> pa.Table:
    """CELL, with constants or nulls for missing columns."""
    schema = arrow_schema(CELL)
    values = {"hour": hour_ms * 1000} | constants
    return pa.table(
        [
            cells[column.name].cast(column.type)
            if column.name in cells.column_names
            else pa.repeat(pa.scalar(values.get(column.name), column.type), len(cells))
            for column in schema
        ],
        schema=schema,
    )


def count_times(shard: ShardHour, lake: Lake, _: Count) -> Iterator[pa.RecordBatch]:
    """CELL of TIMES. Raises LakeUnusable."""
    rows: list[pa.Table] = []
    for file in shard.flows:
        with lake.open(file.path) as stream:
            columns = [*_NAMES, *_TIMES_IN_QUEUE]
            flows = pq.read_table(stream, columns=columns, page_checksum_verification=True)
        buckets, counts = (flows[name].combine_chunks() for name in _TIMES_IN_QUEUE)
        names = flows.select(_NAMES).take(pc.list_parent_indices(buckets))
        pairs = {"bucket": pc.list_flatten(buckets), "count": pc.list_flatten(counts)}
        rows.append(pa.table(dict(zip(_NAMES, names.columns, strict=True)) | pairs))
    sums = pa.concat_tables(rows).group_by([*_NAMES, "bucket"], use_threads=False)
    cells = sums.aggregate([("count", "sum")]).rename_columns([*_NAMES, "bucket", "count"])
    yield from _completed(
        cells, shard.hour_ms, kind=TIMES, snapshots=len(shard.snapshots)
    ).to_batches()


def read_flows(shard: ShardHour, lake: Lake, count_bytes: Count) -> Iterator[pa.RecordBatch]:
    """MOVEMENT. Raises LakeUnusable."""
    schema = arrow_schema(MOVEMENT)
    ended_ms = _instant_of(shard.flows[-1])
    instants = {"hour": shard.hour_ms, "begun_at": shard.begun_ms, "ended_at": ended_ms}
    for file in shard.flows:
        with lake.open(file.path) as stream:
            rows = pq.read_table(stream, schema=arrow_schema(FLOW), page_checksum_verification=True)
        if instants["begun_at"] is None:  # since queues that were empty have no rows
            begun_us = pc.min(rows["from_at"]).value
            instants["begun_at"] = _instant_of(file) if begun_us is None else begun_us // 1000
        for name, at_ms in instants.items():
            value = pa.scalar((at_ms or 0) * 1000, schema.field(name).type)
            rows = rows.append_column(schema.field(name), pa.repeat(value, len(rows)))
        yield from rows.to_batches()
        count_bytes(file.size)


def _instant_of(flow: LakeFile) -> int:
    """The end of a flow, in epoch milliseconds."""
    return int(flow.name.removesuffix(".parquet"))


def read_all(
    reads: Sequence[Read], lake: Lake, count_bytes: Count, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of the reads with these numbers. Raises LakeUnusable."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from reads[number](lake, count_bytes)


def buckets_of(durations_ms: Numbers) -> Numbers:
    """`bucket_of` of each duration."""
    scaled = np.log2(np.maximum(durations_ms, 1)) * BUCKETS_PER_DOUBLING
    return scaled.astype(np.int64)
