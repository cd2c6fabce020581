"""RocksReader: reads rows of a RocksDB database, and names the damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rocksdict import Rdict, ReadOptions
from typing_extensions import override

from visibility.rows.overlay import FEW, RowReader
from visibility.rows.row_codec import DamagedRecord


class RocksReader(RowReader):
    """Reads rows of a database, and names the damaged ones."""

    def __init__(self, rows: Rdict, named: Callable[[Exception], str] = str) -> None:
        """`named` gives the text of an error."""
        self._rows = rows
        self._named = named

    @override
    def get(self, key: bytes) -> bytes | None:
        try:
            return self._rows.get(key)
        except Exception as error:  # a bare exception with a text
            raise self._damage(key, "it cannot be read", error) from error

    @override
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        get: Any = self._rows.get
        try:
            return [get(key) for key in keys] if len(keys) < FEW else get(keys)
        except Exception as error:  # a bare exception with a text that names no key
            raise self._damage_among(keys, error) from error

    def _damage_among(self, keys: list[bytes], error: Exception) -> DamagedRecord:
        for key in keys:
            try:
                self.get(key)
            except DamagedRecord as damage:
                return damage
        return self._damage(keys[0], "it or a neighbour cannot be read", error)

    def _damage(self, key: bytes, text: str, error: Exception) -> DamagedRecord:
        return DamagedRecord(key, f"{text}: {self._named(error)}")

    @override
    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """An iterator that meets an unreadable block just ends: its status
        tells."""
        return self._walk(begin, end, ReadOptions())

    @override
    def names(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Blocks are read whatever their checksums say, and not cached."""
        options = ReadOptions()
        options.set_verify_checksums(False)
        options.fill_cache(False)  # type: ignore[call-arg]  # the stub lacks its argument
        return (key for key, _ in self._walk(begin, end, options))

    def _walk(
        self, begin: bytes, end: bytes, options: ReadOptions
    ) -> Iterator[tuple[bytes, bytes]]:
        options.set_iterate_upper_bound(end)
        rows: Any = self._rows.iter(options)
        rows.seek(begin)
        try:
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()
            rows.status()
        except Exception as error:  # a bare exception with a text
            raise self._damage(begin, "a block cannot be read", error) from error
        finally:
            del rows  # the error's traceback would keep it, and with it the database open
