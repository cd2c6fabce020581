"""WaitList: long polls of each queue in order of arrival."""

from __future__ import annotations

from visibility.state.waiters import WaitList
from visibility.tests import prepared

Q = prepared.receive(prepared.queue_named("q", 1))
OTHER = prepared.receive(prepared.queue_named("other", 2))


def test_an_empty_list_has_nobody() -> None:
    waits = WaitList()

    assert waits.first(1) is None
    assert waits.of_queue(1) == waits.all() == []
    assert waits.remove(1) is None
    assert len(waits) == 0


def test_the_longest_waiting_of_a_queue_is_first() -> None:
    waits = WaitList()
    first, other, second = waits.park(Q, "a", 9), waits.park(OTHER, "b", 9), waits.park(Q, "c", 9)

    assert waits.first(1) == first
    assert waits.of_queue(1) == [first, second]
    assert waits.of_queue(2) == [other]
    assert waits.all() == [first, other, second]


def test_who_is_removed_is_out_of_the_line_and_the_others_keep_their_places() -> None:
    waits = WaitList()
    first, second, third = (waits.park(Q, ticket, 9) for ticket in "abc")

    assert waits.remove(second.number) == second
    assert waits.of_queue(1) == [first, third]
    assert waits.remove(first.number) == first
    assert waits.first(1) == third
    assert waits.remove(first.number) is None
    assert waits.remove(third.number) == third
    assert waits.first(1) is None
    assert len(waits) == 0


def test_a_wait_keeps_its_ticket_its_end_and_a_number_of_its_own() -> None:
    waits = WaitList()
    waits.remove(waits.park(Q, "gone", 1).number)

    wait = waits.park(OTHER, "ticket", 42)

    assert (wait.queue_id, wait.request, wait.ticket, wait.until_ms) == (2, OTHER, "ticket", 42)
    assert wait.number == 2, "numbers are not used again: old deadlines may still name them"
