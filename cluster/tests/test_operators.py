"""Operations for operators: deletes of selected messages, plans of moves, readings of queues."""

from __future__ import annotations

import pytest

from cluster.tests.consistency import check_rows
from cluster.tests.driver import Driver
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MovePlan, Planned, QueuesRead, SelectedDeleted
from visibility.rules.delete_selected import DeleteSelected
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.read_queues import ReadQueues
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class Desk:
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
        deliveries = self.driver.submit(prepared.receive(queue, most)).deliveries
        return [message.data.decode() for message in deliveries.messages]


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


# -- delete ----------------------------------------------------------------------------------------


def test_selected_messages_are_deleted_and_others_stay(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b", "c", "d")

    answer = desk.ask(DeleteSelected([2, 3, 3, 9]))

    assert answer == SelectedDeleted(2, 1)
    assert desk.bodies(desk.dead) == ["a", "d"]


def test_a_message_in_flight_stays(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b")
    desk.bodies(desk.dead, 1)

    assert desk.ask(DeleteSelected([1, 2])) == SelectedDeleted(1, 1)

    assert desk.driver.state.queues[1].counters().in_flight == 1


def test_a_message_that_is_visible_again_is_deleted(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b")
    deliveries = desk.driver.submit(prepared.receive(desk.dead, 2)).deliveries
    for lease in deliveries.leases:
        receipt = Receipt(lease.sequence, lease.receive_count)
        desk.driver.submit(prepared.change(desk.dead, receipt, 0))

    assert desk.ask(DeleteSelected([1])) == SelectedDeleted(1, 0)

    assert desk.bodies(desk.dead) == ["b"]


# -- plan ------------------------------------------------------------------------------------------


def test_a_plan_tells_messages_and_bytes_by_target() -> None:
    desk = Desk()
    desk.let_die("a", "bb", "ccc")

    own = desk.ask(PlanMove())
    chosen = desk.ask(PlanMove(sequences=[1, 3, 7]), to=desk.other)

    assert own == MovePlan({desk.source.arn: Planned(3, 6)}, {})
    assert chosen == MovePlan({desk.other.arn: Planned(2, 4)}, {"MessageGone": 1})


def test_a_plan_tells_what_would_stay_and_why() -> None:
    desk = Desk()
    desk.send(desk.dead, "sent here")
    desk.let_die("dead")
    desk.bodies(desk.dead, 1)

    plan = desk.ask(PlanMove())

    assert plan == MovePlan({desk.source.arn: Planned(1, 4)}, {"InFlight": 1})
    stays = desk.ask(PlanMove(sequences=[1]))
    assert stays == MovePlan({}, {"InFlight": 1})


def test_a_plan_of_many_messages_goes_on_by_steps() -> None:
    desk = Desk()
    for number in range(1, 1002):
        desk.send(desk.dead, f"{number}")

    first = desk.ask(PlanMove(), to=desk.other)
    assert isinstance(first, MovePlan)
    assert first.targets[desk.other.arn].messages == 1000
    assert first.next_sequence is not None
    rest = desk.ask(PlanMove(from_sequence=first.next_sequence), to=desk.other)

    assert rest == MovePlan({desk.other.arn: Planned(1, 4)}, {})


def test_what_a_plan_says_is_what_moves(desk: Desk) -> None:
    desk.send(desk.dead, "a", "b", "c")
    plan = desk.ask(PlanMove(sequences=[1, 3]), to=desk.other)

    desk.ask(MoveSelected([1, 3]), to=desk.other)
    desk.driver.pass_time(1000)

    assert plan == MovePlan({desk.other.arn: Planned(2, 2)}, {})
    assert (desk.bodies(desk.other), desk.bodies(desk.dead)) == (["a", "c"], ["b"])


# -- read ------------------------------------------------------------------------------------------


def test_queues_are_read_with_counts_ages_and_the_latest_task() -> None:
    desk = Desk()
    desk.send(desk.dead, "a", "b")
    desk.bodies(desk.dead, 1)
    desk.ask(MoveSelected([2]), to=desk.other)
    desk.driver.pass_time(1000)

    answer = desk.ask(ReadQueues([1, 2, 3]))

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
