"""Payloads, the stateless half of each message action, on the way in and on the way out.

On the way in, contents are packed and sealed and receipt handles are read; on the way out, handles
are made and messages are opened and unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from auth.caller import Caller
from auth.envelope import SealBroken
from auth.native import native
from sqs_api.gateway.sealer import Admit, Sealer
from visibility.content.content import (
    NOTHING,
    Delivery,
    Selection,
    contents_of,
    contents_of_sends,
    message_of,
    plain_message_of,
    selection_of,
)
from visibility.content.receipts import ReceiptKey, sequence_number
from visibility.contract import actions, operations
from visibility.contract.errors import QueueError, without_frames
from visibility.contract.model import Content, QueueDefinition, Receipt
from visibility.contract.naming import AWS, partition_of
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import Message, ReceiveMessageResult
from visibility.contract.schedule import DELIVER_AT_TAG, soon_enough
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.validate import check_visibility_timeout

Payload = tuple[Content | Receipt | QueueError, ...]
OnOpened = Callable[[QueueDefinition, Lease, StoredMessage, bytes], None]
"""Takes a message with its opened content."""
_TRACE_HEADER = b"x-amzn-trace-id"
_RECEIPT_KEYS_MAX = 50_000


class Payloads:
    """Makes payloads with the keys of messages and receipt handles."""

    def __init__(
        self, sealer: Sealer, wall_s: Callable[[], float], on_opened: Sequence[OnOpened]
    ) -> None:
        """`wall_s` reads the time in epoch seconds; `on_opened` see each message that is handed
        out."""
        self._sealer = sealer
        self._wall_s = wall_s
        self._receipt_keys: dict[bytes, ReceiptKey] = {}
        self._on_opened = on_opened

    def received(
        self,
        operation: operations.ReceiveMessage,
        queue: QueueDefinition,
        deliveries: Deliveries,
        admit: Admit | None = None,
        *,
        as_json: bool = False,
    ) -> ReceiveMessageResult | bytes:
        """The messages as the client sees them, without those that cannot be opened; for `admit`
        see `Sealer.open`. With `as_json` it may be written already, as bytes of JSON.

        Raises KmsDisabled, KmsAccessDenied; the client has then seen no message.
        """
        if not deliveries.leases:
            return ReceiveMessageResult()
        key = self._receipt_key(queue)
        selection = selection_of(operation)
        if as_json and key.native is not None:
            written = self._written(queue, deliveries, key, selection, admit)
            if written is not None:
                return written
        fifo = queue.settings.fifo
        messages: list[Message] = []
        for lease, message in zip(deliveries.leases, deliveries.messages, strict=True):
            data = self._sealer.open(message, admit)
            if data is None:
                continue
            for see in self._on_opened:
                see(queue, lease, message, data)
            handle = key.handle(lease.original_sequence or lease.sequence, lease.receive_count)
            if selection is NOTHING:
                messages.append(plain_message_of(message.message_id, handle, data))
                continue
            delivery = Delivery(
                message.message_id,
                handle,
                message.sent_at_ms,
                lease.receive_count,
                lease.first_received_at_ms,
                message.dead_letter_source_arn,
                data,
                sequence_number(lease.sequence) if fifo else None,
                message.death,
            )
            messages.append(message_of(delivery, selection))
        return ReceiveMessageResult(messages or None)

    def _written(
        self,
        queue: QueueDefinition,
        deliveries: Deliveries,
        key: ReceiptKey,
        selection: Selection,
        admit: Admit | None,
    ) -> bytes | None:
        """The answer by the native module; None where Python has to look at the messages."""
        assert native is not None
        if self._on_opened:
            return None
        if selection is not NOTHING and (
            selection.native is None or partition_of(queue.region) != AWS
        ):
            return None
        first = deliveries.messages[0]
        try:
            opener = self._sealer.opening_key(first, admit)
        except SealBroken:
            return None
        written: bytes | None = native.received_json(
            opener,
            first.sealed,
            deliveries.leases,
            deliveries.messages,
            key.native,
            selection.native,
            queue.settings.fifo,
        )
        return written

    def _receipt_key(self, queue: QueueDefinition) -> ReceiptKey:
        key = self._receipt_keys.get(queue.receipt_key)
        if key is None:
            if len(self._receipt_keys) >= _RECEIPT_KEYS_MAX:
                self._receipt_keys.clear()
            key = self._receipt_keys[queue.receipt_key] = ReceiptKey(queue.receipt_key)
        return key

    # -- one method a kind of action; each raises QueueError where the whole request is refused ----

    def _contents(
        self,
        operation: operations.SendMessage | operations.SendMessageBatch,
        queue: QueueDefinition,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> Payload:
        trace = _trace_of(headers)
        contents = contents_of(operation, queue, caller.principal, trace, self._sealer)
        if DELIVER_AT_TAG in queue.settings.own_tags:
            is_batch = type(operation) is operations.SendMessageBatch
            return soon_enough(contents, int(self._wall_s() * 1000), is_batch=is_batch)
        return contents

    def of_sends(
        self,
        sends: Sequence[operations.SendMessage],
        queue: QueueDefinition,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> Payload:
        """The contents of several sends to one queue, or what refuses them, each in its place."""
        contents = contents_of_sends(
            sends, queue, caller.principal, _trace_of(headers), self._sealer
        )
        if DELIVER_AT_TAG in queue.settings.own_tags:
            return soon_enough(contents, int(self._wall_s() * 1000), is_batch=True)
        return contents

    def _receive(
        self,
        operation: operations.ReceiveMessage,
        queue: QueueDefinition,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> Payload:
        self._sealer.check(queue)
        return ()

    def _receipt(
        self,
        operation: operations.DeleteMessage | operations.ChangeMessageVisibility,
        queue: QueueDefinition,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> Payload:
        return (self._receipt_key(queue).receipt(operation.receipt_handle or ""),)

    def _receipts(
        self,
        operation: operations.DeleteMessageBatch | operations.ChangeMessageVisibilityBatch,
        queue: QueueDefinition,
        caller: Caller,
        headers: Mapping[bytes, bytes],
    ) -> Payload:
        key = self._receipt_key(queue)
        if isinstance(operation, operations.DeleteMessageBatch):
            handles = [entry.receipt_handle or "" for entry in operation.entries or ()]
            receipts = key.receipts(handles)
            if receipts is not None:
                return receipts
        parts: list[Receipt | QueueError] = []
        for entry in operation.entries or ():
            try:
                if type(entry) is operations.ChangeMessageVisibilityBatchRequestEntry:
                    check_visibility_timeout(entry.visibility_timeout)
                parts.append(key.receipt(entry.receipt_handle or ""))
            except QueueError as refusal:
                parts.append(without_frames(refusal))
        return tuple(parts)


def _trace_of(headers: Mapping[bytes, bytes]) -> str | None:
    trace = headers.get(_TRACE_HEADER)
    return None if trace is None else trace.decode("latin-1")


def receipts_of(deliveries: Deliveries) -> tuple[Receipt, ...]:
    """Names of the deliveries, to give them back."""
    return tuple(
        Receipt(lease.original_sequence or lease.sequence, lease.receive_count)
        for lease in deliveries.leases
    )


MakePayload = Callable[[Payloads, Any, QueueDefinition, Caller, Mapping[bytes, bytes]], Payload]

_MAKERS: dict[actions.Payload, MakePayload] = {
    actions.Payload.CONTENTS: Payloads._contents,
    actions.Payload.NONE: Payloads._receive,
    actions.Payload.RECEIPT: Payloads._receipt,
    actions.Payload.RECEIPTS: Payloads._receipts,
}
PAYLOADS: dict[type[operations.Operation], MakePayload] = {
    action.request: _MAKERS[action.payload]
    for action in actions.ACTIONS.values()
    if action.payload is not None
}
"""Request type to the function that makes its payload: the shard's input besides the operation."""
