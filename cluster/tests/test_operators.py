"""Operations for operators: deletes of selected messages, plans of moves, readings of queues."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MovePlan, Planned, QueuesRead, SelectedDeleted
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.queues import ReadQueues
from visibility.rules.selected import DeleteSelected
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class OperatorBench:
    """A dead-letter queue with one source, and another queue."""

    def __init__(self, suffix: str = "") -> None:
        self.group = "g" if suffix else None
        self.dead = prepared.queue_named("dead" + suffix, 1)
        self.source = prepared.queue_named("source" + suffix, 2, dead_letters_to=self.dead)
        self.other = prepared.queue_named("other" + suffix, 3)
        self.driver = Driver(KnownQueues(self.dead, self.source, self.other))

    def send(self, queue: QueueDefinition, *bodies: str) -> None:
        for body in bodies:
            self.driver.submit(prepared.send(queue, body, group=self.group))

    def let_die(self, *bodies: str) -> None:
        """Send messages, and receive each once too often."""
        self.send(self.source, *bodies)
        for _ in range(2):
            self.driver.submit(
                prepared.receive(self.source, 10, timeout_s=0, dead_letter_queue=self.dead)
            )

    def ask(
        self,
        operation: Operation,
        queue: QueueDefinition | None = None,
        to: QueueDefinition | None = None,
    ) -> object:
        request = Request(operation, queue or self.dead, prepared.CALLER, "request", destination=to)
        reply = self.driver.submit(request)
        check_rows(self.driver.store, self.driver.state)
        return reply.answer

    def bodies(self, queue: QueueDefinition, most: int = 10) -> list[str]:
        return self.driver.submit(prepared.receive(queue, most)).bodies


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def bench(request: pytest.FixtureRequest) -> OperatorBench:
    return OperatorBench(request.param)


# -- delete ----------------------------------------------------------------------------------------


def test_selected_messages_are_deleted_and_others_stay(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b", "c", "d")

    answer = bench.ask(DeleteSelected([2, 3, 3, 9]))

    assert answer == SelectedDeleted(2, 1)
    assert bench.bodies(bench.dead) == ["a", "d"]


def test_a_message_in_flight_stays(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b")
    bench.bodies(bench.dead, 1)

    assert bench.ask(DeleteSelected([1, 2])) == SelectedDeleted(1, 1)

    assert bench.driver.state.queues[1].counters().in_flight == 1


def test_a_message_that_is_visible_again_is_deleted(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b")
    deliveries = bench.driver.submit(prepared.receive(bench.dead, 2)).deliveries
    for lease in deliveries.leases:
        receipt = Receipt(lease.sequence, lease.receive_count)
        bench.driver.submit(prepared.change(bench.dead, receipt, 0))

    assert bench.ask(DeleteSelected([1])) == SelectedDeleted(1, 0)

    assert bench.bodies(bench.dead) == ["b"]


# -- plan ------------------------------------------------------------------------------------------


def test_a_plan_tells_messages_and_bytes_by_target() -> None:
    bench = OperatorBench()
    bench.let_die("a", "bb", "ccc")

    own = bench.ask(PlanMove())
    chosen = bench.ask(PlanMove(sequences=[1, 3, 7]), to=bench.other)

    assert own == MovePlan({bench.source.arn: Planned(3, 6)}, {})
    assert chosen == MovePlan({bench.other.arn: Planned(2, 4)}, {"MessageGone": 1})


def test_a_plan_tells_what_would_stay_and_why() -> None:
    bench = OperatorBench()
    bench.send(bench.dead, "sent here")
    bench.let_die("dead")
    bench.bodies(bench.dead, 1)

    plan = bench.ask(PlanMove())

    assert plan == MovePlan({bench.source.arn: Planned(1, 4)}, {"InFlight": 1})
    stays = bench.ask(PlanMove(sequences=[1]))
    assert stays == MovePlan({}, {"InFlight": 1})


def test_a_plan_of_many_messages_goes_on_by_steps() -> None:
    bench = OperatorBench()
    for number in range(1, 1002):
        bench.send(bench.dead, f"{number}")

    first = bench.ask(PlanMove(), to=bench.other)
    assert isinstance(first, MovePlan)
    assert first.targets[bench.other.arn].messages == 1000
    assert first.next_sequence is not None
    rest = bench.ask(PlanMove(from_sequence=first.next_sequence), to=bench.other)

    assert rest == MovePlan({bench.other.arn: Planned(1, 4)}, {})


def test_what_a_plan_says_is_what_moves(bench: OperatorBench) -> None:
    bench.send(bench.dead, "a", "b", "c")
    plan = bench.ask(PlanMove(sequences=[1, 3]), to=bench.other)

    bench.ask(MoveSelected([1, 3]), to=bench.other)
    bench.driver.pass_time(1000)

    assert plan == MovePlan({bench.other.arn: Planned(2, 2)}, {})
    assert (bench.bodies(bench.other), bench.bodies(bench.dead)) == (["a", "c"], ["b"])


# -- read ------------------------------------------------------------------------------------------


def test_queues_are_read_with_counts_ages_and_the_latest_task() -> None:
    bench = OperatorBench()
    bench.send(bench.dead, "a", "b")
    bench.bodies(bench.dead, 1)
    bench.ask(MoveSelected([2]), to=bench.other)
    bench.driver.pass_time(1000)

    answer = bench.ask(ReadQueues([1, 2, 3]))

    assert isinstance(answer, QueuesRead)
    dead, *_, other = answer.queues
    assert (dead.visible, dead.in_flight, dead.sent, dead.received, dead.moved_out) == (
        0,
        1,
        2,
        1,
        1,
    )
    assert dead.oldest_stored_ms
    assert dead.task is not None
    assert (dead.task.status, dead.task.approximate_number_of_messages_moved) == ("COMPLETED", 1)
    assert (other.queue_id, other.visible, other.moved_in, other.task) == (3, 1, 1, None)
