"""Verification of a data folder or a backup, in use or not, without changing it: finds damage.

Shards are read as of one instant each, the catalog after them: a queue that is in a shard but not
in the catalog was deleted and is swept at the next start, which is no damage. Of a backup every
byte is checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from auth.envelope import SealBroken
from cluster.catalog.catalog_records import LAST_ID
from cluster.catalog.host_records import FILE_NAME
from cluster.catalog.record_codec import (
    CatalogUnreadable,
    KnownQueue,
    StoredQueue,
    StoredTombstone,
    shown,
    stored_entry,
)
from cluster.coordination.coordination import Record
from cluster.copies.backup import databases_of
from cluster.copies.restore import difference
from cluster.fleet.copied_fleet import shards_in
from cluster.keys.key_records import DataKeyNumbers
from cluster.members.copied_records import RECORDS_FILE, catalog_of, records_in
from cluster.members.host_folder import is_without_records
from storage.checks.consistency import check_queue, check_shard
from storage.checks.missing import count_missing, missing_departed
from storage.checks.readable_rows import Damage, ReadableRows
from storage.copies.checked_database import (
    DatabaseDamaged,
    check_copy,
    check_database,
    open_unchanged,
)
from storage.copies.manifest import (
    MANIFEST_FILE,
    BackupRefused,
    Manifest,
    fleet_parts,
    read_manifest,
)
from storage.copies.second_copy import Found, copy_of, look
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.files.copying import files_below, hash_file
from storage.files.folder import FolderRefused, check_folder, damaged_formats, open_folder
from storage.files.refusing_disk import disk_refusal, naming_disk
from storage.rows.damage import check_rows, table_name
from storage.rows.stored_rows import StoredRows
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import APPLIED_KEY, BLOCKED, QUARANTINED, queue_key, queue_of
from visibility.rows.row_values import THE_SHARD, QueueRow
from visibility.rules.features import TABLES
from visibility.rules.quarantine import quarantine_in
from visibility.rules.tables import Finding


class FolderCheck:
    """One check of a folder. The counts cover the parts checked so far."""

    def __init__(self, folder: Path) -> None:
        """Raises FolderRefused if it is neither a data folder nor a backup."""
        self._folder = folder
        self._is_backup = (folder / MANIFEST_FILE).is_file()
        self.lacks_records = is_without_records(folder)
        """True in the folder of a host of a cluster: which queues and keys there are is in etcd."""
        self._manifest: Manifest | None = None
        if not self._is_backup:
            if parts := fleet_parts(folder):
                raise FolderRefused(
                    f"{folder} is the backup of a fleet: verify its parts, {', '.join(parts)}"
                )
            check_folder(folder)
        self._known: dict[int, KnownQueue] = {}
        self._other_shards: list[range] = []
        self._highest: int | None = None
        """The last issued queue id; None if the catalog cannot be read."""
        self._data_keys: Container[int] | None = None
        """The numbers of all data keys of messages; None if they cannot be read."""
        self.files = self.shards = self.rows = 0
        self.queues = self.deleted_queues = 0
        """Numbers of queues in the catalog, including queues without rows."""

    def findings(self) -> Iterator[str]:
        """The findings, one line each. Raises StoreFailed, sqlite3.Error, OSError if a disk takes
        no writes, so that a part of the folder cannot be read."""
        if self._is_backup:
            yield from self._check_manifest()
        else:
            yield from damaged_formats(self._folder)
        with ExitStack() as opened:
            views: dict[int, RocksView] = {}
            for number, folder in self._shard_folders().items():
                try:
                    views[number] = RocksView(folder)
                except (StoreFailed, OSError) as error:
                    if disk_refusal(error):
                        raise
                    yield f"shard {number}: {error}"
                else:
                    opened.callback(views[number].close)
                    yield from (
                        f"shard {number}: {name} is damaged; its copy was read"
                        for name in views[number].restored
                    )
            for database in databases_of(self._folder):
                yield from self._check_database(database)
            if not self.lacks_records:
                yield from self._check_records()
            names = {queue_id: queue.name for queue_id, queue in self._known.items()}
            for number, view in views.items():
                self.shards += 1
                yield from (f"shard {number}: {each}" for each in view.log_findings(names))
                yield from self._check_shard(number, view)

    # -- files -------------------------------------------------------------------------------------

    def _shard_folders(self) -> dict[int, Path]:
        if not self._is_backup:
            return open_folder(self._folder)
        shards = self._manifest.shards if self._manifest else {}
        return {int(number): self._folder / name for number, name in shards.items()}

    def _check_manifest(self) -> Iterator[str]:
        try:
            self._manifest = read_manifest(self._folder)
        except BackupRefused as error:
            yield f"{MANIFEST_FILE}: {error}"
            return
        for copied in self._manifest.files:
            self.files += 1
            try:
                finding = difference(copied, *hash_file(self._folder / copied.path))
            except OSError as error:
                yield f"{copied.path}: {error.strerror}"
            else:
                if finding is not None:
                    yield f"{finding.path}: {finding.reason}"
        names = {copied.path for copied in self._manifest.files} | {MANIFEST_FILE}
        for name in files_below(self._folder):
            if name not in names:
                yield f"{name}: the backup was made without it"

    def _check_database(self, file: Path) -> Iterator[str]:
        """Check a database and its second copy. A crash may leave the copy behind: the next start
        updates it."""
        try:
            copy = self._check_copy(file)
            with naming_disk(self._folder), closing(open_unchanged(file)) as database:
                state = None
                try:
                    state = check_database(database)
                except DatabaseDamaged as error:
                    yield f"{file.name}: {error}"
                if state is not None and copy.reason and not self._is_backup:
                    yield f"{copy_of(file).name}: {copy.reason}"
                if state and copy.state and state.changes < copy.state.changes:
                    yield f"{file.name}: it is older than its second copy"
        except (sqlite3.Error, OSError) as error:
            if disk_refusal(error):
                raise
            yield f"{file.name}: it cannot be read: {error}"

    def _check_records(self) -> Iterator[str]:
        """Check the records, as of after the rows."""
        name = RECORDS_FILE if (self._folder / RECORDS_FILE).exists() else FILE_NAME
        try:
            with naming_disk(self._folder):
                records = records_in(self._folder)
            self._other_shards = shards_in(records)
            yield from self._read_catalog(name, catalog_of(records))
            self._data_keys = DataKeyNumbers(records)
        except (CatalogUnreadable, SealBroken, sqlite3.Error, OSError) as error:
            if disk_refusal(error):
                raise
            yield f"{name}: it cannot be read: {error}"

    def _check_copy(self, file: Path) -> Found:
        """Checked before the database itself, which is never behind in a folder in use."""
        with naming_disk(self._folder):
            return look(copy_of(file), check_copy, open_unchanged)

    def _read_catalog(self, file: str, records: Iterable[Record]) -> Iterator[str]:
        for record in records:
            try:
                entry = stored_entry(record.key, record.value)
            except CatalogUnreadable as error:
                yield f"{file}: {error}"
                continue
            if record.key == LAST_ID and isinstance(entry, int):
                self._highest = entry
            if isinstance(entry, StoredQueue):
                self.queues += 1
                yield from self._check_definition(file, record.key, entry, entry.places())
            elif isinstance(entry, StoredTombstone):
                self.deleted_queues += 1
                queue = entry.queue
                own = {queue.queue_id: queue.places()[queue.queue_id]}
                yield from self._check_definition(file, record.key, queue, own)
        self._highest = self._highest or 0

    def _check_definition(
        self, file: str, key: str, queue: StoredQueue, places: Mapping[int, int]
    ) -> Iterator[str]:
        for queue_id, shard in places.items():
            self._known[queue_id] = KnownQueue(shard, queue.name, queue.is_fifo)
            if shard not in self._shard_folders() and not self._is_elsewhere(shard):
                yield f"{file}: {key}: there is no shard {shard}"

    def _is_elsewhere(self, shard: int) -> bool:
        """True for a shard of another cluster, in a part of a fleet's backup."""
        return any(shard in shards for shards in self._other_shards)

    # -- rows --------------------------------------------------------------------------------------

    def _check_shard(self, number: int, view: RocksView) -> Iterator[str]:
        """Check each row; then, in undamaged queues, that rows agree: otherwise one damage is found
        many times."""
        queue_ids: dict[int, bool] = {}
        damages: list[Damage] = []
        quarantined: set[int] = set()
        for found in check_rows(view):
            if isinstance(found, Finding):
                damages.append(Damage(found.key, found.until or found.key + b"\0", found.what))
                if found.queue_id is not None:
                    queue_ids[found.queue_id] = False
                yield self._line(number, found)
            else:
                self.rows += found.key != APPLIED_KEY
                queue_ids.setdefault(queue_of(found.key), True)
                table = TABLES[found.key[8:9]]
                if table.prefix in (QUARANTINED, BLOCKED):
                    quarantined.add(queue_of(found.key))
                message = table.message(found.says) if table.message is not None else None
                if message is not None and not self._is_openable(message):
                    what = f"the key that sealed it, {message.sealed}, is missing"
                    yield self._line(number, Finding(found.key, what))
        for queue_id, is_sound in queue_ids.items():
            if is_sound:
                try:
                    for finding in self._check_rows_agree(number, view, queue_id):
                        yield self._line(number, finding)
                except DamagedRecord as error:
                    yield self._line(number, Finding(error.key, error.reason))

        for queue_id in sorted(quarantined):
            with suppress(DamagedRecord):  # found above
                messages = quarantine_in(StoredRows(view), queue_id).messages
                yield (
                    f"shard {number}, {self._queue(queue_id)}: {messages} messages are quarantined"
                )
        yield from self._check_complete(number, view, queue_ids, damages)

    def _check_complete(
        self, number: int, view: RocksView, queue_ids: Iterable[int], damages: list[Damage]
    ) -> Iterator[str]:
        """Each queue that may lack messages, with their number, including queues of which nothing
        is readable."""
        rows = ReadableRows(view)
        for queue_id in sorted({*queue_ids, *self._known} - {THE_SHARD}):
            is_touched = any(damage.touches(queue_id) for damage in damages)
            if is_touched or missing_departed(rows, queue_id):
                missing = count_missing(rows, queue_id, damages)
                if missing:
                    yield f"shard {number}, {self._queue(queue_id)}: {missing}"

    def _check_rows_agree(self, number: int, view: RocksView, queue_id: int) -> Iterator[Finding]:
        if queue_id == THE_SHARD:
            yield from check_shard(view)
        else:
            yield from self._check_known(number, view, queue_id)
            yield from check_queue(view, queue_id)

    def _is_openable(self, message: StoredMessage) -> bool:
        """True if the key exists; nothing is unsealed, so no master key is needed."""
        return not message.sealed or self._data_keys is None or message.sealed in self._data_keys

    def _check_known(self, number: int, view: RocksView, queue_id: int) -> Iterator[Finding]:
        """Check the queue against the catalog and the manifest."""
        key = queue_key(queue_id)
        known = self._known.get(queue_id)
        if known is None and self._highest is not None and queue_id > self._highest:
            yield Finding(key, f"the catalog made queues only up to {self._highest}")
        if known is not None and known.shard != number:
            yield Finding(key, f"the catalog has it in shard {known.shard}")
        value = view.get(key)
        row = decode_row(QueueRow, key, value) if value is not None else QueueRow(1, 1, 0, 0)
        if known is not None and row.fifo and not known.fifo:
            yield Finding(key, "it was a FIFO queue, and is none in the catalog")
        if self._manifest is not None and row.stamp_ms > self._manifest.last_stamp_ms:
            yield Finding(key, "it was written after the backup was made")

    def _line(self, number: int, finding: Finding) -> str:
        queue_id = finding.queue_id
        if queue_id is None:
            return f"shard {number}: {finding.what}"
        queue = self._queue(queue_id)
        where = f"{table_name(finding.key)}, {finding.key.hex()}"
        return f"shard {number}, {queue}, {where}: {finding.what}"

    def _queue(self, queue_id: int) -> str:
        return shown(self._known, queue_id)
