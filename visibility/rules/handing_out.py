"""The messages that one Turn hands out: bounded, and no more than their clients have room for.

Deciding changes nothing, so a receive whose answer is too large is decided anew with fewer
messages, or refused: its messages stay visible and the receive does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import msgspec

from visibility.contract.errors import RequestThrottled
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Deliveries
from visibility.rules.decided import Outcome
from visibility.state.waiters import Room, Ticket

COUNTED_BYTES_MIN = 16 << 10
"""Smaller answers need no room: there are at most as many as connections."""
TURN_BYTES_MAX = 4 << 20
"""Bytes of messages after which a Turn takes no further requests: its answers leave in one pass of
the event loop, which takes some milliseconds for each MiB."""
NO_ROOM = (
    "Answers that were not read yet take all the memory that they may. Read them, and try again."
)
_REMEMBERED_MAX = 10_000
DecideAgain = Callable[[Request], Outcome | None]


class HandingOut:
    """The deliveries of one Turn."""

    __slots__ = ("_without_room", "size")

    def __init__(self, without_room: dict[tuple[int, str], int]) -> None:
        """`without_room`: see `ShardState`."""
        self._without_room = without_room
        self.size = 0
        """Bytes of the messages that were looked at."""

    def check(self, ticket: Ticket) -> None:
        """Raises RequestThrottled for a receive if this user found no room for the queue's next
        message, and there still is none."""
        if type(ticket.request.operation) is not ReceiveMessage:
            return  # another host's requests all have the room of its connection
        place, room = _place(ticket.request), ticket.room
        size = self._without_room.get(place)
        if size is None or room is None:
            return
        if not room.has(size, 1):
            raise RequestThrottled(NO_ROOM)
        del self._without_room[place]

    def fitting(self, ticket: Ticket, outcome: Outcome, decide_again: DecideAgain) -> Outcome:
        """The outcome of a receive, or one with fewer messages for which there is room, which is
        then taken. Raises RequestThrottled."""
        sizes, room = _sizes(outcome), ticket.room
        size = sum(sizes)
        self.size += size
        if size < COUNTED_BYTES_MIN or room is None or ticket.age_ms:
            return outcome  # the messages of a retry may be hidden already
        if not room.has(size, len(sizes)):
            outcome = self._with_fewer(ticket.request, sizes, room, decide_again)
            size = sum(_sizes(outcome))
        room.take(size)
        return outcome

    def _with_fewer(
        self, request: Request, sizes: list[int], room: Room, decide_again: DecideAgain
    ) -> Outcome:
        operation = request.operation
        assert isinstance(operation, ReceiveMessage)
        number = sum(room.has(size, count) for count, size in enumerate(accumulate(sizes), 1))
        if number:
            operation = msgspec.structs.replace(operation, max_number_of_messages=number)
            again = decide_again(msgspec.structs.replace(request, operation=operation))
            # The repeated deliveries of an attempt are the same again.
            if again is not None and len(_sizes(again)) <= number:
                return again
        if len(self._without_room) >= _REMEMBERED_MAX:
            self._without_room.clear()
        self._without_room[_place(request)] = sizes[0]
        raise RequestThrottled(NO_ROOM)


def _sizes(outcome: Outcome) -> list[int]:
    answer = outcome[0]
    return [len(each.data) for each in answer.messages] if type(answer) is Deliveries else []


def _place(request: Request) -> tuple[int, str]:
    return request.queue.queue_id, request.caller.principal
