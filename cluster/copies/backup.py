"""Backup: one point in time of a whole data folder, whether or not a service uses it.

Everything here blocks and belongs in a thread. `take` requires that the catalog does not change
meanwhile: then no shard holds a queue that the copied catalog does not know, and none was dropped
that it knows. References are copied before their targets (shards, then the records), so the backup
has the keys of all that is encrypted.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from cluster.catalog.catalog_records import DELETED, QUEUES
from cluster.catalog.host_records import FILE_NAME, has_records
from cluster.catalog.record_codec import CatalogUnreadable, stored_queues
from cluster.coordination.coordination import Record
from cluster.keys.master_key import FILE_NAME as MASTER_KEY_FILE
from cluster.members.copied_records import catalog_in, write_copied
from cluster.members.host_folder import MEMBER_FILE
from storage.copies.manifest import (
    CLUSTER_FORMAT,
    FLEET_FORMAT,
    MANIFEST_FORMAT,
    NO_FLEET,
    BackupRefused,
    CopiedFile,
    Manifest,
    PartOfFleet,
    write_manifest,
)
from storage.copies.second_copy import copy_sound, first_of
from storage.engines.in_use import refuse_if_in_use
from storage.engines.opening import open_replayed
from storage.engines.rocks import RocksRows, applied_of
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.files.copying import (
    FOLDER_MODE,
    copy_file,
    files_below,
    hash_file,
    sync_file,
    sync_folders,
)
from storage.files.folder import FORMAT_FILE, FolderRefused, check_folder, is_history, open_folder
from storage.log import Position
from storage.rows.stored_rows import StoredRows
from visibility.contract.queue_parts import first_sequence
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import FORMAT_VERSION

_DRAFT = "backup-draft"
"""Folder in the data folder for the draft of a backup to another file system."""


def remove_leftovers(data: Path) -> None:
    """Remove the draft of a killed backup: its hard links keep old files from being freed."""
    shutil.rmtree(data / _DRAFT, ignore_errors=True)


class CopiedStore(Protocol):
    """The rows of a shard; for any thread but the event loop's."""

    def flush(self) -> None:
        """Write out the rows in memory. Raises StoreFailed."""

    def checkpoint(self, folder: Path) -> None:
        """Make a copy of the rows, in a folder that does not exist. Raises StoreFailed."""


class CopiedRows(NamedTuple):
    """A copied shard: its last Entry, and the latest time at which a row was written."""

    position: Position
    last_stamp_ms: int


