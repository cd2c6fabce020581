"""The decision on SendMessage, and the same answer for its retry."""

from __future__ import annotations

from visibility.contract.errors import OverLimit
from visibility.contract.model import Content, Joining, Request
from visibility.contract.operations import SendMessage
from visibility.contract.outcomes import Deduplicated
from visibility.contract.results import SendMessageResult
from visibility.contract.stored_message import StoredMessage
from visibility.contract.time_to_live_tags import shorter_ms
from visibility.rules.closing_parts import check_open
from visibility.rules.collected_sends import Sending
from visibility.rules.decided import Outcome, RefusedWithEvents
from visibility.rules.events import Event
from visibility.rules.levelling import check_throttled
from visibility.rules.message_events import MessagesSent
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.room import just_joins
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortSends
from visibility.state.stamp import Stamp


def decide_send_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Append one message to its queue."""
    operation = request.operation
    content = request.parts[0]
    assert isinstance(operation, SendMessage)
    assert isinstance(content, Content)
    definition = request.queue
    if shard.parts:
        check_open(shard, definition)
    queue, settings = shard.queue(definition.queue_id), definition.settings
    delay_s, joining = operation.delay_seconds, settings.joining
    if (
        _is_plain(queue, content)
        and not (delay_s or settings.delay_ms)
        and (
            not settings.own_tags
            if joining is None
            else just_joins(queue, definition, joining, content.size)
        )
    ):
        message_id, number, now_ms = stamp.message_id(), None, stamp.now_ms
        if joining is None:
            message = StoredMessage(message_id, now_ms, content.size, content.data, content.sealed)
        else:
            if joining.is_throttled:
                check_throttled(shard, request, stamp)
            message = _joining_message(message_id, now_ms, content, joining)
        events: tuple[Event, ...] = (MessagesSent(queue.queue_id, queue.next_sequence, [message]),)
        duplicates = 0
    else:
        sender = request.caller.arn
        sending = Sending(shard, queue, definition, stamp, request.parts, sender=sender)
        try:
            message_id, number = sending.send(content, delay_s)
        except OverLimit as refusal:
            check_throttled(shard, request, stamp)  # that is worth another try
            if leaving := sending.leaving_early():
                raise RefusedWithEvents(refusal, leaving) from None
            raise
        if settings.own_tags and not sending.duplicates:
            check_throttled(shard, request, stamp)
        events = sending.events()
        duplicates = sending.duplicates
    result = SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
        number,
    )
    return Deduplicated(result, duplicates) if duplicates else result, events


def _is_plain(queue: QueueState, content: Content) -> bool:
    """True if no index needs an entry for the message, and it is not scheduled; one of a FIFO queue
    has a group."""
    return not (content.group or queue.ready_groups.total or content.deliver_at_ms)


def _joining_message(
    message_id: str, now_ms: int, content: Content, joining: Joining
) -> StoredMessage:
    ttl_ms = shorter_ms(joining.ttl_ms, content.ttl_ms)
    return StoredMessage(
        message_id,
        now_ms,
        content.size,
        content.data,
        content.sealed,
        expires_ms=now_ms + ttl_ms if ttl_ms else 0,
        level=content.level or joining.level,
    )


# -- the same answer to a retry --------------------------------------------------------------------


def _short_send(request: Request, answer: SendMessageResult) -> ShortAnswer:
    number = answer.sequence_number
    return answer.message_id if number is None else ShortSends([(answer.message_id, number)])


def _send_again(
    short: str | ShortSends, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    message_id, number = (short, None) if isinstance(short, str) else short.messages[0]
    content = request.parts[0]
    assert isinstance(content, Content)
    return SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
        number,
    ), ()


SEND_REPLAY = Replay(_short_send, (str, ShortSends), _send_again)
OPERATIONS: Operations = {
    SendMessage: OperationKind(decide_send_message, SendMessageResult, SEND_REPLAY, is_early=True),
}
