"""The archive as a Delta table: open, read and change it.

Everything here raises ForeignTable, a LakeUnusable, if the table is not the archive's.

Each commit restates the version of one application transaction, the fence. So Delta refuses a
commit if another of ours came first since its snapshot was read, on any store and without clocks;
the table is then read again, and the commit repeated if its condition still holds. A sweep raises
the fence before it deletes: a run whose files it may have removed sees that or is refused. delta-rs
omits application transactions when it optimizes, so compaction is ours too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.archive.archive_parts import Part
from spark_jobs.archive.parquet_reading import TableFile, read_table_files
from spark_jobs.archive.segment_files import ShardId
from spark_jobs.lib.delta import NotCommitted, delta_errors, open_table
from spark_jobs.lib.job_failures import JobFailed
from storage.lake.archive_schema import (
    ADDED,
    ARCHIVE,
    TABLE,
    TABLE_PARTITIONS,
    arrow_schema,
    transaction_id,
)
from storage.lake.archive_table import load_archive, table_id
from storage.lake.table import Lake

FENCE = "holdfast:sweep"
Action = AddAction | RemoveAction
_FILE = "path string, size long, rows long, account string, queue string, day date"
"""Spark's schema of TableFile."""
_TRIES = 20
"""Conflicts are few, since each is with a job that takes seconds."""


class Seen(NamedTuple):
    """The table and its fence when a run began: both must be the same when it commits."""

    table_id: str
    fence: int


def open_archive(lake: Lake) -> DeltaTable:
    """The newest version of the archive, created if there is none, with the columns that a version
    before 0.2 did not make. Raises LakeUnusable."""
    table = load_archive(lake)
    if table is not None:
        return _with_added(table)
    about = "Messages that left their queues, each once: (source, shard, position)"
    return open_table(lake, ARCHIVE, TABLE, TABLE_PARTITIONS, about)


def _with_added(table: DeltaTable) -> DeltaTable:
    known = {field.name for field in table.schema().fields}
    fields = Schema.from_arrow(arrow_schema(TABLE)).fields
    added = [field for field in fields if field.name in ADDED and field.name not in known]
    if added:
        with delta_errors(table), suppress(CommitFailedError):  # another run has just added them
            table.alter.add_columns(added)
        table.update_incremental()
    return table


def fence(table: DeltaTable) -> int:
    """The number of sweeps so far."""
    return table.transaction_version(FENCE) or 0


def seen(table: DeltaTable) -> Seen:
    """The table's id and fence."""
    return Seen(table_id(table), fence(table))


def commit(
    lake: Lake,
    actions: Sequence[Action],
    shards: Mapping[ShardId, int],
    at: Seen,
    is_current: Callable[[DeltaTable], bool],
) -> int | None:
    """Commit the next version, with the highest batch of each shard; its number.

    None, and no change, if the table was replaced or swept since `at`, or if `is_current` is false
    of the newest version. Raises JobFailed, LakeUnusable.
    """
    reason = ""
    for _ in range(_TRIES):
        table = load_archive(lake)
        if table is None or seen(table) != at or not is_current(table):
            return None
        try:
            return commit_to(table, actions, shards, at.fence)
        except NotCommitted as error:
            reason = str(error)
    raise JobFailed(reason)


def commit_to(
    table: DeltaTable, actions: Sequence[Action], shards: Mapping[ShardId, int], fence_at: int
) -> int:
    """Commit on top of this very version; the new one. Raises NotCommitted, LakeUnusable."""
    versions = {transaction_id(*shard): batch for shard, batch in shards.items()}
    versions[FENCE] = fence_at
    properties = CommitProperties(
        app_transactions=[Transaction(name, version) for name, version in versions.items()]
    )
    with delta_errors(table):
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                list(TABLE_PARTITIONS),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise NotCommitted(f"{table.table_uri}: {error}") from error
        table.update_incremental()
        return int(table.version())


def add_action(part: Part, *, data_change: bool = True) -> AddAction:
    """Delta's action that adds a part to the table."""
    values = dict(zip(TABLE_PARTITIONS, part.partition, strict=True))
    return AddAction(part.path, part.size, values, _now_ms(), data_change, part.stats)


def remove_action(file: TableFile, *, data_change: bool) -> RemoveAction:
    """Delta's action that removes a file from the table."""
    values: dict[str, str | None] = dict(zip(TABLE_PARTITIONS, file.partition, strict=True))
    return RemoveAction(file.path, data_change, _now_ms(), file.size, values)


def table_files(table: DeltaTable) -> list[TableFile]:
    """The files of this version."""
    columns = ["path", "size_bytes", "num_records", *(f"partition.{c}" for c in TABLE_PARTITIONS)]
    rows = pa.table(table.get_add_actions(flatten=True)).select(columns).to_pylist()
    return [
        TableFile(path, size, count or 0, *where)
        for path, size, count, *where in map(dict.values, rows)
    ]


def file_paths(table: DeltaTable) -> set[str]:
    """The paths of the files of this version."""
    return set(pa.table(table.get_add_actions(flatten=True))["path"].to_pylist())


def archived_files(lake: Lake) -> list[TableFile]:
    """The files of the newest version of the archive. Raises JobFailed if there is no archive."""
    table = load_archive(lake)
    if table is None:
        raise JobFailed(f"there is no archive in {lake.url} yet")
    return table_files(table)


def removed_files(table: DeltaTable) -> set[str]:
    """Files of earlier versions only, not yet vacuumed."""
    return set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def read_archive(session: SparkSession, lake: Lake, files: list[TableFile]) -> DataFrame:
    """The rows of at least one file, in TABLE's columns.

    Spark reads a local lake itself. An object store is read through pyarrow, since Spark would need
    Java packages for it. Delta's log lists the files of one version, so a compaction changes
    nothing.
    """
    schema = from_arrow_schema(arrow_schema(TABLE))
    if lake.is_local:
        reader = session.read.schema(schema).option("basePath", lake.path(ARCHIVE))
        reader = reader.option("__globPaths__", "false")  # {, * and ? of a folder's name are itself
        paths = [lake.path(f"{ARCHIVE}/{file.path}") for file in files]
        return reader.parquet(*paths).select(*TABLE)  # Spark puts partition columns last
    listed = session.createDataFrame(files, _FILE)
    return listed.repartition(len(files)).mapInArrow(partial(read_table_files, lake), schema)