class BackupDraft:
    """A backup under way: `take`, `finish`; or `discard`. Only `stop` may be called from a second
    thread."""

    def __init__(
        self, data: Path, target: Path, *, with_master_key: bool, cluster: str = ""
    ) -> None:
        """Make `target`, an absolute path that must not exist or be empty. `cluster` is the name of
        the cluster of which this is a host. Raises BackupRefused."""
        self._data = data.absolute()
        self._target = target
        self._cluster = cluster
        self._format = CLUSTER_FORMAT if cluster else MANIFEST_FORMAT
        self._with_master_key = with_master_key
        self._stopped = threading.Event()
        with _named_errors(f"cannot make a backup at {target}"):
            self._check()
            remove_leftovers(self._data)
            target.mkdir(mode=FOLDER_MODE, exist_ok=True)
            target.chmod(FOLDER_MODE)
            self._draft = target if self._links_reach(target) else self._data / _DRAFT
            self._draft.mkdir(mode=FOLDER_MODE, exist_ok=True)

    def _check(self) -> None:
        target = self._target
        if not target.is_absolute():
            raise BackupRefused(f"{target} is not an absolute path")
        if target.resolve().is_relative_to(self._data.resolve()):
            raise BackupRefused(f"{target} is in the data folder")
        if target.exists() and not target.is_dir():
            raise BackupRefused(f"{target} is not a folder")
        if target.exists() and any(target.iterdir()):
            raise BackupRefused(f"{target} is not empty")
        if self._cluster:
            if self._with_master_key:
                raise BackupRefused("a cluster's hosts are given their master key: copy that one")
            return
        if not has_records(self._data):
            raise BackupRefused(f"{self._data} has no {FILE_NAME}")
        if self._with_master_key and not (self._data / MASTER_KEY_FILE).is_file():
            raise BackupRefused(f"{self._data} has no {MASTER_KEY_FILE} that could be put in")

    def _links_reach(self, target: Path) -> bool:
        """True if hard links can be made there. Otherwise RocksDB copies, and stops the process
        meanwhile."""
        probe = target / "probe"
        try:
            os.link(next(self._data.glob(f"{FORMAT_FILE}*")), probe)
        except OSError:
            return False
        probe.unlink()
        return True

    def flush(self, stores: Iterable[CopiedStore], times: int) -> None:
        """Prepare a short `take`. Raises BackupRefused."""
        with _named_errors(f"cannot copy {self._data}"):
            for _ in range(times):
                for store in stores:
                    self.check()
                    store.flush()

    def take(self, checkpoints: Mapping[str, Callable[[Path], None]]) -> None:
        """Copy the state of one instant; afterwards everything may change again.

        `checkpoints` make the folders of those names. Raises BackupRefused.
        """
        self.take_rows(checkpoints)
        with _named_errors(f"cannot copy {self._data}"):
            for database in databases_of(self._data):
                copy_sound(database, self._draft / database.name)
            if self._with_master_key:
                copy_file(self._data / MASTER_KEY_FILE, self._draft / MASTER_KEY_FILE)

    def take_rows(self, checkpoints: Mapping[str, Callable[[Path], None]]) -> dict[str, CopiedRows]:
        """Make the checkpoints in the folders of those names, in place of earlier ones. Raises
        BackupRefused."""
        rows: dict[str, CopiedRows] = {}
        with _named_errors(f"cannot copy {self._data}"):
            for name, checkpoint in checkpoints.items():
                folder = self._draft / name
                if folder.exists():
                    shutil.rmtree(folder)
                checkpoint(folder)
                folder.chmod(FOLDER_MODE)
            for name in checkpoints if self._cluster else ():
                rows[name] = _look_at(self._draft / name)
        return rows

    def put_records(self, records: Mapping[str, bytes]) -> None:
        """Add the records of a cluster, as of after the checkpoints. Raises BackupRefused."""
        with _named_errors(f"cannot make a backup at {self._target}"):
            write_copied(self._draft, records)

    def finish(
        self,
        shards: Mapping[int, str],
        *,
        version: str,
        made_at_ms: int,
        last_stamp_ms: int,
        part: PartOfFleet = NO_FLEET,
    ) -> Manifest:
        """Move everything to its place and onto the disk, and declare it a backup. Takes minutes
        for many GiB. Raises BackupRefused."""
        with _named_errors(f"cannot make a backup at {self._target}"):
            queues, deleted_queues = _count_queues(catalog_in(self._draft))
            files = [self._finished(name) for name in files_below(self._draft)]
            sync_folders(self._target)
            manifest = Manifest(
                format=FLEET_FORMAT if part.fleet else self._format,
                holdfast=version,
                data_format=FORMAT_VERSION,
                made_at_ms=made_at_ms,
                last_stamp_ms=last_stamp_ms,
                shards={str(number): name for number, name in shards.items()},
                queues=queues,
                has_master_key=self._with_master_key,
                files=files,
                deleted_queues=deleted_queues,
                cluster=self._cluster,
                fleet=part.fleet,
                cluster_number=part.number,
            )
            write_manifest(self._target, manifest)
        remove_leftovers(self._data)
        return manifest

    def _finished(self, name: str) -> CopiedFile:
        here, there = self._draft / name, self._target / name
        if self._draft == self._target:
            sync_file(there)
            return CopiedFile(name, *hash_file(there, self.check))
        there.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        return CopiedFile(name, *copy_file(here, there, self.check))

    def stop(self) -> None:
        """Have `finish` end soon, with BackupRefused. For any thread."""
        self._stopped.set()

    def check(self) -> None:
        """Raise BackupRefused after `stop`."""
        if self._stopped.is_set():
            raise BackupRefused("the service stops")

    def discard(self) -> None:
        """Remove the draft; the empty target stays. Leaves files that cannot be removed."""
        remove_leftovers(self._data)
        discard_made(self._target)


