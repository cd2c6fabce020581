"""The archive as a Delta table: how it is opened and changed.

Each commit of ours restates the version of one application transaction, the fence. So Delta itself refuses a commit
where another of ours came first since its snapshot was read, on any store and without clocks; then the table is read
anew, and the commit is tried again if what it was decided upon is still so. A sweep raises the fence before it
deletes: a run whose files it may have taken sees that, or is refused. Delta-rs leaves application transactions out
when it optimizes, so compaction is ours too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.archive.parts import Part
from spark_jobs.archive.reading import TableFile, read_table_files
from spark_jobs.archive.segments import ShardId
from spark_jobs.lib.delta import NotCommitted, load_table, named, open_table
from spark_jobs.lib.failures import JobFailed
from storage.archive_schema import ARCHIVE, TABLE, TABLE_PARTITIONS, arrow_schema, transaction_id
from storage.lake import Lake

FENCE = "holdfast:sweep"
Action = AddAction | RemoveAction
_FILE = "path string, size long, rows long, account string, queue string, day date"
"""TableFile, as Spark has it."""
_TRIES = 20
"""Others that come first are few: each of them is a job that takes seconds."""


def open_archive(lake: Lake) -> DeltaTable:
    """The archive as it is now, which is made if it is missing. Raises LakeUnusable."""
    return open_table(
        lake,
        ARCHIVE,
        TABLE,
        TABLE_PARTITIONS,
        "Messages that left their queues, each once: (source, shard, position)",
    )


def archived_batch(table: DeltaTable, shard: ShardId) -> int | None:
    """The highest batch of the shard that is in the table."""
    batch: int | None = table.transaction_version(transaction_id(*shard))
    return batch


def fence(table: DeltaTable) -> int:
    """How many sweeps there were."""
    return table.transaction_version(FENCE) or 0


def commit(
    lake: Lake,
    actions: Sequence[Action],
    shards: Mapping[ShardId, int],
    fence_at: int,
    still: Callable[[DeltaTable], bool],
) -> int | None:
    """Make the next version, with these highest batches of shards. None, and no change, where there was a sweep after
    `fence_at`, or what `still` says of the newest version is false. Raises LakeUnusable."""
    reason = ""
    for _ in range(_TRIES):
        table = load_table(lake)
        if table is None or fence(table) != fence_at or not still(table):
            return None
        try:
            return commit_to(table, actions, shards, fence_at)
        except NotCommitted as error:
            reason = str(error)
    raise JobFailed(reason)


def commit_to(
    table: DeltaTable, actions: Sequence[Action], shards: Mapping[ShardId, int], fence_at: int
) -> int:
    """Make the version that follows this very one; the number of one that has it. Raises NotCommitted, LakeUnusable."""
    versions = {transaction_id(*shard): batch for shard, batch in shards.items()}
    versions[FENCE] = fence_at
    properties = CommitProperties(
        app_transactions=[Transaction(name, version) for name, version in versions.items()]
    )
    with named(table):
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


def added(part: Part, *, data_change: bool = True) -> AddAction:
    """The action that takes a part into the table."""
    values = dict(zip(TABLE_PARTITIONS, part.partition, strict=True))
    return AddAction(part.path, part.size, values, _now_ms(), data_change, part.stats)


def removed(file: TableFile, *, data_change: bool) -> RemoveAction:
    """The action that takes a file out of the table."""
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


def archived_files(lake: Lake) -> list[TableFile]:
    """All files of the newest version of the table. Raises JobFailed where there is none."""
    table = load_table(lake)
    if table is None:
        raise JobFailed(f"there is no archive in {lake.url} yet")
    return table_files(table)


def removed_files(table: DeltaTable) -> set[str]:
    """Files that only earlier versions have, until they are vacuumed."""
    return set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def read_archive(session: SparkSession, lake: Lake, files: list[TableFile]) -> DataFrame:
    """The rows of the files, of which there is at least one, in TABLE's columns."""
    schema = from_arrow_schema(arrow_schema(TABLE))
    if lake.is_local:
        reader = session.read.schema(schema).option("basePath", lake.path(ARCHIVE))
        paths = [lake.path(f"{ARCHIVE}/{file.path}") for file in files]
        return reader.parquet(*paths).select(*TABLE)  # the partitions' columns came last
    named = session.createDataFrame(files, _FILE)
    return named.repartition(len(files)).mapInArrow(partial(read_table_files, lake), schema)
