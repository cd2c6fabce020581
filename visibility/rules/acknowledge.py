"""Decisions that end or change a delivery: deletes, changes of visibility, batches, returns.

Standard queues: any handle deletes a visible message, but only the newest one a message in flight
(else: success, nothing deleted); any handle changes the visibility of a message in flight, none
hides a visible one. FIFO queues: a handle is valid only during its lease. Deleting a message that
is gone succeeds in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from visibility.contract import limits
from visibility.contract.at_most_once_tag import delivers_at_most_once
from visibility.contract.errors import (
    Departing,
    InvalidParameterValue,
    MessageNotInflight,
    Moved,
    QueueError,
    ReceiptHandleIsInvalid,
    ServiceUnavailable,
    TransactionConflict,
)
from visibility.contract.model import QueueSettings, Receipt, Request
from visibility.contract.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    Operation,
)
from visibility.contract.outcomes import batch_failure, failure_of
from visibility.contract.results import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
)
from visibility.contract.stored_message import Lease
from visibility.rules.archive_batches import DECISION_BYTES_MAX, hand_over_deleted, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.leases import no_lease
from visibility.rules.levelling import paced
from visibility.rules.message_events import MessagesDeleted, VisibilityChanged
from visibility.rules.operation_kinds import NOTHING, OperationKind, Operations, Replay
from visibility.rules.order import Order
from visibility.rules.orders import order_of
from visibility.rules.transfers import check_here
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortFailures, ShortReceive
from visibility.state.stamp import Stamp

_VISIBILITY_MAX_MS = limits.VISIBILITY_TIMEOUT.high * 1000


class ReturnMessages(Operation, frozen=True):
    """Return undelivered messages to the queue without counting the receive; answers None.

    Used when an answer could not be written. The request's parts are the Receipts of the
    deliveries.
    """


class UndoReceive(Operation, frozen=True):
    """Give back the messages of the receive with this request's id, as its retry; answers None."""


def _newest_lease(queue: QueueState, order: Order, receipt: Receipt) -> Lease | None:
    """The lease of a message, if it is in memory, the receipt its newest, and the order asks no
    more.

    Most deletes need no more; through `Acknowledging` a single one took 1.5 times as long.
    """
    entry = queue.entries.get(receipt.sequence)
    if entry is None or order.handles_expire or entry.lease.receive_count != receipt.delivery:
        return None
    return None if queue.prepared and entry.lease.is_prepared else entry.lease


