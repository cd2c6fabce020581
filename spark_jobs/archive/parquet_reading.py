"""Read and verify Parquet files of the lake: segments and files of the archive.

Executors run this, so it imports pyarrow only.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.archive.archive_parts import COLUMNS, Partition
from storage.lake.archive_schema import (
    ADDED,
    ARCHIVE,
    CHECKSUM_MODULUS,
    TABLE,
    TABLE_PARTITIONS,
    arrow_schema,
    attribute_bytes,
    row_checksum,
)
from storage.lake.table import Lake, LakeUnusable

_READ_BYTES = 16 << 20
"""Limit of the data decoded at once."""
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
        """The file's partition, as in its path."""
        return self.account, self.queue, self.day.isoformat()


class Damaged(Exception):
    """A file that cannot be read or fails a check; the text does not name it."""


def read_table_file(lake: Lake, file: TableFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file of the archive with all columns, those in its path too. Raises Damaged."""
    yield from _with_partition(file, read_rows(lake, f"{ARCHIVE}/{file.path}", COLUMNS))


def _with_partition(file: TableFile, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(TABLE)
    for batch in rows:
        in_path = {
            name: pa.repeat(pa.scalar(getattr(file, name), schema.field(name).type), batch.num_rows)
            for name in TABLE_PARTITIONS
        }
        columns = [in_path[n] if n in in_path else batch.column(n) for n in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def read_table_files(lake: Lake, files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of files given as rows of TableFile's columns. Raises Damaged.

    Columns that a later version added are left out.
    """
    for batch in files:
        for file in (TableFile(**fields) for fields in batch.to_pylist()):
            rows = read_rows(lake, f"{ARCHIVE}/{file.path}", COLUMNS, has_more=True)
            yield from _with_partition(file, rows)


def read_rows(
    lake: Lake, path: str, schema: pa.Schema, size: int = 0, *, has_more: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file with these columns, in batches of bounded size. Raises Damaged.

    `size` is that of the decoded content, which the encoding may hide. With `has_more`, the file
    may have other columns, too. Columns that a version before 0.2 did not write are null. Pages are
    compared with their checksums, as the rows' checksums do not cover all columns.
    """
    try:
        with (
            lake.open(path) as stream,
            pq.ParquetFile(stream, page_checksum_verification=True) as file,
        ):
            found = file.schema_arrow
            if has_more:
                found = pa.schema([each for each in found if each.name in schema.names])
            written = schema
            if ADDED[0] not in found.names:
                written = pa.schema([each for each in schema if each.name not in ADDED])
            if not found.equals(written):
                raise Damaged("it has other columns")
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            size = max(size, sum(group.total_byte_size for group in groups), 1)
            at_once = max(1, min(_READ_ROWS, _READ_BYTES * file.metadata.num_rows // size))
            for group in range(file.num_row_groups):  # given all groups, pyarrow reads ahead
                for batch in file.iter_batches(at_once, [group], written.names, use_threads=False):
                    batch.validate(full=True)  # texts are UTF-8
                    yield _with_nulls(batch, schema)
    except LakeUnusable as error:
        raise Damaged(str(error)) from error


def _with_nulls(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with all columns, null where they have none."""
    if rows.num_columns == len(schema):
        return rows
    known = set(rows.schema.names)
    columns = [
        rows.column(each.name) if each.name in known else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def verified_checksum(rows: pa.RecordBatch) -> int:
    """Recompute the rows' checksums and return their sum. Raises Damaged if one differs."""
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
        raise Damaged(f"message {ids[row]} has a wrong checksum")
    return sum(computed) % CHECKSUM_MODULUS


def _attributes(rows: pa.RecordBatch) -> list[bytes]:
    """`attribute_bytes` of each row. Reads by column, which is ten times as fast as by row."""
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
