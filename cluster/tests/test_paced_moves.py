"""Move tasks of operators: filters, paces, pauses, undos, and the history."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from visibility.content.content import unpack
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter, MoveTask, Pace, encode_handle
from visibility.contract.operations import CancelMessageMoveTask, Operation
from visibility.contract.outcomes import MovePlan, MoveTasks, Planned
from visibility.rules import move_tasks
from visibility.rules.browse import BrowseMessages
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected, MoveTaskChanged, ReadMoveTasks
from visibility.rules.pulses import PULSE_MESSAGES_MAX
from visibility.tests import prepared
from visibility.tests.packed import send_packed
from visibility.tests.prepared import KnownQueues

BODIES = [f'{{"n": {number}, "kind": "{"ab"[number % 2]}"}}' for number in range(6)]


class Service:
    """A dead-letter queue with a source, and another queue."""

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix
        self.dead = prepared.queue_named("dead" + suffix, 1)
        self.source = prepared.queue_named("source" + suffix, 2, dead_letters_to=self.dead)
        self.other = prepared.queue_named("other" + suffix, 3, MaximumMessageSize="1024")
        self.driver = Driver(KnownQueues(self.dead, self.source, self.other))

    def let_die(self, *bodies: str, **attributes: str) -> None:
        """Send messages to the source, each in a group of its own, and let them become dead
        letters."""
        for body in bodies:
            group = body.split()[1].strip(",}") if self.suffix else None
            self.driver.submit(send_packed(self.source, body, group=group, **attributes))
        self.fail(self.source)

    def fail(self, queue: QueueDefinition) -> None:
        """Receive every message once too often."""
        for _ in range(2 * len(BODIES)):
            self.driver.submit(
                prepared.receive(queue, 10, timeout_s=0, dead_letter_queue=self.dead)
            )

    def ask(self, operation: Operation, to: QueueDefinition | None = None) -> Any:
        reply = self.driver.submit(
            Request(operation, self.dead, prepared.CALLER, "r", destination=to)
        )
        check_rows(self.driver.store, self.driver.state)
        return reply.answer

    def restart(self) -> None:
        self.driver = Driver(
            self.driver.queues, store=self.driver.store, now_ms=self.driver.now_ms, seed=1 << 70
        )

    @property
    def task(self) -> MoveTask:
        """The latest task, as operators read it."""
        answer = self.ask(ReadMoveTasks())
        assert isinstance(answer, MoveTasks)
        return answer.tasks[0]

    def change(self, change: str) -> None:
        assert self.ask(ChangeMoveTask(encode_handle(self.task), change)) is None

    def pace(self, **wanted: int) -> None:
        assert self.ask(ChangeMoveTask(encode_handle(self.task), "pace", **wanted)) is None

    def waiting(self, queue: QueueDefinition) -> list[str]:
        """The bodies of the messages of a queue, in order."""
        found = self.driver.rows.line(queue.queue_id, 0, 1 << 40, messages=1000, size=1 << 30)
        return [unpack(message.data)[1] for _, message in found.messages]


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def service(request: pytest.FixtureRequest) -> Service:
    return Service(request.param)


# -- filters ---------------------------------------------------------------------------------------


def test_a_filter_chooses_and_the_others_stay(service: Service) -> None:
    service.let_die(*BODIES)

    service.ask(MoveSelected(filter=MessageFilter(json="kind=b")))

    assert service.waiting(service.source) == BODIES[1::2]
    assert service.waiting(service.dead) == BODIES[::2]
    task = service.task
    assert (task.status, task.moved, task.looked_at, task.stayed) == ("COMPLETED", 3, 6, 0)
    assert task.filter == MessageFilter(json="kind=b")
    assert task.ended_at_ms


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (MessageFilter(text='"N": 4'), [4]),
        (MessageFilter(attribute="color"), [0, 1, 2, 3, 4, 5]),
        (MessageFilter(attribute="color=red"), []),
        (MessageFilter(source="source"), [0, 1, 2, 3, 4, 5]),
        (MessageFilter(source="other"), []),
        (MessageFilter(received_min=1, received_max=1), [0, 1, 2, 3, 4, 5]),
        (MessageFilter(received_min=2), []),
        (MessageFilter(sent_until_ms=prepared.START_MS), []),
        (MessageFilter(sent_from_ms=prepared.START_MS, json="n=2"), [2]),
    ],
)
def test_conditions(wanted: MessageFilter, expected: list[int]) -> None:
    service = Service()
    service.let_die(*BODIES, color="blue")

    service.ask(MoveSelected(filter=wanted))

    assert service.waiting(service.source) == [BODIES[number] for number in expected]


def test_receives_of_a_waiting_fifo_message_count() -> None:
    service = Service(".fifo")
    service.let_die(*BODIES[:2])
    service.driver.submit(prepared.receive(service.dead, 1, timeout_s=0))
    service.driver.pass_time(1)
    page = service.ask(BrowseMessages())
    assert [each.lease and each.lease.receive_count for each in page.messages] == [2, None]

    service.ask(MoveSelected(filter=MessageFilter(received_max=1)))

    assert service.waiting(service.source) == BODIES[1:2]


def test_a_filter_walks_in_bounded_steps_and_survives_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("visibility.rules.move_steps.FILTERED_MESSAGES", 2)
    service = Service()
    service.let_die(*BODIES)
    service.ask(MoveSelected(filter=MessageFilter(json="kind=b"), rate=1))
    assert service.task.moved == 1

    service.restart()
    service.driver.pass_time(10_000)

    assert service.waiting(service.source) == BODIES[1::2]
    assert (service.task.status, service.task.moved) == ("COMPLETED", 3)


def test_a_host_that_knows_no_filters_would_move_nothing() -> None:
    service = Service()
    service.let_die(*BODIES)
    service.ask(MoveSelected(filter=MessageFilter(json="kind=b"), pace=Pace(canary=1)))
    (stored,) = service.driver.state.queue(1).tasks.values()

    assert stored.selected == []


def test_a_plan_counts_what_a_filter_chooses_and_what_would_go_wrong(service: Service) -> None:
    service.let_die(*BODIES)
    large = BODIES[1][:-1] + f', "fill": "{"x" * 1100}"}}'
    service.driver.submit(send_packed(service.dead, large, group="b" if service.suffix else None))

    own = service.ask(PlanMove(filter=MessageFilter(json="kind=b")))
    other = service.ask(PlanMove(filter=MessageFilter(json="kind=b"), rate=1), to=service.other)

    assert isinstance(own, MovePlan)
    assert own.targets == {service.source.arn: Planned(3, sum(map(len, BODIES[1::2])))}
    assert (own.refused, own.passed) == ({"CouldNotDetermineMessageSource": 1}, 3)
    assert other.targets[service.other.arn].messages == 4
    assert other.targets[service.other.arn].too_large == 1
    assert service.waiting(service.dead) == [*BODIES, large]


def test_a_plan_tells_how_many_would_expire_before_their_turn() -> None:
    service = Service()
    service.let_die(*BODIES)
    retention_ms = service.dead.settings.retention_ms
    service.driver.now_ms += retention_ms - 2_500

    plan = service.ask(PlanMove(rate=1))

    assert (plan.targets[service.source.arn].messages, plan.expiring) == (6, 3)


def test_a_plan_tells_which_messages_leave_earlier_ones_of_their_group_behind() -> None:
    service = Service(".fifo")
    for body in BODIES:
        service.driver.submit(send_packed(service.dead, body, group=body[-3]))
    for body in BODIES[:2]:
        service.driver.submit(send_packed(service.dead, body + " ", group="c"))

    plan = service.ask(PlanMove(filter=MessageFilter(json="kind=b")), to=service.other)
    again = service.ask(PlanMove(from_sequence=8, groups=plan.groups), to=service.other)

    assert (plan.passed, plan.overtaking) == (4, 1)
    assert again.overtaking == 1


# -- pace ------------------------------------------------------------------------------------------


def test_a_canary_waits_for_somebody_and_then_goes_on(service: Service) -> None:
    service.let_die(*BODIES)

    service.ask(MoveSelected(pace=Pace(canary=2)))
    service.driver.pass_time(60_000)

    assert (service.task.status, service.task.paused, service.task.moved) == (
        "RUNNING",
        "canary",
        2,
    )
    service.restart()
    service.change("resume")
    service.driver.pass_time(10)
    assert (service.task.status, service.task.moved) == ("COMPLETED", 6)


def test_a_canary_of_all_messages_ends_the_task(service: Service) -> None:
    service.let_die(*BODIES)

    service.ask(MoveSelected(pace=Pace(canary=6)))

    assert (service.task.status, service.task.moved) == ("COMPLETED", 6)


def test_a_task_stops_when_its_messages_come_back(service: Service) -> None:
    service.let_die(*BODIES)
    service.ask(MoveSelected(rate=1, pace=Pace(stop_after=2)))
    service.driver.pass_time(1_000)
    assert service.task.moved == 2

    service.fail(service.source)
    service.driver.pass_time(20_000)

    task = service.task
    assert (task.status, task.paused, task.came_back, task.moved) == ("RUNNING", "came back", 2, 2)
    service.change("resume")
    service.driver.pass_time(4_000)
    assert (service.task.status, service.task.moved) == ("COMPLETED", 6)
    assert sorted(service.waiting(service.dead)) == sorted(BODIES[:2])


def test_messages_that_come_back_are_counted_while_a_canary_waits() -> None:
    service = Service()
    service.let_die(*BODIES)
    service.ask(MoveSelected(pace=Pace(canary=3)))
    service.let_die('{"n": 99}')
    service.driver.pass_time(2_000)

    assert (service.task.paused, service.task.came_back) == ("canary", 3)


def test_a_pause_stops_the_clock_of_the_rate() -> None:
    service = Service()
    service.let_die(*BODIES)
    service.ask(MoveSelected(rate=1))
    service.change("pause")
    service.driver.pass_time(3_600_000)
    assert (service.task.moved, service.task.paused) == (1, "operator")

    service.change("resume")
    service.driver.pass_time(1_500)

    assert service.task.moved == 3


def test_a_rate_rises_along_its_ramp() -> None:
    service = Service()
    for _ in range(4):
        service.let_die(*BODIES)
    service.ask(MoveSelected(rate=4, pace=Pace(ramp_s=4)))
    moved = []
    for _ in range(6):
        service.driver.pass_time(1_000)
        moved.append(service.task.moved)

    assert moved == [1, 3, 5, 9, 13, 17]


def test_a_ramp_needs_a_rate_and_a_path_must_be_readable() -> None:
    service = Service()
    for operation in (
        MoveSelected(pace=Pace(ramp_s=4)),
        MoveSelected(filter=MessageFilter(json="a[x]")),
    ):
        reply = service.driver.submit(Request(operation, service.dead, prepared.CALLER, "r"))
        assert isinstance(reply.refusal, InvalidParameterValue)


def test_a_paused_task_is_cancelled() -> None:
    service = Service()
    service.let_die(*BODIES)
    service.ask(MoveSelected(pace=Pace(canary=2)))

    service.ask(CancelMessageMoveTask(encode_handle(service.task)))

    assert (service.task.status, service.task.moved, service.task.paused) == ("CANCELLED", 2, "")
    for change in ("pause", "resume", "pace"):
        operation = ChangeMoveTask(encode_handle(service.task), change)
        reply = service.driver.submit(Request(operation, service.dead, prepared.CALLER, "r"))
        assert isinstance(reply.refusal, InvalidParameterValue)


# -- undo ------------------------------------------------------------------------------------------


def undo(service: Service, queue: QueueDefinition) -> None:
    """Return the unreceived messages of the latest task, as operators have it done."""
    task = service.task
    service.change("undo")
    wanted = MessageFilter(message_id=task.task_id[:13], received_max=0)
    operation = MoveSelected(filter=wanted, undoes=task.task_id, sources=task.sources)
    reply = service.driver.submit(
        Request(operation, queue, prepared.CALLER, "r", destination=service.dead)
    )
    assert reply.refusal is None
    check_rows(service.driver.store, service.driver.state)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["own source", "other"])
def test_an_undo_returns_what_nobody_has_received(service: Service, *, elsewhere: bool) -> None:
    service.let_die(*BODIES)
    target = service.other if elsewhere else service.source
    service.ask(MoveSelected(pace=Pace(canary=4)), to=service.other if elsewhere else None)
    service.driver.submit(
        send_packed(target, "never moved", group="new" if service.suffix else None)
    )
    service.driver.submit(prepared.receive(target, 1))

    undo(service, target)

    assert service.waiting(target) == [BODIES[0], "never moved"]
    assert service.waiting(service.dead) == [*BODIES[4:], *BODIES[1:4]]
    task = service.task
    assert (task.status, task.moved, bool(task.undone_at_ms)) == ("CANCELLED", 4, True)
    service.ask(MoveSelected())
    assert service.task.moved == 5
    assert sorted(service.waiting(service.source)) == sorted(
        BODIES[1:] + ([] if elsewhere else [BODIES[0], "never moved"])
    )


def test_an_undo_that_runs_is_found_and_one_that_ended_begins_anew(
    service: Service,
) -> None:
    service.let_die(*BODIES)
    service.ask(MoveSelected(), to=service.other)
    moved = service.task
    wanted = MessageFilter(message_id=moved.task_id[:13], received_max=0)
    operation = MoveSelected(filter=wanted, rate=1, undoes=moved.task_id, sources=moved.sources)

    def begin() -> Any:
        to = service.dead
        asking = Request(operation, service.other, prepared.CALLER, "r", destination=to)
        return service.driver.submit(asking).answer

    first = begin()
    assert begin() == first
    service.driver.submit(
        Request(CancelMessageMoveTask(first.task_handle), service.other, prepared.CALLER, "r")
    )
    second = begin()
    assert second != first
    service.driver.pass_time(60_000)
    assert begin() not in (first, second), "for messages that could not be moved then"
    assert service.waiting(service.other) == []


# -- history ---------------------------------------------------------------------------------------


def test_the_history_says_who_and_why_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_tasks, "ENDED_KEPT", 12)
    service = Service()
    for number in range(15):
        service.ask(MoveSelected(note=f"because {number}"))
    service.restart()

    tasks = service.ask(ReadMoveTasks(limit=100)).tasks

    assert [task.note for task in tasks] == [f"because {n}" for n in range(14, 2, -1)]
    assert {task.started_by for task in tasks} == {prepared.CALLER.arn}
    older = service.ask(ReadMoveTasks(before=tasks[1].number, limit=2)).tasks
    assert older == tasks[2:4]


def test_filters_of_many_queues_share_a_turn() -> None:
    service = Service()
    service.ask(MoveSelected(filter=MessageFilter(text="x"), rate=1))
    (filtered,) = service.driver.state.queue(1).tasks.values()

    assert MoveTaskChanged(1, filtered).weight >= PULSE_MESSAGES_MAX // 4
    assert MoveTaskChanged(1, msgspec.structs.replace(filtered, filter=None)).weight == 0


# -- another pace ----------------------------------------------------------------------------------


def test_a_new_rate_holds_at_once_and_the_ramp_ends(service: Service) -> None:
    service.let_die(*BODIES)
    service.ask(MoveSelected(rate=1, pace=Pace(ramp_s=3_600)))
    assert service.task.moved == 1

    service.pace(rate=2)
    service.driver.pass_time(999)
    assert (service.task.moved, service.task.rate, service.task.pace.ramp_s) == (3, 2, 0)
    service.restart()
    service.pace(rate=0)

    assert (service.task.status, service.task.moved) == ("COMPLETED", 6)


def test_the_stop_is_changed_while_a_task_runs(service: Service) -> None:
    service.let_die(*BODIES)
    service.ask(MoveSelected(rate=1))
    service.pace(stop_after=1)
    service.fail(service.source)

    service.driver.pass_time(2_000)

    assert (service.task.paused, service.task.rate) == ("came back", 1)
    service.pace(rate=500)
    assert service.task.paused == "came back", "a new pace resumes nothing"
