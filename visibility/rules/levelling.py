"""Load levelling: receives that wait for their turn, and sends that are refused early.

A limit of receives is no error: a short receive is empty, a long one waits, and both are counted,
so that who starts consumers by the number of waiting messages sees that more would not help. The
rate is kept in memory: a new leader begins with one message instead of a second burst.
Retries of accepted sends and duplicates were answered before; what comes from another queue is not
throttled.
"""

from __future__ import annotations

from typing_extensions import override

from visibility.contract.errors import RequestThrottled
from visibility.contract.levelling_tags import (
    MAX_IN_FLIGHT_TAG,
    RECEIVE_RATE_TAG,
    THROTTLE_AGE_TAG,
    THROTTLE_DEPTH_TAG,
    in_flight_limits,
    is_throttled,
    rate_again_us,
    rate_room,
    rate_used,
)
from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_changes import Changes
from visibility.rules.decided import NO_MESSAGES
from visibility.rules.events import Event
from visibility.state.ages import receivable_since_ms
from visibility.state.in_flight import with_consumers
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

LIMITED = Deliveries([], [], is_limited=True)
_LOOK_AGAIN_MS = 1_000
"""Time after which long polls that a limit holds back look again, for changes without an event."""


def receive_room(
    queue: QueueState, definition: QueueDefinition, now_ms: int, *, highest: bool = False
) -> int:
    """The number of messages that the queue's tags let consumers take now, or of messages of the
    highest priority. O(1), but O(holds) where operators hold messages."""
    own_tags, parts = definition.settings.own_tags, len(definition.parts)
    room = IN_FLIGHT_MAX
    if MAX_IN_FLIGHT_TAG in own_tags:
        most, reserved = in_flight_limits(own_tags, parts)
        room = most - (0 if highest else reserved) - with_consumers(queue)
    elif RECEIVE_RATE_TAG not in own_tags:
        return room
    return min(room, rate_room(own_tags, queue.paced_until_us, now_ms * 1000, parts))


def lets_some_go(queue: QueueState, definition: QueueDefinition, now_ms: int) -> bool:
    """True if consumers may take one of the visible messages now."""
    if receive_room(queue, definition, now_ms) > 0:
        return True
    return queue.has_highest and receive_room(queue, definition, now_ms, highest=True) > 0


def without_messages(queue: QueueState, *, is_held_back: bool | None = None) -> Deliveries:
    """The answer of a receive that got nothing; `is_held_back` by a limit: by default, as the queue
    was when it was last looked at."""
    held_back = queue.is_held_back if is_held_back is None else is_held_back
    return LIMITED if held_back and queue.visible > 0 else NO_MESSAGES


def hold_back(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, now_ms: int
) -> None:
    """Note that a receive got nothing because of a limit, and when it is worth another look."""
    own_tags, parts = definition.settings.own_tags, len(definition.parts)
    again_ms = now_ms + _LOOK_AGAIN_MS
    if RECEIVE_RATE_TAG in own_tags and queue.paced_until_us:
        next_us = rate_again_us(own_tags, queue.paced_until_us, parts)
        again_ms = max(now_ms + 1, min(again_ms, -(-next_us // 1000)))
    queue.is_held_back = True
    shard.plan_pulse(queue, again_ms)


def paced(
    queue: QueueState, definition: QueueDefinition, now_ms: int, messages: int
) -> tuple[Event, ...]:
    """Count messages for the queue's rate, if it has one; negative numbers were given back."""
    own_tags, before_us = definition.settings.own_tags, queue.paced_until_us
    if not messages or RECEIVE_RATE_TAG not in own_tags:
        return ()
    parts = len(definition.parts)
    until_us = rate_used(own_tags, before_us, now_ms * 1000, parts, messages)
    return (ReceivesPaced(queue.queue_id, until_us),)


def end_holding_back(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Have long polls look again that a limit held back: a step of pulses."""
    if queue.is_held_back:
        queue.is_held_back = False
        shard.to_wake[queue.queue_id] = None
    return (), None


def check_throttled(shard: ShardState, request: Request, stamp: Stamp) -> None:
    """Raises RequestThrottled if too much waits in the queue for another send, DamagedRecord."""
    definition = request.queue
    own_tags = definition.settings.own_tags
    depth, age = own_tags.get(THROTTLE_DEPTH_TAG), own_tags.get(THROTTLE_AGE_TAG)
    if depth is None and age is None:
        return
    queue = shard.queue(definition.queue_id)
    if depth is not None:
        limit = int(depth) / (len(definition.parts) or 1)
        if is_throttled(queue.visible, limit, request.request_id):
            raise _throttled(THROTTLE_DEPTH_TAG, "too many messages")
    if age is not None and (since_ms := receivable_since_ms(shard, queue)):
        age_s = (stamp.now_ms - since_ms) / 1000
        if is_throttled(age_s, int(age), request.request_id):
            raise _throttled(THROTTLE_AGE_TAG, "messages for too long")


def _throttled(tag: str, reason: str) -> RequestThrottled:
    return RequestThrottled(f"The queue has {reason} waiting for consumers (tag {tag}).")


class ReceivesPaced(Event, frozen=True, gc=False):
    """The rate of receives has caught up at this instant. Kept in memory only."""

    until_us: int

    @override
    def apply(self, shard: ShardState) -> None:
        shard.queue(self.queue_id).paced_until_us = self.until_us

    @override
    def record(self, changes: Changes) -> None:
        """No row: a new leader begins anew."""
