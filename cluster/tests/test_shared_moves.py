"""Move tasks from a queue of three parts: one task for whoever asks, a share of it in each part."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cluster.tests.test_moves_to_parts import BODIES, Shards
from visibility.contract.errors import Moved, QueueError
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import CAME_BACK, CANARY, MessageFilter, MoveTask, Pace
from visibility.contract.operations import CancelMessageMoveTask, ListMessageMoveTasks
from visibility.contract.outcomes import Browsed, BrowsedPage, MoveTasks
from visibility.contract.queue_parts import PartState, first_sequence
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    StartMessageMoveTaskResult,
)
from visibility.rules.browse import BrowseMessages
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected, ReadMoveTasks
from visibility.rules.shared_moves import AdvanceMoveTask, KeepMoveTasks, WorkOnMoveTask
from visibility.tests import prepared


class Tasks(Shards):
    """Moves from all parts of `letters` to `source`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[MoveTask] = []

    def fill(self, count: int = 20) -> None:
        """So many messages, in turn over the parts."""
        parts = self.letters.all_parts()
        for place, body in enumerate(BODIES[:count]):
            self.send(parts[place % len(parts)], body)

    def start(self, operation: MoveSelected | None = None) -> str:
        request = prepared.prepared(self.letters, operation or MoveSelected())
        answer = self.submit(msgspec.structs.replace(request, destination=self.source))
        assert isinstance(answer, StartMessageMoveTaskResult)
        return answer.task_handle

    def change(self, handle: str, change: str, **more: int) -> None:  # type: ignore[override]
        self.submit(prepared.prepared(self.letters, ChangeMoveTask(handle, change, **more)))

    def orders(self) -> list[MoveTask]:
        answer = self.submit(prepared.prepared(self.letters, AdvanceMoveTask(self.heard)))
        assert isinstance(answer, MoveTasks)
        return answer.tasks

    def look(self, *, restarts: bool = False, without: int = -1) -> None:
        """A look of the leader of the home; a part may not answer."""
        parts = {part.part_number: part for part in self.letters.all_parts()}
        orders = self.orders()
        if restarts:
            self.restart()
        self.heard = []
        for order in orders:
            if order.number != without:
                self.heard += self.order(parts[order.number], order)
                if restarts:
                    self.restart()
                    assert self.order(parts[order.number], order)
        self.pass_time(500)
        self.deliver(restarts=restarts)
        self.pass_time(1)

    def order(self, part: QueueDefinition, order: MoveTask) -> list[MoveTask]:
        answer = self.submit(prepared.prepared(part, WorkOnMoveTask(order)))
        assert isinstance(answer, MoveTasks)
        return answer.tasks

    def finish(self, *, restarts: bool = False) -> MoveTask:
        for _ in range(50):
            self.look(restarts=restarts)
            if not self.task.is_active:
                return self.task
        raise AssertionError(self.task)

    @property
    def task(self) -> MoveTask:
        answer = self.submit(prepared.prepared(self.letters, ReadMoveTasks()))
        assert isinstance(answer, MoveTasks)
        return answer.tasks[0]

    @property
    def active(self) -> list[int]:
        """Parts in which a task is active."""
        return [
            part.part_number
            for part in self.letters.all_parts()
            if self.drivers[part.shard].state.queue(part.queue_id).active_task is not None
        ]

    def browse(self, part: QueueDefinition) -> list[Browsed]:
        answer = self.submit(prepared.prepared(part, BrowseMessages()))
        assert isinstance(answer, BrowsedPage)
        return answer.messages

    def came(self) -> list[str]:
        return self.receive(self.source)


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_task_moves_the_messages_of_all_parts_once(tasks: Tasks, *, restarts: bool) -> None:
    tasks.fill()
    tasks.start()

    task = tasks.finish(restarts=restarts)

    assert (task.status, task.moved, task.to_move, task.stayed) == ("COMPLETED", 20, 20, 0)
    assert sorted(tasks.came()) == BODIES
    assert sum(tasks.stored(tasks.letters)) == 0
    assert tasks.active == []


