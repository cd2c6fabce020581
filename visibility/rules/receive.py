"""The decision on ReceiveMessage: order, in-flight limit, dead-letter rule, waiting.

Standard queues, oldest first: messages that became visible again are merged with untouched ones by
sequence, so they are served before later ones, and their number stays below the in-flight limit
(one received three times goes to the back, see `pulse.py`). `receive_fair.py` has the order while a
group is noisy, `receive_fifo.py` that of FIFO queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from visibility.content.id_digests import attempt_digest
from visibility.contract.errors import OverLimit
from visibility.contract.limits import IN_FLIGHT_MAX, VISIBILITY_TIMEOUT
from visibility.contract.model import QueueSettings, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Deliveries
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.decided import NoAnswer, Outcome
from visibility.rules.events import Event
from visibility.rules.leases import first_lease, next_lease, no_lease
from visibility.rules.message_events import MessagesReceived, VisibilityChanged
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.receive_fair import Candidates, quiet_first
from visibility.rules.receive_fifo import attempt_remembered, decide_receive_fifo
from visibility.rules.retention import PASSED_MAX, TooOld
from visibility.state import window
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortReceive
from visibility.state.stamp import Stamp

_NONE = Deliveries([], [])
_VISIBILITY_MAX_MS = VISIBILITY_TIMEOUT.high * 1000


def decide_receive_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Take the oldest visible messages; park or answer empty if there are none."""
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    queue = shard.queue(request.queue.queue_id)
    settings = request.queue.settings
    now_ms = stamp.now_ms
    limit = min(operation.max_number_of_messages or 1, IN_FLIGHT_MAX - queue.in_flight)
    hidden_s = operation.visibility_timeout
    hide_ms = settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
    if settings.fifo:
        too_old = TooOld(shard, queue, settings, stamp)
        letters = DeadLetters(shard, request, stamp)
        deliveries, events = decide_receive_fifo(
            shard, queue, request, now_ms, max(0, limit), now_ms + hide_ms, letters, too_old
        )
        if deliveries.leases:
            return deliveries, events
        return _nothing(operation, settings, letters, too_old), events
    if limit <= 0:
        if wait_ms(operation, settings):
            return NoAnswer.PARK, ()  # AWS refuses short polls only
        raise OverLimit(
            "Too many messages have been received and not deleted from this queue: "
            f"at most {IN_FLIGHT_MAX} messages may be in flight."
        )
    if now_ms >= queue.fresh_until_ms:
        too_old_ms = now_ms - settings.retention_ms
        if not window.fill_fresh(shard, queue, limit, too_old_ms, PASSED_MAX):
            return NoAnswer.DEFER, ()
    elif len(queue.window) < limit and queue.backlog > 0:
        window.fill(shard, queue, limit)
    taking = Taking(shard, queue, now_ms, now_ms + hide_ms)
    if queue.visible_again or queue.aliases or queue.ready_groups.total:
        return _receive_in_order(shard, queue, request, limit, taking, stamp)
    taking.untouched(islice(queue.window, limit))
    if not taking.leases:
        return (NoAnswer.PARK if wait_ms(operation, settings) else _NONE), ()
    received = MessagesReceived(queue.queue_id, now_ms, taking.leases)
    return Deliveries(taking.leases, taking.messages), (received,)


def _receive_in_order(
    shard: ShardState,
    queue: QueueState,
    request: Request,
    limit: int,
    taking: Taking,
    stamp: Stamp,
) -> Outcome:
    """Take from a queue whose order is not simply that of its line."""
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    letters = DeadLetters(shard, request, stamp)
    too_old = TooOld(shard, queue, request.queue.settings, stamp)
    is_unfair = _is_unfair(queue, taking.now_ms)
    candidates = quiet_first(shard, queue) if is_unfair else _merged(shard, queue)
    _take(taking, candidates, limit, letters, too_old)
    for sequence, message in taking.new:
        letters.source_book.leave(message.group, sequence)
    events = letters.events()
    if not taking.leases:
        return _nothing(operation, request.queue.settings, letters, too_old), events
    received = MessagesReceived(queue.queue_id, taking.now_ms, taking.leases)
    return Deliveries(taking.leases, taking.messages), (*events, received)


def _nothing(
    operation: ReceiveMessage, settings: QueueSettings, letters: DeadLetters, too_old: TooOld
) -> Deliveries | NoAnswer:
    if (letters.is_full and letters.moved) or too_old.is_over:
        return NoAnswer.DEFER
    if not wait_ms(operation, settings):
        return _NONE
    # A queue may be its own dead-letter queue: messages that just moved can be received.
    return NoAnswer.DEFER if letters.come_back else NoAnswer.PARK


def wait_ms(operation: ReceiveMessage, settings: QueueSettings) -> int:
    """Time for which this receive may wait: its own, or by default the queue's."""
    asked_s = operation.wait_time_seconds
    return settings.wait_ms if asked_s is None else asked_s * 1000


def _is_unfair(queue: QueueState, now_ms: int) -> bool:
    """True if a group is noisy while others have messages, too."""
    noisy = queue.fairness.noisy_now(now_ms)
    if not noisy:
        return False
    listed = sum(bool((row := queue.groups.get(group)) and row.order) for group in noisy)
    return queue.ready_groups.total > listed or bool(queue.visible_again)


