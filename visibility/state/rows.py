"""Rows: the shard's rows as decisions read and record them. `storage/rows/stored_rows.py`
implements it.

Reads see the committed rows overlaid with the changes of Entries under way and of the running Turn.
A read of a damaged row raises DamagedRecord; a decision that fails on one has changed nothing. A
read changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_values import GroupRow, Remembered
from visibility.state.queue_state import Quarantine, QueueState


class MessagesMissing(Exception):
    """The disk lacks messages that a queue counts.

    `sequence` is 0 if it is unknown which.
    """

    def __init__(self, queue_id: int, sequence: int = 0, *, delayed: bool = False) -> None:
        super().__init__(
            f"queue {queue_id}: {f'message {sequence} is' if sequence else 'messages are'} missing"
        )
        self.queue_id = queue_id
        self.sequence = sequence
        self.delayed = delayed


class DamagedPlace(NamedTuple):
    """Place of damage: the messages from `sequence` to before `until`, or (`group` is not empty) a
    group."""

    queue_id: int
    sequence: int
    until: int
    group: bytes = b""
    is_delayed: bool = False
    is_group_row: bool = False
    """False for a row in the group's line."""


class Page(NamedTuple):
    """Messages read in order; `next_sequence` continues after them, None at the end of the
    range."""

    messages: list[tuple[int, StoredMessage]]
    next_sequence: int | None


class Survey(NamedTuple):
    """The readable part of a stretch of messages, from which damage is counted."""

    groups: dict[int, bytes]
    """The group of each readable message, by its sequence."""
    damaged: list[int]
    """Messages with damaged rows."""
    gaps: list[tuple[int, int]]
    """Stretches (first, until) without readable rows."""


class DelayedSurvey(NamedTuple):
    """The readable part of the delayed messages."""

    groups: list[bytes]
    """The group of each readable message."""
    damaged: list[tuple[bytes, bytes]]
    """See `Quarantined.delayed`."""


class Rows(Protocol):
    """One shard's rows. Order is ascending everywhere."""

    changes: Changes
    """The row changes of the running Turn; later reads see them."""

    store: RowReader
    """Reads of single rows and of ranges, for tables that only their feature knows."""

    def is_full(self, part: int = 1) -> bool:
        """True once the running Turn has recorded as much as it may, or the given part of that."""

    def place_of(self, error: DamagedRecord) -> DamagedPlace | None:
        """The messages or the group whose rows are damaged; None for any other row."""

    def queue_of(self, error: DamagedRecord) -> int:
        """The queue whose row is damaged."""

    def survey(self, queue_id: int, first: int, until: int) -> Survey:
        """The messages of a range, including received ones but not delayed ones. O(rows of the
        range)."""

    def survey_delayed(self, queue: QueueState) -> DelayedSurvey:
        """The delayed messages without quarantined ones. O(delayed messages)."""

    def groups(self, queue_id: int) -> list[tuple[bytes, GroupRow]]:
        """The readable rows of all groups. O(groups)."""

    def in_groups(self, queue_id: int, group: bytes = b"") -> list[tuple[bytes, int]]:
        """(group, sequence) of all readable messages that wait in groups, or in the given one."""

    def messages(self, queue_id: int, sequences: list[int]) -> list[StoredMessage | None]:
        """The named messages, in that order; None for one that does not exist."""

    def unless_quarantined(
        self, queue: QueueState, sequences: list[int]
    ) -> list[tuple[int, StoredMessage]]:
        """(sequence, message) of those that exist, in that order, without quarantined ones."""

    def line(
        self,
        queue_id: int,
        from_sequence: int,
        until_sequence: int,
        *,
        messages: int,
        size: int,
        quarantined: Quarantine | None = None,
        spans: Collection[int] | None = None,
    ) -> Page:
        """Up to `messages` messages of the range, fewer once they hold `size` bytes of content (at
        least one).

        Includes received ones, but not delayed or `quarantined` ones. Where a scan cannot pass,
        messages are looked up one by one, only in `spans` if these are given.
        """

    def search_line(
        self, queue: QueueState, from_sequence: int, until_sequence: int, part: bytes
    ) -> Iterator[tuple[int, int, StoredMessage | None]]:
        """(sequence, bytes of its row, message) of the messages that `line` gives, None for one
        whose row, as it is stored, does not have the `part`: it is not decoded."""

    def level_line(
        self, queue: QueueState, level: int, from_sequence: int, *, messages: int, size: int
    ) -> Page:
        """About `messages` of those that wait in a level's line, otherwise as `line` gives them.
        Raises DamagedRecord, MessagesMissing."""

    def delayed(
        self,
        queue_id: int,
        limit: int,
        *,
        after: tuple[int, int] = (0, 0),
        quarantined: Quarantine | None = None,
    ) -> list[tuple[int, int, StoredMessage]]:
        """Delayed messages after `after` as (due_ms, sequence, message), earliest due first.

        Without `quarantined` ones, and without those in unreadable blocks.
        """

    def instants(
        self,
        table: bytes,
        queue_id: int,
        limit: int,
        *,
        after: tuple[int, int] = (0, 0),
        quarantined: Quarantine | None = None,
    ) -> list[tuple[int, int]]:
        """(instant, sequence) after `after` in CLOCK, of messages that are out of order of age, or
        in EXPIRY, of those with a time to live; the earliest first.

        Without `quarantined` ones, and without those in blocks that cannot be read.
        """

    def group(self, queue_id: int, group: bytes) -> GroupRow | None:
        """A group's row, None if it has no messages."""

    def group_line(
        self, queue_id: int, group: bytes, from_sequence: int, limit: int
    ) -> list[tuple[int, Lease | None]]:
        """Waiting messages of a group with their history, None for one that was never received."""

    def ready_groups(self, queue_id: int, from_order: int, limit: int) -> list[tuple[int, bytes]]:
        """Groups that may give messages, by order."""

    def alias(self, queue_id: int, original_sequence: int) -> int | None:
        """The present sequence of the message that its receipt handles call `original_sequence`."""

    def remembered(
        self, queue_id: int, digests: list[bytes], now_ms: int
    ) -> dict[bytes, Remembered]:
        """The meanings of these ids, if they were remembered in the five minutes up to `now_ms`."""


def the_message(rows: Rows, queue_id: int, sequence: int) -> StoredMessage:
    """A message that must be there. Raises DamagedRecord, MessagesMissing."""
    (message,) = rows.messages(queue_id, [sequence])
    if message is None:
        raise MessagesMissing(queue_id, sequence)
    return message
