"""Tickets: requests and the receivers of their answers; WaitList: long polls in order of arrival.

Volatile: a restart ends long polls by closing their connections. A poll ends when its receive finds
a message, when its time is up, when the client hangs up, or when the queue is deleted. Who waits
for a transaction waits as at a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer

OnAnswer = Callable[[Answer | QueueError], None]


class Room(Protocol):
    """The memory for the answer of a receive until its client has read it. Sizes are in bytes of
    messages."""

    def has(self, size: int, messages: int) -> bool:
        """True if an answer has room that has this many messages, of this size together."""

    def take(self, size: int) -> None:
        """Take the room for the answer, which is given back after the answer."""


class Ticket(msgspec.Struct):
    """A submitted request and the receiver of its answer."""

    request: Request
    on_answer: OnAnswer
    number: int = 0
    """The long poll's number while it is parked, else 0."""
    queue_id: int = 0
    """The queue at which it is parked; its request may already name the successor. Below 0 for a
    transaction, see `place_of`."""
    until_ms: int = 0
    """Time at which its wait ends, set once it waits."""
    age_ms: int = 0
    """Time since the first try if that may have been decided: this is a retry. Else 0."""
    if_first: QueueError | None = None
    """The answer to a retry whose first try was not decided, as when space is short; None to
    decide it."""
    is_cancelled: bool = False
    """True once the client hung up: it then does not start to wait."""
    room: Room | None = None
    """Asked about the answer of a receive; None if it needs no room."""
    on_refusal: Callable[[Ticket, QueueError], None] | None = None
    """Called in place of `on_answer` by a shard that ends before it has answered; None for that
    one."""

    def refuse(self, refusal: QueueError) -> None:
        """Say that the shard does not answer any more."""
        if self.on_refusal is None:
            self.on_answer(refusal)
        else:
            self.on_refusal(self, refusal)


class WaitList:
    """Parked requests by queue, oldest first."""

    __slots__ = ("_next_number", "by_number", "by_queue", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        """False once the shard stops: then no receive starts to wait."""
        self.by_number: dict[int, Ticket] = {}
        self.by_queue: dict[int, dict[int, Ticket]] = {}
        """Only queues with polls; the hot path checks this first."""
        self._next_number = 1

    def __len__(self) -> int:
        return len(self.by_number)

    def park(self, ticket: Ticket, queue_id: int) -> int:
        """Add a request after the others of the queue; returns its number."""
        number = ticket.number = self._next_number
        self._next_number += 1
        self.by_number[number] = ticket
        ticket.queue_id = queue_id
        self.by_queue.setdefault(queue_id, {})[number] = ticket
        return number

    def first(self, queue_id: int) -> Ticket | None:
        """The longest waiting receive of a queue."""
        polls = self.by_queue.get(queue_id)
        return next(iter(polls.values())) if polls else None

    def take_all(self, queue_id: int | None = None) -> list[Ticket]:
        """Take out all receives of a queue or of the shard, longest waiting first."""
        polls = self.by_number if queue_id is None else self.by_queue.get(queue_id, {})
        taken = list(polls.values())
        for ticket in taken:
            self.remove(ticket.number)
        return taken

    def remove(self, number: int) -> Ticket | None:
        """Take a receive out; None if it is no longer there."""
        ticket = self.by_number.pop(number, None)
        if ticket is not None:
            polls = self.by_queue[ticket.queue_id]
            del polls[number]
            if not polls:
                del self.by_queue[ticket.queue_id]
            ticket.number = 0
        return ticket


def place_of(token: bytes) -> int:
    """The number under which requests wait for the transaction with this token; no queue's."""
    return -1 - int.from_bytes(token)
