"""SimulatedRows: rows in memory that behave like RocksDB without a log."""

from __future__ import annotations

import errno
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import cast

from typing_extensions import override

from storage.engines.store import StoreFailed
from storage.healing.rebuild import Healed, rebuild
from storage.log import BEGINNING, Position
from storage.rows.damage import END
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Ops
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_keys import APPLIED_KEY
from visibility.rows.row_values import AppliedRow

Rows = dict[bytes, bytes]


class RowFiles:
    """Rows on the disk: those of the last flush, or of an Entry after it."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.damaged: set[bytes] = set()
        """Keys of rows that cannot be read."""
        self.failing_flushes = 0
        """Number of the next flushes that fail."""
        self.flushes = 0


class SimulatedRows(RowReader):
    """Implements `storage.engines.store.RowStore` for one opening."""

    def __init__(self, folder: Path, files: RowFiles, random: Random) -> None:
        self.folder = folder
        self.flushed = BEGINNING
        self.on_write: Callable[[Position], None] = _ignore
        """Called with the place of each Entry whose changes come into the rows."""
        self._files = files
        self._random = random
        self.rows: Rows = dict(files.rows)
        self.damaged = set(files.damaged)
        """Keys of rows that cannot be read; what is written anew can be."""
        self.make_checkpoint: Callable[[Path, Rows, set[bytes]], None] = _no_checkpoint
        self._keys = sorted(self.rows)
        self._unflushed: list[Ops] = []
        """The changes since the last flush, by Entry."""
        self._is_open = True

    def lose(self, key: bytes) -> None:
        """Be without this row, as if its block were damaged."""
        self._keys.remove(key)

    # -- RowStore ----------------------------------------------------------------------------------

    def applied(self) -> Position:
        """See `RowStore.applied`."""
        return applied_position(self.rows)

    def write(self, ops: Ops, applied: Position | None = None) -> None:
        """See `RowStore.write`."""
        if applied is not None:
            self.on_write(applied)
            row = AppliedRow(applied.term, applied.index, applied.checksum)
            ops = [*ops, APPLIED_KEY, encode_row(row)]
        self._unflushed.append(ops)
        _change(self.rows, self._keys, ops, self.damaged)

    def flush(self) -> None:
        """See `RowStore.flush`."""
        if not self._is_open:
            raise StoreFailed("the store was closed meanwhile")
        if self._files.failing_flushes:
            self._files.failing_flushes -= 1
            raise StoreFailed("cannot flush") from OSError(errno.EIO, "Input/output error")
        self._keep(len(self._unflushed))
        self._files.flushes += 1

    @property
    def needs_healing(self) -> bool:
        """See `RowStore.needs_healing`: damage is found by reading."""
        return False

    def note_damage(self, queue_id: int, reason: str) -> None:
        """See `RowStore.note_damage`: nothing is rebuilt at an opening."""

    def heal(self, known: Mapping[int, bool], *, agree: bool = False) -> list[Healed]:
        """See `RowStore.heal`."""
        fresh: Ops = []
        healed = rebuild(self, lambda changes: fresh.extend(changes.ops), known, agree=agree)
        self.write([b"", [END], *fresh])
        self.flush()
        return healed

    def note_files(self) -> None:
        """There are no files."""

    def checkpoint(self, folder: Path) -> None:
        """See `RowStore.checkpoint`. Like RocksDB it flushes, and copies damage as it is."""
        self.flush()
        self.make_checkpoint(folder, self._files.rows, self._files.damaged)

    def close(self) -> None:
        """Close the files. Like RocksDB it may write its memory, or a part of it."""
        if self._is_open:
            self.crash()

    def crash(self) -> None:
        """Keep the rows of the last flush, and perhaps some later Entries."""
        self._is_open = False
        most = len(self._unflushed)
        self._keep(self._random.choice((0, 0, most, self._random.randint(0, most))))

    def _keep(self, entries: int) -> None:
        if not entries:
            return
        files = self._files.rows
        keys = sorted(files)
        for ops in self._unflushed[:entries]:
            _change(files, keys, ops, self._files.damaged)
        del self._unflushed[:entries]

    def damage(self, key: bytes) -> None:
        """Bits of a row's block flip on the disk. What was written since is still in memory."""
        self._files.damaged.add(key)
        # Rows that are being replaced are closed, and need not have the key.
        if self.rows.get(key) == self._files.rows.get(key):
            self.damaged.add(key)

    # -- RowReader ---------------------------------------------------------------------------------

    @override
    def get(self, key: bytes) -> bytes | None:
        if key in self.damaged:
            raise DamagedRecord(key, "it cannot be read")
        return self.rows.get(key)

    @override
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    @override
    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in self.names(begin, end):
            if key in self.damaged:
                raise DamagedRecord(begin, "a block cannot be read")
            yield key, self.rows[key]

    @override
    def names(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        keys = self._keys
        yield from keys[bisect_left(keys, begin) : bisect_left(keys, end)]


def applied_position(rows: Rows) -> Position:
    """The last Entry whose changes the rows have."""
    value = rows.get(APPLIED_KEY)
    if value is None:
        return BEGINNING
    row = decode_row(AppliedRow, APPLIED_KEY, value)
    return Position(row.term, row.index, row.checksum)


def _change(rows: Rows, keys: list[bytes], ops: Ops, damaged: set[bytes]) -> None:
    """Bring changes into rows and the sorted list of their keys. What is written can be read."""
    if damaged:
        damaged.difference_update(key for key in ops[::2] if isinstance(key, bytes))
    for key, change in zip(cast("list[bytes]", ops[::2]), ops[1::2], strict=True):
        if type(change) is bytes:
            if key not in rows:
                insort(keys, key)
            rows[key] = change
        elif change is None:
            if rows.pop(key, None) is not None:
                del keys[bisect_left(keys, key)]
        else:
            first, behind = bisect_left(keys, key), bisect_left(keys, change[0])
            for doomed in keys[first:behind]:
                del rows[doomed]
            del keys[first:behind]
    if damaged:
        damaged.intersection_update(rows)


def _no_checkpoint(folder: Path, rows: Rows, damaged: set[bytes]) -> None:
    raise AssertionError("nothing takes checkpoints here")


def _ignore(position: Position) -> None:
    """The default: nothing watches the rows."""
