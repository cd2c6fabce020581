"""A shard's memory: its queues, deadlines and long polls."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from visibility.content.sealing import AsStored, Sealing
from visibility.contract.model import Definitions
from visibility.rows.row_values import NotedParts, PartRow
from visibility.state.archive_state import ArchiveState
from visibility.state.known_tokens import KnownTokens
from visibility.state.outbox import Outbox
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.short_answers import AnswerMemory
from visibility.state.waiters import WaitList

_WORD = 64
_MASK = (1 << _WORD) - 1


class DeadlineHeap:
    """The only timer structure of a shard: instants with two 64-bit numbers each, a queue id (0 for
    a long poll), and a sequence or a poll's number.

    An item is one packed integer, instant first, so the heap orders by time and costs a third of a
    heap of tuples. Items are never removed early: the caller that pops one checks in the state
    whether it still applies.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def push(self, at_ms: int, queue_id: int, sequence: int) -> None:
        """Add an instant. O(log n)."""
        heappush(self._items, ((at_ms << _WORD | queue_id) << _WORD) | sequence)

    def pop_due(self, now_ms: int) -> tuple[int, int, int] | None:
        """Take the earliest (at_ms, queue_id, sequence) up to `now_ms`; None if there is none."""
        items = self._items
        if not items or items[0] >> (2 * _WORD) > now_ms:
            return None
        packed = heappop(items)
        return packed >> (2 * _WORD), packed >> _WORD & _MASK, packed & _MASK

    def next_at_ms(self) -> int | None:
        """The earliest instant, None when empty."""
        return self._items[0] >> (2 * _WORD) if self._items else None

    def rebuild(self, items: list[tuple[int, int, int]]) -> None:
        """Replace the content by `items` of (at_ms, queue_id, sequence). O(n)."""
        self._items = [((at << _WORD | queue) << _WORD) | sequence for at, queue, sequence in items]
        heapify(self._items)


_PULSES = 0
"""Sequence of a queue's pulse in the deadline heap; real sequences start at 1."""

_FULL_MS_MIN, _FULL_MS_MAX = 1_000, 60_000
"""Time for which nothing departs for a queue that had no room."""


