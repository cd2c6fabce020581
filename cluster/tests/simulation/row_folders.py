"""RowFolders: the folders of a host's rows in memory, and checkpoints of them.

A folder of rows is one file, ROWS, in place of the many that RocksDB has, besides the marks of the
real code. Rows that are open are a `RowFiles`; a checkpoint is their bytes.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec

from cluster.tests.simulation.simulated_rows import RowFiles, applied_position
from storage.engines.store import StoreFailed
from storage.log import Position
from storage.rows.sound_values import check_stored
from storage.tests.simulated_disk import PowerCut
from visibility.rows.row_codec import DamagedRecord

_FREE_BYTES = 1 << 40
_INCOMING = ".incoming"
ROWS = "ROWS"


class _Bytes:
    """A file of bytes."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()

    def lose_power(self, random: Random) -> None:
        """A power loss: unsynced changes survive, vanish, or survive in part."""
        if self.content != self.durable:
            part = self.content[: random.randint(0, len(self.content))]
            self.content = random.choice((self.content, self.durable, part))
        self.durable = bytearray(self.content)


class _Image(msgspec.Struct, array_like=True):
    """Rows as bytes."""

    rows: dict[bytes, bytes]
    damaged: set[bytes]


_decode = msgspec.msgpack.Decoder(_Image).decode
_Names = dict[Path, "RowFiles | _Bytes"]


class RowFolders:
    """Implements `storage.copies.checkpoint_files.CheckpointFiles` for one disk.

    After a power failure the changes of names are undone from some change on, down to the last sync
    of a folder: as on a file system that writes them in order.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: _Names = {}
        self._before: list[_Names] = []
        """The names before each change that is not durable."""
        self.calls_until_cut: int | None = None
        """After this many changes the power is cut."""
        self.on_cut: Callable[[], object] = _ignore
        self.wrong_reads = 0
        """Number of next reads for another host that give other bytes than the file has."""
        self.wrong_views = 0
        """Number of next checkpoints of other hosts whose rows cannot be read, though sound."""

    # -- faults ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process: the page cache stays."""
        self.calls_until_cut = None

    def crash(self) -> None:
        """Cut the power."""
        self.kill()
        states = [*self._before, self._names]
        self._names = self._random.choice(states)
        self._before.clear()
        for file in self._names.values():
            if isinstance(file, _Bytes):
                file.lose_power(self._random)

    def _change(self, *, names: bool = True) -> None:
        if self.calls_until_cut is not None:
            self.calls_until_cut -= 1
            if self.calls_until_cut < 0:
                self.on_cut()
                raise PowerCut
        if names:
            self._before.append(dict(self._names))

    # -- rows --------------------------------------------------------------------------------------

    def rows(self, folder: Path) -> RowFiles:
        """The rows in a folder, to be opened; none at first. Raises StoreFailed."""
        path = folder / ROWS
        found = self._names.get(path)
        if isinstance(found, RowFiles):
            return found
        files = RowFiles()
        if found is not None:
            image = _image(found)
            files.rows, files.damaged = image.rows, image.damaged
        for names in (*self._before, self._names):
            if names.get(path) is found:
                names[path] = files
        return files

    def write_rows(self, folder: Path, rows: dict[bytes, bytes], damaged: set[bytes]) -> None:
        """Make a folder of these rows, as a checkpoint is made. Raises OSError."""
        self.make_folder(folder)
        self.write(folder / ROWS, msgspec.msgpack.encode(_Image(rows, damaged)), 0)
        self.sync(folder / ROWS)

    def view(self, folder: Path) -> RowView:
        """Open what the files of a folder hold a second time. Raises StoreFailed."""
        found = self._names.get(folder / ROWS)
        if isinstance(found, RowFiles):
            return RowView(found.rows, found.damaged)
        if found is None:
            raise StoreFailed(f"cannot open {folder}: there are no rows")
        image = _image(found)
        if self.wrong_views and folder.name.endswith(_INCOMING):
            self.wrong_views -= 1
            return RowView(image.rows, set(image.rows))
        return RowView(image.rows, image.damaged)

    # -- CheckpointFiles ---------------------------------------------------------------------------

    def names(self, folder: Path) -> list[str]:
        depth = len(folder.parts)
        return sorted({file.parts[depth] for file in self._names if folder in file.parents})

    def _file(self, file: Path) -> _Bytes:
        found = self._names.get(file)
        if not isinstance(found, _Bytes):
            raise FileNotFoundError(errno.ENOENT, f"no such file: {file}")
        return found

    def size(self, file: Path) -> int:
        return len(self._file(file).content)

    def read(self, file: Path, offset: int, size: int) -> bytes:
        data = bytes(self._file(file).content[offset : offset + size])
        if self.wrong_reads and file.name == ROWS and data:
            self.wrong_reads -= 1
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    def checksum(self, file: Path) -> int:
        return crc32(self._file(file).content)

    def forget(self, file: Path) -> None:
        """There is no page cache."""

    def write(self, file: Path, data: bytes, offset: int) -> None:
        self._change(names=file not in self._names)
        found = self._names.setdefault(file, _Bytes())
        assert isinstance(found, _Bytes)
        end = offset + len(data)
        if end > len(found.content):
            found.content.extend(bytes(end - len(found.content)))
        found.content[offset:end] = data

    def sync(self, file: Path) -> None:
        self._change(names=False)
        found = self._file(file)
        found.durable = bytearray(found.content)

    def make_folder(self, folder: Path) -> None:
        self._change(names=False)
        assert not self.names(folder), "it exists"

    def sync_folder(self, folder: Path) -> None:
        self._change(names=False)
        self._before.clear()

    def rename(self, old: Path, new: Path) -> None:
        self._change()
        moved = {file for file in self._names if file == old or old in file.parents}
        assert moved, f"{old} does not exist"
        assert not self.names(new), f"{new} exists"
        for file in moved:
            self._names[new / file.relative_to(old)] = self._names.pop(file)

    def remove(self, path: Path) -> None:
        for file in sorted(self._names):
            if file == path or path in file.parents:
                self._change()
                del self._names[file]

    def free(self, folder: Path) -> int:
        return _FREE_BYTES


class RowView:
    """Implements `storage.copies.scrub.RowFiles`."""

    def __init__(self, rows: dict[bytes, bytes], damaged: set[bytes]) -> None:
        self._rows = dict(rows)
        self._damaged = set(damaged)
        self._keys = sorted(rows)

    def applied(self) -> Position:
        return applied_position(self._rows)

    def read_slice(self, begin: bytes, bytes_max: int) -> tuple[bytes | None, int]:
        size = 0
        for key in self._keys[bisect_left(self._keys, begin) :]:
            if size >= bytes_max:
                return key, size
            if key in self._damaged:
                raise DamagedRecord(key, "a block behind it cannot be read")
            check_stored(key, self._rows[key], self._rows.get)
            size += len(key) + len(self._rows[key])
        return None, size

    def close(self) -> None:
        """Nothing is open."""


def _image(file: _Bytes) -> _Image:
    try:
        return _decode(file.content)
    except msgspec.MsgspecError as error:
        raise StoreFailed(f"Corruption: the rows cannot be read: {error}") from error


def _ignore() -> None:
    """Does nothing."""
