"""Deciding ReceiveMessage on standard queues: which messages, the in-flight cap, the dead-letter rule, waiting.

Oldest first: messages that became visible again are merged with the untouched ones by sequence, so those that came back
are served before what was sent later, and their number stays below the in-flight cap.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from visibility.errors import OverLimit
from visibility.events import Lease, MessageDeadLettered, MessagesReceived, StoredMessage
from visibility.limits import IN_FLIGHT_MAX
from visibility.model import QueueSettings, Request
from visibility.operations import ReceiveMessage
from visibility.outcomes import Deliveries, NoAnswer, Outcome
from visibility.stamp import Stamp
from visibility.state import QueueState, ShardState

DEAD_LETTER_MOVES_MAX = 100
"""Moves in one decision, so that a queue full of spent messages cannot hold the shard."""

_NONE = Deliveries([], [])


def decide_receive_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Take the oldest visible messages; park or answer empty if there are none."""
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    queue = shard.queue(request.queue.queue_id)
    settings = request.queue.settings
    now_ms = stamp.now_ms
    limit = operation.max_number_of_messages or 1
    if queue.in_flight + limit > IN_FLIGHT_MAX:
        limit = _limited(queue)
    hidden_s = operation.visibility_timeout
    hide_ms = settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
    taking = _Taking(now_ms, now_ms + hide_ms)
    moves: tuple[MessageDeadLettered, ...] = ()
    if queue.returned:
        moves = _take_merged(shard, queue, request, limit, taking)
    else:
        taking.untouched(islice(queue.window, limit))
    if taking.leases:
        received = MessagesReceived(queue.queue_id, now_ms, taking.leases)
        return Deliveries(taking.leases, taking.messages, taking.missing), (received, *moves)
    return _nothing(queue, operation, settings, moves), moves


def _limited(queue: QueueState) -> int:
    room = IN_FLIGHT_MAX - queue.in_flight
    if room <= 0:
        raise OverLimit(
            "Too many messages have been received and not deleted from this queue: "
            f"at most {IN_FLIGHT_MAX} messages may be in flight."
        )
    return room


def _nothing(
    queue: QueueState,
    operation: ReceiveMessage,
    settings: QueueSettings,
    moves: tuple[MessageDeadLettered, ...],
) -> Deliveries | NoAnswer:
    if queue.backlog or len(moves) >= DEAD_LETTER_MOVES_MAX:
        return NoAnswer.DEFER
    if not wait_ms(operation, settings):
        return _NONE
    # A queue may be its own dead-letter queue: what was just moved is there to be received.
    comes_back = any(move.target_queue_id == queue.queue_id for move in moves)
    return NoAnswer.DEFER if comes_back else NoAnswer.PARK


def wait_ms(operation: ReceiveMessage, settings: QueueSettings) -> int:
    """How long this receive may wait: its own time, or the queue's where it names none."""
    asked_s = operation.wait_time_seconds
    return settings.wait_ms if asked_s is None else asked_s * 1000


class _Taking:
    """The leases of one receive as they come together."""

    __slots__ = ("leases", "messages", "missing", "now_ms", "visible_at_ms")

    def __init__(self, now_ms: int, visible_at_ms: int) -> None:
        self.now_ms = now_ms
        self.visible_at_ms = visible_at_ms
        self.leases: list[Lease] = []
        self.messages: list[StoredMessage | None] = []
        self.missing = 0

    def untouched(self, window: Iterable[tuple[int, StoredMessage]]) -> None:
        """Messages that this queue never handed out; they may have a history in another queue."""
        now_ms, visible_at_ms = self.now_ms, self.visible_at_ms
        for sequence, message in window:
            before = message.receive_count
            first_ms = message.first_received_at_ms or now_ms
            self.leases.append(Lease(sequence, visible_at_ms, before + 1, before, first_ms, now_ms))
            self.messages.append(message)

    def again(self, lease: Lease) -> None:
        """A message that is visible again, or whose delay is over; `lease` is the one that ended."""
        now_ms = self.now_ms
        count = lease.receive_count + 1
        first_ms = lease.first_received_at_ms or now_ms
        self.leases.append(
            Lease(lease.sequence, self.visible_at_ms, count, lease.base_count, first_ms, now_ms)
        )
        self.messages.append(None)
        self.missing += 1


def _take_merged(
    shard: ShardState, queue: QueueState, request: Request, limit: int, taking: _Taking
) -> tuple[MessageDeadLettered, ...]:
    """Merge returned and untouched messages by sequence; those received too often leave instead."""
    policy = request.queue.settings.redrive_policy
    target = request.dead_letter_queue
    allowed = policy.max_receive_count if policy is not None and target is not None else None
    moves: list[MessageDeadLettered] = []
    untouched = iter(queue.window)
    head = next(untouched, None)
    for entry in queue.returned_in_order():
        lease = entry.lease
        while head is not None and head[0] < lease.sequence and len(taking.leases) < limit:
            taking.untouched((head,))
            head = next(untouched, None)
        if len(taking.leases) >= limit or len(moves) >= DEAD_LETTER_MOVES_MAX:
            return tuple(moves)
        if head is None and queue.backlog and lease.sequence >= queue.head:
            return tuple(moves)  # an older message is on disk only
        if allowed is not None and lease.receive_count - lease.base_count >= allowed:
            assert target is not None
            moves.append(_dead_lettered(shard, request, lease, target.queue_id, len(moves)))
        else:
            taking.again(lease)
    while head is not None and len(taking.leases) < limit:
        taking.untouched((head,))
        head = next(untouched, None)
    return tuple(moves)


def _dead_lettered(
    shard: ShardState, request: Request, lease: Lease, target_queue_id: int, position: int
) -> MessageDeadLettered:
    return MessageDeadLettered(
        request.queue.queue_id,
        lease.sequence,
        target_queue_id,
        shard.queue(target_queue_id).next_sequence + position,
        request.queue.arn,
        lease.receive_count,
        lease.first_received_at_ms,
    )
