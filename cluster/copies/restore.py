"""Restoring a backup into a new data folder.

Clients may hold receipt handles and sequence numbers that are newer than the backup. A restored
queue therefore continues far above them, so that no handle ever names another message than its own.
Handles of messages in the backup still work.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from cluster.catalog.host_records import FILE_NAME
from cluster.catalog.record_codec import CatalogUnreadable, skip_part_numbers
from cluster.clock import SystemEntropy
from cluster.coordination.sqlite_coordination import write_records
from cluster.copies.backup import discard_made, first_sequences
from cluster.fleet.fleet_records import FIRST, place_of
from cluster.keys.keyring import check_master
from cluster.keys.master_key import WrongMasterKey
from cluster.members.copied_records import (
    RECORDS_FILE,
    SINGLE,
    catalog_in,
    formats_in,
    read_copied,
    write_copied,
)
from cluster.members.host_folder import save_identity
from cluster.members.member_records import Identity
from storage.checks.derived_queue import SEQUENCES_SKIPPED
from storage.copies.manifest import BackupRefused, CopiedFile, Manifest, read_manifest
from storage.copies.second_copy import renew_copy
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.files.copying import FOLDER_MODE, copy_file, sync_folders
from storage.files.folder import is_unused, write_format
from storage.log import NEWEST_FORMAT, Position
from storage.rows.stored_rows import StoredRows
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord, encode_row
from visibility.rows.row_keys import ANSWERS, APPLIED_KEY, FORMAT_VERSION, queue_key, table_range
from visibility.rows.row_values import QueueRow
from visibility.rows.state_rows import load_archive, outbox_row, write_archive, write_outbox

_HOST_ID_BYTES = 16
_READABLE_FORMATS = (3, FORMAT_VERSION)
"""A checkpoint of format 3 holds the same rows: only the log differs."""


class BackupDamaged(Exception):
    """The backup is damaged, and nothing was restored."""

    def __init__(self, findings: list[DamagedFile]) -> None:
        super().__init__(f"{len(findings)} files are damaged")
        self.findings = findings


class DamagedFile(NamedTuple):
    """A damaged file of a backup."""

    path: str
    reason: str


def restore(backup: Path, data: Path, master: bytes | None = None, *, number: int = 0) -> Manifest:
    """Make `data`, which must not exist or be empty, a data folder of the backup's content,
    durably. With its `master` key a cluster's backup becomes the folder of a single host, else that
    of a founding host. `number` is that of the cluster whose part of a fleet's backup this is, 0 if
    it is not of a fleet.

    Raises BackupRefused and BackupDamaged, with nothing left in `data`.
    """
    manifest = read_manifest(backup)
    if master is not None and not manifest.cluster:
        raise BackupRefused(f"{backup} is of a single host: restore it without --single")
    _check_part(backup, manifest, number)
    if manifest.data_format not in _READABLE_FORMATS:
        raise BackupRefused(
            f"{backup} is of data format {manifest.data_format}; this version of holdfast knows "
            f"{FORMAT_VERSION}"
        )
    if not is_unused(data):
        raise BackupRefused(f"{data} is not empty")
    if data.resolve().is_relative_to(backup.resolve()):
        raise BackupRefused(f"{data} is in the backup")
    try:
        data.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        data.chmod(FOLDER_MODE)
        try:
            _restore(backup, data, manifest, master)
        except BaseException:
            discard_made(data)
            raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BackupRefused(f"cannot restore: {where}{error.strerror}") from error
    except WrongMasterKey as error:
        raise BackupRefused(f"{error}: give that of cluster {manifest.cluster}") from error
    except (
        sqlite3.Error,
        StoreFailed,
        DamagedRecord,
        CatalogUnreadable,
    ) as error:
        raise BackupRefused(f"cannot restore: {error}") from error
    return manifest


def _check_part(backup: Path, manifest: Manifest, number: int) -> None:
    """Parts of several backups would have messages twice or not at all. Raises BackupRefused."""
    if manifest.cluster_number == number:
        return
    if not manifest.fleet:
        raise BackupRefused(f"{backup} is no part of a fleet's backup: restore it without --fleet")
    raise BackupRefused(
        f"{backup} has cluster {manifest.cluster_number} of a fleet, whose clusters are restored "
        "together: name the folder above it with --fleet, and the cluster with --cluster-number"
    )


def _restore(backup: Path, data: Path, manifest: Manifest, master: bytes | None) -> None:
    """Copy the shards' folders first, and last the file that makes this a data folder.

    A service refuses to start on shards without it, so none can start on a part of a backup.
    """
    for name in manifest.shards.values():
        (data / name).mkdir(mode=FOLDER_MODE)
    copies = [_copy(backup, data, copied) for copied in manifest.files]
    findings = [finding for finding in copies if finding is not None]
    if findings:
        raise BackupDamaged(findings)
    place = place_of(manifest.cluster_number or FIRST)
    if manifest.cluster and (formats := formats_in(data, place)) > NEWEST_FORMAT:
        raise BackupRefused(
            f"{backup} is of a cluster that writes formats {formats}; this version of holdfast "
            f"knows {NEWEST_FORMAT}"
        )
    for database in data.glob("*.sqlite"):
        renew_copy(database)
    is_member = bool(manifest.cluster) and master is None
    skip_sequences(data, manifest, _first_position(manifest) if is_member else None)
    if master is not None:
        _make_single(data, manifest, master)
    elif manifest.cluster:
        records = read_copied(data)
        (data / RECORDS_FILE).unlink()
        write_copied(data, {key: skip_part_numbers(key, each) for key, each in records.items()})
        host_id = SystemEntropy().secret(_HOST_ID_BYTES).hex()
        save_identity(data, Identity(host_id, restored=manifest.backup_id))
    sync_folders(data)
    write_format(data, manifest.shards)


def _make_single(data: Path, manifest: Manifest, master: bytes) -> None:
    """Make the records of a single host from those of a cluster, and forget what its shards keep
    for hosts that ask again."""
    records = read_copied(data)
    check_master(records, master)
    own = {key: value for key, value in records.items() if key.startswith(SINGLE)}
    write_records(data / FILE_NAME, own)
    (data / RECORDS_FILE).unlink()
    for name in manifest.shards.values():
        with closing(RocksRows(data / name)) as store:
            changes = Changes()
            changes.delete_range(*table_range(0, ANSWERS))
            store.write(changes.ops, None)
            store.flush()


def _copy(backup: Path, data: Path, copied: CopiedFile) -> DamagedFile | None:
    try:
        found = copy_file(backup / copied.path, data / copied.path)
    except FileNotFoundError:
        return DamagedFile(copied.path, "it is missing")
    return difference(copied, *found)


def difference(copied: CopiedFile, size: int, sha256: str) -> DamagedFile | None:
    """The difference between a file and its entry in the manifest, None if there is none."""
    if size != copied.size:
        return DamagedFile(copied.path, f"it has {size} bytes and had {copied.size}")
    if sha256 != copied.sha256:
        return DamagedFile(copied.path, "its SHA-256 is not what it was")
    return None


def skip_sequences(data: Path, manifest: Manifest, applied: Position | None) -> None:
    """Continue every queue far above the sequences that it may have issued after the backup; the
    rows are as of the Entry `applied`, or of none.

    Queues without messages are included. The folder gets new sources and origins: batches that are
    sealed after the backup, and messages that depart for other shards, differ from its own later
    ones. Raises sqlite3.Error, StoreFailed, DamagedRecord, CatalogUnreadable.
    """
    known = first_sequences(catalog_in(data))
    for number, name in manifest.shards.items():
        store = RocksRows(data / name)
        changes = Changes()
        try:
            first = known.get(int(number), {})
            rows = {queue_id: QueueRow(begin, 1, 0, 0) for queue_id, begin in first.items()}
            rows |= dict(StoredRows(store).queues())
            archive, _ = load_archive(store)
            if archive is not None:
                write_archive(changes, msgspec.structs.replace(archive, source=""))
            outbox = outbox_row(store)
            if outbox is not None:
                write_outbox(changes, msgspec.structs.replace(outbox, origin=b""))
            for queue_id, row in rows.items():
                skipped = msgspec.structs.replace(
                    row, next_sequence=row.next_sequence + SEQUENCES_SKIPPED
                )
                changes.put(queue_key(queue_id), encode_row(skipped))
            changes.delete(APPLIED_KEY)  # the log begins again
            store.write(changes.ops, applied)
            store.flush()
        finally:
            store.close()


def _first_position(manifest: Manifest) -> Position:
    """The Entry that restored rows of a cluster are as of: the same on each of its hosts, and none
    that another log has. A host without these rows is behind it, and fetches them."""
    return Position(0, 1, int(manifest.backup_id[:8], 16))
