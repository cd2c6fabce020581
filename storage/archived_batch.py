"""Whether a batch is in the archive, by the Delta table's own log. Imports the lake's packages when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from storage.archive_schema import ARCHIVE, transaction_id

if TYPE_CHECKING:
    from storage.lake import Lake


class Claimed(msgspec.Struct, frozen=True):
    """What somebody says: all batches of the shard up to this one are in this version of the table of this id."""

    source: str
    shard: int
    batch: int
    table_id: str
    version: int


class ArchivedTask(msgspec.Struct, frozen=True):
    """A claim that is to be checked in a lake."""

    lake: str
    claimed: Claimed


def refute(lake: Lake, claimed: Claimed) -> str | None:
    """Why the claim is wrong, None if the table says the same. Raises LakeUnusable where nobody can tell."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from storage.lake import LakeUnusable

    uri, options = lake.uri(ARCHIVE), lake.storage_options()
    try:
        if not DeltaTable.is_deltatable(uri, options):
            return f"there is no table {uri}"
        now = DeltaTable(uri, storage_options=options)
        table_id = str(now.metadata().id)
        if table_id != claimed.table_id:
            return f"the table {uri} has the id {table_id}, and not {claimed.table_id}"
        if not 0 <= claimed.version <= now.version():
            return (
                f"the table {uri} has no version {claimed.version}: the last one is {now.version()}"
            )
        then = DeltaTable(uri, version=claimed.version, storage_options=options)
        for table in (then, now):
            batch = table.transaction_version(transaction_id(claimed.source, claimed.shard)) or 0
            if batch < claimed.batch:
                return (
                    f"version {table.version()} of the table {uri} has the batches of {claimed.source} "
                    f"up to {batch}, and not {claimed.batch}"
                )
    except (DeltaError, OSError) as error:
        raise LakeUnusable(f"{uri}: {' '.join(str(error).split())}") from error
    return None
