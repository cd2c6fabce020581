"""Rows: how a decision reads what lies on disk only. `storage/rows/stored_rows.py` fulfils it over every store.

Each method sees everything that was applied, also in the turn that is running. Each raises
`storage.rows.codec.DamagedRecord` for a row that is not what was written; a decision that fails by it has changed nothing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from visibility.state.events import GroupRow, Lease, Remembered, StoredMessage


class Page(NamedTuple):
    """Messages read in order; `next_sequence` is where to go on, None when the range is read to its end.

    `misses_some`: damaged messages of the queue were passed by, in this page or an earlier one.
    """

    messages: list[tuple[int, StoredMessage]]
    next_sequence: int | None
    misses_some: bool = False


class Rows(Protocol):
    """Reads of one shard's rows. Order is ascending everywhere."""

    def messages(self, queue_id: int, sequences: list[int]) -> list[StoredMessage | None]:
        """The named messages, in that order, None for one that does not exist."""

    def readable_messages(
        self, queue_id: int, sequences: list[int]
    ) -> list[tuple[int, StoredMessage]]:
        """(sequence, message) of those that exist, in that order, without those that are known to be damaged."""

    def line(
        self, queue_id: int, from_sequence: int, until_sequence: int, *, messages: int, size: int
    ) -> Page:
        """Up to `messages` messages of the range, fewer once they hold `size` bytes of content (at least one).

        Received ones are among them, delayed ones are not.
        """

    def delayed(
        self, queue_id: int, limit: int, *, after: tuple[int, int] = (0, 0)
    ) -> list[tuple[int, int, StoredMessage]]:
        """Delayed messages behind `after` as (due_ms, sequence, message), those due first before others."""

    def clocks(
        self, queue_id: int, limit: int, *, after: tuple[int, int] = (0, 0)
    ) -> list[tuple[int, int]]:
        """(clock_ms, sequence) behind `after` of messages whose retention is not in queue order, oldest first.

        Without those that are known to be damaged.
        """

    def group(self, queue_id: int, group: bytes) -> GroupRow | None:
        """A group's row, None if it has no messages."""

    def group_line(
        self, queue_id: int, group: bytes, from_sequence: int, limit: int
    ) -> list[tuple[int, Lease | None]]:
        """Waiting messages of a group with their history, None for one that was never received."""

    def heads(self, queue_id: int, from_order: int, limit: int) -> list[tuple[int, bytes]]:
        """Groups that may be received from, by order."""

    def alias(self, queue_id: int, handle_sequence: int) -> int | None:
        """Where the message is now that its receipt handles call by `handle_sequence`."""

    def remembered(
        self, queue_id: int, digests: list[bytes], now_ms: int
    ) -> dict[bytes, Remembered]:
        """What these ids stand for, as far as they were remembered in the five minutes up to `now_ms`."""
