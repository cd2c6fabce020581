"""Messages on their way to the archive: handed over, sealed in numbered batches, then forgotten.

A message that is handed over is no longer in a queue: the shard keeps it under a position. A batch
is a range of positions and never changes, so that after a crash it can be written again with the
same content. Batches are forgotten once they are safely archived. Without an archive nothing is
handed over, and messages that already wait stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from typing_extensions import override

from visibility.contract.death import HOPS
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition, QueueSettings, Request
from visibility.contract.operations import Operation
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.tags import ARCHIVE_ALL, ARCHIVE_NONE, ARCHIVE_TAG
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVED, BATCH, row_key, table_range
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, SealedBatch
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

DELETED = "deleted"
"""A reason; the others are causes of death."""
ROW_BYTES = 200
"""Approximate size of a message on disk without its content."""
DECISION_BYTES_MAX = 3 << 20
"""Content that one decision hands over, which an Entry writes again. A single message may have
more."""


class SealArchive(Operation, frozen=True):
    """Make a batch of the messages that wait for the archive; answers None.

    The request's queue is `the_shard`.
    """


class AcknowledgeArchive(Operation, frozen=True):
    """Forget the messages of `source`'s batches up to `batch`, which are archived; answers None.

    The request's queue is `the_shard`.
    """

    source: str = ""
    batch: int = 0


@cache
def the_shard(number: int) -> QueueDefinition:
    """Takes the place of the queue in requests to a shard itself."""
    settings = QueueSettings(0, 0, 0, 0, 0, False, None)
    return QueueDefinition(THE_SHARD, "", "", "", 0, number, 0, 0, b"", {}, {}, settings)


def takes_expired(shard: ShardState, settings: QueueSettings) -> bool:
    """True if expired messages go to the archive."""
    return shard.archive.is_on and settings.own_tags.get(ARCHIVE_TAG) != ARCHIVE_NONE


def takes_deleted(shard: ShardState, settings: QueueSettings) -> bool:
    """True if messages that consumers delete go to the archive."""
    return shard.archive.is_on and settings.own_tags.get(ARCHIVE_TAG) == ARCHIVE_ALL


def has_room(shard: ShardState, definition: QueueDefinition, size: int) -> bool:
    """True if the archive has room for messages of the queue of this size, in bytes."""
    return shard.archive.has_room(size, definition.account, shard.definitions.accounts)


def hand_over(
    shard: ShardState,
    definition: QueueDefinition,
    leases: Sequence[Lease],
    messages: Mapping[int, StoredMessage],
    *,
    reason: str,
    now_ms: int,
) -> tuple[Event, ...]:
    """Events that hand departing messages to the archive; `messages` has the readable ones, by
    sequence.

    Without room they are discarded: neither sends nor deletes wait for it.
    """
    readable = [lease for lease in leases if lease.sequence in messages]
    if not readable:
        return ()
    size = sum(len(messages[lease.sequence].data) + ROW_BYTES for lease in readable)
    if not has_room(shard, definition, size):
        return (MessagesDiscarded(definition.queue_id, len(readable)),)
    return (
        MessagesHandedOver(
            definition.queue_id,
            now_ms,
            reason,
            definition.arn,
            definition.account,
            definition.settings.fifo,
            shard.archive.next_position,
            size,
            readable,
            [messages[lease.sequence] for lease in readable],
        ),
    )


def hand_over_deleted(
    shard: ShardState, request: Request, leases: Sequence[Lease], now_ms: int
) -> tuple[Event, ...]:
    """Hand over the messages that a request deletes.

    Raises DamagedRecord for a message not yet known to be damaged.
    """
    definition = request.queue
    sequences = [lease.sequence for lease in leases]
    queue = shard.queue(definition.queue_id)
    messages = dict(shard.rows.unless_quarantined(queue, sequences))
    return hand_over(shard, definition, leases, messages, reason=DELETED, now_ms=now_ms)


def decide_seal_archive(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Seal the waiting messages, if any, as a batch."""
    assert isinstance(request.operation, SealArchive)
    archive = shard.archive
    if not archive.has_open:
        return None, ()
    batch = SealedBatch(
        archive.next_batch,
        archive.open_first,
        archive.next_position,
        archive.open_size,
        stamp.now_ms,
        dict(archive.open_by_account),
    )
    return None, (BatchSealed(THE_SHARD, batch),)


