"""TABLE: the facts that change a shard, as one Turn tells them.

An event is in absolute terms (sequences, instants, counts), so applying it needs neither a clock
nor a queue's definition. It has two readers in the same Turn: memory (`visibility/state/apply.py`)
and rows (`storage/rows/appliers.py`). It is never encoded: the log and other hosts get the row
changes, and a start loads rows. So its fields may change, but not those of the structs that rows
hold: they are arrays, where new fields go to the end and have a default.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

from visibility.contract.held_messages import Hold
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Lease, StoredMessage


class GroupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The waiting messages of one group.

    `first`: none of them has a lower sequence. `order`: the group's place among those that may give
    messages, 0 while it is blocked or empty. `delayed` messages are not counted in `count`.
    """

    count: int = 0
    first: int = 0
    order: int = 0
    delayed: int = 0


class GroupChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group's present row, and the order under which it was listed before."""

    group: bytes
    order_before: int
    row: GroupRow


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The meaning of an id: a sent message, or the deliveries of a receive attempt.

    A delivery is (sequence, receive_count, visible_at_ms).
    """

    at_ms: int
    message_id: str = ""
    sequence: int = 0
    deliveries: list[tuple[int, int, int]] = []


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's move to another place, in its queue or in another of the same shard.

    `due_ms` is -1 for a message that waits or is in flight, else its key among the delayed ones.
    `lease` is the message's, or a placeholder if it was never received. `message` is the message at
    its new place; `resealed` if its content was sealed anew.
    """

    lease: Lease
    due_ms: int
    target_queue_id: int
    target_sequence: int
    message: StoredMessage
    resealed: bool = False


class ArchivedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that left its queue and waits for the archive. `sequence` is 0 in standard
    queues."""

    queue_arn: str
    reason: str
    removed_at_ms: int
    sequence: int
    receive_count: int
    first_received_at_ms: int
    message: StoredMessage


class SealedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A numbered batch of the shard's archived messages: positions `first` to before `until`.

    It never changes. `size` is the approximate size on disk, in bytes.
    """

    number: int
    first: int
    until: int
    size: int
    sealed_at_ms: int


