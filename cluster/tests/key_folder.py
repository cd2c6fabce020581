"""A folder whose keyring can be opened more than once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from cluster.clock import SystemEntropy
from cluster.keys.keyring import Keyring
from cluster.keys.sqlite_keyring import FILE_NAME, SqliteKeyring
from cluster.tests.virtual_time import SettableClock

MASTER = b"m" * 32
ACCOUNT = "000000000000"


class Folder:
    """The folder; `open` gives a keyring as another process has it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.file = path / FILE_NAME
        self.entropy = SystemEntropy()
        self._stack = stack

    def open(
        self,
        master: bytes = MASTER,
        read_master: Callable[[], bytes] | None = None,
        owner: str | None = None,
    ) -> Keyring:
        keyring = SqliteKeyring(
            self.file, master, SettableClock(), self.entropy, read_master, owner
        )
        return self._stack.enter_context(closing(keyring))

    def take_over(self, keyring: Keyring) -> bool:
        """Have a keyring load the changes of others; False if there are none."""
        return keyring.reload_if_changed()

    def bytes(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.file.parent.iterdir())