def test_clients_see_one_task(tasks: Tasks) -> None:
    tasks.fill()
    handle = tasks.start(MoveSelected(rate=4))
    for _ in range(4):
        tasks.look()

    listed = tasks.submit(prepared.prepared(tasks.letters, ListMessageMoveTasks(max_results=10)))

    assert isinstance(listed, ListMessageMoveTasksResult)
    assert listed.results is not None
    (shown,) = listed.results
    assert (shown.status, shown.task_handle) == ("RUNNING", handle)
    assert shown.approximate_number_of_messages_to_move == 20
    assert 0 < (shown.approximate_number_of_messages_moved or 0) < 20
    part = tasks.letters.all_parts()[1]
    of_part = tasks.submit(prepared.prepared(part, ListMessageMoveTasks(max_results=10)))
    assert of_part == ListMessageMoveTasksResult(None)


def test_the_rate_holds_for_all_parts_together(tasks: Tasks) -> None:
    for _ in range(5):
        tasks.fill()
    tasks.start(MoveSelected(rate=10))
    begun_ms = tasks.drivers[0].now_ms
    for _ in range(12):
        tasks.look()
        passed_ms = tasks.drivers[0].now_ms - begun_ms
        assert tasks.task.moved <= 10 * passed_ms / 1000 + 1

    assert tasks.task.moved >= 50  # of the 60 that were due


def test_what_a_busy_part_lets_lie_others_move(tasks: Tasks) -> None:
    """One part does not answer: it keeps a second's share, the others get the rest."""
    for _ in range(5):
        tasks.fill()
    tasks.start(MoveSelected(rate=9))
    tasks.look()
    for _ in range(11):
        tasks.look(without=16)

    assert sum(tasks.stored(tasks.source)) >= 54 - 9 - 9  # due, the silent part's, under way


def test_without_orders_no_more_moves_than_was_granted(tasks: Tasks) -> None:
    tasks.fill()
    tasks.start(MoveSelected(rate=1))
    tasks.look()
    tasks.pass_time(3_600_000)
    tasks.deliver()

    assert len(tasks.came()) <= 2
    assert tasks.active == [0, 16, 32]


def test_a_canary_is_that_of_the_whole_queue(tasks: Tasks) -> None:
    tasks.fill()
    handle = tasks.start(MoveSelected(pace=Pace(canary=4)))
    for _ in range(6):
        tasks.look()
    assert (tasks.task.paused, tasks.task.moved) == (CANARY, 4)

    tasks.change(handle, "resume")

    assert tasks.finish().moved == 20
    assert sorted(tasks.came()) == BODIES


def test_messages_that_come_back_to_any_part_stop_it(tasks: Tasks) -> None:
    tasks.fill(18)
    handle = tasks.start(MoveSelected(rate=3, pace=Pace(stop_after=2)))
    while tasks.task.moved < 6:
        tasks.look()
    for _ in range(3):
        tasks.pass_time(6_000)
        tasks.came()
        tasks.deliver()
        tasks.look()
    assert tasks.task.paused == CAME_BACK
    assert tasks.task.came_back >= 2
    tasks.look()
    moved = tasks.task.moved

    tasks.pass_time(60_000)
    for _ in range(3):
        tasks.look()

    assert tasks.task.moved == moved
    tasks.submit(prepared.prepared(tasks.letters, CancelMessageMoveTask(handle)))
    assert tasks.finish().status == "CANCELLED"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cancelled_task_ends_in_all_parts(tasks: Tasks, *, restarts: bool) -> None:
    tasks.fill()
    handle = tasks.start(MoveSelected(rate=2))
    for _ in range(4):
        tasks.look(restarts=restarts)

    answer = tasks.submit(prepared.prepared(tasks.letters, CancelMessageMoveTask(handle)))

    assert isinstance(answer, CancelMessageMoveTaskResult)
    task = tasks.finish(restarts=restarts)
    assert task.status == "CANCELLED"
    assert answer.approximate_number_of_messages_moved <= task.moved < 20
    assert tasks.active == []
    assert len(tasks.came()) == task.moved
    tasks.start()
    assert tasks.finish().moved == 20 - task.moved


