"""What a shard holds in memory about its queues. Only `apply.py` and `Engine.advance/load` change it.

A waiting message needs no object of its own: untouched ones lie on disk by sequence, and a bounded window of the next
ones is in memory. A message gets an Entry when it is first received, or when it is sent with a delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from visibility.deadlines import DeadlineHeap
from visibility.events import Lease, StoredMessage
from visibility.model import QueueCounters
from visibility.waiters import WaitList


class Entry(msgspec.Struct, gc=False):
    """A message that is in flight, delayed, or visible again."""

    lease: Lease
    hidden: bool
    """False while it may be received. Invariant: a visible entry is queued."""
    queued: bool
    """Whether the sequence is in QueueState.returned; there at most once."""


class QueueState:
    """One queue of the shard."""

    __slots__ = (
        "delayed",
        "entries",
        "head",
        "in_flight",
        "low_water",
        "next_sequence",
        "purged_at_ms",
        "queue_id",
        "returned",
        "set_aside",
        "waiting",
        "window",
        "window_bytes",
    )

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.next_sequence = 1
        self.low_water = 1
        """Every untouched waiting message has a sequence of at least this. Invariant: low_water <= head."""
        self.head = 1
        """Untouched messages from here on are on disk only; those below are in the window. <= next_sequence."""
        self.window: deque[tuple[int, StoredMessage]] = deque()
        """The next untouched messages, ascending. Invariant: every sequence is in [low_water, head)."""
        self.window_bytes = 0
        self.waiting = 0
        """Untouched messages, in the window and on disk. Invariant: waiting >= len(window)."""
        self.entries: dict[int, Entry] = {}
        self.returned: list[int] = []
        """Heap of sequences that became visible again; those hidden or gone since are skipped."""
        self.set_aside: set[int] = set()
        """Returned messages that cannot be read: they stay where they are, and receives pass them by."""
        self.in_flight = 0
        self.delayed = 0
        self.purged_at_ms = 0

    def __repr__(self) -> str:
        return (
            f"<queue {self.queue_id}: {self.visible} visible, {self.in_flight} in flight, {self.delayed} delayed, "
            f"next {self.next_sequence}, low {self.low_water}, head {self.head}>"
        )

    @property
    def visible(self) -> int:
        """How many messages a receive could take now."""
        return self.waiting + len(self.entries) - self.in_flight - self.delayed

    @property
    def backlog(self) -> int:
        """How many untouched messages are on disk only."""
        return self.waiting - len(self.window)

    def counters(self) -> QueueCounters:
        """The three exact counts."""
        return QueueCounters(self.visible, self.in_flight, self.delayed)

    def returned_in_order(self) -> Iterator[Entry]:
        """Entries that are visible again, oldest first, without changing anything. O(log n) each."""
        for sequence in _ascending(self.returned):
            entry = self.entries.get(sequence)
            if entry is not None and not entry.hidden and sequence not in self.set_aside:
                yield entry


def _ascending(heap: list[int]) -> Iterator[int]:
    """Walk a binary heap in order without popping: a heap of the positions whose parents were given."""
    if not heap:
        return
    frontier = [(heap[0], 0)]
    size = len(heap)
    while frontier:
        value, position = heappop(frontier)
        yield value
        for child in (2 * position + 1, 2 * position + 2):
            if child < size:
                heappush(frontier, (heap[child], child))


class ShardState:
    """All queues of a shard, its deadlines and its long polls."""

    __slots__ = ("deadlines", "hidden", "purge_interval_ms", "queues", "waits", "window_bytes")

    def __init__(self, purge_interval_ms: int) -> None:
        self.purge_interval_ms = purge_interval_ms
        self.queues: dict[int, QueueState] = {}
        self.deadlines = DeadlineHeap()
        self.hidden = 0
        """Entries that are in flight or delayed, over all queues: what the deadline heap really needs."""
        self.window_bytes = 0
        """Content held in all windows together."""
        self.waits = WaitList()

    def queue(self, queue_id: int) -> QueueState:
        """The queue's state; a shard needs no create, so an unknown one is empty."""
        state = self.queues.get(queue_id)
        if state is None:
            state = self.queues[queue_id] = QueueState(queue_id)
        return state
