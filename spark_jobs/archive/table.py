"""The archive as a Delta table: how it is opened and changed.

Each commit of ours restates the version of one application transaction, the fence. So Delta itself refuses a commit
where another of ours came first since its snapshot was read, on any store and without clocks; then the table is read
anew, and the commit is tried again if what it was decided upon is still so. A sweep raises the fence before it
deletes: a run whose files it may have taken sees that, or is refused. Delta-rs leaves application transactions out
when it optimizes, so compaction is ours too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.archive.parts import Part
from spark_jobs.archive.segments import ShardId
from spark_jobs.lib.failures import JobFailed
from storage.archive_schema import ARCHIVE, TABLE, TABLE_PARTITIONS, arrow_schema, transaction_id
from storage.lake import Lake, LakeUnusable

FENCE = "holdfast:sweep"
Action = AddAction | RemoveAction
_TRIES = 20
"""Others that come first are few: each of them is a job that takes seconds."""


class NotCommitted(Exception):
    """Another commit came first; the text is Delta's."""


def load_table(lake: Lake, name: str = ARCHIVE) -> DeltaTable | None:
    """The archive, or another table, as it is now; None before its job ran first. Raises LakeUnusable."""
    uri, options = lake.uri(name), lake.storage_options()
    with named(uri):
        if not DeltaTable.is_deltatable(uri, options):
            return None
        return DeltaTable(uri, storage_options=options)


def load_or_create(lake: Lake) -> DeltaTable:
    """The table as it is now. Raises LakeUnusable."""
    found = load_table(lake)
    if found is not None:
        return found
    # Another run may just make it, too.
    with named(lake.uri(ARCHIVE)), suppress(CommitFailedError):
        DeltaTable.create(
            lake.uri(ARCHIVE),
            arrow_schema(TABLE),
            mode="ignore",
            partition_by=list(TABLE_PARTITIONS),
            name="archive",
            description="Messages that left their queues, each once: (source, shard, position)",
            storage_options=lake.storage_options(),
        )
    return load_or_create(lake)


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


def removed(path: str, size: int, partition: tuple[str, ...], *, data_change: bool) -> RemoveAction:
    """The action that takes a file out of the table."""
    values: dict[str, str | None] = dict(zip(TABLE_PARTITIONS, partition, strict=True))
    return RemoveAction(path, data_change, _now_ms(), size, values)


def table_files(table: DeltaTable) -> pa.Table:
    """The files of this version: path, size_bytes, num_records, partition.account, partition.queue, partition.day."""
    return pa.table(table.get_add_actions(flatten=True))


def removed_files(table: DeltaTable) -> set[str]:
    """Files that only earlier versions have, until they are vacuumed."""
    return set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


@contextmanager
def named(table: DeltaTable | str) -> Iterator[None]:
    """Make LakeUnusable of Delta's errors, with the table's address."""
    try:
        yield
    except (DeltaError, OSError) as error:
        uri = table if isinstance(table, str) else table.table_uri
        raise LakeUnusable(f"{uri}: {' '.join(str(error).split())}") from error
