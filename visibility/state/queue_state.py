"""The memory of a queue. Only events, `window.py` and `advance.py` change it.

A waiting message needs no object of its own: untouched ones are on disk by sequence, and a bounded
window of the next ones is in memory. Delayed messages and remembered ids are on disk only. A
message gets an Entry when it is received; in a FIFO queue it loses it when its lease ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from math import log2
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from visibility.contract.model import QueueCounters
from visibility.contract.move_task import MoveTask
from visibility.contract.priority import HIGHEST_LEVEL, place_of
from visibility.contract.stored_message import Hold, Lease, StoredMessage, death_of
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import SPAN_BITS
from visibility.rows.row_values import NOWHERE, GroupRow, Quarantined, QueueRow
from visibility.rows.state_rows import write_queue
from visibility.state.fairness import Fairness
from visibility.state.noted_spans import FailureNotes
from visibility.state.ready_groups import ReadyGroups

OTHERS = "(others)"
_SENDERS_MAX = 20
"""Senders of a queue that are counted apart."""
NEVER_MS = 1 << 62
"""Later than any time."""
BUCKETS_PER_DOUBLING = 8
"""Resolution of durations: the ends of a bucket differ by 9 %."""


def bucket_of(duration_ms: int) -> int:
    """The bucket of a duration in a log-scale histogram; 0 for a millisecond and less."""
    return int(log2(duration_ms) * BUCKETS_PER_DOUBLING) if duration_ms > 1 else 0


class Counts(msgspec.Struct):
    """Messages by what happened to them since the shard was loaded, for metrics; changed by events
    only. `sent_bytes` is their size as AWS counts it.

    `there`, arrivals less departures, is the number of messages in the queue. Volatile.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    deleted: int = 0
    expired: int = 0
    dropped: int = 0
    """Messages that made room for others."""
    late: int = 0
    """Messages that came too late for their place in the order of their senders' clocks."""
    purged: int = 0
    moved_in: int = 0
    moved_out: int = 0
    """Messages moved to another queue, also as dead letters."""
    transferred: int = 0
    """Messages that came from other parts of the queue, less those that went there."""
    restored: int = 0
    """Number of messages when the shard was loaded."""
    quarantined: int = 0
    """Messages found damaged."""
    deaths: dict[str, int] = {}
    """Those of `moved_in` that are dead letters, by cause; with HOPS those that went from here to
    the archive instead."""

    clocks_ahead: dict[str, int] = {}
    """Messages whose sender's clock was ahead, in such a queue, by the sender's ARN; of further
    senders under OTHERS."""

    def add_ahead(self, sender: str, messages: int) -> None:
        """Count messages of a sender whose clock is ahead."""
        if sender not in self.clocks_ahead and len(self.clocks_ahead) >= _SENDERS_MAX:
            sender = OTHERS
        self.clocks_ahead[sender] = self.clocks_ahead.get(sender, 0) + messages

    def add_death(self, message: StoredMessage) -> None:
        """Count a message that came from another queue, if it is a dead letter."""
        death = death_of(message)
        if death is not None:
            self.deaths[death.cause] = self.deaths.get(death.cause, 0) + 1

    @property
    def there(self) -> int:
        """Number of messages that the queue must hold."""
        left = self.deleted + self.expired + self.dropped + self.purged + self.moved_out
        there = self.restored + self.sent + self.moved_in + self.transferred
        return there - left - self.quarantined


_NO_LEVELS: list[tuple[int, int, int]] = []


class Entry(msgspec.Struct, gc=False):
    """A message that is in flight, or (standard queues) visible again."""

    lease: Lease
    hidden: bool
    """False while it may be received. Invariant: a visible entry is queued."""
    queued: bool
    """True if the sequence is in QueueState.visible_again; it is there at most once."""


def is_passed_by(record: Quarantined, sequence: int) -> bool:
    """True for a message in the record's span that reads skip."""
    return sequence in record.damaged or any(
        first <= sequence < until for first, until in record.gaps
    )


class Blocked(NamedTuple):
    """A blocked group of a FIFO queue, with a quarantined message; `since_ms` is 0 if unknown."""

    since_ms: int
    waiting: int
    delayed: int


