"""What executors do. They need pyarrow and no other package beside Spark, so this imports no more.

Damage is a value: a task that meets it leaves nothing behind, and says which file it is. Everything else that fails may work
the next time, so it is raised for Spark to try again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from spark_jobs.archive.parts import COLUMNS, Part, Partition, PartWriter
from spark_jobs.archive.segments import Damaged, Segment, read_rows, read_segment, verified_checksum
from storage.archive_schema import ARCHIVE
from storage.lake import Lake


class TableFile(NamedTuple):
    """A file of the table, by its path in it."""

    path: str
    size: int
    rows: int
    partition: Partition


File = TypeVar("File", Segment, TableFile)


class Written(NamedTuple):
    """What a task wrote, or which file it could not read and why; then it left no parts."""

    parts: list[Part]
    damaged: dict[str, str]


def write_segments(lake: Lake, run: str, task: tuple[int, Sequence[Segment]]) -> Written:
    """Write the rows of segments as parts. Raises LakeUnusable."""

    def write(segment: Segment, writer: PartWriter) -> None:
        for rows in read_segment(lake, segment):
            writer.add(rows)

    return _written(lake, run, task, write)


def merge_files(lake: Lake, run: str, task: tuple[int, Sequence[TableFile]]) -> Written:
    """Write the rows of files of the table as new parts, each row verified by its checksum. Raises LakeUnusable."""

    def write(file: TableFile, writer: PartWriter) -> None:
        count = 0
        for rows in read_rows(lake, f"{ARCHIVE}/{file.path}", COLUMNS):
            verified_checksum(rows)
            count += rows.num_rows
            writer.add(_with_partition(rows, file.partition))
        if count != file.rows:
            raise Damaged(f"it has {count} rows and not {file.rows}")

    return _written(lake, run, task, write)


def _with_partition(rows: pa.RecordBatch, partition: Partition) -> pa.RecordBatch:
    """What the path says, as columns, but for the day, which `sent_at` says."""
    account, queue, _ = partition
    values = {"account": account, "queue": queue}
    columns = [pa.repeat(value, rows.num_rows) for value in values.values()]
    return pa.RecordBatch.from_arrays([*rows.columns, *columns], [*rows.schema.names, *values])


def _written(
    lake: Lake,
    run: str,
    task: tuple[int, Sequence[File]],
    write: Callable[[File, PartWriter], None],
) -> Written:
    number, files = task
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0  # no other of the run has it
    path = ""
    try:
        with PartWriter(lake, f"part-{run}-{number}-{attempt}") as writer:
            for file in files:
                path = file.path
                write(file, writer)
            return Written(writer.finish(), {})
    except Damaged as error:
        return Written([], {path: str(error)})
