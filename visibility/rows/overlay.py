"""Overlay: committed rows, with the changes of later Entries on top.

One layer an Entry, oldest first; the last one belongs to the running Turn, which reads its own
changes (rule 17). No iterator outlives its Turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Protocol

from typing_extensions import override

from visibility.rows.row_changes import Changes

_UNTOUCHED = object()
FEW = 4
"""Number of keys from which one read of all is cheaper than one of each."""


class RowReader(Protocol):
    """Reads of rows in key order: a store's, a view's, or an overlay's."""

    def get(self, key: bytes) -> bytes | None:
        """A row's value, None if there is none. Raises DamagedRecord."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these rows, in that order. Raises DamagedRecord, with the damaged key if
        possible."""

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `begin` to before `end`, in order. Raises DamagedRecord at unreadable ones."""

    def names(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Keys from `begin` to before `end`, those of unreadable rows as far as they can be made
        out: none of them is certain. Raises DamagedRecord where it can go no further."""


class Overlay(RowReader):
    """Rows that are committed, with the changes that are not."""

    def __init__(self, base: RowReader, *layers: Changes) -> None:
        self.base = base
        self.layers = list(layers)

    @override
    def get(self, key: bytes) -> bytes | None:
        for layer in reversed(self.layers):
            if layer.ops:
                value = layer.find(key, _UNTOUCHED)
                if value is not _UNTOUCHED:
                    return value  # type: ignore[return-value]
        return self.base.get(key)

    @override
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        if len(keys) < FEW:
            return list(map(self.get, keys))
        layers = [layer for layer in self.layers if layer.ops]
        if not layers:
            return self.base.get_many(keys)
        found: list[object] = [_UNTOUCHED] * len(keys)
        for layer in layers:
            found = layer.find_many(keys, found)
        rest = [key for key, value in zip(keys, found, strict=True) if value is _UNTOUCHED]
        below = iter(self.base.get_many(rest) if rest else ())
        return [next(below) if value is _UNTOUCHED else value for value in found]  # type: ignore[misc]

    @override
    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        layers = [layer for layer in self.layers if layer.ops]
        below = self.base.scan(begin, end)
        if not layers:
            yield from below
            return
        of_layers = [layer.keys_between(begin, end) for layer in layers]
        changed = merge(*of_layers) if len(of_layers) > 1 else of_layers[0]
        next_changed = next(changed, None)
        with_ranges = [layer for layer in layers if layer.has_ranges]
        for key, value in below:
            while next_changed is not None and next_changed < key:
                yield from self._current(layers, next_changed)
                next_changed = _next_other(changed, next_changed)
            if key == next_changed:
                continue  # the changed row follows in its turn
            if not any(layer.deletes(key) for layer in with_ranges):
                yield key, value
        while next_changed is not None:
            yield from self._current(layers, next_changed)
            next_changed = _next_other(changed, next_changed)

    @override
    def names(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        changed = [layer.keys_between(begin, end) for layer in self.layers if layer.ops]
        return merge(self.base.names(begin, end), *changed)

    def _current(self, layers: list[Changes], key: bytes) -> Iterator[tuple[bytes, bytes]]:
        for layer in reversed(layers):
            value = layer.find(key, _UNTOUCHED)
            if value is not _UNTOUCHED:
                if value is not None:
                    yield key, value  # type: ignore[misc]
                return


def _next_other(keys: Iterator[bytes], key: bytes) -> bytes | None:
    """The next key that differs from `key`, which several layers may have changed."""
    return next((other for other in keys if other != key), None)
