"""Deciding what ends or changes a delivery: delete, change of visibility, their batches, and giving messages back.

Standard queues: a handle deletes the message unless it was received again since (then: success, nothing deleted); any
handle of the message may change its visibility. A message that is gone deletes successfully.
"""

from __future__ import annotations

import msgspec

from visibility import limits
from visibility.errors import InvalidParameterValue, QueueError
from visibility.events import Event, Lease, MessagesDeleted, VisibilityChanged
from visibility.model import Receipt, Request
from visibility.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessageBatch,
)
from visibility.outcomes import Outcome, batch_failure
from visibility.results import (
    BatchResultErrorEntry,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
)
from visibility.stamp import Stamp
from visibility.state import QueueState, ShardState


def decide_delete_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Delete the message of the handle."""
    receipt = request.parts[0]
    assert isinstance(receipt, Receipt)
    queue = shard.queue(request.queue.queue_id)
    if not _deletes(queue, receipt):
        return None, ()
    return None, (MessagesDeleted(queue.queue_id, [receipt.sequence]),)


def decide_delete_message_batch(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Delete the messages of the handles that were not refused."""
    operation = request.operation
    assert isinstance(operation, DeleteMessageBatch)
    assert operation.entries is not None
    queue = shard.queue(request.queue.queue_id)
    gone: dict[int, None] = {}
    successful: list[DeleteMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, part in zip(operation.entries, request.parts, strict=True):
        if not isinstance(part, Receipt):
            assert isinstance(part, QueueError)
            failed.append(batch_failure(entry.id or "", part))
            continue
        if _deletes(queue, part):
            gone[part.sequence] = None
        successful.append(DeleteMessageBatchResultEntry(entry.id or ""))
    events: tuple[Event, ...] = (MessagesDeleted(queue.queue_id, list(gone)),) if gone else ()
    return DeleteMessageBatchResult(successful or None, failed or None), events


def _deletes(queue: QueueState, receipt: Receipt) -> bool:
    entry = queue.entries.get(receipt.sequence)
    return entry is not None and entry.lease.receive_count == receipt.delivery


def decide_change_message_visibility(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Hide the message of the handle for the given time from now; 0 shows it at once."""
    operation = request.operation
    receipt = request.parts[0]
    assert isinstance(operation, ChangeMessageVisibility)
    assert isinstance(receipt, Receipt)
    queue = shard.queue(request.queue.queue_id)
    timeout_s = operation.visibility_timeout or 0
    lease = _changed_lease(queue, receipt, timeout_s, operation.receipt_handle or "", stamp.now_ms)
    return None, (VisibilityChanged(queue.queue_id, stamp.now_ms, [lease]),)


def decide_change_message_visibility_batch(
    shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Change the messages of the handles that were not refused."""
    operation = request.operation
    assert isinstance(operation, ChangeMessageVisibilityBatch)
    assert operation.entries is not None
    queue = shard.queue(request.queue.queue_id)
    leases: list[Lease] = []
    successful: list[ChangeMessageVisibilityBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, part in zip(operation.entries, request.parts, strict=True):
        entry_id = entry.id or ""
        try:
            if not isinstance(part, Receipt):
                assert isinstance(part, QueueError)
                raise part
            timeout_s = entry.visibility_timeout or 0
            handle = entry.receipt_handle or ""
            leases.append(_changed_lease(queue, part, timeout_s, handle, stamp.now_ms))
        except QueueError as error:
            failed.append(batch_failure(entry_id, error))
        else:
            successful.append(ChangeMessageVisibilityBatchResultEntry(entry_id))
    changed = VisibilityChanged(queue.queue_id, stamp.now_ms, leases)
    events: tuple[Event, ...] = (changed,) if leases else ()
    return ChangeMessageVisibilityBatchResult(successful or None, failed or None), events


def _changed_lease(
    queue: QueueState, receipt: Receipt, timeout_s: int, handle: str, now_ms: int
) -> Lease:
    entry = queue.entries.get(receipt.sequence)
    if entry is None or entry.lease.receive_count < receipt.delivery:
        raise InvalidParameterValue(
            f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist "
            "or is not available for visibility timeout change."
        )
    held = entry.lease
    visible_at_ms = now_ms + timeout_s * 1000
    was_received = (
        held.received_at_ms > 0
    )  # else every receive was given back, and nothing has begun to count
    if (
        was_received
        and timeout_s
        and visible_at_ms >= held.received_at_ms + limits.VISIBILITY_TIMEOUT.high * 1000
    ):
        raise InvalidParameterValue(
            f"Value {timeout_s} for parameter VisibilityTimeout is invalid. Reason: Total "
            f"VisibilityTimeout for the message is beyond the limit [{limits.VISIBILITY_TIMEOUT.high} seconds]"
        )
    return msgspec.structs.replace(held, visible_at_ms=visible_at_ms)


def decide_return_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Show messages again whose answer never left, as if they had not been received."""
    queue = shard.queue(request.queue.queue_id)
    leases: list[Lease] = []
    for part in request.parts:
        assert isinstance(part, Receipt)
        entry = queue.entries.get(part.sequence)
        if entry is None or entry.lease.receive_count != part.delivery:
            continue
        held = entry.lease
        count = held.receive_count - 1
        first_ms = held.first_received_at_ms if count else 0
        received_ms = held.received_at_ms if count > held.base_count else 0
        lease = Lease(held.sequence, stamp.now_ms, count, held.base_count, first_ms, received_ms)
        leases.append(lease)
    changed = VisibilityChanged(queue.queue_id, stamp.now_ms, leases)
    return None, (changed,) if leases else ()
