"""Messages as shards keep them, their histories of receives, and messages under way to a shard."""

from __future__ import annotations

import msgspec

from visibility.contract.death import Death
from visibility.contract.limits import HELD_UNTIL_MS, PREPARED_UNTIL_MS, TAKEN_UNTIL_MS


class Tried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message before its last redrive. Stored form: only append.

    An empty `message_id` and a `sent_at_ms` of 0 are those of its origin. `hops` are its death's.
    """

    message_id: str
    sent_at_ms: int
    receive_count: int
    first_received_at_ms: int
    hops: int = 0


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first id of a message, and the time at which it was sent first. Stored form: only
    append.

    `receive_count` counts the receives that the message does not count itself, as they were before
    its last redrive or edit. `edits` in place are counted, the last one at `edited_at_ms`. `before`
    is None for one that was not redriven since it was sent, edited, or brought back by an undo. The
    last undo took it back at `undone_at_ms`, when its id was `undone_id`.
    """

    message_id: str
    sent_at_ms: int
    receive_count: int = 0
    redrives: int = 0
    edits: int = 0
    edited_at_ms: int = 0
    before: Tried | None = None
    undone_id: str = ""
    undone_at_ms: int = 0


class StoredMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in its stored form. Invariant: never changes once written.

    `size` is the one AWS counts, `data` is the packed content; `sealed` is the number of the data
    key that opens it, 0 for none. `receive_count` and `first_received_at_ms` date from before it
    came to its place (dead letters continue the count); `received_here` of these receives were in
    this queue. `group` is a digest (see `id_digests.py`); a message that has one is in the index of
    groups. `clock_ms` is the instant from which retention counts if the message is out of order of
    age, else 0. `original_sequence` is the sequence in receipt handles, 0 if it is the message's
    own. `joined_at_ms` is the instant at which it came from another queue, 0 if it was sent to this
    queue or moved to it by a version before 0.2. `expires_ms` is the end of its time to live, 0 for
    none. `level` tells its priority, see `priority.py`. `death` tells how it became a dead letter,
    None if it never did, or in a version before 0.2. `sender_ms` is the time of its sender's clock
    while it waits in a queue in that order, else 0. `origin` is None for a message that is what was
    sent, see `origin.py`.
    """

    message_id: str
    sent_at_ms: int
    size: int
    data: bytes
    sealed: int = 0
    dead_letter_source_arn: str | None = None
    receive_count: int = 0
    first_received_at_ms: int = 0
    group: bytes = b""
    clock_ms: int = 0
    original_sequence: int = 0
    received_here: int = 0
    joined_at_ms: int = 0
    expires_ms: int = 0
    level: int = 0
    death: Death | None = None
    sender_ms: int = 0
    origin: Origin | None = None

    @property
    def retained_from_ms(self) -> int:
        """The instant from which retention counts."""
        return self.clock_ms or self.sent_at_ms


def death_of(message: StoredMessage) -> Death | None:
    """The death of a message that is a dead letter now; None for others, and for those of versions
    before 0.2."""
    return None if message.dead_letter_source_arn is None else message.death


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time at which a received message may be received again, and its history in this queue.

    `base_count` is the part of `receive_count` from other queues. `received_at_ms` is the latest
    receive (0: none), from which the 12 hours of visibility are counted. `group`, `clock_ms`,
    `original_sequence`, `sent_at_ms`, `expires_ms`, `level` and `size` are the message's; a `size`
    of 0 is not known. `retry_ms` is the time for which the message waits when its visibility
    timeout is over: it counts as delayed then, and is to receipt handles like a visible one.
    """

    sequence: int
    visible_at_ms: int
    receive_count: int
    base_count: int
    first_received_at_ms: int
    received_at_ms: int
    group: bytes = b""
    clock_ms: int = 0
    original_sequence: int = 0
    sent_at_ms: int = 0
    retry_ms: int = 0
    expires_ms: int = 0
    level: int = 0
    size: int = 0

    @property
    def retained_from_ms(self) -> int:
        """The instant from which retention counts; 0 if a version before 0.2 made the lease."""
        return self.clock_ms or self.sent_at_ms

    @property
    def receivable_at_ms(self) -> int:
        """The instant from which the message may be received again."""
        return self.visible_at_ms + self.retry_ms

    def state_at(self, now_ms: int) -> str:
        """The message's state: "in_flight", "delayed" while it waits, or "visible"."""
        if now_ms < self.visible_at_ms:
            return "in_flight"
        return "delayed" if now_ms < self.receivable_at_ms else "visible"

    def ended_at(self, now_ms: int) -> Lease:
        """The lease, over from now on: the message may be received."""
        return msgspec.structs.replace(self, visible_at_ms=now_ms, retry_ms=0)

    @property
    def is_held(self) -> bool:
        """True if no consumer but an operator holds the message."""
        return self.visible_at_ms >= HELD_UNTIL_MS

    @property
    def is_taken(self) -> bool:
        """True if no one receives the message again, unless its answer did not reach a client."""
        return self.visible_at_ms == TAKEN_UNTIL_MS

    @property
    def is_prepared(self) -> bool:
        """True if a transaction that another shard decides is to delete the message."""
        return self.visible_at_ms == PREPARED_UNTIL_MS


class SentElsewhere(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The members of a send that a transaction has another shard do, besides the message. Stored
    form: only append.

    `transaction` is its token; the others are as in `model.Content`, `delay_s` as in SendMessage.
    """

    transaction: bytes
    delay_s: int | None = None
    deduplication: bytes = b""
    deliver_at_ms: int = 0
    ttl_ms: int = 0
    sent_at_ms: int = 0


class PreparedDeletes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages that a transaction, which another shard decides, deletes in this one. Stored
    form: only append.

    `transaction` is its token, `digest` that of its entries; `leases` has (queue_id, lease) of
    each message, with the leases from before.
    """

    transaction: bytes
    digest: bytes
    leases: list[tuple[int, Lease]]


class Arrival(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in the outbox, as the other shard gets it. `queue_id` is that of the queue with
    this ARN at the departure. One that `transfers` goes to that part of its own queue and to no
    other, and stays what it is; an operator's `hold` goes with it, and so does the end of its
    delay, `due_ms`, -1 for none. One with `sent` is no message yet: its queue decides on it as on a
    send. One that transfers in a FIFO queue keeps its `sequence`, 0 for none. One that `asks` is
    no message: it asks whether the transaction was accepted that was prepared under its name."""

    origin: bytes
    number: int
    queue_id: int
    arn: str
    message: StoredMessage
    transfers: bool = False
    hold: Hold | None = None
    due_ms: int = -1
    sent: SentElsewhere | None = None
    sequence: int = 0
    asks: bool = False


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A hold on a message. Stored form: only append.

    `reference` names a ticket or a reason. A message with `deleted_at_ms` is deleted then; one with
    0 waits until it is released or expires.
    """

    sequence: int
    since_ms: int = 0
    owner: str = ""
    reference: str = ""
    deleted_at_ms: int = 0
