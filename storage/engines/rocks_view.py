"""RocksView: a shard's rows for reading, without touching its folder, also while a service writes there.

RocksDB writes even where it only reads: a log, a small file of the Python binding. So it is given a folder of its own, of
links to the files of the shard. What it has open stays readable when the service removes it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from rocksdict import AccessType, DBRecoveryMode, Rdict, ReadOptions

from storage.engines.live_files import link_copies, note_of
from storage.engines.readable import open_readable
from storage.engines.rocks import rocks_options
from storage.engines.store import StoreFailed
from storage.rows.codec import DamagedRecord

_TRIES = 5
_NOT_LINKED = ("LOCK", "LOG", "rocksdict-config.json")
"""What these begin with is not read, or written anew: a link would have RocksDB write into the shard's folder."""


class RocksView:
    """One RocksDB folder as it was at one instant."""

    def __init__(self, folder: Path, recovery: DBRecoveryMode | None = None) -> None:
        """`recovery` is for RocksDB's log. Raises StoreFailed if it cannot be opened, or changed each time it was tried."""
        self._folder = folder
        self._recovery = recovery
        self.restored: list[str] = []
        """Damaged files; their copies beside the shard are read instead."""
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-")
        try:
            self._rows = self._open(folder)
        except BaseException:
            self._scratch.cleanup()
            raise

    def _open(self, folder: Path) -> Rdict:
        number = 0
        while True:
            number += 1
            names: set[str] = set()
            try:
                links = Path(self._scratch.name, str(number), folder.name)
                names = _link(folder, links)
                return self._open_links(links)
            except Exception as error:  # bare, with a text
                changed = names and names != _names(folder)  # the service removed a file meanwhile
                if changed and number < _TRIES:
                    continue
                if not changed and names and (rows := self._open_copies(links)) is not None:
                    return rows
                raise StoreFailed(f"cannot open {folder}: {self._named(error)}") from error

    def _open_links(self, links: Path) -> Rdict:
        options = rocks_options(self._recovery)
        return Rdict(str(links), options, access_type=AccessType.read_only(False))

    def _open_copies(self, links: Path) -> Rdict | None:
        """Open it with copies in the place of damaged files; None if there are none that help."""
        if not note_of(self._folder).exists():
            return None
        link_copies(self._folder, links)
        with suppress(StoreFailed):
            rows, self.restored = open_readable(links, lambda: self._open_links(links))
            return rows
        return None

    def _named(self, error: Exception) -> str:
        """RocksDB's text, with the shard's folder instead of the links'."""
        links = re.escape(self._scratch.name) + f"/[0-9]+/{re.escape(self._folder.name)}"
        return re.sub(links, lambda _: str(self._folder), str(error))

    @property
    def held(self) -> int:
        """How many changes it holds: RocksDB's own number of the last one."""
        return self._rows.latest_sequence_number()

    def get(self, key: bytes) -> bytes | None:
        """See `Store.get`."""
        try:
            return cast("bytes | None", self._rows.get(key))
        except Exception as error:  # bare, with a text
            raise DamagedRecord(key, f"it cannot be read: {self._named(error)}") from error

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store.scan`."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        rows = self._rows.iter(options)
        rows.seek(begin)
        while rows.valid():
            yield cast("bytes", rows.key()), cast("bytes", rows.value())
            rows.next()
        try:
            rows.status()
        except Exception as error:  # bare, with a text
            raise DamagedRecord(begin, self._named(error)) from error

    def close(self) -> None:
        """Let go of the files."""
        self._rows.close()
        self._scratch.cleanup()


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def _link(folder: Path, links: Path) -> set[str]:
    """Links to what RocksDB reads. Returns the names of all that is there."""
    links.mkdir(parents=True)
    names = _names(folder)
    for name in names:
        if name.startswith(_NOT_LINKED):
            continue
        (links / name).symlink_to(folder.absolute() / name)
    return names
