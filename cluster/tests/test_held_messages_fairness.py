"""A fair queue does not count held messages as work that its consumers do for a group."""

from __future__ import annotations

from cluster.tests.test_operators import Desk
from visibility.contract.limits import DELETE_UNDO_SECONDS_MAX
from visibility.contract.model import Receipt
from visibility.rules.hold_messages import HoldMessages
from visibility.state.fairness import FINISHED_MIN, IN_FLIGHT_MIN, IN_FLIGHT_SHARE
from visibility.tests import prepared


def desk_with(messages: int) -> Desk:
    """A dead-letter queue with this many messages of group `a`."""
    desk = Desk()
    desk.group = "a"
    desk.send(desk.dead, *(f"a{number}" for number in range(messages)))
    return desk


def test_a_group_with_held_messages_is_served_in_its_turn() -> None:
    desk = desk_with(IN_FLIGHT_MIN + 2)
    desk.ask(HoldMessages(list(range(1, IN_FLIGHT_MIN + 1))))
    desk.bodies(desk.dead, 1)
    desk.group = "b"
    desk.send(desk.dead, "b")

    assert desk.bodies(desk.dead) == [f"a{IN_FLIGHT_MIN + 1}", "b"]
    assert desk.driver.state.queue(1).fairness.noisy == {}


def test_the_time_until_a_delete_that_can_be_undone_is_not_work() -> None:
    half = IN_FLIGHT_MIN - 1
    assert 2 * half > FINISHED_MIN
    desk = desk_with(2 * half)
    window_ms = DELETE_UNDO_SECONDS_MAX * 1000
    for first in (1, half + 1):
        for _ in range(half):
            desk.driver.submit(prepared.receive(desk.dead, 1, timeout_s=1))
        desk.driver.pass_time(1_000)
        chosen = list(range(first, first + half))
        desk.ask(HoldMessages(chosen, delete_after_ms=window_ms))

    desk.driver.pass_time(window_ms)

    queue = desk.driver.state.queue(1)
    assert (queue.stored, queue.fairness.noisy) == (0, {})


def test_marks_of_deleted_messages_do_not_make_another_group_noisy() -> None:
    gone, others = 2 * IN_FLIGHT_MIN, round(IN_FLIGHT_MIN / IN_FLIGHT_SHARE)
    desk = desk_with(gone)
    for _ in range(gone):
        desk.driver.submit(prepared.receive(desk.dead, 1, timeout_s=1))
    desk.driver.pass_time(1_000)
    desk.ask(HoldMessages(list(range(1, gone + 1))))
    for sequence in range(1, gone + 1):
        desk.driver.submit(prepared.delete(desk.dead, Receipt(sequence, 1)))
    queue = desk.driver.state.queue(1)
    noisy = set(queue.fairness.noisy)
    assert len(noisy) == 1
    for desk.group, count in ((None, others), ("b", IN_FLIGHT_MIN)):
        desk.send(desk.dead, *map(str, range(count)))
        for _ in range(count):
            desk.bodies(desk.dead, 1)

    assert queue.in_flight == others + IN_FLIGHT_MIN
    assert set(queue.fairness.noisy) <= noisy
