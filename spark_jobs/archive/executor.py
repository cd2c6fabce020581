"""Task code of the archive's jobs. Imports only pyarrow and pyspark, since executors have no more.

Damage is a value: the path of the file and the reason. Other failures may be transient, so they are
raised and Spark retries the task.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from spark_jobs.archive.archive_parts import Part, PartWriter, runs
from spark_jobs.archive.parquet_reading import (
    Damaged,
    TableFile,
    read_table_file,
    verified_checksum,
)
from spark_jobs.archive.segment_files import Segment, read_segment
from spark_jobs.lib.live_count import Count
from storage.lake.archive_schema import SEGMENT, arrow_schema
from storage.lake.table import Lake

CHUNKS: pa.Schema = pa.schema(
    [
        ("account", pa.string()),
        ("queue", pa.string()),
        ("day", pa.string()),
        ("first_us", pa.int64()),
        ("rows", pa.binary()),
        ("damage", pa.binary()),
    ]
)
"""Rows of one partition on their way from a segment to a part, as a serialized record batch.

`first_us` is the first sent_at. A chunk that reports a damaged segment has only `damage`. Chunks
cost Spark less than rows.
"""
WRITTEN: pa.Schema = pa.schema([("written", pa.binary())])
_SEGMENT: pa.Schema = arrow_schema(SEGMENT)
_ORDER = [(name, "ascending") for name in ("account", "queue", "sent_at")]
_GATHERED_BYTES = 64 << 20
"""Rows that are sorted and split at once; a segment has 64 MiB of content."""
CHUNK_BYTES = 256 << 10
"""Java gives larger objects regions of their own."""
_GROUP_BYTES = 4 << 20


class Written(NamedTuple):
    """The parts that tasks wrote, and the damaged files with the reason."""

    parts: list[Part]
    damaged: dict[str, str]


def union(results: Sequence[Written]) -> Written:
    """The results of all tasks as one."""
    return reduce(
        lambda all_, one: Written(all_.parts + one.parts, all_.damaged | one.damaged),
        results,
        Written([], {}),
    )


# -- archive ---------------------------------------------------------------------------------------


def read_segments(
    lake: Lake, count: Count, segments: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The verified rows of segments, given as rows with their fields, in CHUNKS."""
    for batch in segments:
        for fields in batch.to_pylist():
            segment = Segment.from_fields(fields)
            try:
                for rows in _gathered(read_segment(lake, segment)):
                    count(rows.num_rows)
                    for chunks in _in_groups(_chunks(rows)):
                        yield pa.RecordBatch.from_pylist(chunks, CHUNKS)
            except Damaged as error:
                report = pickle.dumps((segment.path, str(error)))
                yield pa.RecordBatch.from_pylist([{"damage": report}], CHUNKS)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _GATHERED_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _chunks(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for (account, queue, day), some in runs(rows.sort_by(_ORDER)):
        at_once = max(1, CHUNK_BYTES * some.num_rows // max(some.nbytes, 1))
        for batch in some.combine_chunks().to_batches(max_chunksize=at_once):
            yield {
                "account": account,
                "queue": queue,
                "day": day,
                "first_us": batch["sent_at"][0].value,
                "rows": batch.serialize().to_pybytes(),
            }


def _in_groups(chunks: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Chunks that go to Spark together."""
    group: list[dict[str, Any]] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk["rows"])
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def write_parts(
    lake: Lake, run: str, count: Count, chunks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write sorted CHUNKS as parts; one row of WRITTEN. Raises LakeUnusable."""
    context = TaskContext.get()
    assert context is not None
    damaged: dict[str, str] = {}
    name = f"part-{run}-{context.partitionId()}-{context.taskAttemptId()}"
    with PartWriter(lake, name) as writer:
        for batch in chunks:
            reports = batch["damage"].drop_null().to_pylist()
            damaged |= dict(map(pickle.loads, reports))
            if damaged:
                continue  # the parts are of no use
            for serialized in batch["rows"].to_pylist():
                rows = pa.ipc.read_record_batch(pa.py_buffer(serialized), _SEGMENT)
                count(rows.num_rows)
                writer.add(rows)
        written = Written(writer.finish(), damaged)
    yield pa.RecordBatch.from_pylist([{"written": pickle.dumps(written)}], WRITTEN)


def write_segments_here(lake: Lake, name: str, segments: Sequence[Segment]) -> Written:
    """Write the rows of a few segments as parts, in this process. Raises LakeUnusable."""
    rows: list[pa.RecordBatch] = []
    damaged: dict[str, str] = {}
    for segment in segments:
        try:
            rows += read_segment(lake, segment)
        except Damaged as error:
            damaged[segment.path] = str(error)
    if damaged:
        return Written([], damaged)
    with PartWriter(lake, name) as writer:
        table = pa.Table.from_batches(rows, _SEGMENT)
        for batch in table.sort_by(_ORDER).to_batches():
            writer.add(batch)
        return Written(writer.finish(), {})


# -- compact ---------------------------------------------------------------------------------------


def _uncounted(rows: int) -> None:
    """The default: nobody looks on."""


def merge_files(
    lake: Lake, run: str, task: tuple[int, Sequence[TableFile]], count_rows: Count
) -> Written:
    """Write the rows of table files as new parts, after checking checksums. Raises LakeUnusable.

    The result of a damaged file has no parts.
    """
    number, files = task
    context = TaskContext.get()
    assert context is not None
    return merge_here(lake, f"part-{run}-{number}-{context.taskAttemptId()}", files, count_rows)


def merge_here(
    lake: Lake, name: str, files: Sequence[TableFile], count_rows: Count = _uncounted
) -> Written:
    """The same, in any process, with this beginning of the parts' names."""
    path = ""
    try:
        with PartWriter(lake, name) as writer:
            for file in files:
                path = file.path
                _add(lake, file, writer, count_rows)
            return Written(writer.finish(), {})
    except Damaged as error:
        return Written([], {path: str(error)})


def _add(lake: Lake, file: TableFile, writer: PartWriter, count_rows: Count) -> None:
    count = 0
    for rows in read_table_file(lake, file):
        verified_checksum(rows)
        count += rows.num_rows
        writer.add(rows)
        count_rows(rows.num_rows)
    if count != file.rows:
        raise Damaged(f"it has {count} rows instead of {file.rows}")
