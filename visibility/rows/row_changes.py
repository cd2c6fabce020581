"""Changes: the row changes of one Entry, in order; readable before the rows have them.

    [key, value, key, None, begin, [end], ...]      a put, a delete, a delete of begin <= key < end

A put or delete is two list elements and nothing else, so recording costs next to nothing. A read
first brings the index up to date with the changes recorded since the last read; a scan sorts the
new keys of its table.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

Ops = list[bytes | list[bytes] | None]
"""Keys at even places, each followed by its change."""

_TABLE_BYTES = 9
"""Length of the part of a key that names queue and table."""
_MISSING = object()
_FEW = 8
"""Up to this many keys are inserted one by one."""


class Changes:
    """Ordered puts, deletes and range deletes."""

    __slots__ = ("_deleted", "_indexed", "_sorted", "_unsorted", "_values", "ops", "size")

    def __init__(self, ops: Ops | None = None) -> None:
        self.ops: Ops = [] if ops is None else ops
        self.size = 0
        """Bytes of the values that were put."""
        self._indexed = 0
        """Length of the part of `ops` that is indexed."""
        self._values: dict[bytes, bytes | None] = {}
        """Present value of each changed key, None for a deleted one."""
        self._sorted: dict[bytes, list[bytes]] = {}
        """The changed keys of each table, in order, without the unsorted ones."""
        self._unsorted: defaultdict[bytes, list[bytes]] = defaultdict(list)
        """The keys of each table that were changed since it was last scanned."""
        self._deleted: list[tuple[bytes, bytes]] = []
        """Deleted ranges: values in `_values` came later."""

    def __bool__(self) -> bool:
        return bool(self.ops)

    def __len__(self) -> int:
        return len(self.ops) // 2

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""
        self.ops += (key, value)
        self.size += len(value)

    def delete(self, key: bytes) -> None:
        """Delete a row, if it exists."""
        self.ops += (key, None)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete the rows from `begin` to before `end`."""
        self.ops += (begin, [end])

    # -- reading -----------------------------------------------------------------------------------

    def find(self, key: bytes, default: object) -> object:
        """The value of a key after these changes: None if deleted, `default` if untouched."""
        if self._indexed != len(self.ops):
            self._index()
        value = self._values.get(key, _MISSING)
        if value is not _MISSING:
            return value
        if self._deleted and self._is_in_deleted_range(key):
            return None
        return default

    def find_many(self, keys: list[bytes], defaults: list[object]) -> list[object]:
        """The same for several keys."""
        if self._indexed != len(self.ops):
            self._index()
        find: Callable[[bytes, object], object] = self.find if self._deleted else self._values.get
        return list(map(find, keys, defaults))

    @property
    def has_ranges(self) -> bool:
        """True if ranges were deleted, among the changes indexed so far."""
        return bool(self._deleted)

    def deletes(self, key: bytes) -> bool:
        """True if a range delete covers the key and no later put restored it."""
        return self._is_in_deleted_range(key) and key not in self._values

    def _is_in_deleted_range(self, key: bytes) -> bool:
        return any(begin <= key < end for begin, end in self._deleted)

    def keys_between(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Keys that were put or deleted, in order. The caller must record nothing meanwhile."""
        if self._indexed != len(self.ops):
            self._index()
        if begin[:_TABLE_BYTES] == end[:_TABLE_BYTES] or _is_one_table(begin, end):
            keys = self._in_order(begin[:_TABLE_BYTES])
        else:
            keys = sorted(self._values)
        for position in range(bisect_left(keys, begin), len(keys)):
            if keys[position] >= end:
                return
            yield keys[position]

    def _index(self) -> None:
        values, unsorted = self._values, self._unsorted
        fresh: Iterator[Any] = iter(self.ops[self._indexed :])
        self._indexed = len(self.ops)
        for key, change in zip(fresh, fresh, strict=True):
            if type(change) is list:
                self._delete_range(key, change[0])
                continue
            if key not in values:
                unsorted[key[:_TABLE_BYTES]].append(key)
            values[key] = change

    def _in_order(self, table: bytes) -> list[bytes]:
        keys = self._sorted.setdefault(table, [])
        fresh = self._unsorted.pop(table, [])
        if len(fresh) < _FEW:
            for key in fresh:
                insort(keys, key)
        else:
            keys += fresh
            keys.sort()
        return keys

    def _delete_range(self, begin: bytes, end: bytes) -> None:
        for table in list(self._unsorted):
            self._in_order(table)
        for keys in self._sorted.values():
            first, behind = bisect_left(keys, begin), bisect_left(keys, end)
            for key in keys[first:behind]:
                del self._values[key]
            del keys[first:behind]
        self._deleted.append((begin, end))


def _is_one_table(begin: bytes, end: bytes) -> bool:
    """True if the range ends with the table of `begin`."""
    table = begin[:_TABLE_BYTES]
    return len(table) == _TABLE_BYTES and end == table[:-1] + bytes([table[-1] + 1])
