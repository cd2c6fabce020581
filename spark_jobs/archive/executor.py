"""Task code of the archive's jobs. Imports only pyarrow and pyspark, since executors have no more.

Damage is a value: the task removes its drafts and returns the file's path. Other failures may be
transient, so they are raised and Spark retries the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from pyspark import TaskContext

from spark_jobs.archive.parts import Part, PartWriter
from spark_jobs.archive.reading import Damaged, TableFile, read_table_file, verified_checksum
from spark_jobs.archive.segments import Segment, read_segment
from spark_jobs.lib.live_count import Count
from storage.lake.table import Lake

File = TypeVar("File", Segment, TableFile)


class Written(NamedTuple):
    """The parts that a task wrote, or the damaged file with the reason; then there are no parts."""

    parts: list[Part]
    damaged: dict[str, str]


def write_segments(
    lake: Lake, run: str, task: tuple[int, Sequence[Segment]], count_rows: Count
) -> Written:
    """Write the rows of segments as parts. Raises LakeUnusable."""

    def write(segment: Segment, writer: PartWriter) -> None:
        for rows in read_segment(lake, segment):
            writer.add(rows)
            count_rows(rows.num_rows)

    return _written(lake, run, task, write)


def merge_files(
    lake: Lake, run: str, task: tuple[int, Sequence[TableFile]], count_rows: Count
) -> Written:
    """Write the rows of table files as new parts, after checking checksums. Raises LakeUnusable."""

    def write(file: TableFile, writer: PartWriter) -> None:
        count = 0
        for rows in read_table_file(lake, file):
            verified_checksum(rows)
            count += rows.num_rows
            writer.add(rows)
            count_rows(rows.num_rows)
        if count != file.rows:
            raise Damaged(f"it has {count} rows instead of {file.rows}")

    return _written(lake, run, task, write)


def _written(
    lake: Lake,
    run: str,
    task: tuple[int, Sequence[File]],
    write: Callable[[File, PartWriter], None],
) -> Written:
    number, files = task
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0  # unique within the run
    path = ""
    try:
        with PartWriter(lake, f"part-{run}-{number}-{attempt}") as writer:
            for file in files:
                path = file.path
                write(file, writer)
            return Written(writer.finish(), {})
    except Damaged as error:
        return Written([], {path: str(error)})
