"""Messages that must be sealed anew to move, while their key is not there yet: they stay, and are
not handed out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from cluster.tests.shard_pair import ShardPair
from visibility.content.sealing import AsStored
from visibility.contract.errors import OverLimit, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter, MoveTask
from visibility.contract.outcomes import Deliveries, MovePlan, MoveTasks
from visibility.contract.stored_message import StoredMessage
from visibility.rules.dead_letters import MOVES_MAX
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected, ReadMoveTasks
from visibility.tests import prepared
from visibility.tests.packed import send_packed
from visibility.tests.prepared import KnownQueues


class LateKey(AsStored):
    """Messages with "new" in their body need a key that is not there yet."""

    def __init__(self) -> None:
        self.is_there = False
        self.is_known = True
        self.tries = 0

    def check(self, queue: QueueDefinition) -> None:
        if not self.is_known:
            raise ServiceUnavailable

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        self._need(message)
        return message

    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        self._need(message)
        return message.data

    def _need(self, message: StoredMessage) -> None:
        if b"new" in message.data and not self.is_there:
            self.tries += 1
            raise ServiceUnavailable


class Service:
    """A queue and its dead-letter queue."""

    def __init__(
        self, suffix: str = "", *, max_receive_count: int = 1, tags: dict[str, str] | None = None
    ) -> None:
        self.fifo = bool(suffix)
        self.dead = prepared.queue_named("dead" + suffix, 1)
        self.source = prepared.queue_named(
            "source" + suffix,
            2,
            dead_letters_to=self.dead,
            max_receive_count=max_receive_count,
            tags=tags,
            VisibilityTimeout="5",
        )
        self.key = LateKey()
        self.driver = Driver(KnownQueues(self.dead, self.source), sealing=self.key)

    def send(self, *bodies: str, to: QueueDefinition | None = None) -> None:
        """The first letter of a body is its group."""
        for body in bodies:
            group = body[0] if self.fifo else None
            self.driver.submit(prepared.send(to or self.source, body, group=group))

    def spend(self, *bodies: str) -> None:
        """Send messages, receive them, and let their leases end: the next receive is one too
        many."""
        self.send(*bodies)
        while self.receive():
            pass
        self.driver.pass_time(6_000)

    def receive(self, queue: QueueDefinition | None = None) -> list[str]:
        bodies = self.driver.submit(self.request(queue or self.source)).bodies
        check_rows(self.driver.store, self.driver.state)
        return bodies

    def request(self, queue: QueueDefinition, wait_s: int | None = None) -> Request:
        target = self.driver.queues.dead_letter_queue(queue)
        return prepared.receive(queue, 10, wait_s=wait_s, dead_letter_queue=target)

    def task(self) -> MoveTask:
        answer = self.driver.submit(prepared.prepared(self.dead, ReadMoveTasks())).answer
        assert isinstance(answer, MoveTasks)
        return answer.tasks[0]


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def service(request: pytest.FixtureRequest) -> Service:
    return Service(request.param)


# -- dead letters ----------------------------------------------------------------------------------


def test_a_dead_letter_waits_for_its_key_and_is_not_handed_out(service: Service) -> None:
    service.spend("a new")

    assert [service.receive() for _ in range(3)] == [[]] * 3

    assert service.receive(service.dead) == []
    service.key.is_there = True
    assert service.receive() == []
    (letter,) = service.driver.submit(service.request(service.dead)).deliveries.leases
    assert letter.receive_count == 2, "one receive in each queue"


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_a_message_that_waits_for_its_key_makes_no_room(suffix: str) -> None:
    tags = {"holdfast:max-messages": "2", "holdfast:overflow": "dead-letter"}
    service = Service(suffix, max_receive_count=9, tags=tags)
    service.send("a new", "b new")
    request = prepared.send(service.source, "c", group="c" if suffix else None)

    assert isinstance(service.driver.submit(request).refusal, OverLimit)
    assert service.driver.state.queue(service.source.queue_id).stored == 2
    service.key.is_there = True
    service.send("d")
    assert service.receive() == ["b new", "d"]


def test_letters_that_need_no_new_key_move_past_those_that_wait(service: Service) -> None:
    service.spend("a new", "b old")
    service.send("c alive")

    assert service.receive() == ["c alive"]

    assert service.receive(service.dead) == ["b old"]


def test_a_group_waits_for_its_letter_as_if_it_were_on_its_way() -> None:
    service = Service(".fifo")
    service.spend("a old", "a new")
    service.send("a behind", "b beside")

    assert [service.receive() for _ in range(2)] == [["b beside"], []]

    assert service.receive(service.dead) == ["a old"]
    service.key.is_there = True
    assert service.receive() == ["a behind"]
    service.driver.pass_time(31_000)
    assert service.receive(service.dead) == ["a old", "a new"]


def test_a_long_poll_gets_what_is_behind_a_letter_once_its_key_is_there() -> None:
    service = Service(".fifo")
    service.spend("a new")
    service.send("a behind")

    (poll,) = service.driver.turn([service.request(service.source, wait_s=20)])
    service.driver.pass_time(3_000)
    assert poll.waits
    service.key.is_there = True
    service.driver.pass_time(100)

    assert isinstance(poll.answer, Deliveries)
    assert [message.data for message in poll.deliveries.messages] == [b"a behind"]


def test_without_a_poll_time_tries_nothing(service: Service) -> None:
    service.spend("a new")
    service.receive()
    tries = service.key.tries

    service.driver.pass_time(10_000)

    assert service.key.tries == tries


def test_a_receive_looks_at_a_bounded_number_of_letters(service: Service) -> None:
    service.spend(*[f"{chr(200 + number)} new" for number in range(MOVES_MAX + 20)])
    service.key.tries = 0

    assert service.receive() == []
    assert service.key.tries == MOVES_MAX
    (poll,) = service.driver.turn([service.request(service.source, wait_s=1)])
    service.driver.pass_time(1_000)

    assert poll.deliveries.leases == []
    assert service.key.tries <= 13 * MOVES_MAX
    service.key.is_there = True
    assert service.receive() == []
    assert service.driver.state.queues[1].stored == MOVES_MAX + 20


def test_a_queue_may_be_its_own_dead_letter_queue() -> None:
    service = Service()
    service.source = service.driver.queues.define(
        prepared.queue_named("dead", 1, dead_letters_to=service.dead, VisibilityTimeout="5")
    )
    service.spend("a new")

    assert service.receive() == []
    service.key.is_there = True
    (poll,) = service.driver.turn([service.request(service.source, wait_s=1)])

    assert [message.data for message in poll.deliveries.messages] == [b"a new"]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_letter_for_another_shard_waits_as_well(suffix: str) -> None:
    pair = ShardPair(suffix)
    key = pair.shards[0].state.sealing = LateKey()
    pair.spend("new", "old")

    assert [pair.receive(pair.source) for _ in range(3)] == [[]] * 3
    pair.deliver(0)
    assert pair.receive(pair.letters) == ([] if suffix else ["old"])

    key.is_there = True
    for _ in range(2):
        assert pair.receive(pair.source) == []
        pair.deliver(0)
    pair.pass_time(31_000)
    assert sorted(pair.receive(pair.letters)) == ["new", "old"]


def test_a_letter_whose_key_is_not_known_yet_does_not_go_to_the_back() -> None:
    service = Service(max_receive_count=3)
    service.key.is_known = False
    service.send("a new")
    for _ in range(3):
        assert service.receive() == ["a new"]
        service.driver.pass_time(6_000)
    service.send("b")

    service.key.is_known = service.key.is_there = True

    assert [service.receive(), service.receive(service.dead)] == [["b"], ["a new"]]


# -- move tasks ------------------------------------------------------------------------------------


def test_a_move_task_goes_on_when_the_key_is_there(service: Service) -> None:
    service.send("a old", "b new", "c old", to=service.dead)

    service.driver.submit(prepared.start_move_task(service.dead, service.source))
    service.driver.pass_time(5_000)

    task = service.task()
    assert (task.status, task.failure_reason) == ("RUNNING", None)
    assert (task.moved, task.stayed, task.looked_at) == (1, 0, 1)
    service.key.is_there = True
    service.driver.pass_time(100)
    task = service.task()
    assert (task.status, task.moved, task.looked_at) == ("COMPLETED", 3, 3)
    assert sorted(service.receive()) == ["a old", "b new", "c old"]
    assert service.driver.notices[:-1] == []


def test_a_move_task_waits_until_it_can_say_if_the_key_of_its_target_is_there(
    service: Service,
) -> None:
    service.key.is_known = False
    service.send("a", to=service.dead)

    service.driver.submit(prepared.start_move_task(service.dead, service.source))

    assert service.task().status == "RUNNING"
    service.key.is_known = True
    service.driver.pass_time(100)
    assert service.task().status == "COMPLETED"


def test_a_task_with_a_filter_waits_for_the_key_of_a_message() -> None:
    service = Service()
    for body in ("one old", "two new", "three old"):
        service.driver.submit(send_packed(service.dead, body))

    wanted = MoveSelected(filter=MessageFilter(text="t"))
    request = Request(wanted, service.dead, prepared.CALLER, "r", destination=service.source)
    service.driver.submit(request)

    assert (service.task().status, service.task().looked_at) == ("RUNNING", 1)
    service.key.is_there = True
    service.driver.pass_time(100)
    assert (service.task().status, service.task().moved) == ("COMPLETED", 2)


def test_a_task_for_another_shard_waits_as_well() -> None:
    pair = ShardPair()
    key = pair.shards[1].state.sealing = LateKey()
    pair.send("old", "new", to=pair.letters)

    pair.shards[1].submit(prepared.start_move_task(pair.letters, pair.source))
    pair.deliver(1)
    assert pair.receive(pair.source) == ["old"]
    key.is_there = True
    pair.pass_time(100)
    pair.deliver(1)

    assert pair.receive(pair.source) == ["new"]


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", ["message", "target"])
def test_a_plan_is_refused_until_the_key_is_there(lacks: str) -> None:
    service = Service()
    service.key.is_known = lacks != "target"
    service.driver.submit(send_packed(service.dead, "new"))

    def ask() -> MovePlan | QueueError:
        plan = PlanMove(filter=MessageFilter(text="new") if lacks == "message" else None)
        request = Request(plan, service.dead, prepared.CALLER, "r", destination=service.source)
        (answer,) = service.driver.submit(request).answers
        assert isinstance(answer, MovePlan | QueueError)
        return answer

    assert type(ask()) is ServiceUnavailable
    service.key.is_known = service.key.is_there = True
    plan = ask()
    assert isinstance(plan, MovePlan)
    assert [planned.messages for planned in plan.targets.values()] == [1]
