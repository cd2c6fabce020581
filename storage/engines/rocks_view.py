"""RocksView: reads a shard's rows and its log (rule 16) without touching its folder, even while a
service writes there.

RocksDB writes even to read: a log, a small file of the Python binding. So it gets a separate
folder, with links to the shard's files. Open files stay readable after the service removes them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rocksdict import AccessType, Rdict

from storage.engines.kept_files import KEPT, OF_ONE_OPENING, put_together, read_note
from storage.engines.opening import lacks_log, read_above
from storage.engines.readable import open_readable
from storage.engines.rocks import applied_of, rocks_options
from storage.engines.rocks_reader import RocksReader
from storage.engines.store import StoreFailed
from storage.engines.store_options import log_folder
from storage.files.folder import BACKUP_FILE
from storage.healing.lost_entries import changed_queues, perhaps_changed
from storage.log import BEGINNING, NoteDamaged, Position, Reading, SystemDisk, read_answered
from storage.rows.entry_body import decode_body
from visibility.rows.overlay import Overlay
from visibility.rows.row_changes import Changes, Ops
from visibility.rows.row_codec import DamagedRecord

_TRIES = 5
_NOT_LINKED = (*OF_ONE_OPENING, "rocksdict-config.json")
"""Prefixes of names that are not linked: RocksDB would write these files in the shard's folder."""


class RocksView:
    """One shard at one instant: its rows, and its log's Entries above them."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreFailed if it cannot be opened, or changed during every attempt."""
        self._folder = folder
        self._is_copied = (folder.parent / BACKUP_FILE).exists()
        """True in a backup, which has no logs."""
        self.restored: list[str] = []
        """Damaged files that are replaced by kept ones."""
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-")
        try:
            self._open()
        except BaseException:
            self._scratch.cleanup()
            raise
        overlay = Overlay(self._reader, self._changes)
        self.get, self.get_many = overlay.get, overlay.get_many
        self.scan, self.names = overlay.scan, overlay.names

    def _open(self) -> None:
        """Open it, again if the service changed its files meanwhile. Raises StoreFailed."""
        for number in range(1, _TRIES + 1):
            links = Path(self._scratch.name, str(number), self._folder.name)
            names = self._link(links)
            failure: StoreFailed | None = None
            try:
                self._open_linked(links)
            except StoreFailed as error:
                failure = error
            is_by_change = failure is not None and isinstance(failure.__cause__, OSError)
            if not (is_by_change or self._has_changed(names)):
                break
        else:
            if failure is None and self.log.lost:
                failure = StoreFailed(
                    f"cannot open {self._folder}: it changed each time it was read"
                )
        if failure is not None:
            raise failure

    def _link(self, links: Path) -> set[str]:
        try:
            return link_files(self._folder, links)
        except OSError as error:
            raise StoreFailed(f"cannot open {self._folder}: {self._named(error)}") from error

    def _open_linked(self, links: Path) -> None:
        """Open linked files and the log. Raises StoreFailed, caused by an OSError if a file went
        missing meanwhile."""
        try:
            self._rows, self.restored = open_readable(links, _open_links, partial(_put_kept, links))
            self._reader = RocksReader(self._rows, self._named)
            self.log = self._read_log()
            self._changes = self._replayed()
        except StoreFailed as error:
            raise StoreFailed(self._named(error)) from error
        except Exception as error:  # RocksDB raises Exception itself
            raise StoreFailed(f"cannot open {self._folder}: {self._named(error)}") from error

    def _has_changed(self, names: set[str]) -> bool:
        """True if the service added or removed a file meanwhile: it may also have reused a segment
        of its log."""
        return names != names_in(self._folder)

    def _read_log(self) -> Reading:
        disk = SystemDisk()
        folder = log_folder(self._folder)
        try:
            answered = read_answered(disk, folder)
        except NoteDamaged:
            answered = None
        try:
            applied: Position | None = applied_of(self._reader)
        except DamagedRecord:
            applied = None
        noted = read_note(self._folder)
        flushed = BEGINNING if noted is None else noted.applied
        return read_above(applied, disk, folder, answered, flushed)

    def _replayed(self) -> Changes:
        """The changes of the log's Entries. Raises OSError if the service reused a segment
        meanwhile."""
        ops: Ops = []
        at = self.log.applied
        for entry in self.log.entries():
            follows = (entry.index, entry.previous) == (at.index + 1, at.checksum)
            if not (follows or self.log.lost or at == BEGINNING):
                raise OSError("its log changed while it was read")
            ops += decode_body(entry.body).ops
            at = entry.position
        return Changes(ops)

    def log_findings(self, names: Mapping[int, str] = MappingProxyType({})) -> Iterator[str]:
        """Missing Entries of the log, and damage without loss. `names` are those of queues by
        id."""
        if not self._is_copied and lacks_log(self.log):
            yield f"its log is missing: {self.log.folder}; what its rows lacked is lost"
        perhaps = perhaps_changed(self._reader, self.log, names)
        for lost in self.log.lost:
            unsure = perhaps if lost.headless else []
            queues = changed_queues(sorted(lost.queue_ids), unsure, names)
            yield (
                f"entries {lost.first} to {lost.last} of its log are lost ({lost.reason}); "
                f"queues: {queues}"
            )
        yield from self.log.warnings

    def _named(self, error: Exception) -> str:
        """RocksDB's message, naming the shard's folder instead of the links."""
        links = re.escape(self._scratch.name) + f"/[0-9]+/({KEPT}/)?{re.escape(self._folder.name)}"
        return re.sub(links, lambda _: str(self._folder), str(error))

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        self._scratch.cleanup()


def names_in(folder: Path) -> set[str]:
    """The names of all files in a folder."""
    return set(os.listdir(folder)) if folder.is_dir() else set()


def link_files(folder: Path, links: Path) -> set[str]:
    """Link the files that RocksDB reads. Returns the names of all files."""
    links.mkdir(parents=True)
    names = names_in(folder)
    for name in names:
        if name.startswith(_NOT_LINKED):
            continue
        (links / name).symlink_to(folder.absolute() / name)
    return names


def _put_kept(links: Path) -> tuple[Path, list[str]]:
    """The database of the kept files, beside the links to the others."""
    kept = links.parent / KEPT / links.name
    return kept, put_together(links, kept, lambda file, link: link.symlink_to(file))


def _open_links(links: Path) -> Rdict:
    return Rdict(str(links), rocks_options(), access_type=AccessType.read_only(False))