def decide_acknowledge_archive(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Forget the messages of all batches up to the archived one. Raises InvalidParameterValue."""
    operation = request.operation
    assert isinstance(operation, AcknowledgeArchive)
    archive = shard.archive
    if operation.source != archive.source:
        raise InvalidParameterValue(
            f"this data folder is {archive.source} to the archive, and not {operation.source}"
        )
    if operation.batch >= archive.next_batch:
        raise InvalidParameterValue(
            f"there is no batch {operation.batch}: the last one that was sealed is "
            f"{archive.next_batch - 1}"
        )
    if operation.batch <= archive.archived:
        return None, ()
    until = archive.batches[operation.batch].until
    return None, (BatchesArchived(THE_SHARD, operation.batch, until),)


# -- events ----------------------------------------------------------------------------------------


class MessagesHandedOver(Event, frozen=True):
    """Departing messages wait for the archive from now on, under successive positions of the shard.

    Precedes the event by which they leave; `leases` and `messages` are in pairs. `sequence_numbers`
    is true for a FIFO queue.
    """

    removed_at_ms: int
    reason: str
    queue_arn: str
    account: str
    sequence_numbers: bool
    first_position: int
    size: int
    leases: list[Lease]
    messages: list[StoredMessage]

    @override
    def apply(self, shard: ShardState) -> None:
        archive = shard.archive
        if not archive.has_open:
            archive.open_since_ms = self.removed_at_ms
        archive.next_position = self.first_position + len(self.leases)
        archive.open_size += self.size
        sizes = archive.open_by_account
        sizes[self.account] = sizes.get(self.account, 0) + self.size
        archive.handed_over += len(self.leases)
        if self.reason == HOPS:
            deaths = shard.queue(self.queue_id).counts.deaths
            deaths[HOPS] = deaths.get(HOPS, 0) + len(self.leases)

    @override
    def record(self, changes: Changes) -> None:
        pairs = zip(self.leases, self.messages, strict=True)
        for position, (lease, message) in enumerate(pairs, self.first_position):
            archived = ArchivedMessage(
                self.queue_arn,
                self.reason,
                self.removed_at_ms,
                lease.sequence if self.sequence_numbers else 0,
                lease.receive_count,
                lease.first_received_at_ms,
                message,
            )
            changes.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived))

    @override
    def tell(self, turn: Effects) -> None:
        turn.changed[THE_SHARD] = None

    @property
    @override
    def weight(self) -> int:
        """The KiB that are written once more."""
        return self.size >> 10


class MessagesDiscarded(Event, frozen=True, gc=False):
    """This number of messages left the queue unarchived, because the archive had no room."""

    messages: int

    @override
    def apply(self, shard: ShardState) -> None:
        shard.archive.discarded += self.messages

    @override
    def record(self, changes: Changes) -> None:
        """Only the shard's own row changes."""

    @override
    def tell(self, turn: Effects) -> None:
        turn.changed[THE_SHARD] = None


class BatchSealed(Event, frozen=True):
    """The messages waiting for the archive are one batch from now on. The queue is THE_SHARD."""

    batch: SealedBatch

    @override
    def apply(self, shard: ShardState) -> None:
        archive, batch = shard.archive, self.batch
        archive.batches[batch.number] = batch
        archive.next_batch = batch.number + 1
        archive.open_first = batch.until
        archive.sealed_size += batch.size
        archive.open_size = 0
        archive.open_by_account = {}

    @override
    def record(self, changes: Changes) -> None:
        changes.put(row_key(THE_SHARD, BATCH, self.batch.number), encode_row(self.batch))


class BatchesArchived(Event, frozen=True, gc=False):
    """The batches up to `number` are safely archived; messages before position `until` are
    forgotten.

    The queue is THE_SHARD.
    """

    number: int
    until: int

    @override
    def apply(self, shard: ShardState) -> None:
        archive = shard.archive
        archive.archived = self.number
        archive.batches = {n: batch for n, batch in archive.batches.items() if n > self.number}
        archive.sealed_size = sum(batch.size for batch in archive.batches.values())

    @override
    def record(self, changes: Changes) -> None:
        for table, end in ((ARCHIVED, self.until), (BATCH, self.number + 1)):
            begin, _ = table_range(THE_SHARD, table)
            changes.delete_range(begin, row_key(THE_SHARD, table, end))


OPERATIONS: Operations = {
    SealArchive: OperationKind(decide_seal_archive, None),
    AcknowledgeArchive: OperationKind(decide_acknowledge_archive, None),
}
