"""Deciding SendMessage and SendMessageBatch for standard queues."""

from __future__ import annotations

from visibility.errors import QueueError
from visibility.events import MessagesSent, StoredMessage
from visibility.model import Content, QueueDefinition, Request
from visibility.operations import SendMessage, SendMessageBatch
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
    queue = request.queue
    message_id = stamp.message_id(0)
    message = StoredMessage(message_id, stamp.now_ms, content.size, content.data)
    delays = operation.delay_seconds or queue.settings.delay_ms
    instants = [_visible_at_ms(queue, operation.delay_seconds, stamp.now_ms)] if delays else []
    queue_id = queue.queue_id
    event = MessagesSent(queue_id, shard.queue(queue_id).next_sequence, [message], instants)
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
    queue = request.queue
    now_ms = stamp.now_ms
    messages: list[StoredMessage] = []
    visible_at_ms: list[int] = []
    successful: list[SendMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for position, (entry, part) in enumerate(zip(operation.entries, request.parts, strict=True)):
        entry_id = entry.id or ""
        if not isinstance(part, Content):
            assert isinstance(part, QueueError)
            failed.append(batch_failure(entry_id, part))
            continue
        message_id = stamp.message_id(position)
        messages.append(StoredMessage(message_id, now_ms, part.size, part.data))
        visible_at_ms.append(_visible_at_ms(queue, entry.delay_seconds, now_ms))
        successful.append(
            SendMessageBatchResultEntry(
                entry_id,
                message_id,
                part.md5_of_message_body,
                part.md5_of_message_attributes,
                part.md5_of_message_system_attributes,
            )
        )
    result = SendMessageBatchResult(successful or None, failed or None)
    if not messages:
        return result, ()
    first = shard.queue(queue.queue_id).next_sequence
    instants = visible_at_ms if any(visible_at_ms) else []
    return result, (MessagesSent(queue.queue_id, first, messages, instants),)


def _visible_at_ms(queue: QueueDefinition, delay_s: int | None, now_ms: int) -> int:
    """When the message's own delay, or the queue's, is over; 0 without a delay."""
    delay_ms = queue.settings.delay_ms if delay_s is None else delay_s * 1000
    return now_ms + delay_ms if delay_ms else 0
