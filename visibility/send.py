"""Deciding SendMessage and SendMessageBatch for standard queues."""

from __future__ import annotations

from visibility.events import MessageSent, StoredMessage
from visibility.model import Content, QueueDefinition, Request
from visibility.operations import SendMessage, SendMessageBatch, SendMessageBatchRequestEntry
from visibility.outcomes import Outcome, batch_failure
from visibility.results import (
    BatchResultErrorEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from visibility.stamp import Stamp
from visibility.state import ShardState


def decide_send_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Append one message to its queue."""
    operation = request.operation
    content = request.parts[0]
    assert isinstance(operation, SendMessage)
    assert isinstance(content, Content)
    sequence = shard.queue(request.queue.queue_id).next_sequence
    message_id = stamp.message_id(0)
    event = _sent(request.queue, operation, content, stamp.now_ms, sequence, message_id)
    result = SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
    )
    return result, (event,)


def decide_send_message_batch(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Append the entries that were not refused, in the order of the request."""
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    assert operation.entries is not None
    sequence = shard.queue(request.queue.queue_id).next_sequence
    events: list[MessageSent] = []
    successful: list[SendMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for position, (entry, part) in enumerate(zip(operation.entries, request.parts, strict=True)):
        entry_id = entry.id or ""
        if not isinstance(part, Content):
            assert isinstance(part, Exception)
            failed.append(batch_failure(entry_id, part))
            continue
        message_id = stamp.message_id(position)
        events.append(_sent(request.queue, entry, part, stamp.now_ms, sequence, message_id))
        sequence += 1
        successful.append(
            SendMessageBatchResultEntry(
                entry_id,
                message_id,
                part.md5_of_message_body,
                part.md5_of_message_attributes,
                part.md5_of_message_system_attributes,
            )
        )
    return SendMessageBatchResult(successful or None, failed or None), tuple(events)


def _sent(
    queue: QueueDefinition,
    entry: SendMessage | SendMessageBatchRequestEntry,
    content: Content,
    now_ms: int,
    sequence: int,
    message_id: str,
) -> MessageSent:
    delay_s = entry.delay_seconds
    delay_ms = queue.settings.delay_ms if delay_s is None else delay_s * 1000
    return MessageSent(
        queue.queue_id,
        sequence,
        now_ms + delay_ms if delay_ms else 0,
        StoredMessage(message_id, now_ms, content.size, content.data),
    )
