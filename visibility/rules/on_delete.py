"""Messages of a deleted queue that become dead letters, if its tags say so.

They leave in steps for as long as the queue is kept, and before it is dropped: first those in line,
then delayed and scheduled ones, whose time is over with the queue. Those in flight follow after
their leases, and in a FIFO queue their groups behind them. What cannot go where it should stays
kept until its retention ends. A restored queue has what is left again; what had left stays there.
"""

from __future__ import annotations

import msgspec

from visibility.contract.death import QUEUE_DELETED
from visibility.contract.limits import TAKEN_UNTIL_MS
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.on_delete_tag import outlive
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Progress
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.time_to_live_tags import EXPIRED_TAG, TO_DEAD_LETTERS
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.decided import Outcome
from visibility.rules.kept_queues import STEP_BYTES, STEP_MESSAGES, next_messages
from visibility.rules.leases import no_lease
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_SOON_MS = 50
"""Pause while messages are on their way to another shard."""
_AGAIN_MS = 15_000
"""Interval at which messages are looked at again that cannot go where they should."""


class MoveDeleted(Operation, frozen=True):
    """Make dead letters of messages of a deleted queue; answers `outcomes.Progress`, done if
    nothing is left to leave.

    One bounded step, from `from_sequence` on. FIFO: messages of `blocked` groups wait for the next
    pass. What is left at `until_ms`, the end of the retention since the deletion, does not leave.
    """

    until_ms: int = 0
    from_sequence: int = 0
    blocked: frozenset[bytes] = frozenset()


def decide_move_deleted(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Move the next messages. Nothing happens to a queue that is there again."""
    operation, definition = request.operation, request.queue
    assert isinstance(operation, MoveDeleted)
    queue = shard.queue(definition.queue_id)
    is_there = shard.definitions.queue_of_id(definition.queue_id) is not None
    if is_there or not outlive(definition.settings, definition.arn):
        return Progress(is_done=True), ()
    if not queue.stored or stamp.retained_until_ms >= operation.until_ms:
        return _rest(queue), ()
    return _Step(shard, queue, definition, stamp, operation.blocked).run(operation.from_sequence)


def _rest(queue: QueueState) -> Progress:
    """The answer when nothing is left here; what is on its way may come back."""
    if queue.departed:
        return Progress(is_done=False, again_in_ms=_SOON_MS)
    return Progress(is_done=True, left=queue.stored)


class _Step:
    """One step."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        stamp: Stamp,
        blocked: frozenset[bytes],
    ) -> None:
        target = shard.definitions.dead_letter_queue(definition)
        self._shard = shard
        self._queue = queue
        self._settings = definition.settings
        self._stamp = stamp
        self._order = order_of(definition.settings)
        self._letters = DeadLetters(shard, definition, target, stamp, QUEUE_DELETED)
        self._is_refused = False
        """True if the dead-letter queue is gone, or takes none now."""
        self._left: list[Lease] = []
        self._blocked = blocked
        """FIFO: groups with messages in flight or on their way, now or earlier in this pass."""
        if self._order.locks_groups:
            self._blocked |= {
                group
                for group, held in queue.in_flight_by_group.items()
                if any(map(self._is_away, held))
            }

    def run(self, from_sequence: int) -> Outcome:
        """Move the next messages in line, at its end delayed ones."""
        next_sequence = self._move_line(from_sequence)
        is_full = self._is_refused or self._letters.is_full
        if not next_sequence and not is_full:
            self._move_delayed()
        self._letters.settle(self._left)
        return self._progress(next_sequence), self._letters.events()

    def _move_line(self, from_sequence: int) -> int:
        """Move messages that are not delayed; returns the sequence to continue at, 0 at the end."""
        queue = self._queue
        found, next_sequence = next_messages(self._shard, queue, from_sequence, STEP_BYTES)
        for sequence, message in found:
            if self._is_refused or self._letters.is_full:
                return sequence
            if self._stays(message) or self._is_taken(sequence) or self._is_over(message):
                continue
            if self._is_in_flight(sequence):
                continue
            lease = self._order.lease_unless_blocked(self._shard, queue, sequence, message)
            self._move(lease, message, waits=sequence not in queue.entries)
        return next_sequence

    def _move_delayed(self) -> None:
        now_ms = self._stamp.now_ms
        queue, after = self._queue, self._queue.delayed_after
        if queue.doubted is not None:
            after = min(after, queue.doubted[0])
        for due_ms, sequence, message in self._shard.rows.delayed(
            queue.queue_id, STEP_MESSAGES, after=after, quarantined=queue.quarantined
        ):
            # In order, since a restored queue reads those behind the last one that left.
            if self._is_refused or self._letters.is_full or self._stays(message):
                return
            clock_ms = min(message.clock_ms, now_ms)  # its retention was to begin at its time
            message = msgspec.structs.replace(message, clock_ms=clock_ms)
            self._move(no_lease(sequence, message), message, waits=False, due_ms=due_ms)

    def _move(self, lease: Lease, message: StoredMessage, *, waits: bool, due_ms: int = -1) -> None:
        moved = self._letters.moved
        self._is_refused = not self._letters.has_target or not self._letters.move(
            lease, message, waits=waits, due_ms=due_ms
        )
        if self._letters.moved > moved:
            self._left.append(lease)
            if self._order.locks_groups and self._letters.departs:
                self._blocked |= {message.group}

    def _stays(self, message: StoredMessage) -> bool:
        """True for a message whose group must wait."""
        return message.group in self._blocked or self._letters.locks(message.group)

    def _is_taken(self, sequence: int) -> bool:
        """True if a consumer has the message for good."""
        entry = self._queue.entries.get(sequence)
        return entry is not None and entry.lease.is_taken

    def _is_in_flight(self, sequence: int) -> bool:
        """True if a consumer has the message until its lease ends; holds of operators are over."""
        entry = self._queue.entries.get(sequence)
        if entry is None or entry.lease.is_held or entry.lease.is_taken:
            return False
        return entry.lease.visible_at_ms > self._stamp.now_ms

    def _is_away(self, sequence: int) -> bool:
        return sequence not in self._queue.entries or self._is_in_flight(sequence)

    def _is_over(self, message: StoredMessage) -> bool:
        """True for a message that was to leave for good, by its retention or its time to live."""
        stamp, settings = self._stamp, self._settings
        if message.retained_from_ms + settings.retention_ms <= stamp.retained_until_ms:
            return True
        is_late = 0 < message.expires_ms <= stamp.now_ms
        return is_late and settings.own_tags.get(EXPIRED_TAG) != TO_DEAD_LETTERS

    def _progress(self, next_sequence: int) -> Progress:
        queue, moved = self._queue, self._letters.moved
        blocked = self._blocked if next_sequence else frozenset()
        if moved:
            return Progress(False, next_sequence, 1, blocked=blocked)
        if self._is_refused or self._letters.is_full:
            return Progress(is_done=False, again_in_ms=_AGAIN_MS)
        if next_sequence:
            return Progress(False, next_sequence, blocked=blocked)
        in_flight = filter(self._is_in_flight, queue.entries)
        ends_ms = [queue.entries[each].lease.visible_at_ms for each in in_flight]
        if (ends_ms or self._blocked or queue.delayed) and not queue.departed:
            left_ms = min(ends_ms, default=TAKEN_UNTIL_MS) - self._stamp.now_ms
            return Progress(is_done=False, again_in_ms=min(left_ms, _AGAIN_MS))
        return _rest(queue)


OPERATIONS: Operations = {
    MoveDeleted: OperationKind(decide_move_deleted, Progress, is_fixed=True),
}