def _merged(shard: ShardState, queue: QueueState) -> Candidates:
    """Returned and untouched messages by sequence. Reads the returned ones one by one."""
    position = 0
    for entry in queue.visible_again_in_order():
        sequence = entry.lease.sequence
        while True:
            if position == len(queue.window) and queue.backlog and queue.head <= sequence:
                window.fill(shard, queue, position + 1)
            if position == len(queue.window) or queue.window[position][0] > sequence:
                break
            yield queue.window[position][0], queue.window[position][1], None
            position += 1
        yield sequence, None, entry.lease
    while position < len(queue.window) or queue.backlog > 0:
        if position == len(queue.window):
            window.fill(shard, queue, position + 1)
        yield queue.window[position][0], queue.window[position][1], None
        position += 1


def _take(
    taking: Taking, candidates: Candidates, limit: int, letters: DeadLetters, too_old: TooOld
) -> None:
    """Take candidates in order; those received too often become dead letters."""
    for sequence, message, lease in candidates:
        if len(taking.leases) == limit or letters.is_full or too_old.is_over:
            return
        if lease is None:
            assert message is not None
            if too_old.passes(message.retained_from_ms):
                continue
            if not (
                letters.wants(message.received_here)
                and letters.move(no_lease(sequence, message), message, waits=True)
            ):
                taking.untouched([(sequence, message)])
        elif not too_old.passes(lease.retained_from_ms) and not (
            letters.wants(lease.receive_count - lease.base_count)
            and letters.move(lease, taking.read(sequence), waits=False)
        ):
            taking.again(lease)


class Taking:
    """The leases of one receive, collected."""

    __slots__ = ("_queue", "_rows", "leases", "messages", "new", "now_ms", "visible_at_ms")

    def __init__(
        self, shard: ShardState, queue: QueueState, now_ms: int, visible_at_ms: int
    ) -> None:
        self._rows = shard.rows
        self._queue = queue
        self.now_ms = now_ms
        self.visible_at_ms = visible_at_ms
        self.leases: list[Lease] = []
        self.messages: list[StoredMessage] = []
        self.new: list[tuple[int, StoredMessage]] = []
        """Messages in the index of groups that were not received here before."""

    def read(self, sequence: int) -> StoredMessage:
        """A message of this queue. Raises DamagedRecord, MessagesMissing."""
        (message,) = self._rows.messages(self._queue.queue_id, [sequence])
        if message is None:
            raise MessagesMissing(self._queue.queue_id, sequence)
        return message

    def untouched(self, messages: Iterable[tuple[int, StoredMessage]]) -> None:
        """Hand out waiting messages."""
        for sequence, message in messages:
            self.leases.append(first_lease(sequence, message, self.visible_at_ms, self.now_ms))
            self.messages.append(message)
            if message.group:
                self.new.append((sequence, message))

    def again(self, lease: Lease) -> None:
        """Hand out a message that is visible again; `lease` is the one that ended."""
        message = self.read(lease.sequence)
        self.leases.append(next_lease(lease, self.visible_at_ms, self.now_ms))
        self.messages.append(message)


# -- the same answer to a retry --------------------------------------------------------------------


def _short_receive(request: Request, answer: Deliveries) -> ShortAnswer:
    deliveries = [(lease.sequence, lease.receive_count) for lease in answer.leases]
    return ShortReceive(request.queue.queue_id, deliveries)


def _receive_again(
    short: ShortReceive, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Give the messages whose lease still stands, hidden for their full time from now on.

    The others count as received: their client's connection was too slow. After a purge that is
    all of them.
    """
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    now_ms, queue = stamp.now_ms, shard.queue(request.queue.queue_id)
    hidden_s = operation.visibility_timeout
    hide_ms = request.queue.settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
    too_old = TooOld(shard, queue, request.queue.settings, stamp)
    leases = [
        msgspec.structs.replace(
            lease,
            visible_at_ms=max(
                lease.visible_at_ms,
                min(now_ms + hide_ms, lease.received_at_ms + _VISIBILITY_MAX_MS),
            ),
        )
        for lease in _standing(queue, short, now_ms)
        if not too_old.passes(lease.retained_from_ms)
    ]
    if not leases:
        return Deliveries([], []), ()
    found = shard.rows.messages(queue.queue_id, [lease.sequence for lease in leases])
    messages = [message for message in found if message is not None]
    if len(messages) < len(leases):
        raise MessagesMissing(queue.queue_id, leases[found.index(None)].sequence)
    events: list[Event] = [VisibilityChanged(queue.queue_id, now_ms, leases)]
    attempt = operation.receive_request_attempt_id
    if attempt and queue.fifo:
        events.append(attempt_remembered(queue, attempt_digest(attempt), leases, now_ms))
    return Deliveries(leases, messages), tuple(events)


def _standing(queue: QueueState, short: ShortReceive, now_ms: int) -> list[Lease]:
    """The leases of a receive that are not over."""
    if short.queue_id != queue.queue_id:
        return []
    found = [
        (entry.lease, receive_count)
        for sequence, receive_count in short.deliveries
        if (entry := queue.entries.get(sequence)) is not None and sequence not in queue.quarantined
    ]
    return [
        lease
        for lease, receive_count in found
        if lease.receive_count == receive_count
        and lease.visible_at_ms > now_ms
        and not lease.is_withheld
    ]


OPERATIONS: Operations = {
    ReceiveMessage: OperationKind(
        decide_receive_message,
        Deliveries,
        Replay(_short_receive, (ShortReceive,), _receive_again),
    )
}
