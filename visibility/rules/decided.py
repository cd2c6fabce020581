"""The outcome of a decision, and that of a Turn."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rules.events import Answers, Damage, Event, Notice
from visibility.state.waiters import Ticket

NO_MESSAGES = Deliveries([], [])


class NoAnswer(Enum):
    """The reason why a decision has no answer yet."""

    PARK = "park"  # a long poll on an empty queue: answer on a message or at the timeout
    DEFER = "defer"  # more work than one decision should do: decide again in the next turn


Outcome = tuple[Answer | NoAnswer, tuple[Event, ...]]
"""An answer, or the reason for having none yet, and the events to apply, in order."""


class RefusedWithEvents(Exception):
    """A request is refused, and yet something happens: a repeat of it may be accepted."""

    def __init__(self, refusal: QueueError, events: tuple[Event, ...]) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.events = events


class TurnFailed(Exception):
    """A rule has a bug. `tickets` are all that the Turn had to answer, some of them twice."""

    def __init__(self, tickets: list[Ticket]) -> None:
        super().__init__("a Turn failed; the shard is loaded anew")
        self.tickets = tickets


class DamageMet(TurnFailed):
    """A row is damaged here, and other hosts have good copies: see `ShardState.quarantines`."""


def failure_notice(request: Request, error: Exception) -> Notice:
    """The line for a rule that has a bug."""
    return Notice("decision_failed", {"request_id": request.request_id}, error)


class Decided(NamedTuple):
    """The outcome of a Turn; its changes are in `state.rows`."""

    answers: Answers
    deferred: list[Ticket]
    """Tickets to decide in the next Turn, before new requests."""
    untaken: list[Ticket]
    """New requests that found no room in this Turn; they stay new for the next one."""
    queue_ids: list[int]
    """Changed queues, THE_SHARD for changes outside of queues. Empty if there is nothing to
    commit."""
    request_ids: list[str]
    """Requests that changed something; empty where their answers are remembered."""
    notices: list[Notice]
    damage: Damage | None
    """Set if requests were refused until a queue is rebuilt."""
    departs: bool
    """True if messages leave for other shards."""
    locks: bool
    """True if groups wait for earlier parts."""
