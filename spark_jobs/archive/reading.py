"""Rows of segments and of the archive's files, as executors read them. Imports pyarrow only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.archive.parts import COLUMNS, Partition
from storage.archive_schema import (
    ARCHIVE,
    CHECKSUM_MODULUS,
    TABLE,
    TABLE_PARTITIONS,
    arrow_schema,
    attribute_bytes,
    row_checksum,
)
from storage.lake import Lake, LakeUnusable

_READ_BYTES = 16 << 20
"""So much is decoded at once."""
_READ_ROWS = 65_536


class TableFile(NamedTuple):
    """A file of the archive, by its path in the table."""

    path: str
    size: int
    rows: int
    account: str
    queue: str
    day: date

    @property
    def partition(self) -> Partition:
        """As its folder says."""
        return self.account, self.queue, self.day.isoformat()


class Damaged(Exception):
    """A segment cannot be read, or is not what it says; the text has no path."""


def read_table_file(lake: Lake, file: TableFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file of the archive, with the columns that its path says. Raises Damaged."""
    schema = arrow_schema(TABLE)
    for batch in read_rows(lake, f"{ARCHIVE}/{file.path}", COLUMNS):
        said = {
            name: pa.repeat(pa.scalar(getattr(file, name), schema.field(name).type), batch.num_rows)
            for name in TABLE_PARTITIONS
        }
        columns = [said[name] if name in said else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def read_table_files(lake: Lake, named: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files that are named by TableFile's columns. Raises Damaged."""
    for batch in named:
        for file in batch.to_pylist():
            yield from read_table_file(lake, TableFile(**file))


def read_rows(lake: Lake, path: str, schema: pa.Schema, size: int = 0) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file with these columns, in pieces of bounded size. Raises Damaged.

    `size` is that of its content, where its encoding may hide how large it is.
    """
    try:
        with lake.open(path) as stream, pq.ParquetFile(stream) as file:
            if not file.schema_arrow.equals(schema):
                raise Damaged("its columns are other ones")
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            size = max(size, sum(group.total_byte_size for group in groups), 1)
            at_once = max(1, min(_READ_ROWS, _READ_BYTES * file.metadata.num_rows // size))
            for group in range(file.num_row_groups):  # all at once would be read ahead
                yield from file.iter_batches(at_once, [group], use_threads=False)
    except LakeUnusable as error:
        raise Damaged(str(error)) from error


def verified_checksum(rows: pa.RecordBatch) -> int:
    """The sum of the rows' checksums, after computing each anew. Raises Damaged where one differs."""
    ids = rows["message_id"].to_pylist()
    contents = pc.coalesce(rows["body"].cast(pa.binary()), rows["sealed"]).to_pylist()
    computed = [
        row_checksum(message_id or "", content or b"", attributes)
        for message_id, content, attributes in zip(ids, contents, _attributes(rows), strict=True)
    ]
    stored = rows["checksum"].to_pylist()
    if computed != stored:
        row = next(
            i for i, pair in enumerate(zip(computed, stored, strict=True)) if len({*pair}) > 1
        )
        raise Damaged(f"message {ids[row]} does not have its checksum")
    return sum(computed) % CHECKSUM_MODULUS


def _attributes(rows: pa.RecordBatch) -> list[bytes]:
    """Of each row, what `attribute_bytes` says. Column by column, since rows as Python values take ten times as long."""
    column = rows["attributes"]
    if column.null_count == rows.num_rows:
        return [b""] * rows.num_rows
    ends = column.offsets.to_pylist()
    begin, length = ends[0], ends[-1] - ends[0]
    values = column.items.slice(begin, length).flatten()
    names = column.keys.slice(begin, length).to_pylist()
    fields = [field.name for field in column.type.item_type]
    named = zip(names, *(each.to_pylist() for each in values), strict=True)
    pairs = [(name, dict(zip(fields, value, strict=True))) for name, *value in named]
    offsets = [end - begin for end in ends]
    return [
        attribute_bytes(pairs[start:end]) if end > start else b""
        for start, end in pairwise(offsets)
    ]
