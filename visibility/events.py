"""TABLE: the facts that change a shard. The unit of log, replication, storage and archive.

An event says what happened in absolute terms (sequences, instants, counts), so whoever applies it needs neither a clock
nor a queue's definition. Tags are stable: never renumber, never reuse. New fields go to the end and have a default.
One event has two readers: memory (`visibility/apply.py`) and disk (`storage/appliers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat

import msgspec


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as it lies on disk. Invariant: never changes after it was written.

    `size` is what AWS counts, `data` is the packed content. `receive_count` and
    `first_received_at_ms` are those it brought along from another queue (dead letters go on counting).
    `sealed` names the envelope of `data`: 0 is none.
    """

    message_id: str
    sent_at_ms: int
    size: int
    data: bytes
    sealed: int = 0
    dead_letter_source_arn: str | None = None
    receive_count: int = 0
    first_received_at_ms: int = 0


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a message that is not simply waiting may be received, and its history in this queue.

    `receive_count` 0 means delayed and never received. `base_count` is the part of the count from other queues.
    `received_at_ms` is the latest receive (0: none), from which the 12 hours of visibility are counted.
    """

    sequence: int
    visible_at_ms: int
    receive_count: int
    base_count: int
    first_received_at_ms: int
    received_at_ms: int


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A fact about one queue."""

    queue_id: int


class MessagesSent(Event, frozen=True, tag=1):
    """Messages joined the queue under successive sequences.

    `visible_at_ms` has an instant for each, 0 for one that is not delayed; it is empty where none is.
    """

    first_sequence: int
    messages: list[StoredMessage]
    visible_at_ms: list[int]

    def numbered(self) -> Iterator[tuple[int, int, StoredMessage]]:
        """(sequence, visible_at_ms, message) in order."""
        instants = self.visible_at_ms or repeat(0)
        return zip(count(self.first_sequence), instants, self.messages, strict=False)


class MessagesReceived(Event, frozen=True, tag=2):
    """Messages were handed out at `received_at_ms` and are hidden until their lease ends."""

    received_at_ms: int
    leases: list[Lease]


class MessagesDeleted(Event, frozen=True, tag=3):
    """Received messages were deleted for good."""

    sequences: list[int]


class VisibilityChanged(Event, frozen=True, tag=4):
    """Leases were extended, shortened or ended; those not later than `changed_at_ms` are over."""

    changed_at_ms: int
    leases: list[Lease]


class MessageDeadLettered(Event, frozen=True, tag=5, gc=False):
    """A message left for another queue of the same shard, where it waits under a new sequence."""

    sequence: int
    target_queue_id: int
    target_sequence: int
    source_arn: str
    receive_count: int
    first_received_at_ms: int


class QueuePurged(Event, frozen=True, tag=6, gc=False):
    """Every message of the queue was removed."""

    purged_at_ms: int


class QueueDropped(Event, frozen=True, tag=7, gc=False):
    """The queue was deleted: nothing about it remains."""
