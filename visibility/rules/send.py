"""Decisions on SendMessage and SendMessageBatch: append, delay, index of groups, deduplication."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from visibility.content.receipts import sequence_number
from visibility.contract.errors import OverLimit, QueueError
from visibility.contract.model import Content, Joining, QueueDefinition, Request
from visibility.contract.operations import (
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.outcomes import Deduplicated, batch_failure
from visibility.contract.priority import joining_level
from visibility.contract.results import (
    BatchResultErrorEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from visibility.contract.schedule import SCHEDULED_MAX
from visibility.contract.sender_order import window_ms
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.time_to_live import expiry, shorter_ms
from visibility.rows.row_values import Remembered
from visibility.rules.decided import Outcome, RefusedWithEvents
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.length import full, overflow_of
from visibility.rules.levelling import check_throttled
from visibility.rules.message_events import MessagesDelayed, MessagesSent
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.orders import order_of
from visibility.rules.queue_parts import check_open
from visibility.rules.remembered_ids import DeduplicationRecorded
from visibility.rules.room import Room, just_joins, takes
from visibility.rules.schedules import account_has_room
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortSends
from visibility.state.stamp import Stamp

_Sent = tuple[str, str | None]
"""Message id and sequence number of one message, as its client is told."""
_NO_ROOM: _Sent = ("", None)
"""Takes the place of a message that was refused for want of room."""


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
    send: Callable[[Content, int | None], _Sent],
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


class Sending:
    """The messages of one request, collected."""

    __slots__ = (
        "_account",
        "_ahead",
        "_book",
        "_delayed",
        "_ends_ms",
        "_fresh",
        "_known",
        "_order",
        "_overflow",
        "_plain",
        "_queue",
        "_room",
        "_sender",
        "_settings",
        "_shard",
        "_stamp",
        "_waiting",
        "_window_ms",
        "duplicates",
    )

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        stamp: Stamp,
        parts: Sequence[object],
        *,
        makes_room: bool = True,
        sender: str = "",
    ) -> None:
        """`parts` includes the contents to send; what is above a limit of the queue may push out
        others if it `makes_room`. `sender` is an ARN, empty if it is unknown. Raises
        DamagedRecord."""
        self._sender = sender
        self._shard = shard
        self._account = definition.account
        self._queue = queue
        self._settings = definition.settings
        self._stamp = stamp
        self._order = order_of(definition.settings)
        overflow = overflow_of(shard, queue, definition, stamp) if makes_room else None
        self._overflow = overflow
        self._room = None if makes_room else Room.of(queue, definition)
        self._book = self._order.book(shard, queue) if overflow is None else overflow.book
        settings = definition.settings
        self._plain = not (queue.ready_groups.total or settings.delay_ms or settings.own_tags)
        """True while a message without a group or delay of its own just joins the line."""
        self._window_ms = window_ms(settings.own_tags)
        self._ahead = 0
        """Messages of senders whose clock is ahead."""
        self._waiting: list[StoredMessage] = []
        self._delayed: list[StoredMessage] = []
        self._ends_ms: list[int] = []
        self.duplicates = 0
        """Number of messages not appended."""
        self._fresh: dict[bytes, Remembered] = {}
        """Ids that this request is the first to use."""
        self._known: dict[bytes, Remembered] = {}
        """Ids of this request that it or others used before."""
        if queue.remembered_ms:
            digests = [part.deduplication for part in parts if isinstance(part, Content)]
            self._known = shard.rows.remembered(queue.queue_id, digests, stamp.now_ms)

    def send(
        self,
        content: Content,
        delay_s: int | None,
        accepted_as: str | None = None,
        edited: StoredMessage | None = None,
    ) -> _Sent:
        """Append a message, or return the original of a duplicate. One that a transaction accepted
        before, under this MessageId, meets no limit. One in place of an `edited` message has that
        one's origin. Raises DamagedRecord, OverLimit."""
        if self._plain and not (content.group or delay_s or content.deliver_at_ms or edited):
            stamp, message_id = self._stamp, accepted_as or self._stamp.message_id()
            self._waiting.append(
                StoredMessage(message_id, stamp.now_ms, content.size, content.data, content.sealed)
            )
            return message_id, None
        self._plain = False
        deduplication = content.deduplication
        known = self._known.get(deduplication) if deduplication else None
        if known is not None:
            self.duplicates += 1
            return known.message_id, sequence_number(known.sequence)
        if accepted_as is None:
            if self._overflow is not None:
                self._overflow.admit(content.size)
            elif self._room is not None and not takes(self._room, content.size):
                raise full()
        now_ms = self._stamp.now_ms
        message_id = accepted_as or self._stamp.message_id()
        group = self._book.group_of(content.group)
        due_ms, clock_ms = self._due_ms(content, delay_s, is_accepted=accepted_as is not None)
        sender_ms = 0
        if self._window_ms:
            sender_ms = min(content.sent_at_ms or now_ms, now_ms)
            due_ms = sender_ms + self._window_ms
            self._ahead += content.sent_at_ms > now_ms
        message = StoredMessage(
            message_id,
            now_ms,
            content.size,
            content.data,
            content.sealed,
            group=group,
            clock_ms=clock_ms,
            expires_ms=self._expires_ms(content, due_ms),
            level=joining_level(self._settings.own_tags, content.level),
            sender_ms=sender_ms,
            death=None if edited is None else edited.death,
            origin=None if edited is None else edited.origin,
        )
        if due_ms is None:
            sequence = self._queue.next_sequence + len(self._waiting)
            self._waiting.append(message)
            if group:
                self._book.arrive(group, sequence)
        else:
            sequence = self._queue.next_sequence + len(self._delayed)
            self._delayed.append(message)
            self._ends_ms.append(due_ms)
            if group:
                self._book.delay(group)
        if not deduplication:
            return message_id, None
        remembered = Remembered(now_ms, message_id, sequence)
        self._fresh[deduplication] = self._known[deduplication] = remembered
        return message_id, sequence_number(sequence)

    def _due_ms(
        self, content: Content, delay_s: int | None, *, is_accepted: bool = False
    ) -> tuple[int | None, int]:
        """The end of a message's delay, None for none, and the clock of a scheduled message, from
        which its retention counts. Raises OverLimit."""
        now_ms, at_ms = self._stamp.now_ms, content.deliver_at_ms
        if not at_ms:
            return self._order.due_ms(self._queue, self._settings, delay_s, now_ms), 0
        if at_ms <= now_ms:
            return None, 0
        if not is_accepted:
            self._check_schedules()
        return at_ms, at_ms

    def _check_schedules(self) -> None:
        """Refuse one more scheduled message if there are too many. Raises OverLimit."""
        if self._queue.delayed + len(self._delayed) >= SCHEDULED_MAX:
            raise OverLimit(
                f"The queue has {SCHEDULED_MAX} delayed messages, so none is scheduled."
            )
        if not account_has_room(self._shard, self._account, self._stamp.now_ms):
            raise OverLimit("The account has its share of delayed messages, so none is scheduled.")

    def _expires_ms(self, content: Content, due_ms: int | None) -> int:
        """The end of a message's time to live, which begins with its delivery; 0 for none."""
        own_tags, from_ms = self._settings.own_tags, self._stamp.now_ms
        if not own_tags:
            return 0
        if due_ms is not None:
            from_ms = due_ms or from_ms + self._settings.delay_ms
        return expiry(own_tags, from_ms, content.ttl_ms)

    def leaving_early(self) -> tuple[Event, ...]:
        """The changes of a request that is refused."""
        overflow = self._overflow
        return () if overflow is None or not overflow.leaves_early else overflow.events()

    def free(self, deleted: Lease) -> None:
        """Count the room of a message that is deleted in the same step."""
        if self._room is not None:
            self._room.give_back(deleted.size)

    def book_behind(self) -> GroupBook:
        """The book of groups, for other changes to the queue in the same step. All was sent."""
        first_free = self._queue.next_sequence + len(self._waiting) + len(self._delayed)
        self._book.next_number = max(self._book.next_number, first_free)
        return self._book

    def withdraw(self, lease: Lease) -> None:
        """Remove a waiting message of the same queue in the same step."""
        if lease.group:
            self._book.leave(lease.group, lease.sequence)
            self._book.settle(lease.group, (), [])

    def events(self) -> tuple[Event, ...]:
        """The changes of the request. In a standard queue, its delayed messages come after the
        others."""
        queue_id = self._queue.queue_id
        first = self._queue.next_sequence
        changed = self._book if self._overflow is None else self._overflow
        events: list[Event] = [*changed.events()]
        if self._waiting:
            events.append(MessagesSent(queue_id, first, self._waiting))
        if self._delayed:
            behind = first + len(self._waiting)
            delayed = MessagesDelayed(
                queue_id, behind, self._ends_ms, self._delayed, self._ahead, self._sender
            )
            events.append(delayed)
        if self._fresh:
            events.append(DeduplicationRecorded(queue_id, list(self._fresh.items())))
        return tuple(events)


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

    def again(*_: object) -> _Sent:
        message = next(messages)
        if not message[0]:
            raise full()
        return message

    result = batch_result(operation.entries or (), request.parts, again)
    return Deduplicated(result, short.duplicates) if short.duplicates else result, ()


SEND_REPLAY = Replay(_short_send, (str, ShortSends), _send_again)
OPERATIONS: Operations = {
    SendMessage: OperationKind(decide_send_message, SendMessageResult, SEND_REPLAY, is_early=True),
    SendMessageBatch: OperationKind(
        decide_send_message_batch,
        SendMessageBatchResult,
        Replay(_short_send_batch, (ShortSends,), _send_batch_again),
        is_early=True,
    ),
}
