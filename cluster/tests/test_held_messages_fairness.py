"""A fair queue does not count held messages as work that its consumers do for a group."""

from __future__ import annotations

from cluster.tests.test_operators import OperatorBench
from visibility.contract.limits import DELETE_UNDO_SECONDS_MAX
from visibility.contract.model import Receipt
from visibility.rules.hold_messages import HoldMessages
from visibility.state.fairness import FINISHED_MIN, IN_FLIGHT_MIN, IN_FLIGHT_SHARE
from visibility.tests import prepared


def desk_with(messages: int) -> OperatorBench:
    """A dead-letter queue with this many messages of group `a`."""
    bench = OperatorBench()
    bench.group = "a"
    bench.send(bench.dead, *(f"a{number}" for number in range(messages)))
    return bench


def test_a_group_with_held_messages_is_served_in_its_turn() -> None:
    bench = desk_with(IN_FLIGHT_MIN + 2)
    bench.ask(HoldMessages(list(range(1, IN_FLIGHT_MIN + 1))))
    bench.bodies(bench.dead, 1)
    bench.group = "b"
    bench.send(bench.dead, "b")

    assert bench.bodies(bench.dead) == [f"a{IN_FLIGHT_MIN + 1}", "b"]
    assert bench.driver.state.queue(1).fairness.noisy == {}


def test_the_time_until_a_delete_that_can_be_undone_is_not_work() -> None:
    half = IN_FLIGHT_MIN - 1
    assert 2 * half > FINISHED_MIN
    bench = desk_with(2 * half)
    window_ms = DELETE_UNDO_SECONDS_MAX * 1000
    for first in (1, half + 1):
        for _ in range(half):
            bench.driver.submit(prepared.receive(bench.dead, 1, timeout_s=1))
        bench.driver.pass_time(1_000)
        chosen = list(range(first, first + half))
        bench.ask(HoldMessages(chosen, delete_after_ms=window_ms))

    bench.driver.pass_time(window_ms)

    queue = bench.driver.state.queue(1)
    assert (queue.stored, queue.fairness.noisy) == (0, {})


def test_marks_of_deleted_messages_do_not_make_another_group_noisy() -> None:
    gone, others = 2 * IN_FLIGHT_MIN, round(IN_FLIGHT_MIN / IN_FLIGHT_SHARE)
    bench = desk_with(gone)
    for _ in range(gone):
        bench.driver.submit(prepared.receive(bench.dead, 1, timeout_s=1))
    bench.driver.pass_time(1_000)
    bench.ask(HoldMessages(list(range(1, gone + 1))))
    for sequence in range(1, gone + 1):
        bench.driver.submit(prepared.delete(bench.dead, Receipt(sequence, 1)))
    queue = bench.driver.state.queue(1)
    noisy = set(queue.fairness.noisy)
    assert len(noisy) == 1
    for bench.group, count in ((None, others), ("b", IN_FLIGHT_MIN)):
        bench.send(bench.dead, *map(str, range(count)))
        for _ in range(count):
            bench.bodies(bench.dead, 1)

    assert queue.in_flight == others + IN_FLIGHT_MIN
    assert set(queue.fairness.noisy) <= noisy
