"""The order of standard queues, oldest first.

Messages that became visible again are merged with untouched ones by sequence, so they are served
before later ones, and their number stays below the in-flight limit (one received three times goes
to the back, see `pulse.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from typing_extensions import override

from visibility.contract.errors import OverLimit
from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import QueueSettings
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.message_events import VisibilityChanged
from visibility.rules.order import Candidates, Fate, Order, Taking
from visibility.rules.retention import PASSED_MAX
from visibility.state import window
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState


class Standard(Order):
    """The order of a standard queue."""

    locks_groups = False
    handles_expire = False
    parts_have_groups = False

    @override
    def choose(self, taking: Taking) -> tuple[Event, ...]:
        """Raises OverLimit, for short polls only, as AWS does."""
        shard, queue, limit = taking.shard, taking.queue, taking.limit
        if limit <= 0:
            return without_room(taking)
        if queue.is_by_level:  # the tag was removed
            window.read_by_level(shard, queue, is_by_level=False)
        now_ms = taking.stamp.now_ms
        if now_ms >= queue.fresh_until_ms:
            too_old_ms = now_ms - taking.request.queue.settings.retention_ms
            if not window.fill_fresh(shard, queue, limit, too_old_ms, now_ms, PASSED_MAX):
                taking.comes_again = True
                return ()
        elif len(queue.window) < limit and queue.backlog > 0:
            window.fill(shard, queue, limit)
        if queue.visible_again or queue.aliases or queue.ready_groups.total:
            self._choose_one_by_one(taking)
        else:
            taking.take(islice(queue.window, limit))
        return taking.events()

    def _choose_one_by_one(self, taking: Taking) -> None:
        """Take from a queue whose order is not simply that of its line."""
        taking.look_at_each()
        left: list[tuple[bytes, int]] = []
        candidates = self.candidates(taking.shard, taking.queue, taking.stamp.now_ms)
        for sequence, message, lease in candidates:
            if taking.is_over:
                break
            fate = taking.offer(sequence, message, lease)
            if fate is Fate.TAKEN and message is not None and message.group:
                left.append((message.group, sequence))
        for group, sequence in left:
            taking.book.leave(group, sequence)

    @override
    def in_line(self, shard: ShardState, queue: QueueState) -> Candidates:
        if queue.is_by_level:
            window.read_by_level(shard, queue, is_by_level=False)
        return Standard.candidates(self, shard, queue, 0)

    @override
    def first_to_go(self, shard: ShardState, queue: QueueState, book: GroupBook) -> Candidates:
        """The oldest."""
        return Standard.in_line(self, shard, queue)

    def candidates(self, shard: ShardState, queue: QueueState, now_ms: int) -> Candidates:
        """All visible messages in order. Reads those visible again one by one."""
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

    @override
    def book(
        self, shard: ShardState, queue: QueueState, blocked: Collection[bytes] | None = None
    ) -> GroupBook:
        return GroupBook(shard, queue, blocked)

    @override
    def due_ms(
        self, queue: QueueState, settings: QueueSettings, delay_s: int | None, now_ms: int
    ) -> int | None:
        delay_ms = settings.delay_ms if delay_s is None else delay_s * 1000
        return now_ms + delay_ms if delay_ms else None

    @override
    def delay_ends_ms(self, due_ms: int, message: StoredMessage, settings: QueueSettings) -> int:
        return due_ms

    @override
    def dead_letter_clock_ms(self, message: StoredMessage, now_ms: int) -> int:
        """That of its first send."""
        return message.retained_from_ms

    @override
    def may_wait_again(self, queue: QueueState) -> bool:
        """One that went to the back has an alias."""
        return queue.aliases > 0

    @override
    def history_of(
        self, rows: Rows, queue: QueueState, sequence: int, message: StoredMessage | Lease
    ) -> Lease | None:
        return None

    @override
    def ended(self, queue: QueueState, leases: list[Lease], now_ms: int) -> Event:
        return VisibilityChanged(queue.queue_id, now_ms, leases)


def without_room(taking: Taking) -> tuple[Event, ...]:
    """No messages, as too many are in flight. Raises OverLimit, for short polls only, as AWS
    does."""
    if taking.waits or taking.is_held_back:
        return ()
    raise OverLimit(
        "Too many messages have been received and not deleted from this queue: "
        f"at most {IN_FLIGHT_MAX} messages may be in flight."
    )