class Acknowledging:
    """The changes of one request, collected."""

    __slots__ = (
        "_archived_bytes",
        "_now_ms",
        "_order",
        "_purged",
        "_queue",
        "_request",
        "_shard",
        "_stamp",
        "changed",
        "deleted",
        "ended",
    )

    def __init__(self, shard: ShardState, request: Request, stamp: Stamp) -> None:
        self._shard = shard
        self._request = request
        self._stamp = stamp
        self._queue = shard.queue(request.queue.queue_id)
        self._purged: dict[int, Acknowledging] = {}
        """Changes to messages received before a purge, by the queue that has them."""
        self._order = order_of(request.queue.settings)
        self._now_ms = stamp.now_ms
        self._archived_bytes = 0
        self.deleted: dict[int, Lease] = {}
        self.changed: dict[int, Lease] = {}
        self.ended: dict[int, Lease] = {}
        """Messages that are visible from now on."""

    @property
    def settings(self) -> QueueSettings:
        """Those of the queue."""
        return self._request.queue.settings

    def delete(self, receipt: Receipt, handle: str) -> None:
        """Delete the message of a handle.

        Raises InvalidParameterValue for an expired handle of a FIFO queue, in a batch
        ReceiptHandleIsInvalid; ServiceUnavailable for a batch's message beyond what the archive
        takes at once, and for one that a transaction may be about to delete.
        """
        newest = _newest_lease(self._queue, self._order, receipt)
        if newest is not None:
            self._take(newest, self)
            return
        lease = self._find(receipt)
        if lease is None:
            if not self._delete_purged(receipt):
                check_here(self._shard, self._request.queue, receipt.sequence)
            return
        _check_free(lease)
        in_flight = self._is_in_flight(lease)
        is_newest = lease.receive_count == receipt.delivery
        if self._order.handles_expire and not (in_flight and is_newest):
            raise self._expired(handle)
        if is_newest or (not in_flight and lease.receive_count > receipt.delivery):
            self._take(lease, self)

    def _expired(self, handle: str) -> QueueError:
        """The refusal of an expired handle: in a batch AWS has another code, and the reason
        alone."""
        reason = "The receipt handle has expired"
        if isinstance(self._request.operation, DeleteMessageBatch):
            return ReceiptHandleIsInvalid(reason)
        return InvalidParameterValue(
            f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {reason}."
        )

    def delete_latest(self, receipt: Receipt) -> None:
        """Delete the message of a handle if the handle is that of its latest receive, and no one
        else has the message. Raises TransactionConflict, Moved, Departing."""
        lease = self._find(receipt)
        if lease is None:
            check_here(self._shard, self._request.queue, receipt.sequence)
        if (
            lease is None
            or lease.sequence in self.deleted
            or lease.is_held
            or lease.is_taken
            or lease.is_prepared
            or lease.receive_count != receipt.delivery
            or (self._order.handles_expire and not self._is_in_flight(lease))
        ):
            raise TransactionConflict()
        self._take(lease, self)

    def _take(self, lease: Lease, place: Acknowledging) -> None:
        """Note that a message is deleted, in `place`: this queue's changes, or a purged one's."""
        if takes_deleted(self._shard, self._request.queue.settings):
            found = self._shard.rows.unless_quarantined(place._queue, [lease.sequence])
            size = sum(len(message.data) for _, message in found)
            if self._archived_bytes and self._archived_bytes + size > DECISION_BYTES_MAX:
                raise ServiceUnavailable
            self._archived_bytes += size
        place.deleted[lease.sequence] = lease

    def _delete_purged(self, receipt: Receipt) -> bool:
        """Delete a message received before a purge, so that undoing the purge does not bring it
        back. False if there is none."""
        for purged in self._shard.holders(self._queue, receipt.sequence):
            place = self._place(purged)
            lease = place._find(receipt)
            if lease is None:
                continue
            _check_free(lease)
            in_flight = self._is_in_flight(lease)
            if lease.sequence not in purged.entries:  # its lease ended before the purge
                rows = self._shard.rows
                lease = self._order.history_of(rows, purged, lease.sequence, lease) or lease
            # A lease of a FIFO queue may be over: no one else can have received the message since.
            is_newest = lease.receive_count == receipt.delivery
            is_older = lease.receive_count > receipt.delivery
            if is_newest or (is_older and not in_flight and not self._order.handles_expire):
                self._take(lease, place)
            return True
        return False

    def _place(self, purged: QueueState) -> Acknowledging:
        """The changes of this request in a purged queue."""
        place = self._purged.get(purged.queue_id)
        if place is None:
            queue = msgspec.structs.replace(self._request.queue, queue_id=purged.queue_id)
            request = msgspec.structs.replace(self._request, queue=queue)
            place = self._purged[purged.queue_id] = Acknowledging(self._shard, request, self._stamp)
        return place

    def change(self, receipt: Receipt, timeout_s: int, handle: str) -> None:
        """Hide the message of a handle until `timeout_s` from now, after which it waits as it would
        have; a visible one stays so. Raises InvalidParameterValue, and ServiceUnavailable for one
        that a transaction may be about to delete."""
        held = self._find(receipt)
        if held is None:
            check_here(self._shard, self._request.queue, receipt.sequence)
        if delivers_at_most_once(self._request.queue.settings.own_tags) and (
            held is None or held.is_taken
        ):
            raise MessageNotInflight()
        if held is not None:
            _check_free(held)
        in_flight = held is not None and self._is_in_flight(held)
        if (
            held is None
            or held.receive_count < receipt.delivery
            or (
                self._order.handles_expire
                and not (in_flight and held.receive_count == receipt.delivery)
            )
        ):
            raise InvalidParameterValue(
                f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not "
                "exist or is not available for visibility timeout change."
            )
        if not in_flight:
            return
        visible_at_ms = self._now_ms + timeout_s * 1000
        if timeout_s and visible_at_ms >= held.received_at_ms + _VISIBILITY_MAX_MS:
            raise InvalidParameterValue(
                f"Value {timeout_s} for parameter VisibilityTimeout is invalid. Reason: Total "
                "VisibilityTimeout for the message is beyond the limit "
                f"[{limits.VISIBILITY_TIMEOUT.high} seconds]"
            )
        lease = msgspec.structs.replace(held, visible_at_ms=visible_at_ms)
        self.changed.pop(lease.sequence, None)
        self.ended.pop(lease.sequence, None)
        changes = self.changed if timeout_s or held.retry_ms else self.ended
        changes[lease.sequence] = lease

    def give_back(self, receipt: Receipt) -> None:
        """Undo the receive that the receipt names, if it is the latest."""
        held = self._find(receipt)
        if held is None or held.receive_count != receipt.delivery:
            return
        if held.sequence not in self._queue.entries or held.is_held or held.is_prepared:
            return  # it is waiting again already, or was until an operator held it
        count = held.receive_count - 1
        self.ended[held.sequence] = msgspec.structs.replace(
            held.ended_at(self._now_ms),
            receive_count=count,
            first_received_at_ms=held.first_received_at_ms if count else 0,
            received_at_ms=held.received_at_ms if count > held.base_count else 0,
        )

    def _find(self, receipt: Receipt) -> Lease | None:
        """The receipt's message at its present place, None if it is gone. Raises DamagedRecord."""
        queue = self._queue
        sequence = receipt.sequence
        entry = queue.entries.get(sequence)
        if entry is None and queue.aliases:
            sequence = self._shard.rows.alias(queue.queue_id, sequence) or sequence
            entry = queue.entries.get(sequence)
        if entry is not None:
            return self.ended.get(sequence) or self.changed.get(sequence, entry.lease)
        if not self._order.may_wait_again(queue) or sequence >= queue.next_sequence:
            return None
        if sequence in queue.quarantined:
            return None
        (message,) = self._shard.rows.messages(queue.queue_id, [sequence])
        return None if message is None else no_lease(sequence, message)

    def _is_in_flight(self, lease: Lease) -> bool:
        return self._now_ms < lease.visible_at_ms < limits.HELD_UNTIL_MS

    def events(self, shared_book: GroupBook | None = None) -> tuple[Event, ...]:
        """The events of the request. The changes of a book that is shared with other changes to
        the queue are not among them."""
        queue, now_ms = self._queue, self._now_ms
        deleted = list(self.deleted.values())
        changed = [lease for lease in self.changed.values() if lease.sequence not in self.deleted]
        ended = [lease for lease in self.ended.values() if lease.sequence not in self.deleted]
        events: list[Event] = []
        if deleted and takes_deleted(self._shard, self._request.queue.settings):
            events += hand_over_deleted(self._shard, self._request, deleted, now_ms)
        if self._order.may_wait_again(queue):
            book = shared_book or self._order.book(self._shard, queue)
            for lease in deleted:
                if lease.group and lease.sequence not in queue.entries:
                    book.leave(lease.group, lease.sequence)
            book.settle_all(deleted, ended)
            events += book.events() if shared_book is None else ()
        if deleted:
            events.append(MessagesDeleted(queue.queue_id, now_ms, deleted))
        if changed:
            events.append(VisibilityChanged(queue.queue_id, now_ms, changed))
        if ended:
            events.append(self._order.ended(queue, ended, now_ms))
        for place in self._purged.values():
            events += place.events()
        return tuple(events)


