"""Event: a fact that changes a shard, as one Turn tells it. Each kind stands with its feature.

An event is in absolute terms (sequences, instants, counts), so applying it needs neither a clock
nor a queue's definition. It changes memory and rows alike: a start loads the same state from the
rows. It is never encoded: the log and other hosts get the row changes. So its fields may change,
but not those of the structs that rows hold (`visibility/rows/row_values.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from visibility.rows.row_changes import Changes
from visibility.state.shard_state import ShardState
from visibility.state.waiters import Ticket


class Notice(NamedTuple):
    """A line for the log; `error` is set if a rule has a bug."""

    event: str
    fields: dict[str, object]
    error: Exception | None = None
    is_damage: bool = False


class Effects(Protocol):
    """The part of the running Turn that events add to."""

    state: ShardState
    changed: dict[int, None]
    """Queues whose own rows need recording, in order; THE_SHARD for the archive's."""
    dropped: list[int]
    """Queues that are gone."""
    deferred: list[Ticket]
    """Requests to decide in the next Turn."""
    notices: list[Notice]
    departs: bool
    """True if messages leave for other shards."""
    locks: bool
    """True if groups wait for earlier parts."""

    def close(self, queue_id: int) -> None:
        """End the long polls of a removed queue."""


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
