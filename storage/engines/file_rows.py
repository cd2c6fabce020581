"""FileRows: the rows in a shard's files, read in slices to find damage.

The page cache, RocksDB's block cache and the memory of a service that runs hide what became of the
disk, so the files are opened a second time, through links and with direct reads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, ReadOptions

from storage.engines.rocks import applied_of, rocks_options
from storage.engines.rocks_reader import RocksReader
from storage.engines.rocks_view import link_files, names_in
from storage.engines.store import StoreFailed
from storage.log.entry import Position
from storage.rows.sound_values import check_stored
from visibility.rows.row_codec import DamagedRecord

_TRIES = 5
_READAHEAD_BYTES = 64 << 10
"""One read of the disk: the interpreter lock is held meanwhile."""


class FileRows:
    """One shard's files as they were when it was made. For any one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreFailed if they cannot be opened, which may be damage (`is_damage`)."""
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-")
        try:
            self._rows = _opened(folder, Path(self._scratch.name))
        except BaseException:
            self._scratch.cleanup()
            raise

    def applied(self) -> Position:
        """The last Entry that they hold. Raises DamagedRecord."""
        return applied_of(RocksReader(self._rows))

    def read_slice(self, begin: bytes, bytes_max: int) -> tuple[bytes | None, int]:
        """Read rows from `begin` on, up to about this size; check RocksDB's checksums and theirs.

        Returns where the next slice begins, None at the end, and the bytes read. Raises
        DamagedRecord.
        """
        options = ReadOptions()
        options.set_readahead_size(_READAHEAD_BYTES)
        rows = self._rows.iter(options)
        rows.seek(begin)
        get = RocksReader(self._rows).get
        at, size = begin, 0
        while rows.valid() and size < bytes_max:
            key, value = rows.key(), rows.value()
            check_stored(key, value, get)
            size += len(key) + len(value)
            at = key + b"\0"
            rows.next()
        if rows.valid():
            return at, size
        try:
            rows.status()
        except Exception as error:  # a bare exception with a text
            raise DamagedRecord(at, f"a block behind it cannot be read: {error}") from error
        return None, size

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        self._scratch.cleanup()


def _opened(folder: Path, scratch: Path) -> Rdict:
    for number in range(_TRIES):
        links = scratch / str(number) / folder.name
        names = link_files(folder, links)
        try:
            return _open_links(links)
        except Exception as error:  # a bare exception with a text that may have several lines
            if names != names_in(folder):
                continue
            text = " ".join(str(error).split()).replace(str(links), str(folder))
            raise StoreFailed(f"cannot open {folder}: {text}") from error
    raise StoreFailed(f"cannot open {folder}: it changed each time it was read")


def _open_links(links: Path) -> Rdict:
    options = rocks_options()
    options.set_use_direct_reads(True)
    try:
        return _read_only(links, options)
    except Exception as error:  # a bare exception with a text
        if "nvalid argument" in str(error):  # a file system without direct reads
            return _read_only(links, rocks_options())
        raise


def _read_only(links: Path, options: Options) -> Rdict:
    return Rdict(str(links), options, access_type=AccessType.read_only(False))
