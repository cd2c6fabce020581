"""The files of the archive, as executors read them from an object store. Imports pyarrow only, as `executor` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import NamedTuple

import pyarrow as pa

from spark_jobs.archive.parts import COLUMNS
from spark_jobs.archive.segments import read_rows
from storage.archive_schema import ARCHIVE, TABLE, TABLE_PARTITIONS, arrow_schema
from storage.lake import Lake


class ArchiveFile(NamedTuple):
    """A file of the table; `path` is relative to the table."""

    path: str
    account: str
    queue: str
    day: date


def rows_of(lake: Lake, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files that are named by ArchiveFile's columns. Raises Damaged."""
    for batch in named:
        for file in batch.to_pylist():
            yield from _file_rows(lake, ArchiveFile(**file))


def _file_rows(lake: Lake, file: ArchiveFile) -> Iterator[pa.RecordBatch]:
    """The columns that the file's path says are put in."""
    schema = arrow_schema(TABLE)
    for batch in read_rows(lake, f"{ARCHIVE}/{file.path}", COLUMNS):
        said = {
            name: pa.repeat(pa.scalar(getattr(file, name), schema.field(name).type), batch.num_rows)
            for name in TABLE_PARTITIONS
        }
        columns = [said[name] if name in said else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