def discard_made(target: Path) -> None:
    """Empty the folder of a backup. Leaves files that cannot be removed."""
    with suppress(OSError):
        for child in target.iterdir():
            if child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink()


def back_up_closed(
    data: Path, target: Path, *, version: str, made_at_ms: int, with_master_key: bool
) -> Manifest:
    """Back up a folder that no service uses; its databases are locked meanwhile. Raises
    BackupRefused."""
    try:
        check_folder(data)
        if (data / MEMBER_FILE).exists():
            raise BackupRefused(
                f"{data} belongs to a host of a cluster, of which only a running host makes a "
                "backup: name one by --url"
            )
        shards = open_folder(data)
        refuse_if_in_use(data, shards.values())
    except FolderRefused as error:
        raise BackupRefused(str(error)) from error
    stores: dict[int, RocksRows] = {}
    try:
        with _named_errors(f"cannot back up {data}"):
            for number, folder in shards.items():
                stores[number] = open_replayed(folder)
            draft = BackupDraft(data, target, with_master_key=with_master_key)
            try:
                last_stamp_ms = max(
                    (row.stamp_ms for s in stores.values() for _, row in StoredRows(s).queues()),
                    default=0,
                )
                draft.take({shards[n].name: store.checkpoint for n, store in stores.items()})
                return draft.finish(
                    {number: folder.name for number, folder in shards.items()},
                    version=version,
                    made_at_ms=made_at_ms,
                    last_stamp_ms=last_stamp_ms,
                )
            except BaseException:
                draft.discard()
                raise
    finally:
        for store in stores.values():
            store.close()


def _look_at(folder: Path) -> CopiedRows:
    """Raises StoreFailed, DamagedRecord."""
    view = RocksView(folder)
    try:
        stamps = [row.stamp_ms for _, row in StoredRows(view).queues()]
        return CopiedRows(applied_of(view), max(stamps, default=0))
    finally:
        view.close()


def databases_of(data: Path) -> list[Path]:
    """The SQLite databases of a data folder that a backup has, including those with only a second
    copy left; not those of charts, which a running service has for itself."""
    files = {*data.glob("*.sqlite"), *(first_of(copy) for copy in data.glob("*.sqlite.copy"))}
    return sorted(file for file in files if not is_history(file))


def first_sequences(catalog: Iterable[Record]) -> dict[int, dict[int, int]]:
    """By shard, the first sequence of each usable and restorable queue and part, by its id. Raises
    CatalogUnreadable."""
    found: dict[int, dict[int, int]] = {}
    for queue, queue_id, shard in stored_queues(catalog):
        numbers = {part.queue_id: part.number for part in queue.parts}
        found.setdefault(shard, {})[queue_id] = first_sequence(numbers.get(queue_id, 0))
    return found


def _count_queues(catalog: Iterable[Record]) -> tuple[int, int]:
    """The numbers of queues in use and of deleted ones."""
    keys = [record.key for record in catalog]
    return sum(key.startswith(QUEUES) for key in keys), sum(key.startswith(DELETED) for key in keys)


@contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Raise every error of a disk as BackupRefused."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BackupRefused(f"{what}: {where}{error.strerror or error}") from error
    except (sqlite3.Error, StoreFailed, DamagedRecord, CatalogUnreadable) as error:
        raise BackupRefused(f"{what}: {error}") from error
