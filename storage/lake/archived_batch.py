"""Checks claims of archived batches against the archive's table. Imports the lake's packages
lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from storage.lake.archive_schema import ARCHIVE, BatchId

if TYPE_CHECKING:
    from storage.lake.table import Lake


class Claimed(msgspec.Struct, frozen=True):
    """A claim: this version of the table with this id has all batches of the shard up to this
    one. The service has forgotten those up to `forgotten` already."""

    source: str
    shard: int
    batch: int
    table_id: str
    version: int
    forgotten: int = 0


class ArchivedTask(msgspec.Struct, frozen=True):
    """A claim to check in a lake."""

    lake: str
    claimed: Claimed


def refute(lake: Lake, claimed: Claimed) -> str | None:
    """The reason why the claim is wrong; None if the newest version of the table confirms it.

    The rows of each batch that the service has not forgotten must be those of its segment. Raises
    LakeUnusable if the table cannot be read, or is not the archive's.
    """
    from storage.lake.archive_table import archived_batch, confirm, load_archive, table_id

    uri = lake.uri(ARCHIVE)
    table = load_archive(lake)
    if table is None:
        return f"there is no table {uri}"
    if table_id(table) != claimed.table_id:
        return f"the table {uri} has the id {table_id(table)}, and not {claimed.table_id}"
    if not 0 <= claimed.version <= table.version():
        last = table.version()
        return f"the table {uri} has no version {claimed.version}: the last one is {last}"
    up_to = archived_batch(table, claimed.source, claimed.shard) or 0
    if up_to < claimed.batch:
        return (
            f"version {table.version()} of the table {uri} has the batches of {claimed.source} "
            f"up to {up_to}, and not {claimed.batch}"
        )
    numbers = range(claimed.forgotten + 1, claimed.batch + 1)
    batches = [BatchId(claimed.source, claimed.shard, number) for number in numbers]
    return next(iter(confirm(lake, table, batches).values()), None)
