"""SpareBlocks: numbers of blocks of data keys that this process took beforehand, in a file.

A gateway that starts while etcd is away seals with the keys of such a block. A number is given out
once: it is gone from the disk before its first key is used.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from storage.files.copying import replace_file
from storage.files.folder import sync_folder

FILE_NAME = "spare-blocks.json"


class SpareBlocks:
    """One for each named key, by its row."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        try:
            self._numbers = msgspec.json.decode(self._file.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            self._numbers = {}

    def __contains__(self, row: object) -> bool:
        return row in self._numbers

    def keep(self, row: str, number: int) -> None:
        """Keep a block for later. Raises OSError."""
        self._write(self._numbers | {row: number})

    def take(self, row: str) -> int | None:
        """A block that is used from now on; None if there is none, or the disk does not forget
        it."""
        numbers = dict(self._numbers)
        number = numbers.pop(row, None)
        if number is None:
            return None
        try:
            self._write(numbers)
        except OSError:
            return None
        return number

    def _write(self, numbers: dict[str, int]) -> None:
        """Durable when it returns. Raises OSError."""
        replace_file(self._file, msgspec.json.encode(numbers))
        sync_folder(self._file.parent)
        self._numbers = numbers
