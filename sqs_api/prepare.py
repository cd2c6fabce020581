"""TABLE: the stateless half of each message action: what a shard gets, and what a client gets back.

On the way in contents are packed and receipt handles are read; on the way out handles are made and messages unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from auth.caller import Caller
from visibility.content import Delivery, contents_of, message_of, selection_of
from visibility.errors import QueueError
from visibility.model import Content, QueueDefinition, Receipt
from visibility.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessage,
    DeleteMessageBatch,
    Operation,
    PurgeQueue,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)
from visibility.outcomes import Deliveries
from visibility.receipts import ReceiptKey
from visibility.results import ReceiveMessageResult
from visibility.sequence_numbers import sequence_number
from visibility.validate import check_visibility_timeout

Parts = tuple[Content | Receipt | QueueError, ...]
_TRACE_HEADER = b"x-amzn-trace-id"
_RECEIPT_KEYS_MAX = 50_000
_receipt_keys: dict[bytes, ReceiptKey] = {}


def received(
    operation: ReceiveMessage, queue: QueueDefinition, deliveries: Deliveries
) -> ReceiveMessageResult:
    """The messages as the client sees them."""
    if not deliveries.leases:
        return ReceiveMessageResult()
    key = _receipt_key(queue)
    selection = selection_of(operation)
    fifo = queue.settings.fifo
    messages = []
    for lease, message in zip(deliveries.leases, deliveries.messages, strict=True):
        delivery = Delivery(
            message.message_id,
            key.handle(lease.handle_sequence or lease.sequence, lease.receive_count),
            message.sent_at_ms,
            lease.receive_count,
            lease.first_received_at_ms,
            message.dead_letter_source_arn,
            message.data,
            sequence_number(lease.sequence) if fifo else None,
        )
        messages.append(message_of(delivery, selection))
    return ReceiveMessageResult(messages)


def receipts_of(deliveries: Deliveries) -> tuple[Receipt, ...]:
    """The deliveries by name, to give them back."""
    return tuple(
        Receipt(lease.handle_sequence or lease.sequence, lease.receive_count)
        for lease in deliveries.leases
    )


def _receipt_key(queue: QueueDefinition) -> ReceiptKey:
    key = _receipt_keys.get(queue.receipt_key)
    if key is None:
        if len(_receipt_keys) >= _RECEIPT_KEYS_MAX:
            _receipt_keys.clear()
        key = _receipt_keys[queue.receipt_key] = ReceiptKey(queue.receipt_key)
    return key


def _contents(
    operation: SendMessage | SendMessageBatch,
    queue: QueueDefinition,
    caller: Caller,
    headers: Mapping[bytes, bytes],
) -> Parts:
    trace = headers.get(_TRACE_HEADER)
    trace_text = None if trace is None else trace.decode("latin-1")
    return contents_of(operation, queue, caller.principal, trace_text)


def _receipt(
    operation: DeleteMessage | ChangeMessageVisibility,
    queue: QueueDefinition,
    caller: Caller,
    headers: Mapping[bytes, bytes],
) -> Parts:
    return (_receipt_key(queue).receipt(operation.receipt_handle or ""),)


def _receipts(
    operation: DeleteMessageBatch | ChangeMessageVisibilityBatch,
    queue: QueueDefinition,
    caller: Caller,
    headers: Mapping[bytes, bytes],
) -> Parts:
    key = _receipt_key(queue)
    parts: list[Receipt | QueueError] = []
    for entry in operation.entries or ():
        try:
            if type(entry) is ChangeMessageVisibilityBatchRequestEntry:
                check_visibility_timeout(entry.visibility_timeout or 0)
            parts.append(key.receipt(entry.receipt_handle or ""))
        except QueueError as refusal:
            parts.append(refusal)
    return tuple(parts)


def _nothing(
    operation: Operation, queue: QueueDefinition, caller: Caller, headers: Mapping[bytes, bytes]
) -> Parts:
    return ()


Prepare = Callable[[Any, QueueDefinition, Caller, Mapping[bytes, bytes]], Parts]

PREPARE: dict[type[Operation], Prepare] = {
    SendMessage: _contents,
    SendMessageBatch: _contents,
    ReceiveMessage: _nothing,
    DeleteMessage: _receipt,
    DeleteMessageBatch: _receipts,
    ChangeMessageVisibility: _receipt,
    ChangeMessageVisibilityBatch: _receipts,
    PurgeQueue: _nothing,
}
"""What the shard needs beside the operation. Each raises QueueError where the whole request is refused."""