def _check_free(lease: Lease) -> None:
    """Raises ServiceUnavailable while it is not known whether a transaction deletes the message."""
    if lease.is_prepared:
        raise ServiceUnavailable


def decide_delete_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Delete the message of the handle."""
    operation = request.operation
    receipt = request.parts[0]
    assert isinstance(operation, DeleteMessage)
    assert isinstance(receipt, Receipt)
    queue = shard.queue(request.queue.queue_id)
    lease = _newest_lease(queue, order_of(request.queue.settings), receipt)
    if lease is not None and not takes_deleted(shard, request.queue.settings):
        return None, (MessagesDeleted(queue.queue_id, stamp.now_ms, [lease]),)
    acknowledging = Acknowledging(shard, request, stamp)
    acknowledging.delete(receipt, operation.receipt_handle or "")
    return None, acknowledging.events()


def decide_delete_message_batch(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Delete the messages of all handles that were not refused."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch)
    assert operation.entries is not None
    acknowledging = Acknowledging(shard, request, stamp)
    successful: list[DeleteMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, part in zip(operation.entries, request.parts, strict=True):
        try:
            acknowledging.delete(_receipt(part), entry.receipt_handle or "")
        except (Moved, Departing):
            raise  # the gateway asks for each entry
        except QueueError as error:
            failed.append(batch_failure(entry.id or "", error))
        else:
            successful.append(DeleteMessageBatchResultEntry(entry.id or ""))
    return DeleteMessageBatchResult(successful or None, failed or None), acknowledging.events()


def _receipt(part: object) -> Receipt:
    """The receipt in a batch's entry; raises the error that refuses the entry."""
    if not isinstance(part, Receipt):
        assert isinstance(part, QueueError)
        raise part
    return part