class Quarantined(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The damage in one span of a queue's sequences, or (`span` is NOWHERE) among its delayed
    messages.

    `messages` is the number of messages that are stored according to the counters, but cannot be
    served. Reads skip the rows of `damaged` sequences, and `gaps`, stretches (first, until) without
    readable rows; some of these sequences held no message. `delayed` holds such stretches of
    delayed messages, in the storage's form. `since_ms` is 0 if the instant is unknown.
    """

    span: int
    messages: int
    since_ms: int
    damaged: list[int] = []
    gaps: list[tuple[int, int]] = []
    delayed: list[tuple[bytes, bytes]] = []


class BlockedGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of a FIFO queue that lost a message: the others wait until that one would have
    expired."""

    group: bytes
    since_ms: int


class Event(msgspec.Struct, frozen=True):
    """A fact about one queue."""

    queue_id: int


class MessagesSent(Event, frozen=True):
    """Messages joined the queue under successive sequences, and wait."""

    first_sequence: int
    messages: list[StoredMessage]

    def numbered(self) -> Iterator[tuple[int, StoredMessage]]:
        """(sequence, message) in order."""
        return zip(count(self.first_sequence), self.messages, strict=False)


class MessagesReceived(Event, frozen=True):
    """Messages were handed out at `received_at_ms` and are hidden until their lease ends."""

    received_at_ms: int
    leases: list[Lease]


class MessagesDeleted(Event, frozen=True):
    """Received messages were deleted for good; `leases` are theirs."""

    deleted_at_ms: int
    leases: list[Lease]


class VisibilityChanged(Event, frozen=True):
    """Leases were extended, shortened or ended; those not later than `changed_at_ms` are over."""

    changed_at_ms: int
    leases: list[Lease]


class MessagesMoved(Event, frozen=True):
    """Messages moved: dead letters, redriven ones, delayed ones that are due, poison pills."""

    moved_at_ms: int
    moves: list[Move]


class QueueDropped(Event, frozen=True, gc=False):
    """The queue was deleted with everything in it."""


class MessagesDelayed(Event, frozen=True):
    """Messages were sent under successive sequences, and wait for their time.

    `due_ms` has the end of each delay; 0 in a FIFO queue, where the queue's present delay applies.
    """

    first_sequence: int
    due_ms: list[int]
    messages: list[StoredMessage]

    def numbered(self) -> Iterator[tuple[int, int, StoredMessage]]:
        """(sequence, due_ms, message) in order."""
        return zip(count(self.first_sequence), self.due_ms, self.messages, strict=False)


class GroupsChanged(Event, frozen=True):
    """The index of groups changed. Precedes the events that it belongs to."""

    fifo: bool
    changes: list[GroupChange]


class LeasesEnded(Event, frozen=True):
    """Messages of a FIFO queue wait in their groups again, with the history in their leases."""

    ended_at_ms: int
    leases: list[Lease]


class MessagesExpired(Event, frozen=True):
    """Messages exceeded the queue's retention; `leases` are theirs, or placeholders for waiting
    ones."""

    expired_at_ms: int
    leases: list[Lease]


class DeduplicationRecorded(Event, frozen=True):
    """Deduplication or attempt ids, by digest, have this meaning from now on."""

    ids: list[tuple[bytes, Remembered]]


class DeduplicationForgotten(Event, frozen=True, gc=False):
    """Ids remembered before this instant expired; it is a multiple of REMEMBER_BUCKET_MS."""

    before_ms: int


class MoveTaskChanged(Event, frozen=True):
    """A move task began, advanced or ended; `forgotten` is the number of a dropped one (0:
    none)."""

    task: MoveTask
    forgotten: int = 0


class MessagesHandedOver(Event, frozen=True):
    """Departing messages wait for the archive from now on, under successive positions of the shard.

    Precedes the event by which they leave; `leases` and `messages` are in pairs. `sequence_numbers`
    is true for a FIFO queue.
    """

    removed_at_ms: int
    reason: str
    queue_arn: str
    sequence_numbers: bool
    first_position: int
    size: int
    leases: list[Lease]
    messages: list[StoredMessage]


class MessagesDiscarded(Event, frozen=True, gc=False):
    """This number of messages left the queue unarchived, because the archive had no room."""

    messages: int


class BatchSealed(Event, frozen=True):
    """The messages waiting for the archive are one batch from now on. The queue is THE_SHARD."""

    batch: SealedBatch


class BatchesArchived(Event, frozen=True, gc=False):
    """The batches up to `number` are safely archived; messages before position `until` are
    forgotten.

    The queue is THE_SHARD.
    """

    number: int
    until: int


class QueueContinued(Event, frozen=True):
    """The queue was purged: `successor_id` continues it without its messages.

    The successor issues sequences from `first_sequence` on, and takes over the move tasks.
    """

    successor_id: int
    first_sequence: int
    tasks: list[MoveTask]


class MessagesQuarantined(Event, frozen=True):
    """Damage was found. `spans` replace the earlier records of the same spans.

    `leases` belong to received messages, or are placeholders for those that wait in a FIFO group;
    the other messages waited in a standard queue or, in the span NOWHERE, for the end of their
    delay. `groups` are blocked from now on.
    """

    spans: list[Quarantined]
    leases: list[Lease]
    groups: list[BlockedGroup]


class QuarantineEnded(Event, frozen=True):
    """The retention of these spans' losses, or of the losses that block these groups, is over: both
    are dropped."""

    spans: list[Quarantined]
    groups: list[bytes]


class MessagesHeld(Event, frozen=True):
    """Waiting messages are in flight from now on, with leases that end at no time, and marked."""

    held_at_ms: int
    marks: list[Hold]
    leases: list[Lease]


class HoldsEnded(Event, frozen=True):
    """These marks are removed; their messages are gone, or other events show them again."""

    sequences: list[int]


NOWHERE = 1 << 52
"""Takes the place of a span for quarantined messages of unknown sequence; spans are lower."""
THE_SHARD = 0
"""Takes the place of a queue's id for data of the shard; real ids start at 1."""
REMEMBER_BUCKET_MS = 300_000
"""Ids are remembered in buckets of this many milliseconds, so that forgetting deletes one range."""
