"""WaitList: long polls of each queue in order of arrival."""

from __future__ import annotations

from visibility.contract.model import Request
from visibility.state.waiters import Ticket, WaitList
from visibility.tests import prepared

Q = prepared.receive(prepared.queue_named("q", 1))
OTHER = prepared.receive(prepared.queue_named("other", 2))


def parked(waits: WaitList, request: Request) -> Ticket:
    ticket = Ticket(request, print, until_ms=9)
    waits.park(ticket, ticket.request.queue.queue_id)
    return ticket


def test_an_empty_list_has_nobody() -> None:
    waits = WaitList()

    assert waits.first(1) is None
    assert waits.take_all(1) == waits.take_all() == []
    assert waits.remove(1) is None
    assert len(waits) == 0


def test_the_longest_waiting_of_a_queue_is_first() -> None:
    waits = WaitList()
    first, other, second = parked(waits, Q), parked(waits, OTHER), parked(waits, Q)

    assert waits.first(1) is first
    assert waits.take_all(1) == [first, second]
    assert waits.take_all() == [other]


def test_a_receive_that_is_removed_leaves_the_others_in_their_places() -> None:
    waits = WaitList()
    first, second, third = (parked(waits, Q) for _ in range(3))
    numbers = [ticket.number for ticket in (first, second, third)]

    assert waits.remove(numbers[1]) is second
    assert waits.remove(numbers[0]) is first
    assert waits.first(1) is third
    assert waits.remove(numbers[0]) is None
    assert waits.remove(numbers[2]) is third
    assert waits.first(1) is None
    assert len(waits) == 0


def test_numbers_are_not_used_again_since_old_deadlines_may_name_them() -> None:
    waits = WaitList()
    gone = parked(waits, Q)
    waits.remove(gone.number)

    assert gone.number == 0, "it is parked no more"
    assert parked(waits, OTHER).number == 2
