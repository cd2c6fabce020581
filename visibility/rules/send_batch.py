"""The decision on SendMessageBatch, and the same answer for its retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from visibility.contract.errors import OverLimit, QueueError
from visibility.contract.model import Content, Request
from visibility.contract.operations import SendMessageBatch, SendMessageBatchRequestEntry
from visibility.contract.outcomes import Deduplicated, batch_failure
from visibility.contract.results import (
    BatchResultErrorEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
)
from visibility.rules.closing_parts import check_open
from visibility.rules.collected_sends import Sending, Sent
from visibility.rules.decided import Outcome
from visibility.rules.length import full
from visibility.rules.levelling import check_throttled
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortSends
from visibility.state.stamp import Stamp

_NO_ROOM: Sent = ("", None)
"""Takes the place of a message that was refused for want of room."""


def decide_send_message_batch(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Append the entries that were not refused, in the order of the request."""
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    assert operation.entries is not None
    if shard.parts:
        check_open(shard, request.queue)
    queue = shard.queue(request.queue.queue_id)
    sender = request.caller.arn
    sending = Sending(shard, queue, request.queue, stamp, request.parts, sender=sender)
    result = batch_result(operation.entries, request.parts, sending.send)
    duplicates = sending.duplicates
    if request.queue.settings.own_tags:
        contents = sum(isinstance(part, Content) for part in request.parts)
        if duplicates < contents:
            check_throttled(shard, request, stamp)
    return Deduplicated(result, duplicates) if duplicates else result, sending.events()


def batch_result(
    entries: Sequence[SendMessageBatchRequestEntry],
    parts: Sequence[object],
    send: Callable[[Content, int | None], Sent],
) -> SendMessageBatchResult:
    """Send the entries that were not refused, in order; returns the answer to their batch."""
    successful: list[SendMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, part in zip(entries, parts, strict=True):
        entry_id = entry.id or ""
        if not isinstance(part, Content):
            assert isinstance(part, QueueError)
            failed.append(batch_failure(entry_id, part))
            continue
        try:
            message_id, number = send(part, entry.delay_seconds)
        except OverLimit as refusal:
            failed.append(batch_failure(entry_id, refusal))
            continue
        successful.append(
            SendMessageBatchResultEntry(
                entry_id,
                message_id,
                part.md5_of_message_body,
                part.md5_of_message_attributes,
                part.md5_of_message_system_attributes,
                number,
            )
        )
    return SendMessageBatchResult(successful or None, failed or None)


# -- the same answer to a retry --------------------------------------------------------------------


def _short_send_batch(
    request: Request, answer: SendMessageBatchResult | Deduplicated
) -> ShortAnswer:
    duplicates = 0
    if isinstance(answer, Deduplicated):
        duplicates, result = answer.duplicates, answer.result
        assert isinstance(result, SendMessageBatchResult)
        answer = result
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    sent = {each.id: (each.message_id, each.sequence_number) for each in answer.successful or ()}
    messages = [
        sent.get(entry.id or "", _NO_ROOM)
        for entry, part in zip(operation.entries or (), request.parts, strict=True)
        if isinstance(part, Content)
    ]
    return ShortSends(messages, duplicates)


def _send_batch_again(
    short: ShortSends, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    operation = request.operation
    assert isinstance(operation, SendMessageBatch)
    messages = iter(short.messages)

    def again(*_: object) -> Sent:
        message = next(messages)
        if not message[0]:
            raise full()
        return message

    result = batch_result(operation.entries or (), request.parts, again)
    return Deduplicated(result, short.duplicates) if short.duplicates else result, ()


OPERATIONS: Operations = {
    SendMessageBatch: OperationKind(
        decide_send_message_batch,
        SendMessageBatchResult,
        Replay(_short_send_batch, (ShortSends,), _send_batch_again),
        is_early=True,
    ),
}
