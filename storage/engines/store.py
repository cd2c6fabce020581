"""Store: what a shard needs from a disk. RocksStore and MemoryStore fulfil it; one contract suite tests both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from storage.rows.appliers import Batch


class StoreFailed(Exception):
    """The disk refused a write or a sync: what was not released is unknown, and the store must be opened anew."""


class Store(Protocol):
    """One shard's rows. Reads see what was written, durable or not, and nothing of the open batch."""

    came_back_shorter: bool
    """Whether it was opened although it holds less than answers told of: an older copy, say."""

    @property
    def batch(self) -> Batch:
        """Where the next write's changes go."""

    def write(self) -> None:
        """End the batch and write it, so that reads see it; the next commit makes it durable. Raises StoreFailed."""

    def commit(self, release: Callable[[], None]) -> None:
        """End the batch; `release` is called once all that was written is as durable as configured. One at a time.

        A store that fails calls no `release`; it reports StoreFailed to its owner once.
        """

    def get(self, key: bytes) -> bytes | None:
        """A row's value, None if there is none. Raises DamagedRecord."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these rows, in that order. Raises DamagedRecord, where it can with the key that is damaged."""

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `begin` to before `end`, in order. Raises DamagedRecord if they cannot be read to the end."""

    def close(self) -> None:
        """Make everything durable and let go of the disk. Nothing may be waiting for a release."""

    def abandon(self) -> None:
        """Let go of the disk after a failure, without writing what was not written yet.

        Raises StoreFailed while something else still uses it: then it is to be called again.
        """
