"""The Delta tables that jobs write their results to. A commit replaces some rows, all at once or not at all."""

from __future__ import annotations

from contextlib import suppress
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_jobs.archive.table import NotCommitted, named
from storage.archive_schema import Columns, arrow_schema
from storage.lake import Lake


def load(lake: Lake, name: str, columns: Columns) -> DeltaTable:
    """The table as it is now, which is made if it is missing, by `day`. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with named(uri):
        if not DeltaTable.is_deltatable(uri, options):
            with suppress(CommitFailedError):  # another run has just made it
                DeltaTable.create(
                    uri,
                    arrow_schema(columns),
                    mode="ignore",
                    partition_by=["day"],
                    name=name,
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