def test_a_task_is_cancelled_before_its_parts_have_begun(tasks: Tasks) -> None:
    tasks.fill()
    handle = tasks.start(MoveSelected(rate=1))
    tasks.submit(prepared.prepared(tasks.letters, CancelMessageMoveTask(handle)))

    assert tasks.finish().status == "CANCELLED"
    assert tasks.active == []


def test_an_older_order_changes_nothing(tasks: Tasks) -> None:
    """That of a leader which has lost its term."""
    tasks.fill()
    handle = tasks.start(MoveSelected(pace=Pace(canary=2)))
    old, *_ = tasks.orders()
    tasks.change(handle, "pause")
    new, *_ = tasks.orders()
    part = tasks.letters.of_part(tasks.letters.parts[1])
    assert (old.number, new.number, new.paused) == (16, 16, "operator")

    tasks.order(part, new)
    (own,) = tasks.order(part, old)

    assert own.paused == "operator"


def test_selected_messages_move_from_the_parts_that_have_them(tasks: Tasks) -> None:
    tasks.fill()
    chosen = [first_sequence(16), first_sequence(16) + 2, 3, first_sequence(32) + 999]
    tasks.start(MoveSelected(chosen))

    task = tasks.finish()

    assert (task.status, task.moved, task.to_move) == ("COMPLETED", 3, 4)
    assert sorted(tasks.came()) == sorted([BODIES[1], BODIES[7], BODIES[6]])


def test_a_failure_in_one_part_is_that_of_the_task(tasks: Tasks) -> None:
    """Without a destination, only dead letters move: one part has another message."""
    tasks.spend(*BODIES[:9])
    tasks.deliver()
    tasks.send(tasks.letters.all_parts()[2], "not a dead letter")
    tasks.submit(prepared.prepared(tasks.letters, MoveSelected()))

    task = tasks.finish()

    assert (task.status, task.moved, task.stayed) == ("FAILED", 9, 1)
    assert task.failure_reason == "CouldNotDetermineMessageSource"


def test_an_undo_knows_the_sources_of_all_parts(tasks: Tasks) -> None:
    tasks.spend(*BODIES[:9])
    tasks.deliver()
    tasks.submit(prepared.prepared(tasks.letters, MoveSelected()))
    task = tasks.finish()
    assert (task.moved, set(task.sources)) == (9, {"", tasks.source.arn})

    wanted = MessageFilter(message_id=task.task_id[:13], received_max=0)
    undo = MoveSelected(filter=wanted, undoes=task.task_id, sources=task.sources)
    request = prepared.prepared(tasks.source, undo)
    tasks.submit(msgspec.structs.replace(request, destination=tasks.letters))
    for _ in range(4):
        tasks.pass_time(500)
        tasks.deliver()

    assert tasks.stored(tasks.source) == [0]
    found = [
        message.message.dead_letter_source_arn
        for part in tasks.letters.all_parts()
        for message in tasks.browse(part)
    ]
    assert found == [tasks.source.arn] * 9


# -- parts that change -----------------------------------------------------------------------------


def closing(tasks: Tasks, *numbers: int) -> Callable[[], None]:
    """Has parts drain into the home, whose shards hear of it when this is called."""
    Shards.change(
        tasks,
        *(
            msgspec.structs.replace(part, state=PartState.DRAINING, heir=0)
            if part.number in numbers
            else part
            for part in tasks.letters.parts
        ),
    )

    def heard() -> None:
        for part in tasks.letters.all_parts():
            if part.part_number in numbers:
                tasks.reading(part)

    return heard


