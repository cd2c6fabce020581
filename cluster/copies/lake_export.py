"""The export process of a running service: writes batches and snapshots from shards' files to the
lake.

It reads the files at one instant, changes nothing, and may be killed at any time: a repeated export
writes the same files, and removes what the killed one had begun.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from pathlib import Path
from typing import Any

import msgspec

from auth.envelope import SealBroken
from cluster.keys.keyring import Keyring
from storage.copies.export_task import Export, Exported, ShardExport, ShardExported
from storage.copies.snapshots import write_flows, write_snapshot
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.lake.archive_schema import QUEUE_AGE_LATEST, segment_folder
from storage.lake.lake_segments import Open, not_written, write_segment
from storage.lake.table import Lake, LakeUnusable
from visibility.contract.stored_message import StoredMessage
from visibility.rows.state_rows import load_archive


class ExportFailed(Exception):
    """Nothing, or not everything, was written; the text gives the reason in one line."""


def export(wanted: Export, lake: Lake, open_keyring: Callable[[], Keyring]) -> Exported:
    """Make the export. Raises ExportFailed."""
    try:
        shards = [_export_shard(wanted, shard, lake, open_keyring) for shard in wanted.shards]
        ages = _queue_ages(lake.read(QUEUE_AGE_LATEST), wanted.queue_ages_max)
        for shard in wanted.shards:  # last: after any failure, the next export counts again
            _write_flows(wanted, shard, lake)
    except (LakeUnusable, StoreFailed, OSError) as error:
        raise ExportFailed(" ".join(str(error).split())) from error
    return Exported(shards, ages)


def _queue_ages(found: bytes | None, queues_max: int) -> list[dict[str, Any]]:
    """Results for the queues with the oldest messages; none if the file is not a list of queues."""
    try:
        said = msgspec.json.decode(found or b"{}", type=_QueueAges)
    except msgspec.MsgspecError:
        return []
    return nlargest(queues_max, said.queues, key=_age_max_s)


class _QueueAges(msgspec.Struct):
    queues: list[dict[str, Any]] = []


def _age_max_s(queue: dict[str, Any]) -> float:
    age_s = queue.get("age_max_s")
    return age_s if isinstance(age_s, int | float) else 0.0


def _export_shard(
    wanted: Export, shard: ShardExport, lake: Lake, open_keyring: Callable[[], Keyring]
) -> ShardExported:
    view = RocksView(Path(shard.folder))
    try:
        done = _export_batches(wanted, shard, lake, view, open_keyring)
        if wanted.snapshot_at_ms:
            write_snapshot(
                lake,
                view,
                wanted.queues,
                source=shard.source,
                shard=shard.number,
                taken_at_ms=wanted.snapshot_at_ms,
            )
    finally:
        view.close()
    return done


def _write_flows(wanted: Export, shard: ShardExport, lake: Lake) -> None:
    if shard.flows:
        write_flows(
            lake, shard.flows, source=shard.source, shard=shard.number, until_ms=wanted.until_ms
        )


def _export_batches(
    wanted: Export,
    shard: ShardExport,
    lake: Lake,
    view: RocksView,
    open_keyring: Callable[[], Keyring],
) -> ShardExported:
    done = ShardExported(shard.number, 0, 0, 0, 0, [])
    archive, batches = load_archive(view)
    if archive is None or not batches:
        return done
    if archive.source != shard.source:
        raise ExportFailed(f"shard {shard.number} is {archive.source} on disk, not {shard.source}")
    keyring = open_keyring()  # of now: it has what sealed the batches
    opened = _opener(keyring, wanted.readable_keys, wanted.account)
    lake.remove_drafts(segment_folder(shard.source, shard.number))
    for batch in not_written(lake, shard.source, shard.number, batches):
        written = write_segment(lake, view, shard.source, shard.number, batch, opened)
        done.segments += 1
        done.messages += written.messages
        done.missing += written.missing
        done.damaged += [str(error) for error in written.damaged]
        if written.missing:
            done.damaged.append(f"batch {batch.number} is without {written.missing} messages")
    done.batch = batches[-1].number
    return done


def _opener(keyring: Keyring, readable_keys: list[str], account: str) -> Open:
    """Opens messages that are archived readable; others stay sealed and can be opened later with
    the key.

    Raises ExportFailed for a missing key: archived messages cannot be made readable later.
    """
    readable = [keyring.find(key, account) for key in readable_keys]
    for key, found in zip(readable_keys, readable, strict=True):
        if found is None:
            raise ExportFailed(f"archive_keys: there is no key {key}")

    def opened(message: StoredMessage) -> bytes | None:
        if not message.sealed:
            return message.data
        try:
            named, key = keyring.data_key(message.sealed)
            return key.open(message.data) if named.enabled and named in readable else None
        except SealBroken:
            return None

    return opened
