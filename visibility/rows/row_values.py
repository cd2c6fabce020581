"""The values of rows, except those that are part of the contract (`stored_message.py`).

They are arrays: new fields go to the end and have a default, so older rows stay readable.
"""

from __future__ import annotations

import msgspec

from visibility.contract.queue_parts import GonePart, Part
from visibility.contract.stored_message import (
    Arrival,
    Hold,
    Lease,
    PreparedDeletes,
    SentElsewhere,
    StoredMessage,
)

NOWHERE = 1 << 52
"""Takes the place of a span for quarantined messages of unknown sequence; spans are lower."""
THE_SHARD = 0
"""Takes the place of a queue's id for data of the shard; real ids start at 1."""
TARGET_MOVED = "moved"
"""The answer to a message whose queue has no part that takes it in this shard: it departs again, to
another part."""
REMEMBER_BUCKET_MS = 300_000
"""Ids are remembered in buckets of this many milliseconds, so that forgetting deletes one range."""


class QueueRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue's own row: fields as in `visibility.state.queue_state.QueueState`.

    `listed` is the number of groups that may give messages, `stamp_ms` is the shard's time at which
    the row was written, `levels` has (level, waiting, low_water) of each line, `sized_from` is -1
    if a version before 0.2 wrote the row. `has_failure_notes` is false again once a version that
    does not know these has changed the queue; so `heir_id` is 0. `purged_at_ms` is no longer used.
    """

    next_sequence: int
    low_water: int
    waiting: int
    purged_at_ms: int
    delayed: int = 0
    listed: int = 0
    aliases: int = 0
    remembered_ms: int = 0
    fifo: bool = False
    stamp_ms: int = 0
    continues: int = 0
    first_sequence: int = 1
    departed: int = 0
    levels: list[tuple[int, int, int]] = []
    size: int = 0
    sized_from: int = -1
    rescued: int = 0
    passed_ms: int = 0
    has_failure_notes: bool = False
    heir_id: int = 0


class PartRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a queue: its number, the queue's version and the shard's time in which it closed,
    and the version in which it had nothing left. Kept after the part is gone."""

    number: int
    closed_version: int = 0
    closed_at_ms: int = 0
    drained_version: int = 0


class NotedParts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All parts of a queue, as its record in the catalog had them in this version: the fields are
    those of `QueueDefinition`. `left_at_ms` is when the shard had no part of it any more, 0 while
    it has one."""

    account: str
    region: str
    name: str
    version: int
    queue_id: int
    shard: int
    parts: tuple[Part, ...] = ()
    last_part: int = 0
    number: int = 0
    gone: tuple[GonePart, ...] = ()
    left_at_ms: int = 0

    @property
    def arn(self) -> str:
        """The queue's."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"

    @property
    def queue_ids(self) -> set[int]:
        """The ids of all parts."""
        return {self.queue_id, *(part.queue_id for part in self.parts)}

    def has_same_parts(self, other: NotedParts) -> bool:
        """True if these are those others, whatever was changed beside."""
        mine, others = (self.parts, self.gone), (other.parts, other.gone)
        return mine == others and self.queue_id == other.queue_id

    def is_later(self, other: NotedParts) -> bool:
        """True if these parts came after those others of the same queue. Numbers of parts are never
        issued again, so a list with a higher one is later whatever else was changed beside."""
        if self.has_same_parts(other):
            return False
        return (self.last_part, self.version) > (other.last_part, other.version)


class ArchiveRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A shard's archive state: fields as in `visibility.state.archive_state.ArchiveState`."""

    source: str
    next_position: int
    next_batch: int
    archived: int
    open_first: int
    open_size: int
    open_since_ms: int
    discarded: int
    open_by_account: dict[str, int] = {}


class OutboxRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox's state: fields as in `visibility.state.outbox.Outbox`."""

    origin: bytes
    next_number: int


class AppliedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log position of the last Entry applied to the rows."""

    term: int
    index: int
    checksum: int


class GroupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The waiting messages of one group.

    `first`: none of them has a lower sequence. `order`: the group's place among those that may give
    messages, 0 while it is blocked or empty. `delayed` messages are not counted in `count`.
    """

    count: int = 0
    first: int = 0
    order: int = 0
    delayed: int = 0


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The meaning of an id: a sent message, or the deliveries of a receive attempt.

    A delivery is (sequence, receive_count, visible_at_ms).
    """

    at_ms: int
    message_id: str = ""
    sequence: int = 0
    deliveries: list[tuple[int, int, int]] = []


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

    It never changes. `size` is the approximate size on disk, in bytes, `by_account` that of the
    messages of each account; a batch of a version before 0.2 does not tell.
    """

    number: int
    first: int
    until: int
    size: int
    sealed_at_ms: int
    by_account: dict[str, int] = {}


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


class Departure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the outbox. Invariant: never changes once written.

    `lease` and `message` are those of its place, to which it returns if it is refused; `arriving`
    is the message at its destination, without its content unless `resealed`. `fifo` locks its
    group meanwhile; `task` is the id of the move task that moves it, empty for none. One that
    `transfers` goes to another part of its queue, with an operator's `hold`. One that was delayed
    has its key among the delayed ones, `due_ms`, others -1; it stays delayed only if it transfers.
    One that a transaction `sent` was in no queue: `queue_id` is THE_SHARD, and it does not return.
    So is that of one with deletes that are `prepared`: it is no message, but a question to the
    shard that decides the transaction; the messages stay in their queues.
    """

    origin: bytes
    queue_id: int
    departed_at_ms: int
    lease: Lease
    message: StoredMessage
    to_shard: int
    target_queue_id: int
    target_arn: str
    arriving: StoredMessage
    resealed: bool = False
    fifo: bool = False
    task: str = ""
    transfers: bool = False
    hold: Hold | None = None
    due_ms: int = -1
    sent: SentElsewhere | None = None
    prepared: PreparedDeletes | None = None

    @property
    def has_id(self) -> bool:
        """True for a send that is deduplicated."""
        return self.sent is not None and bool(self.sent.deduplication)

    @property
    def is_delayed(self) -> bool:
        """True for a message that waited for the end of its delay."""
        return self.due_ms >= 0

    @property
    def handle(self) -> int:
        """The sequence in the message's receipt handles."""
        return self.message.original_sequence or self.lease.sequence

    @property
    def size(self) -> int:
        """Bytes of content."""
        return len(self.message.data) + len(self.arriving.data)

    @property
    def locked(self) -> bytes:
        """The group of its queue that waits for it; empty for none."""
        return self.lease.group if self.fifo else b""

    def arrival(self, number: int) -> Arrival:
        """The message as the other shard gets it."""
        message = self.arriving
        if not self.resealed:
            message = msgspec.structs.replace(message, data=self.message.data)
        return Arrival(
            self.origin,
            number,
            self.target_queue_id,
            self.target_arn,
            message,
            self.transfers,
            self.hold,
            self.due_ms if self.transfers else -1,
            self.sent,
            self.lease.sequence if self.transfers and self.fifo else 0,
            self.prepared is not None,
        )


class TransactionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction that was accepted. Invariant: never changes once written.

    `digest` is that of its entries; `sent` has the MessageId and the SequenceNumber of each entry,
    None for one without.
    """

    at_ms: int
    digest: bytes
    sent: list[tuple[str | None, str | None]]