class Quarantine:
    """The messages of one queue that are stored but cannot be served: facts with rows of their
    own."""

    __slots__ = ("groups", "spans")

    def __init__(
        self,
        spans: Iterable[Quarantined] = (),
        groups: Mapping[bytes, Blocked] = MappingProxyType({}),
    ) -> None:
        self.spans = {record.span: record for record in spans}
        """Unreadable messages, by `sequence >> SPAN_BITS`. They are in no other count of the
        queue."""
        self.groups = dict(groups)
        """Blocked groups. Their messages are in the queue's other counts, except those that clients
        see."""

    def __contains__(self, sequence: int) -> bool:
        """True for a message that reads skip."""
        record = self.spans.get(sequence >> SPAN_BITS)
        return record is not None and is_passed_by(record, sequence)

    @property
    def delayed(self) -> list[tuple[bytes, bytes]]:
        """Stretches of delayed messages that reads skip."""
        record = self.spans.get(NOWHERE)
        return record.delayed if record is not None else []

    @property
    def lost(self) -> int:
        """Number of unreadable messages."""
        return sum(record.messages for record in self.spans.values()) if self.spans else 0

    @property
    def blocked(self) -> int:
        """Number of messages that wait in blocked groups."""
        return sum(group.waiting for group in self.groups.values()) if self.groups else 0

    @property
    def blocked_delayed(self) -> int:
        """Number of delayed messages in blocked groups."""
        return sum(group.delayed for group in self.groups.values()) if self.groups else 0

    @property
    def messages(self) -> int:
        """Number of all quarantined messages."""
        return self.lost + self.blocked + self.blocked_delayed


@dataclass(slots=True, eq=False)
class Level:
    """The line of one level of a standard queue whose messages have priorities; fields as in
    `QueueState`. Invariant: it is not empty.

    Levels are indexes on disk of the messages that wait, by level and sequence. While receives ask
    for priorities, each has a window of its next messages, and the queue's own line is that of the
    messages without a level. Else all messages are in the queue's line, whatever their level.
    """

    level: int
    low_water: int
    """No waiting message of the level has a lower sequence."""
    head: int
    waiting: int = 0
    window: deque[tuple[int, StoredMessage]] = field(default_factory=deque)
    window_bytes: int = 0
    passed: int = 0

    @property
    def backlog(self) -> int:
        """Number of its messages that are on disk only, and not passed by."""
        return self.waiting - len(self.window) - self.passed


