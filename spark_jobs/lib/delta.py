"""Delta tables: create, open and read them, and replace rows in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from storage.lake.archive_schema import Columns, arrow_schema
from storage.lake.table import Lake, LakeUnusable


class NotCommitted(Exception):
    """Another commit came first; the text is Delta's."""


def load_table(lake: Lake, name: str) -> DeltaTable | None:
    """The newest version of a table; None if there is no table yet. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with delta_errors(uri):
        if not DeltaTable.is_deltatable(uri, options):
            return None
        return DeltaTable(uri, storage_options=options)


def open_table(
    lake: Lake,
    name: str,
    columns: Columns,
    partitions: Sequence[str] = ("day",),
    description: str | None = None,
) -> DeltaTable:
    """The newest version of a table, created if there is none. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with delta_errors(uri):
        if not DeltaTable.is_deltatable(uri, options):
            with suppress(CommitFailedError):  # another run has just created it
                DeltaTable.create(
                    uri,
                    arrow_schema(columns),
                    mode="ignore",
                    partition_by=list(partitions),
                    name=name,
                    description=description,
                    storage_options=options,
                )
        return DeltaTable(uri, storage_options=options)


def replace(table: DeltaTable, rows: pa.Table, predicate: str) -> None:
    """Replace the rows that match the predicate. Raises NotCommitted, LakeUnusable."""
    with delta_errors(table):
        try:
            write_deltalake(table, rows, mode="overwrite", predicate=predicate)
        except CommitFailedError as error:
            raise NotCommitted(str(error)) from error


def read(table: DeltaTable, columns: list[str], since: date) -> pa.Table:
    """Columns of the rows of this day and later days. Raises LakeUnusable."""
    with delta_errors(table):
        return table.to_pyarrow_dataset().to_table(columns, filter=pc.field("day") >= since)


@contextmanager
def delta_errors(table: DeltaTable | str) -> Iterator[None]:
    """Raise LakeUnusable with the table's address for Delta's errors."""
    try:
        yield
    except (DeltaError, OSError) as error:
        uri = table if isinstance(table, str) else table.table_uri
        raise LakeUnusable(f"{uri}: {' '.join(str(error).split())}") from error
