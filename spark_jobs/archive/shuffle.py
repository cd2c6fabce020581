"""Write segments with Spark: it reads them, brings the rows of a queue and day together, and
writes them.

Spark splits a queue and day only if it has more than PART_BYTES, so the table gets as few and large
files as there can be. What it moves are chunks of rows, and a task gets them sorted, so its memory
does not grow with the number of queues.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.archive.archive_parts import PART_BYTES
from spark_jobs.archive.executor import CHUNKS, WRITTEN, Written, read_segments, union, write_parts
from spark_jobs.archive.segment_files import SEGMENT_FIELDS, Segment
from spark_jobs.lib.job_failures import spark_failures
from spark_jobs.lib.live_count import Count, LiveCount
from spark_jobs.lib.progress import Progress, Work
from storage.lake.table import Lake

_READ_BYTES = 64 << 20
"""Approximate content of the segments that a task reads; segments are not split."""
_SHUFFLED_BYTES = 32 << 20
"""Approximate content of a shuffle partition. Spark joins small ones, and splits those above
PART_BYTES."""
_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(PART_BYTES),
    # A smaller rest stays with the piece before it, so that files have 64 MB after compression.
    "spark.sql.adaptive.rebalancePartitionsSmallPartitionFactor": "0.5",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
}


def write_shuffled(
    session: SparkSession, lake: Lake, run: str, segments: Sequence[Segment]
) -> Written:
    """Write the segments as parts, in Spark tasks. Raises JobFailed."""
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    total = Work(0, sum(segment.rows for segment in segments), 0)

    with spark_failures(), LiveCount(session) as moved:

        def done() -> Work:
            # Each row is read, then written.
            return Work(0, min(moved.value // 2, total.rows), 0)

        with Progress("archive", total, done):
            parts = _query(session, lake, run, segments, moved.add)
            return union([pickle.loads(row["written"]) for row in parts.collect()])


def _query(
    session: SparkSession,
    lake: Lake,
    run: str,
    segments: Sequence[Segment],
    count: Count,
) -> DataFrame:
    processors = session.sparkContext.defaultParallelism
    content = sum(segment.bytes for segment in segments)
    readers = min(len(segments), max(processors, content // _READ_BYTES))
    listed = session.sparkContext.parallelize([s.fields() for s in segments], readers)
    chunks = session.createDataFrame(listed, SEGMENT_FIELDS).mapInArrow(
        partial(read_segments, lake, count), from_arrow_schema(CHUNKS)
    )
    partitions = max(processors, content // _SHUFFLED_BYTES)
    by_day = chunks.hint("rebalance", partitions, "account", "queue", "day")
    in_order = by_day.sortWithinPartitions("account", "queue", "day", "first_us")
    return in_order.mapInArrow(partial(write_parts, lake, run, count), from_arrow_schema(WRITTEN))