def decide_change_message_visibility(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Hide the message of the handle for the given time from now; 0 shows it at once."""
    operation = request.operation
    receipt = request.parts[0]
    assert isinstance(operation, ChangeMessageVisibility)
    assert isinstance(receipt, Receipt)
    acknowledging = Acknowledging(shard, request, stamp)
    acknowledging.change(receipt, operation.visibility_timeout or 0, operation.receipt_handle or "")
    return None, acknowledging.events()


def decide_change_message_visibility_batch(
    shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Change the messages of all handles that were not refused."""
    operation = request.operation
    assert isinstance(operation, ChangeMessageVisibilityBatch)
    assert operation.entries is not None
    acknowledging = Acknowledging(shard, request, stamp)
    successful: list[ChangeMessageVisibilityBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, part in zip(operation.entries, request.parts, strict=True):
        entry_id = entry.id or ""
        try:
            handle = entry.receipt_handle or ""
            acknowledging.change(_receipt(part), entry.visibility_timeout or 0, handle)
        except (Moved, Departing):
            raise
        except QueueError as error:
            failed.append(batch_failure(entry_id, error))
        else:
            successful.append(ChangeMessageVisibilityBatchResultEntry(entry_id))
    return ChangeMessageVisibilityBatchResult(
        successful or None, failed or None
    ), acknowledging.events()


def decide_return_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Make undelivered messages visible again, as if they had not been received.

    Not if a retry has got them since: then the lease that hides them is its own.
    """
    memory = shard.memory
    if memory is not None and request.request_id in memory.repeated:
        return None, ()
    return give_back(shard, request, stamp, map(_receipt, request.parts))


def give_back(
    shard: ShardState, request: Request, stamp: Stamp, receipts: Iterable[Receipt]
) -> Outcome:
    """Make the messages of these receipts visible again, as if they had not been received."""
    acknowledging = Acknowledging(shard, request, stamp)
    for receipt in receipts:
        acknowledging.give_back(receipt)
    queue, definition = shard.queue(request.queue.queue_id), request.queue
    rate = paced(queue, definition, stamp.now_ms, -len(acknowledging.ended))
    return None, (*acknowledging.events(), *rate)


def decide_undo_receive(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Do nothing: what is remembered of the receive would have been undone, see `retries.py`."""
    return None, ()


# -- the same answer to a retry --------------------------------------------------------------------


def _undo_receive(
    short: ShortReceive, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Give back the receive's messages, except those that were purged or received since."""
    is_purged = short.queue_id != request.queue.queue_id
    receipts = () if is_purged else (Receipt(*delivery) for delivery in short.deliveries)
    return give_back(shard, request, stamp, receipts)


def _short_batch(
    request: Request, answer: DeleteMessageBatchResult | ChangeMessageVisibilityBatchResult
) -> ShortAnswer:
    refused = {id_ for id_, _ in _refused(request)}
    failed = [each for each in answer.failed or () if each.id not in refused]
    return ShortFailures([(each.id, each.code, each.message) for each in failed])


def _refused(request: Request) -> Iterator[tuple[str, QueueError]]:
    """The entries of a batch that were refused before it was decided."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch | ChangeMessageVisibilityBatch)
    for entry, part in zip(operation.entries or (), request.parts, strict=True):
        if isinstance(part, QueueError):
            yield entry.id or "", part


def _all_failures(short: ShortFailures, request: Request) -> dict[str, BatchResultErrorEntry]:
    failures = {id_: batch_failure(id_, error) for id_, error in _refused(request)}
    return failures | {id_: failure_of(id_, code, message) for id_, code, message in short.failed}


def _batch_again(
    short: ShortFailures, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """The answer to a batch, with its entries in order."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch | ChangeMessageVisibilityBatch)
    failures = _all_failures(short, request)
    ids = [entry.id or "" for entry in operation.entries or ()]
    successful = [id_ for id_ in ids if id_ not in failures]
    failed = [failures[id_] for id_ in ids if id_ in failures] or None
    if isinstance(operation, DeleteMessageBatch):
        deleted = [DeleteMessageBatchResultEntry(id_) for id_ in successful]
        return DeleteMessageBatchResult(deleted or None, failed), ()
    changed = [ChangeMessageVisibilityBatchResultEntry(id_) for id_ in successful]
    return ChangeMessageVisibilityBatchResult(changed or None, failed), ()


OPERATIONS: Operations = {
    DeleteMessage: OperationKind(decide_delete_message, None, NOTHING, is_early=True),
    DeleteMessageBatch: OperationKind(
        decide_delete_message_batch,
        DeleteMessageBatchResult,
        Replay(_short_batch, (ShortFailures,), _batch_again),
        is_early=True,
    ),
    ChangeMessageVisibility: OperationKind(
        decide_change_message_visibility, None, NOTHING, is_early=True
    ),
    ChangeMessageVisibilityBatch: OperationKind(
        decide_change_message_visibility_batch,
        ChangeMessageVisibilityBatchResult,
        Replay(_short_batch, (ShortFailures,), _batch_again),
        is_early=True,
    ),
    ReturnMessages: OperationKind(decide_return_messages, None, NOTHING),
    UndoReceive: OperationKind(
        decide_undo_receive, None, Replay(NOTHING.shorten, (ShortReceive,), _undo_receive)
    ),
}