class ShardState:
    """All queues of a shard, its deadlines and its long polls."""

    __slots__ = (
        "archive",
        "deadlines",
        "definitions",
        "delayed_by_account",
        "due",
        "full_targets",
        "hidden",
        "locking",
        "memory",
        "noted_parts",
        "notes_to_look_at",
        "outbox",
        "parts",
        "prepares",
        "quarantines",
        "queues",
        "rows",
        "sealing",
        "sharing",
        "to_wake",
        "tokens",
        "transactions_since_ms",
        "waits",
        "window_bytes",
        "without_room",
    )

    def __init__(
        self,
        rows: Rows | None = None,
        definitions: Definitions | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self.rows: Rows = rows  # type: ignore[assignment]
        """The rows on disk; None in tests that only apply events."""
        self.definitions: Definitions = definitions  # type: ignore[assignment]
        self.sealing = sealing or AsStored()
        self.queues: dict[int, QueueState] = {}
        self.deadlines = DeadlineHeap()
        self.hidden = 0
        """Messages in flight over all queues: the live part of the deadline heap."""
        self.window_bytes = 0
        """Content held in all windows together."""
        self.waits = WaitList()
        self.to_wake: dict[int, None] = {}
        """Queues with long polls in which a message may have become visible, in order."""
        self.due: dict[int, None] = {}
        """Queues that need a pulse, in order."""
        self.without_room: dict[tuple[int, str], int] = {}
        """By queue and user the size of a message that found no room: until there is some, receives
        are refused without looking at messages."""
        self.archive = ArchiveState()
        self.outbox = Outbox()
        """Messages on their way to other shards."""
        self.full_targets: dict[int, tuple[int, int]] = {}
        """Queues of other shards that had no room, by id: the instant until which nothing departs
        for them, and that time's length in ms."""
        self.delayed_by_account: tuple[int, dict[str, int]] = 0, {}
        """A cache: delayed messages by account, and the instant until which they count so."""
        self.parts: dict[int, PartRow] = {}
        """Parts of queues that closed, by queue id; those that are gone stay."""
        self.noted_parts: dict[bytes, NotedParts] = {}
        """All parts of each queue that had several, one of them here, by `name_of_note`."""
        self.notes_to_look_at: list[bytes] = []
        """Names of notes, of which some may be forgotten by now."""
        self.locking: dict[int, None] = {}
        """Ids of queues with locked groups; some may have none any more."""
        self.sharing: dict[int, None] = {}
        """Ids of queues with a move task of which several parts do shares; some may have none any
        more."""
        self.transactions_since_ms = 0
        """Transactions before this instant were forgotten since the start."""
        self.tokens = KnownTokens()
        """Tokens of the transactions that the rows remember."""
        self.memory: AnswerMemory | None = None
        """Answers for retries; None if no request is tried again."""
        self.quarantines = True
        """False if another host has a good copy of what is damaged here: no event is made of it."""
        self.prepares = True
        """False while a backup is made: no deletes are prepared for transactions."""

    def queue(self, queue_id: int) -> QueueState:
        """The queue's state; an unknown queue is empty, as a shard needs no create."""
        state = self.queues.get(queue_id)
        if state is None:
            state = self.queues[queue_id] = QueueState(queue_id)
            self.begin(state)
        return state

    def begin(self, state: QueueState) -> None:
        """Let a part of a queue issue sequences from its own first one on: other parts issue
        others."""
        first = self._first_sequence(state.queue_id)
        if state.next_sequence < first:
            state.next_sequence = state.low_water = state.head = state.first_sequence = first

    def _first_sequence(self, queue_id: int) -> int:
        # No definitions: a test that only applies events.
        known = self.definitions.queue_of_id(queue_id) if self.definitions is not None else None
        return known.first_sequence if known is not None else 1

    def holders(self, queue: QueueState, sequence: int) -> Iterator[QueueState]:
        """The purged queues that may have the message of a handle, latest first; `queue` continues
        them.

        A restored message is in a later queue than the one that issued its sequence.
        """
        while queue.continues and (before := self.queues.get(queue.continues)) is not None:
            queue = before
            if queue.stored and (sequence >= queue.first_sequence or queue.aliases):
                yield queue

    def continuing(self, queue_id: int) -> list[QueueState]:
        """The queues that succeed this purged one: one, or none."""
        return [queue for queue in self.queues.values() if queue.continues == queue_id]

    def is_ready(self, queue_id: int) -> bool:
        """True if messages may move to the queue."""
        return not self.is_closed(queue_id) and self.has_begun(queue_id)

    def has_begun(self, queue_id: int) -> bool:
        """True once the queue continues its purged predecessor, if it has one.

        The definitions know of a purge before the shard does.
        """
        state = self.queues.get(queue_id)
        if state is not None and (
            state.continues or state.next_sequence > self._first_sequence(queue_id)
        ):
            return True
        return all(
            self.queue(purged_id).next_sequence == 1
            for purged_id, successor_id in self.definitions.continued()
            if successor_id == queue_id
        )

    def is_closed(self, queue_id: int) -> bool:
        """True for a part that takes no messages any more."""
        row = self.parts.get(queue_id)
        return row is not None and bool(row.closed_version)

    def note_full(self, queue_id: int, at_ms: int) -> None:
        """Note that a queue of another shard had no room; each time in a row for longer."""
        _, before_ms = self.full_targets.get(queue_id, (0, 0))
        wait_ms = min(max(2 * before_ms, _FULL_MS_MIN), _FULL_MS_MAX)
        self.full_targets[queue_id] = at_ms + wait_ms, wait_ms

    def is_full(self, queue_id: int, now_ms: int) -> bool:
        """True while nothing should depart for this queue of another shard."""
        return bool(self.full_targets) and self.full_targets.get(queue_id, (0, 0))[0] > now_ms

    def plan_expiry(self, queue: QueueState, expires_ms: int) -> None:
        """Plan a check for the end of the time to live of a message that joined the queue; 0 is
        none."""
        if not expires_ms:
            return
        if expires_ms <= queue.expiries_after[0]:
            queue.expiries_after = min(queue.expiries_after, (expires_ms, 0))
        if expires_ms < queue.fresh_until_ms:
            queue.fresh_until_ms = expires_ms
        if expires_ms < queue.pulse_at_ms or not queue.pulse_at_ms:
            self.plan_pulse(queue, expires_ms)

    def plan_pulse(self, queue: QueueState, at_ms: int) -> None:
        """Plan a check of the queue for this time, unless an earlier one is planned."""
        if not queue.pulse_at_ms or at_ms < queue.pulse_at_ms:
            queue.pulse_at_ms = at_ms
            self.deadlines.push(at_ms, queue.queue_id, _PULSES)
