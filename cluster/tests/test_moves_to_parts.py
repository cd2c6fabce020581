"""Dead letters and redrives that come to a queue of several parts, and those from one."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Accepted, Answer, OutboxPage, PartReading
from visibility.contract.queue_parts import Part, PartState
from visibility.contract.stored_message import Arrival
from visibility.rows.row_keys import ARRIVAL, DEPARTURE
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import TARGET_GONE, AcceptMessages
from visibility.rules.closing_parts import CheckPart
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

SHARDS = range(3)
_Outcomes = list[tuple[bytes, int, str]]


class Shards:
    """Three shards. `source` is in shard 0, `letters` has parts in all of them, the home in shard
    1."""

    def __init__(self) -> None:
        whole = msgspec.structs.replace(prepared.queue_named("letters", 2), shard=1)
        self.letters = with_parts(whole, Part(0, 2, 1), Part(16, 22, 2), Part(32, 32, 0))
        self.source = prepared.queue_named(
            "source", 1, dead_letters_to=whole, max_receive_count=1, VisibilityTimeout="5"
        )
        self.queues = KnownQueues(self.source, *self.letters.all_parts())
        self.queues.issued = 50
        self.drivers = [Driver(self.queues, seed=number) for number in SHARDS]

    def submit(self, request: Request) -> Answer:
        driver = self.drivers[request.queue.shard]
        answer = driver.submit(request).answer
        check_rows(driver.store, driver.state)
        return answer

    def restart(self) -> None:
        """Load all shards anew from their rows."""
        for number, old in enumerate(self.drivers):
            self.drivers[number] = Driver(
                self.queues, store=old.store, now_ms=old.now_ms, seed=number
            )

    def pass_time(self, ms: int) -> None:
        for driver in self.drivers:
            driver.pass_time(ms)

    def change(self, *parts: Part) -> None:
        """Another record of the parts of `letters`."""
        for part in self.letters.all_parts():
            del self.queues.queues[part.queue_id]
        self.letters = with_parts(self.letters, *parts)
        for part in self.letters.all_parts():
            self.queues.define(part)

    def close(self, *numbers: int) -> None:
        """Let parts drain, of which their shards hear."""
        self.change(
            *(
                msgspec.structs.replace(part, state=PartState.DRAINING)
                if part.number in numbers
                else part
                for part in self.letters.parts
            )
        )
        for part in self.letters.all_parts():
            if part.part.number in numbers:
                assert self.reading(part).closed_version

    def reading(self, part: QueueDefinition) -> PartReading:
        answer = self.submit(prepared.prepared(part, CheckPart()))
        assert isinstance(answer, PartReading)
        return answer

    # -- messages ----------------------------------------------------------------------------------

    def send(self, queue: QueueDefinition, *bodies: str) -> None:
        for body in bodies:
            self.submit(prepared.send(queue, body))

    def receive(self, queue: QueueDefinition) -> list[str]:
        target = self.queues.dead_letter_queue(queue)
        request = prepared.receive(queue, 10, dead_letter_queue=target)
        bodies: list[str] = []
        while found := self.drivers[queue.shard].submit(request).deliveries.messages:
            bodies += [each.data.decode() for each in found]
        return bodies

    def spend(self, *bodies: str, queue: QueueDefinition | None = None) -> None:
        """Send messages, and receive each twice: it departs."""
        queue = queue or self.source
        for body in bodies:
            self.send(queue, body)
            assert self.receive(queue) == [body]
            self.pass_time(6_000)
            assert self.receive(queue) == []

    def stored(self, queue: QueueDefinition) -> list[int]:
        """The numbers of messages in each part."""
        answers = [self.submit(prepared.counters(part)) for part in queue.all_parts()]
        return [answer.stored for answer in answers if isinstance(answer, QueueCounters)]

    def bodies(self, queue: QueueDefinition) -> list[str]:
        return sorted(body for part in queue.all_parts() for body in self.receive(part))

    # -- the deliverer -----------------------------------------------------------------------------

    def read(self, source: int, target: int) -> OutboxPage:
        answer = self._ask(source, ReadOutbox(target))
        assert isinstance(answer, OutboxPage)
        return answer

    def accept(self, target: int, page: OutboxPage, arrivals: list[Arrival]) -> _Outcomes:
        answer = self._ask(target, AcceptMessages(arrivals, page.floors))
        assert isinstance(answer, Accepted)
        return answer.outcomes

    def clear(self, source: int, outcomes: _Outcomes) -> None:
        self._ask(source, ClearOutbox(outcomes))

    def deliver(self, *, restarts: bool = False) -> None:
        """All steps, each twice if `restarts`, with a restart between the two."""
        for _ in range(10):
            if not any(each.state.outbox.departures for each in self.drivers):
                break
            for source in SHARDS:
                for target in SHARDS:
                    self._deliver(source, target, restarts=restarts)
        for source in SHARDS:
            for target in SHARDS:
                self.accept(target, self.read(source, target), [])
                assert not self.rows(source, DEPARTURE)
        assert not any(self.rows(number, ARRIVAL) for number in SHARDS)

    def _deliver(self, source: int, target: int, *, restarts: bool) -> None:
        page = self.read(source, target)
        outcomes = self.accept(target, page, page.arrivals)
        if restarts:
            self.restart()
            assert self.accept(target, page, page.arrivals) == outcomes
        self.clear(source, outcomes)
        if restarts:
            self.restart()
            self.clear(source, outcomes)

    def rows(self, number: int, table: bytes) -> int:
        return sum(key[8:9] == table for key in self.drivers[number].store.rows)

    def _ask(self, number: int, operation: Operation) -> Answer:
        return self.submit(prepared.prepared(the_shard(number), operation))


def with_parts(queue: QueueDefinition, *parts: Part) -> QueueDefinition:
    """The queue with these parts."""
    home = parts[0]
    return msgspec.structs.replace(
        queue,
        queue_id=home.queue_id,
        shard=home.shard,
        parts=parts if len(parts) > 1 else (),
        version=queue.version + 1,
    )


@pytest.fixture
def shards() -> Shards:
    return Shards()


BODIES = [f"m{number:02}" for number in range(20)]


def test_dead_letters_come_to_all_parts(shards: Shards) -> None:
    shards.spend(*BODIES)
    shards.deliver()

    assert all(each >= 2 for each in shards.stored(shards.letters))
    assert shards.bodies(shards.letters) == BODIES


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_closed_part_refuses_comes_to_another(shards: Shards, *, restarts: bool) -> None:
    shards.spend(*BODIES)
    before = shards.stored(shards.letters)
    shards.close(16)

    shards.deliver(restarts=restarts)

    assert before[1] == shards.stored(shards.letters)[1] == 0
    assert sum(shards.stored(shards.letters)) == len(BODIES)
    assert shards.bodies(shards.letters) == BODIES
    assert sum(shards.stored(shards.source)) == 0


def test_what_departed_to_a_part_that_is_gone_comes_to_another(shards: Shards) -> None:
    shards.spend(*BODIES)
    shards.change(shards.letters.parts[0])

    shards.deliver()

    # those of the part in the shard of the source were not on their way: a drain keeps them
    gone = shards.receive(msgspec.structs.replace(shards.letters, queue_id=32, shard=0))
    assert sorted([*shards.bodies(shards.letters), *gone]) == BODIES


def test_a_refusal_stays_after_the_part_of_another_leader_is_open(shards: Shards) -> None:
    """The answer was lost, and the next leader has an older view: the message is not there, too."""
    shards.spend(*BODIES)
    page, parts = shards.read(0, 2), shards.letters.parts
    shards.change(parts[0], msgspec.structs.replace(parts[1], state=PartState.DRAINING), parts[2])
    outcomes = shards.accept(2, page, page.arrivals)
    assert page.arrivals
    assert {reason for _, _, reason in outcomes}.isdisjoint({"", TARGET_GONE})

    shards.change(*parts)

    assert shards.accept(2, page, page.arrivals) == outcomes
    shards.clear(0, outcomes)
    shards.deliver()
    assert shards.bodies(shards.letters) == BODIES


def test_what_a_part_accepted_before_it_closed_is_not_sent_again(shards: Shards) -> None:
    shards.spend(*BODIES)
    page = shards.read(0, 2)
    assert page.arrivals
    shards.accept(2, page, page.arrivals)
    shards.close(16)

    shards.deliver(restarts=True)

    assert sum(shards.stored(shards.letters)) == len(BODIES)
    assert shards.bodies(shards.letters) == BODIES


def test_a_message_returns_to_its_queue_if_no_other_part_is_known(shards: Shards) -> None:
    shards.spend("a")
    parts = shards.letters.parts
    drained = [msgspec.structs.replace(part, state=PartState.DRAINING) for part in parts]
    while not (page := shards.read(0, 2)).arrivals:
        shards.spend("a")
    shards.change(*drained)
    outcomes = shards.accept(2, page, page.arrivals)

    shards.clear(0, outcomes)

    assert sum(shards.stored(shards.source)) == len(page.arrivals)
    shards.change(*parts)
    shards.pass_time(6_000)
    assert shards.receive(shards.source) == []
    shards.deliver()
    assert set(shards.bodies(shards.letters)) == {"a"}


def test_a_dead_letter_outlives_its_queue_on_its_way_to_another_part(shards: Shards) -> None:
    shards.spend(*BODIES)
    del shards.queues.queues[shards.source.queue_id]
    shards.drivers[0].drop(shards.source)
    shards.close(16)

    shards.deliver(restarts=True)

    assert shards.bodies(shards.letters) == BODIES


def test_dead_letters_of_a_queue_of_several_parts(shards: Shards) -> None:
    whole = msgspec.structs.replace(shards.source, version=2)
    source = with_parts(whole, Part(0, 1, 0), Part(16, 41, 1), Part(32, 42, 2))
    for part in source.all_parts():
        shards.queues.define(part)
    for number, part in enumerate(source.all_parts()):
        shards.spend(*BODIES[number::3], queue=part)
    shards.close(16)

    shards.deliver(restarts=True)

    assert sum(shards.stored(source)) == 0
    assert shards.bodies(shards.letters) == BODIES


# -- redrives --------------------------------------------------------------------------------------


def move(shards: Shards, count: int) -> MoveTask:
    """Have a task move so many messages of the source to all parts of the other queue."""
    shards.send(shards.source, *BODIES[:count])
    request = prepared.prepared(shards.source, MoveSelected())
    shards.submit(msgspec.structs.replace(request, destination=shards.letters))
    return task_of(shards)


def task_of(shards: Shards) -> MoveTask:
    return list(shards.drivers[0].state.queue(shards.source.queue_id).tasks.values())[-1]


def test_a_redrive_comes_to_all_parts(shards: Shards) -> None:
    for _ in range(10):
        move(shards, 5)
        shards.deliver()
        shards.pass_time(1)
        assert (task_of(shards).status, task_of(shards).moved) == ("COMPLETED", 5)

    assert all(shards.stored(shards.letters))
    assert sum(shards.stored(shards.letters)) == 50


@pytest.mark.parametrize("restarts", [False, True])
def test_a_redrive_goes_on_to_another_part(shards: Shards, *, restarts: bool) -> None:
    moved = 0
    while not shards.read(0, 2).arrivals:
        shards.deliver()
        shards.pass_time(1)
        move(shards, 5)
        moved += 5
    assert task_of(shards).status == "RUNNING"
    shards.close(16)

    shards.deliver(restarts=restarts)
    shards.pass_time(1)

    task = task_of(shards)
    assert (task.status, task.moved, task.stayed) == ("COMPLETED", 5, 0)
    assert sum(shards.stored(shards.letters)) == moved