@dataclass(slots=True, eq=False, repr=False)
class QueueState:
    """One queue of the shard."""

    queue_id: int
    counts: Counts = field(default_factory=Counts)
    """Counts since the start; volatile."""
    times_in_queue: dict[int, int] = field(default_factory=dict)
    """Numbers of deleted messages by their time in the queue, see `counts.bucket_of`;
    volatile."""
    next_sequence: int = 1
    low_water: int = 1
    """No untouched waiting message has a lower sequence. Invariant: low_water <= head."""
    head: int = 1
    """Untouched messages from here on are on disk only, lower ones are in the window. <=
    next_sequence."""
    window: deque[tuple[int, StoredMessage]] = field(default_factory=deque)
    """The next untouched messages, ascending. Invariant: every sequence is in [low_water,
    head)."""
    window_bytes: int = 0
    passed: int = 0
    """Untouched messages below `head` that are not in the window: their retention is over, and they
    are not removed yet; volatile."""
    fresh_until_ms: int = 0
    """Up to this time no message's retention is over, or it may be received all the same;
    volatile."""
    waiting: int = 0
    """Messages without an entry, except delayed ones: in a standard queue the untouched ones, in a
    FIFO queue all that are not in flight, blocked or not. Invariant: waiting >= len(window)."""
    fifo: bool = False
    entries: dict[int, Entry] = field(default_factory=dict)
    visible_again: dict[int, list[int]] = field(default_factory=dict)
    """Heaps of sequences that became visible again, by level; those hidden or gone since are
    skipped. No empty heaps."""
    levels: dict[int, Level] = field(default_factory=dict)
    """The lines of messages with priorities."""
    is_by_level: bool = False
    """True if these messages are received from the lines of their levels, and are not in the
    queue's; volatile."""
    in_levels: int = 0
    """Number of waiting messages that are not in the queue's line; volatile."""
    has_bad_levels: bool = False
    """True if the index of levels was found damaged: it is not used until a restart; volatile."""
    passes: dict[int, int] = field(default_factory=dict)
    """The use that each priority made of its shares; volatile."""
    quarantined: Quarantine = field(default_factory=Quarantine)
    """The messages that cannot be served."""
    locked: dict[bytes, int] = field(default_factory=dict)
    """FIFO: groups that give out nothing, with the reason, see `group_locks.py`."""
    holds: dict[int, Hold] = field(default_factory=dict)
    """Holds of operators, by sequence; of some, the message is gone."""
    in_flight: int = 0
    """Messages that may not be received because of their lease, those that wait included."""
    retrying: set[int] = field(default_factory=set)
    """Sequences of messages in flight whose visibility timeout is over: they wait to be received
    again."""
    taken: dict[int, None] = field(default_factory=dict)
    """Sequences of messages in flight that no one receives again, the first received first."""
    prepared: set[int] = field(default_factory=set)
    """Sequences of messages in flight that a transaction of another shard is to delete."""
    delayed: int = 0
    passed_ms: int = 0
    """The latest time of a sender's clock of the messages that ended their wait, in a queue in that
    order. It survives a purge."""
    size: int = 0
    """Bytes of its messages in any state, as AWS counts them, of sequences from `sized_from` on."""
    sized_from: int = 0
    """Above 0 if the sizes of messages before it are unknown: a version before 0.2 stored them, or
    some were lost."""
    departed_size: int = 0
    """Bytes of its messages in the outbox."""
    departed: int = 0
    """Messages of this queue in the outbox; they are in no other count."""
    rescued: int = 0
    """Messages that went to the dead-letter queue when this one was deleted."""
    transferring: int = 0
    """Those of them that go to another part of the queue, which clients see here."""
    transferring_delayed: int = 0
    """Those of them that are delayed."""
    continues: int = 0
    """The purged queue that this one succeeds, 0 for none."""
    heir_id: int = 0
    """The queue that got messages of this one when its purge was undone, in which its ids count
    again; 0 for none."""
    heir_of: list[int] = field(default_factory=list)
    """The purged queues that had this one as heir, also if they have another one by now, or are
    gone; volatile."""
    first_sequence: int = 1
    """No message of this queue has a lower sequence; those of the queue it succeeds do."""
    spans: dict[int, int] = field(default_factory=dict)
    """Messages by `sequence >> SPAN_BITS`, including those in flight, without delayed ones. No
    zeros."""
    changed_spans: set[int] = field(default_factory=set)
    """Spans whose rows need writing."""
    failure_notes: FailureNotes | None = None
    """The failures of a dead-letter queue, if they are noted in rows."""
    ready_groups: ReadyGroups = field(default_factory=ReadyGroups)
    """FIFO: groups that may give messages. Standard: groups with waiting messages."""
    groups: dict[bytes, GroupRow] = field(default_factory=dict)
    """Present rows of some groups; the others are on disk."""
    in_flight_by_group: dict[bytes, set[int]] = field(default_factory=dict)
    """Sequences by group of messages in flight, and (FIFO) in the outbox; no empty sets."""
    fairness: Fairness = field(default_factory=Fairness)
    aliases: int = 0
    """Messages whose receipt handles name another sequence than theirs."""
    remembered_ms: int = 0
    """Time at which the latest id was remembered, 0 if none is."""
    forgotten_ms: int = 0
    """Ids remembered before this time were forgotten; volatile."""
    tasks: dict[int, MoveTask] = field(default_factory=dict)
    """Move tasks by number, oldest first: the last ones that ended, then the active one."""
    delayed_after: tuple[int, int] = (0, 0)
    """No delayed message has this (due_ms, sequence) or a lower one, so that no read starts at
    deleted rows; volatile."""
    doubted: tuple[tuple[int, int], tuple[int, int]] | None = None
    """Scheduled messages that wait for a trusted clock are after the first of these
    (due_ms, sequence), and not after the second; volatile."""
    clocks_after: tuple[int, int] = (0, 0)
    """The same for messages with a row by clock; volatile."""
    expiries_after: tuple[int, int] = (0, 0)
    """No time to live ends at this (expires_ms, sequence) or before, NEVER_MS if none ends;
    volatile."""
    expiries_passed: tuple[int, int] = (0, 0)
    """Messages up to this one stay for now although their time to live is over; volatile."""
    pulse_at_ms: int = 0
    """Time of the queue's next pulse, 0 for never; volatile."""
    waits_for_key: bool = False
    """True if a receive left dead letters in their place, as their key was not there yet;
    volatile."""
    is_held_back: bool = False
    """True if a receive got nothing because of a limit of the queue's tags; volatile."""
    paced_until_us: int = 0
    """The instant at which the rate of receives has caught up, 0 if none was counted; volatile."""
    expired_leases: deque[int] = field(default_factory=deque)
    """FIFO: messages whose lease is over, until an event says so; volatile."""
    over_received: deque[int] = field(default_factory=deque)
    """Standard: visible messages that were received often enough to go to the back;
    volatile."""

    def __repr__(self) -> str:
        return (
            f"<queue {self.queue_id}: {self.visible} visible, {self.in_flight} in flight, "
            f"{self.delayed} delayed, "
            f"next {self.next_sequence}, low {self.low_water}, head {self.head}>"
        )

    @property
    def visible(self) -> int:
        """Number of messages that a receive could take now."""
        return self.waiting + len(self.entries) - self.in_flight - self.quarantined.blocked

    @property
    def stored(self) -> int:
        """Number of readable messages in any state."""
        return self.waiting + len(self.entries) + self.delayed

    @property
    def backlog(self) -> int:
        """Number of a standard queue's untouched messages that are on disk only, and not passed
        by."""
        return self.waiting - self.in_levels - len(self.window) - self.passed

    @property
    def first_place(self) -> int:
        """The place of the first message that a receive could take with strict priority
        (`priority.place_of`), 0 if there is none."""
        levels = set(self.levels)
        levels.update(level for level in self.visible_again if self._has_again(level))
        if self.waiting > sum(level.waiting for level in self.levels.values()):
            levels.add(0)
        return max(map(place_of, levels), default=0)

    @property
    def has_highest(self) -> bool:
        """True if a receive could take a message of the highest priority."""
        return HIGHEST_LEVEL in self.levels or self._has_again(HIGHEST_LEVEL)

    def _has_again(self, level: int) -> bool:
        return next(self.visible_again_of(level), None) is not None

    @property
    def lines(self) -> list[QueueState | Level]:
        """The queue's own line, and those of levels."""
        return [self, *self.levels.values()]

    @property
    def lowest(self) -> int:
        """No untouched waiting message has a lower sequence, of whatever level."""
        return min(line.low_water for line in self.lines)

    @property
    def active_task(self) -> MoveTask | None:
        """The move task that has work to do: no other than the latest one."""
        latest = next(reversed(self.tasks.values()), None)
        return latest if latest is not None and latest.is_active else None

    @property
    def floor(self) -> int:
        """No message has a lower sequence."""
        return min(self.spans) << SPAN_BITS if self.spans else self.next_sequence

    def counters(self) -> QueueCounters:
        """The three exact counts."""
        waiting = len(self.retrying)
        delayed = self.delayed - self.quarantined.blocked_delayed + self.transferring_delayed
        visible = self.visible + self.transferring - self.transferring_delayed
        return QueueCounters(visible, self.in_flight - waiting, delayed + waiting)

    def record(self, changes: Changes, now_ms: int) -> None:
        """Record the queue's own row and its changed spans: once in a Turn, after its events."""
        row = QueueRow(
            self.next_sequence,
            self.lowest if self.levels else self.low_water,
            self.waiting,
            0,
            self.delayed,
            self.ready_groups.total,
            self.aliases,
            self.remembered_ms,
            self.fifo,
            now_ms,
            self.continues,
            self.first_sequence,
            self.departed,
            self._levels_row() if self.levels else _NO_LEVELS,
            self.size,
            self.sized_from,
            self.rescued,
            self.passed_ms,
            self.failure_notes is not None,
            self.heir_id,
        )
        spans = {span: self.spans.get(span, 0) for span in self.changed_spans}
        write_queue(changes, self.queue_id, row, spans)
        if self.failure_notes is not None:
            self.failure_notes.remove(changes, self.queue_id, self.changed_spans)
        self.changed_spans.clear()

    def _levels_row(self) -> list[tuple[int, int, int]]:
        return [(each.level, each.waiting, each.low_water) for each in self.levels.values()]

    @classmethod
    def of(cls, queue_id: int, row: QueueRow, spans: dict[int, int]) -> QueueState:
        """The queue as its own row and its spans tell it. `departed` follows from the outbox."""
        queue = cls(queue_id)
        queue.next_sequence = row.next_sequence
        queue.waiting = row.waiting
        queue.size = row.size
        queue.sized_from = row.next_sequence if row.sized_from < 0 else row.sized_from
        queue.rescued = row.rescued
        queue.continues = row.continues
        queue.heir_id = row.heir_id
        queue.first_sequence = row.first_sequence
        queue.delayed = row.delayed
        queue.passed_ms = row.passed_ms
        queue.ready_groups.restore(row.listed)
        queue.aliases = row.aliases
        queue.remembered_ms = row.remembered_ms
        queue.fifo = row.fifo
        queue.failure_notes = FailureNotes() if row.has_failure_notes else None
        queue.spans = spans
        for level, waiting, low_water in row.levels:
            queue.levels[level] = Level(level, low_water, low_water, waiting)
        first = min(spans) << SPAN_BITS if spans else row.next_sequence
        queue.low_water = queue.head = max(row.low_water, first)
        return queue

    def visible_again_in_order(self) -> Iterator[Entry]:
        """Entries that are visible again, oldest first, without changing anything. O(log n)
        each."""
        heaps = list(self.visible_again.values())
        return self._visible(_ascending(heaps[0]) if len(heaps) == 1 else _merged(heaps))

    def visible_again_of(self, level: int) -> Iterator[Entry]:
        """Those of one level."""
        return self._visible(_ascending(self.visible_again.get(level, [])))

    def _visible(self, sequences: Iterator[int]) -> Iterator[Entry]:
        for sequence in sequences:
            entry = self.entries.get(sequence)
            if entry is not None and not entry.hidden:
                yield entry


def _merged(heaps: list[list[int]]) -> Iterator[int]:
    return merge(*map(_ascending, heaps))


def _ascending(heap: list[int]) -> Iterator[int]:
    """Walk a binary heap in order without popping: a heap of the positions whose parents were
    given."""
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
