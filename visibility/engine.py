"""Engine: the rules of one shard. Requests and time in, answers and events out; no socket, disk or clock.

Decide reads, apply writes. Whoever drives the engine picks a decision from DECIDE and applies its events at once, so that
the next request sees them, and holds the answer back until they are durable. Before a turn decides, the driver asks
`wants` what must be read from the store and hands it over with `load`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from visibility.apply import (
    APPLY,
    SHARD_WINDOW_BYTES_MAX,
    WINDOW_MESSAGES_MAX,
    held_bytes,
    show,
)
from visibility.events import (
    Event,
    Lease,
    MessageDeadLettered,
    MessagesSent,
    StoredMessage,
    VisibilityChanged,
)
from visibility.model import Request
from visibility.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    DropQueue,
    Operation,
    PurgeQueue,
    ReadCounters,
    ReceiveMessage,
    ReturnMessages,
    SendMessage,
    SendMessageBatch,
)
from visibility.outcomes import Outcome
from visibility.queues import decide_drop_queue, decide_purge_queue, decide_read_counters
from visibility.receive import decide_receive_message
from visibility.send import decide_send_message, decide_send_message_batch
from visibility.settle import (
    decide_change_message_visibility,
    decide_change_message_visibility_batch,
    decide_delete_message,
    decide_delete_message_batch,
    decide_return_messages,
)
from visibility.stamp import Stamp
from visibility.state import Entry, QueueState, ShardState
from visibility.waiters import Wait

PAGE_MESSAGES = 256
"""Messages read ahead from disk at a time."""
PAGE_BYTES = 4 << 20
"""Content read ahead from disk at a time; one message more may pass it."""
_REBUILD_SLACK = 4096
_WAITS = 0
"""The queue id under which the deadline heap keeps the ends of long polls; queue ids start at 1."""

Decide = Callable[[ShardState, Request, Stamp], Outcome]

DECIDE: dict[type[Operation], Decide] = {
    SendMessage: decide_send_message,
    SendMessageBatch: decide_send_message_batch,
    ReceiveMessage: decide_receive_message,
    DeleteMessage: decide_delete_message,
    DeleteMessageBatch: decide_delete_message_batch,
    ChangeMessageVisibility: decide_change_message_visibility,
    ChangeMessageVisibilityBatch: decide_change_message_visibility_batch,
    PurgeQueue: decide_purge_queue,
    DropQueue: decide_drop_queue,
    ReadCounters: decide_read_counters,
    ReturnMessages: decide_return_messages,
}
"""What to answer and what changes by it. Each raises QueueError for a refusal, and changes nothing itself."""

_SHOWING = (MessagesSent, VisibilityChanged)


class PageWanted(NamedTuple):
    """Untouched messages to read: up to `messages` from `from_sequence` on, below `until_sequence`."""

    queue_id: int
    from_sequence: int
    until_sequence: int
    messages: int


class Engine:
    """One shard's state and rules."""

    def __init__(self, purge_interval_ms: int = 60_000) -> None:
        self.state = ShardState(purge_interval_ms)
        self.stirred: dict[int, None] = {}
        """Queues with long polls in which a message may have become visible, in order."""

    def apply(self, event: Event) -> None:
        """Change the state by an event that was decided here or elsewhere."""
        APPLY[type(event)](self.state, event)
        if self.state.waits.by_queue:
            self._stir(event)

    def _stir(self, event: Event) -> None:
        if type(event) in _SHOWING:
            self.stirred[event.queue_id] = None
        elif type(event) is MessageDeadLettered:
            self.stirred[event.target_queue_id] = None

    # -- long polls ---------------------------------------------------------------------------------------------------

    def park(self, request: Request, ticket: object, until_ms: int) -> Wait:
        """Let a receive wait that found nothing."""
        wait = self.state.waits.park(request, ticket, until_ms)
        self.state.deadlines.push(until_ms, _WAITS, wait.number)
        return wait

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> list[Wait]:
        """Let time pass: leases and delays that are over show their messages. Returns the long polls that ended."""
        state = self.state
        ended: list[Wait] = []
        while (due := state.deadlines.pop_due(now_ms)) is not None:
            _, queue_id, sequence = due
            if queue_id == _WAITS:
                wait = state.waits.remove(sequence)
                if wait is not None:
                    ended.append(wait)
                continue
            queue = state.queues.get(queue_id)
            entry = queue.entries.get(sequence) if queue is not None else None
            if queue is not None and entry is not None and _is_over(entry, now_ms):
                show(state, queue, entry)
                self.stirred[queue_id] = None
        if len(state.deadlines) > 4 * (state.hidden + len(state.waits)) + _REBUILD_SLACK:
            self._rebuild_deadlines()
        return ended

    def next_deadline_ms(self) -> int | None:
        """When `advance` next has something to do, None for never."""
        return self.state.deadlines.next_at_ms()

    def _rebuild_deadlines(self) -> None:
        """Forget deadlines of deleted messages, which stay in the heap until they are due."""
        items = [
            (entry.lease.visible_at_ms, queue.queue_id, sequence)
            for queue in self.state.queues.values()
            for sequence, entry in queue.entries.items()
            if entry.hidden
        ]
        items += [(wait.until_ms, _WAITS, wait.number) for wait in self.state.waits.all()]
        self.state.deadlines.rebuild(items)

    # -- what is on disk ------------------------------------------------------------------------------------------------

    def wants(self, queue_id: int, messages: int) -> PageWanted | None:
        """What to read before receives that ask for `messages` in all are decided."""
        queue = self.state.queues.get(queue_id)
        if queue is None or len(queue.window) >= messages or queue.backlog <= 0:
            return None
        wanted = min(max(messages - len(queue.window), PAGE_MESSAGES), WINDOW_MESSAGES_MAX)
        return PageWanted(queue_id, queue.head, queue.next_sequence, wanted)

    def load(self, page: PageWanted, messages: list[tuple[int, StoredMessage]], head: int) -> int:
        """Take a page that was read: ascending messages, all of them up to but without sequence `head`.

        Returns how many messages the disk should still have held and did not: 0 unless it lost some.
        """
        queue = self.state.queue(page.queue_id)
        assert queue.head == page.from_sequence <= head <= queue.next_sequence
        for sequence, message in messages:
            if sequence not in queue.entries:
                queue.window.append((sequence, message))
                size = held_bytes(message)
                queue.window_bytes += size
                self.state.window_bytes += size
        queue.head = head
        if self.state.window_bytes > SHARD_WINDOW_BYTES_MAX:
            self._shed(queue)
        return queue.backlog if head == queue.next_sequence else 0

    def _shed(self, keep: QueueState) -> None:
        """Give up the windows of other queues: their messages are on disk."""
        for queue in self.state.queues.values():
            if queue is not keep and queue.window:
                queue.head = queue.window[0][0]
                queue.window.clear()
                self.state.window_bytes -= queue.window_bytes
                queue.window_bytes = 0

    def restore_queue(
        self, queue_id: int, *, next_sequence: int, low_water: int, waiting: int, purged_at_ms: int
    ) -> None:
        """Start a queue from what was stored. Its leases follow by `restore_lease`."""
        queue = self.state.queue(queue_id)
        queue.next_sequence = next_sequence
        queue.low_water = queue.head = low_water
        queue.waiting = waiting
        queue.purged_at_ms = purged_at_ms

    def restore_lease(self, queue_id: int, lease: Lease) -> None:
        """Start a message that was in flight, delayed or visible again; `advance` shows it if its time is up."""
        self.apply(VisibilityChanged(queue_id, 0, [lease]))


def _is_over(entry: Entry, now_ms: int) -> bool:
    return entry.hidden and entry.lease.visible_at_ms <= now_ms
