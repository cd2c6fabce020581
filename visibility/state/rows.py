"""Rows: the shard's rows as decisions read and record them. `storage/rows/stored_rows.py` implements it.

Reads see the committed rows overlaid with the changes of Entries under way and of the running Turn. Each
read raises DamagedRecord for a row that is not what was written; a decision that fails by it has changed
nothing. A read changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from visibility.state.archive_state import ArchiveState
from visibility.state.events import Event, GroupRow, Lease, Remembered, StoredMessage

if TYPE_CHECKING:
    from visibility.state.state import QueueState


class DamagedRecord(Exception):
    """A stored value is not what was written. Names the key; the value is never guessed."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"record {key.hex()}: {reason}")
        self.key = key
        self.reason = reason


class DamagedPlace(NamedTuple):
    """Where a damaged row belongs: to a message, or (`group` is not empty) to a group."""

    queue_id: int
    sequence: int
    group: bytes
    is_delayed: bool


class Page(NamedTuple):
    """Messages read in order; `next_sequence` is where to go on, None when the range is read to its end.

    `misses_some`: damaged messages of the queue were passed by, in this page or an earlier one.
    """

    messages: list[tuple[int, StoredMessage]]
    next_sequence: int | None
    misses_some: bool = False


class Rows(Protocol):
    """One shard's rows. Order is ascending everywhere."""

    def record(self, event: Event) -> None:
        """Translate an applied event into row changes; reads see them from here on."""

    def record_queue(self, queue: QueueState, now_ms: int) -> None:
        """Record the queue's own row and the spans that changed."""

    def record_archive(self, archive: ArchiveState) -> None:
        """Record what the shard knows of its archive."""

    def is_full(self, part: int = 1) -> bool:
        """True once the running Turn recorded as much as it may, or the given part of that."""

    def place_of(self, error: DamagedRecord) -> DamagedPlace | None:
        """The message or group whose row is damaged; None for any other row."""

    def pass_by(self, error: DamagedRecord) -> bool:
        """Leave this row out of pages from here on; False if it was left out before."""

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

    def ready_groups(self, queue_id: int, from_order: int, limit: int) -> list[tuple[int, bytes]]:
        """Groups that may be received from, by order."""

    def alias(self, queue_id: int, original_sequence: int) -> int | None:
        """Where the message is now that its receipt handles call by `original_sequence`."""

    def remembered(
        self, queue_id: int, digests: list[bytes], now_ms: int
    ) -> dict[bytes, Remembered]:
        """What these ids stand for, as far as they were remembered in the five minutes up to `now_ms`."""
