"""WaitList: long polls in order of arrival. Volatile: a restart answers them by closing the connection.

A wait holds whatever the shard needs to answer it (`ticket`). It ends when its receive finds a message, when its time is
up, when the poller hangs up, or when the queue is deleted.
"""

from __future__ import annotations

from typing import NamedTuple

from visibility.contract.model import Request


class Wait(NamedTuple):
    """A parked ReceiveMessage."""

    number: int
    queue_id: int
    request: Request
    ticket: object
    until_ms: int


class WaitList:
    """Parked receives by queue, oldest first."""

    __slots__ = ("_next_number", "by_number", "by_queue")

    def __init__(self) -> None:
        self.by_number: dict[int, Wait] = {}
        self.by_queue: dict[int, dict[int, Wait]] = {}
        """Only queues with a line; the hot path looks here first."""
        self._next_number = 1

    def __len__(self) -> int:
        return len(self.by_number)

    def park(self, request: Request, ticket: object, until_ms: int) -> Wait:
        """Add a receive at the end of its queue's line."""
        number = self._next_number
        self._next_number += 1
        wait = Wait(number, request.queue.queue_id, request, ticket, until_ms)
        self.by_number[number] = wait
        self.by_queue.setdefault(wait.queue_id, {})[number] = wait
        return wait

    def first(self, queue_id: int) -> Wait | None:
        """The longest waiting receive of a queue."""
        line = self.by_queue.get(queue_id)
        return next(iter(line.values())) if line else None

    def of_queue(self, queue_id: int) -> list[Wait]:
        """All receives of a queue, longest waiting first."""
        return list(self.by_queue.get(queue_id, {}).values())

    def all(self) -> list[Wait]:
        """All receives of the shard."""
        return list(self.by_number.values())

    def remove(self, number: int) -> Wait | None:
        """Take a receive out of the line; None if it is not there any more."""
        wait = self.by_number.pop(number, None)
        if wait is not None:
            line = self.by_queue[wait.queue_id]
            del line[number]
            if not line:
                del self.by_queue[wait.queue_id]
        return wait
