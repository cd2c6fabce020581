"""Delta tables: how they are opened, made and read, and how rows are replaced, all at once or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from storage.archive_schema import ARCHIVE, Columns, arrow_schema
from storage.lake import Lake, LakeUnusable


class NotCommitted(Exception):
    """Another commit came first; the text is Delta's."""


def load_table(lake: Lake, name: str = ARCHIVE) -> DeltaTable | None:
    """The archive, or another table, as it is now; None before its job ran first. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with named(uri):
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
    """The table as it is now, which is made if it is missing. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with named(uri):
        if not DeltaTable.is_deltatable(uri, options):
            with suppress(CommitFailedError):  # another run has just made it
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
    """Have these rows instead of those that fit the predicate. Raises NotCommitted, LakeUnusable."""
    with named(table):
        try:
            write_deltalake(table, rows, mode="overwrite", predicate=predicate)
        except CommitFailedError as error:
            raise NotCommitted(str(error)) from error


def read(table: DeltaTable, columns: list[str], since: date) -> pa.Table:
    """Columns of the rows of this day and later ones. Raises LakeUnusable."""
    with named(table):
        return table.to_pyarrow_dataset().to_table(columns, filter=pc.field("day") >= since)


@contextmanager
def named(table: DeltaTable | str) -> Iterator[None]:
    """Make LakeUnusable of Delta's errors, with the table's address."""
    try:
        yield
    except (DeltaError, OSError) as error:
        uri = table if isinstance(table, str) else table.table_uri
        raise LakeUnusable(f"{uri}: {' '.join(str(error).split())}") from error
