"""Event: a fact that changes a shard, as one Turn tells it. Each kind stands with its feature.

An event is in absolute terms (sequences, instants, counts), so applying it needs neither a clock
nor a queue's definition. It changes memory and rows alike: a start loads the same state from the
rows. It is never encoded: the log and other hosts get the row changes. So its fields may change,
but not those of the structs that rows hold (`visibility/rows/row_values.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from visibility.contract.errors import QueueDoesNotExist, QueueError
from visibility.contract.outcomes import Answer
from visibility.rows.row_changes import Changes
from visibility.state.shard_state import ShardState
from visibility.state.waiters import Ticket

Answers = list[tuple[Ticket, Answer | QueueError]]
"""Tickets and their answers, in order."""


class Notice(NamedTuple):
    """A line for the log; `error` is set if a rule has a bug."""

    event: str
    fields: dict[str, object]
    error: Exception | None = None
    is_damage: bool = False


class Damage(NamedTuple):
    """Damage that only a rebuild of the queue removes."""

    queue_id: int
    reason: str


class Effects:
    """The effects of a Turn up to here: its events are applied and recorded, and add to them."""

    __slots__ = (
        "answers",
        "changed",
        "damage",
        "deferred",
        "departs",
        "dropped",
        "locks",
        "notices",
        "state",
    )

    def __init__(self, state: ShardState) -> None:
        self.state = state
        self.answers: Answers = []
        self.deferred: list[Ticket] = []
        """Requests to decide in the next Turn."""
        self.changed: dict[int, None] = {}
        """Queues whose own rows need recording, in order; THE_SHARD for the archive's."""
        self.dropped: list[int] = []
        """Queues that are gone."""
        self.notices: list[Notice] = []
        self.damage: Damage | None = None
        self.departs = False
        """True if messages leave for other shards."""
        self.locks = False
        """True if groups wait for earlier parts."""

    def do(self, event: Event) -> None:
        """Apply an event to memory and record its row changes."""
        state = self.state
        self.changed[event.queue_id] = None
        event.tell(self)
        event.apply(state)
        event.record(state.rows.changes)
        if state.waits.by_queue:
            for queue_id in event.shown_in(state):
                state.to_wake[queue_id] = None

    def close(self, queue_id: int) -> None:
        """End the long polls of a removed queue."""
        for ticket in self.state.waits.take_all(queue_id):
            self.answers.append((ticket, QueueDoesNotExist()))


class Event(msgspec.Struct, frozen=True):
    """A fact about one queue. Each kind defines `apply` and `record`."""

    queue_id: int

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        for method in ("apply", "record"):
            if method not in cls.__dict__:
                raise TypeError(f"the event {cls.__name__} defines no method {method}")

    def apply(self, shard: ShardState) -> None:
        """Change memory, from its state and this event alone."""
        raise NotImplementedError

    def record(self, changes: Changes) -> None:
        """Record the same facts as changes of rows."""
        raise NotImplementedError

    def tell(self, turn: Effects) -> None:
        """Add further consequences to the Turn, before `apply`; most events have none."""

    def shown_in(self, shard: ShardState) -> Iterable[int]:
        """Queues in which a message may be visible from now on, for long polls, and the places of
        transactions that are settled; after `apply`."""
        return ()

    @property
    def weight(self) -> int:
        """Messages that count against the bound of a pulse's work; a KiB written anew is one
        more."""
        return 0
