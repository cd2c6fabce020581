"""The order of the sender's clock: a message is delayed until its sender's time is a window ago.

So messages join the queue's line in the order of their senders' times, and receives need not know
of it. What comes after a later one has joined goes to the late queue like a dead letter, or if that
takes none, to the end of the line. Moved, restored and returned messages join the line as ever:
they are never late. A clock that is not trusted ends no wait (`schedules.Doubted`), so that the
queue does not run ahead of its senders.
"""

from __future__ import annotations

import msgspec
from typing_extensions import override

from visibility.contract.death import LATE
from visibility.contract.model import QueueDefinition
from visibility.contract.sender_order_tags import LATE_QUEUE_TAG, ORDER_TAG, takes_late
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.events import Event
from visibility.rules.leases import no_lease
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


class SenderOrder:
    """The messages of such a queue whose wait ends in one step."""

    __slots__ = ("_definition", "_late", "_letters", "_passed_ms", "_queue", "_shard", "_stamp")

    def __init__(
        self, shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._definition = definition
        self._stamp = stamp
        self._passed_ms = queue.passed_ms
        self._late = 0
        self._letters: DeadLetters | None = None

    @property
    def moved(self) -> int:
        """Messages that leave for the late queue."""
        return 0 if self._letters is None else self._letters.moved

    @property
    def is_full(self) -> bool:
        """True if the step has moved as many messages as it should."""
        return self._letters is not None and self._letters.is_full

    def moves_late(self, due_ms: int, sequence: int, message: StoredMessage) -> bool:
        """True if the message comes too late and leaves for the late queue; else it joins the
        line."""
        if not message.sender_ms or ORDER_TAG not in self._definition.settings.own_tags:
            return False
        if message.sender_ms >= self._passed_ms:
            self._passed_ms = message.sender_ms
            return False
        self._late += 1
        if self._letters is None:
            target = self._late_queue()
            self._letters = DeadLetters(self._shard, self._definition, target, self._stamp, LATE)
        if not self._letters.has_target or message.group:  # one from before the tag
            return False
        placed = msgspec.structs.replace(message, sender_ms=0)  # if it comes back, it may join
        lease = no_lease(sequence, message)
        return self._letters.move(lease, placed, waits=False, due_ms=due_ms)

    def _late_queue(self) -> QueueDefinition | None:
        arn = self._definition.settings.own_tags.get(LATE_QUEUE_TAG)
        found = self._shard.definitions.queue_of_arn(arn) if arn else None
        return found if found is not None and takes_late(found, self._definition) else None

    def events(self) -> tuple[Event, ...]:
        """The change of the order, and what leaves."""
        if not self._late and self._passed_ms == self._queue.passed_ms:
            return ()
        leaving = () if self._letters is None else self._letters.events()
        return (OrderPassed(self._queue.queue_id, self._passed_ms, self._late), *leaving)


class OrderPassed(Event, frozen=True):
    """Messages of the queue up to this time of their senders' clocks ended their wait, and others
    were late."""

    passed_ms: int
    late: int

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.passed_ms = self.passed_ms
        queue.counts.late += self.late

    @override
    def record(self, changes: Changes) -> None:
        """The queue's own row has it."""
