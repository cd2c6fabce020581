"""Sends an edited copy of a message, with or without replacing it. An extension for operators."""

from __future__ import annotations

from typing import NamedTuple

from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable
from visibility.contract.model import Content, QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.origin import after_edit
from visibility.contract.results import SendMessageResult
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.collected_sends import Sending
from visibility.rules.decided import Outcome
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.leases import no_lease
from visibility.rules.message_events import MessagesDeleted
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.send import SEND_REPLAY
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


class ResendMessage(Operation, frozen=True):
    """Send the request's Content, an edited copy, to its `destination`; answers SendMessageResult.

    With `replaces`, the message of that sequence, which must not be in flight, leaves its queue in
    the same step.
    """

    replaces: int = 0


def decide_resend_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Send the copy; the original stays unless it is named.

    Raises InvalidParameterValue if the original is in flight or gone, or if the copy is a
    duplicate.
    """
    operation, content, target = request.operation, request.parts[0], request.destination
    assert isinstance(operation, ResendMessage)
    assert isinstance(content, Content)
    assert target is not None
    source = shard.queue(request.queue.queue_id)
    if operation.replaces and content.deliver_at_ms > stamp.now_ms:
        raise InvalidParameterValue("A copy that replaces a message cannot be delayed.")
    if target.shard != request.queue.shard:
        return _replace_elsewhere(shard, request, content, target, stamp)
    sending = Sending(shard, shard.queue(target.queue_id), target, stamp, [content])
    original = None
    if operation.replaces:
        original = _original(shard, source, request.queue, operation.replaces)
    edited = None if original is None else original.edited(stamp)
    message_id, number = sending.send(content, None, edited=edited)
    gone: tuple[Event, ...] = ()
    if original is not None:
        if sending.duplicates:
            raise InvalidParameterValue(
                "The copy is a duplicate of a message that was sent already."
            )
        lease = original.lease
        waits = lease.sequence not in source.entries
        if waits and target.queue_id == source.queue_id:
            sending.withdraw(lease)
        elif waits and lease.group:
            book = order_of(request.queue.settings).book(shard, source)
            book.leave(lease.group, lease.sequence)
            book.settle(lease.group, (), [])
            gone = book.events()
        gone += (MessagesDeleted(source.queue_id, stamp.now_ms, [lease]),)
    result = SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
        number,
    )
    return result, (*sending.events(), *gone)


def _replace_elsewhere(
    shard: ShardState, request: Request, content: Content, target: QueueDefinition, stamp: Stamp
) -> Outcome:
    """Let the copy depart in place of the original, which comes back if the copy is refused.

    Like any message that moves, it is no duplicate; its sequence number is not known yet. A copy
    without an original is asked of the shard that it goes to. Raises InvalidParameterValue,
    ServiceUnavailable if the outbox is full.
    """
    operation = request.operation
    assert isinstance(operation, ResendMessage)
    if not operation.replaces:
        raise InvalidParameterValue("A copy that replaces nothing is sent to its own queue.")
    source = shard.queue(request.queue.queue_id)
    original = _original(shard, source, request.queue, operation.replaces)
    lease, edited = original.lease, original.edited(stamp)
    departures = Departures(shard, request.queue, stamp)
    if not departures.has_room:
        raise ServiceUnavailable
    book = order_of(request.queue.settings).book(shard, source)
    if lease.group and lease.sequence not in source.entries:
        book.depart(lease.group, lease.sequence)
        book.settle(lease.group, (), [])
    message_id = stamp.message_id()
    copy = StoredMessage(
        message_id,
        stamp.now_ms,
        content.size,
        content.data,
        content.sealed,
        group=content.group,
        level=content.level,
        death=edited.death,
        origin=edited.origin,
    )
    departures.add(lease, original.message, target, copy)
    result = SendMessageResult(
        content.md5_of_message_body,
        message_id,
        content.md5_of_message_attributes,
        content.md5_of_message_system_attributes,
    )
    return result, (*book.events(), *departures.events())


class _Original(NamedTuple):
    """A visible message; `lease` locates its rows, `history` has its receives."""

    message: StoredMessage
    lease: Lease
    history: Lease

    def edited(self, stamp: Stamp) -> StoredMessage:
        """The message, with the origin that the copy in its place has."""
        return after_edit(self.message, self.history, stamp.now_ms)


def _original(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, sequence: int
) -> _Original:
    """Raises InvalidParameterValue for a message that is not visible, MessagesMissing,
    DamagedRecord."""
    entry = queue.entries.get(sequence)
    found = shard.rows.unless_quarantined(queue, [sequence]) if entry is None else []
    if entry is not None and not entry.hidden:
        (message,) = shard.rows.messages(queue.queue_id, [sequence])
        if message is None:
            raise MessagesMissing(queue.queue_id, sequence)
    elif found:
        message = found[0][1]
    else:
        raise InvalidParameterValue(f"Message {sequence} is in flight or does not exist.")
    lease = no_lease(sequence, message) if entry is None else entry.lease
    history = order_of(definition.settings).lease_of(shard.rows, queue, sequence, message)
    return _Original(message, lease, history)


OPERATIONS: Operations = {
    ResendMessage: OperationKind(decide_resend_message, SendMessageResult, SEND_REPLAY)
}
