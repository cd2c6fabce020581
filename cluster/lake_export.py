"""What a process of its own does for a running service: write batches and snapshots from the shards' files to the lake.

It opens the files as they are at one instant, changes nothing, and may be killed at any time: what it writes is the same
however often it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from auth.envelope import SealBroken
from cluster.keyring import Keyring
from storage.archive_schema import QUEUE_AGE_LATEST
from storage.export_task import Export, Exported, ShardExport, ShardExported
from storage.lake import Lake, LakeUnusable
from storage.rocks_view import RocksView
from storage.segments import Open, write_segment
from storage.snapshots import write_flows, write_snapshot
from storage.store import StoreFailed
from storage.stored_rows import load_archive
from visibility.events import StoredMessage


class ExportFailed(Exception):
    """Nothing, or not everything, was written; the text says why in one line."""


def export(wanted: Export, lake: Lake, open_keyring: Callable[[], Keyring]) -> Exported:
    """Write what is wanted. Raises ExportFailed."""
    try:
        shards = [_export_shard(wanted, shard, lake, open_keyring) for shard in wanted.shards]
        found = lake.read(QUEUE_AGE_LATEST)
    except (LakeUnusable, StoreFailed, OSError) as error:
        raise ExportFailed(" ".join(str(error).split())) from error
    return Exported(shards) if found is None else Exported(shards, msgspec.Raw(found))


def _export_shard(
    wanted: Export, shard: ShardExport, lake: Lake, open_keyring: Callable[[], Keyring]
) -> ShardExported:
    view = RocksView(Path(shard.folder))
    try:
        done = _export_batches(wanted, shard, lake, view, open_keyring)
        if wanted.snapshot_at_ms:
            done.snapshot_rows = write_snapshot(
                lake,
                view,
                wanted.queues,
                source=shard.source,
                shard=shard.number,
                taken_at_ms=wanted.snapshot_at_ms,
            )
    finally:
        view.close()
    if shard.flows:
        write_flows(
            lake, shard.flows, source=shard.source, shard=shard.number, until_ms=wanted.until_ms
        )
    return done


def _export_batches(
    wanted: Export,
    shard: ShardExport,
    lake: Lake,
    view: RocksView,
    open_keyring: Callable[[], Keyring],
) -> ShardExported:
    done = ShardExported(shard.number, 0, 0, 0, [], 0)
    archive, batches = load_archive(view)
    if archive is None or not batches:
        return done
    if archive.source != shard.source:
        raise ExportFailed(f"shard {shard.number} is {archive.source} on disk, not {shard.source}")
    keyring = open_keyring()
    try:
        opened = _opener(keyring, wanted.readable_keys)
        for batch in batches:
            written = write_segment(lake, view, shard.source, shard.number, batch, opened)
            done.batch = batch.number
            if written is not None:
                done.segments += 1
                done.messages += written.messages
                done.damaged += [str(error) for error in written.damaged]
    finally:
        keyring.close()
    return done


def _opener(keyring: Keyring, readable_keys: list[str]) -> Open:
    """Opens what is archived readable; what it cannot open stays as it is, and can be opened later with the key."""

    readable = [keyring.find(key) for key in readable_keys]

    def opened(message: StoredMessage) -> bytes | None:
        if not message.sealed:
            return message.data
        try:
            named, key = keyring.data_key(message.sealed)
            return key.open(message.data) if named.enabled and named in readable else None
        except SealBroken:
            return None

    return opened
