"""Store: what a shard needs from a disk. RocksStore and MemoryStore fulfil it; one contract suite tests both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from storage.appliers import Batch
from storage.codec import QueueRow, decode_message
from storage.keys import sequence_of
from visibility.events import Lease, StoredMessage

MessageName = tuple[int, int]
"""A message: (queue_id, sequence)."""


class Page(NamedTuple):
    """Messages read in order; `next_sequence` is where to go on, None when the range is read to its end."""

    messages: list[tuple[int, StoredMessage]]
    next_sequence: int | None


def page_of(rows: Iterable[tuple[bytes, bytes]], *, messages: int, size: int) -> Page:
    """The page that these message rows begin with; see `Store.read_page`. Raises DamagedRecord."""
    found: list[tuple[int, StoredMessage]] = []
    for key, value in rows:
        if len(found) == messages or size <= 0:
            return Page(found, sequence_of(key))
        message = decode_message(key, value)
        found.append((sequence_of(key), message))
        size -= len(message.data)
    return Page(found, None)


class StoredQueue(NamedTuple):
    """What a restart needs to know of a queue: all of its leases, none of its messages."""

    queue_id: int
    row: QueueRow
    leases: list[Lease]


class StoreFailed(Exception):
    """The disk refused a write or a sync: what was not released is unknown, and the store must be opened anew."""


class Store(Protocol):
    """One shard's rows. Reads see what was committed, durable or not, and nothing of the open batch."""

    @property
    def batch(self) -> Batch:
        """Where the next commit's changes go."""

    def commit(self, release: Callable[[], None]) -> None:
        """End the batch; `release` is called once it is as durable as configured. One commit at a time.

        A store that fails calls no `release`; it reports StoreFailed to its owner once.
        """

    def read_page(
        self, queue_id: int, from_sequence: int, until_sequence: int, *, messages: int, size: int
    ) -> Page:
        """Up to `messages` messages of the range, fewer once they hold `size` bytes of content (at least one).

        Raises DamagedRecord.
        """

    def read_messages(self, names: list[MessageName]) -> list[StoredMessage | None]:
        """The named messages, in that order, None for one that does not exist. Raises DamagedRecord."""

    def load(self) -> Iterator[StoredQueue]:
        """All queues. O(queues + leases), whatever the number of waiting messages. Raises DamagedRecord."""

    def close(self) -> None:
        """Make everything durable and let go of the disk. Nothing may be waiting for a release."""

    def abandon(self) -> None:
        """Let go of the disk after a failure, without writing what was not written yet."""