@pytest.mark.parametrize("restarts", [False, True])
def test_a_part_that_drains_meanwhile_transfers_nothing(tasks: Tasks, *, restarts: bool) -> None:
    tasks.fill()
    tasks.start(MoveSelected(rate=4))
    tasks.look()
    closing(tasks, 16)()

    task = tasks.finish(restarts=restarts)

    assert (task.status, task.moved) == ("COMPLETED", 20)
    assert sorted(tasks.came()) == BODIES


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_draining_part_has_transferred_moves_too(tasks: Tasks, *, restarts: bool) -> None:
    """Its messages are on their way when the task begins, behind the walk of the part that gets
    them: that one waits."""
    tasks.fill()
    closing(tasks, 16)()
    tasks.pass_time(1)
    assert tasks.drivers[2].state.queue(22).departed
    tasks.start()

    task = tasks.finish(restarts=restarts)

    assert (task.status, task.moved) == ("COMPLETED", 20)
    assert sorted(tasks.came()) == BODIES


def test_a_part_that_is_gone_holds_up_nothing(tasks: Tasks) -> None:
    tasks.fill(2)
    tasks.start()
    tasks.look()
    gone = tasks.submit(prepared.prepared(tasks.letters, AdvanceMoveTask([], [1, 2])))

    assert gone == MoveTasks([])
    tasks.pass_time(1_000)
    assert tasks.orders() == []
    assert tasks.task.status == "COMPLETED"


def test_an_empty_part_that_may_be_gone_begins_no_share(tasks: Tasks) -> None:
    tasks.start()
    order = tasks.orders()[0]
    part = tasks.letters.of_part(tasks.letters.parts[1])
    closing(tasks, 16)()
    assert tasks.reading(tasks.letters.of_part(tasks.letters.parts[1])).drained_version

    (own,) = tasks.order(tasks.letters.of_part(tasks.letters.parts[1]), order)

    assert not own.is_active
    assert part.part_number not in tasks.active
    assert tasks.finish().status == "COMPLETED"


def test_a_closed_home_begins_no_task(tasks: Tasks) -> None:
    home = tasks.letters
    closing(tasks, 0)()
    request = prepared.prepared(tasks.letters, MoveSelected())
    reply = tasks.drivers[home.shard].submit(request)
    assert isinstance(reply.refusal, Moved)


def test_a_start_at_a_part_that_is_not_the_home_goes_to_the_home() -> None:
    tasks = Tasks()
    part = tasks.letters.all_parts()[1]
    request = prepared.prepared(part, MoveSelected())
    request = msgspec.structs.replace(request, destination=tasks.source)
    reply = tasks.drivers[part.shard].submit(request)
    assert isinstance(reply.refusal, Moved)


def test_a_former_home_gives_its_history_to_the_next(tasks: Tasks) -> None:
    tasks.fill()
    tasks.start()
    ended = tasks.finish()
    other = tasks.letters.all_parts()[1]
    later = msgspec.structs.replace(ended, number=(16 << 20) + 9, task_id="later")
    tasks.submit(prepared.prepared(other, KeepMoveTasks([later])))

    for _ in range(2):
        tasks.submit(prepared.prepared(other, KeepMoveTasks([ended])))
    tasks.restart()

    kept = tasks.submit(prepared.prepared(other, ReadMoveTasks()))
    assert isinstance(kept, MoveTasks)
    assert [task.task_id for task in kept.tasks] == ["later", ended.task_id]


def test_a_purge_leaves_no_share_behind(tasks: Tasks) -> None:
    tasks.fill()
    tasks.start(MoveSelected(rate=2))
    tasks.look()
    old = tasks.letters
    parts = [
        msgspec.structs.replace(part, queue_id=60 + place) for place, part in enumerate(old.parts)
    ]
    Shards.change(tasks, *parts)
    for before, after in zip(old.all_parts(), tasks.letters.all_parts(), strict=True):
        tasks.submit(prepared.purge(before, after))

    assert not tasks.finish().is_active
    assert tasks.active == []


def test_a_second_task_is_refused(tasks: Tasks) -> None:
    tasks.fill()
    tasks.start(MoveSelected(rate=1))
    tasks.look()
    home = tasks.letters
    refusal = tasks.drivers[home.shard].submit(prepared.prepared(home, MoveSelected())).refusal
    assert isinstance(refusal, QueueError)
    assert "already a task running" in refusal.message
