"""Move tasks under crashes: every message is at exactly one place, and none is lost.

Two sources share a dead-letter queue; bodies name the messages. After every step the bodies on disk
are counted. A power loss undoes unsynced changes of tasks and messages alike.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.tests.driver import Driver
from cluster.tests.model_rules import model_settings
from cluster.tests.row_consistency import check_rows, rows_by_queue
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.move_task import MessageFilter, MoveTask, Pace, encode_handle
from visibility.contract.operations import CancelMessageMoveTask, ListMessageMoveTasks, Operation
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import DELAYED, MESSAGE
from visibility.rules import move_steps
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

DEAD_ID, ONE_ID, TWO_ID, OTHER_ID = 1, 2, 3, 4
NAMES = {DEAD_ID: "dead", ONE_ID: "one", TWO_ID: "two", OTHER_ID: "other"}
REASONS = (
    "AWS.SimpleQueueService.NonExistentQueue",
    "CouldNotDetermineMessageSource",
    "KMS.DisabledException",
)
CHUNK = 7
"""Small, so that a task takes several steps."""

sources = st.sampled_from((ONE_ID, TWO_ID))
groups = st.sampled_from(("g", "h", "i"))


class MoveTasks(RuleBasedStateMachine):
    """Dead letters of two queues go back, go elsewhere, or stay."""

    fifo: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(move_steps, "CHUNK_MESSAGES", CHUNK)
        self.store = MemoryStore(auto_sync=False)
        self.known = KnownQueues()
        self.sealing = prepared.Keys()
        self.sent = 0
        self.bodies: set[bytes] = set()
        self.durable: set[bytes] = set()
        self.home: dict[bytes, int] = {}
        self.group_of: dict[bytes, str] = {}
        self.now_ms = START_MS
        self.starts = 0

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def define(self) -> None:
        suffix = ".fifo" if self.fifo else ""
        dead = self.known.define(
            prepared.queue_named("dead" + suffix, DEAD_ID, VisibilityTimeout="5")
        )
        self.known.define(prepared.queue_named("other" + suffix, OTHER_ID))
        for queue_id in (ONE_ID, TWO_ID):
            name = NAMES[queue_id] + suffix
            self.known.define(prepared.queue_named(name, queue_id, dead_letters_to=dead))
        self.start_driver()
        self.sync()

    def start_driver(self) -> None:
        self.starts += 1
        self.driver = Driver(
            self.known,
            store=self.store,
            now_ms=self.now_ms,
            seed=self.starts << 64,
            sealing=self.sealing,
        )

    def queue(self, queue_id: int) -> QueueDefinition:
        return self.known.queues[queue_id]

    def receive(self, queue_id: int, most: int) -> list[tuple[bytes, Receipt]]:
        queue = self.queue(queue_id)
        target = self.known.dead_letter_queue(queue)
        timeout_s = 0 if target else None
        request = prepared.receive(queue, most, timeout_s=timeout_s, dead_letter_queue=target)
        deliveries = self.driver.submit(request).deliveries
        return [
            (m.data, Receipt(m.original_sequence or lease.sequence, lease.receive_count))
            for m, lease in zip(deliveries.messages, deliveries.leases, strict=True)
        ]

    # -- steps -------------------------------------------------------------------------------------

    @rule(queue_id=sources, every=st.lists(groups, min_size=1, max_size=10))
    def send_and_let_die(self, queue_id: int, every: list[str]) -> None:
        """All that is in the source becomes dead letters."""
        queue = self.queue(queue_id)
        first = self.sent
        self.sent += len(every)
        bodies = [f"{number:05}" for number in range(first, self.sent)]
        self.driver.submit(prepared.send_batch(queue, bodies, groups=every))
        for body, group in zip(bodies, every, strict=True):
            self.bodies.add(body.encode())
            self.home[body.encode()] = queue_id
            self.group_of[body.encode()] = group
        for _ in range(20):
            if not self.receive(queue_id, 10):
                break

    @rule(group=groups)
    def send_without_a_source(self, group: str) -> None:
        """To the dead-letter queue itself: no task knows where this belongs."""
        body = f"{self.sent:05}"
        self.sent += 1
        self.driver.submit(prepared.send(self.queue(DEAD_ID), body, group=group))
        self.bodies.add(body.encode())
        self.home[body.encode()] = DEAD_ID
        self.group_of[body.encode()] = group

    def without_a_source(self) -> int:
        """Visible messages of the dead-letter queue that have none."""
        entries = self.driver.state.queue(DEAD_ID).entries
        return sum(
            self.home[body] == DEAD_ID and not (sequence in entries and entries[sequence].hidden)
            for sequence, body in self.stored(DEAD_ID)
        )

    @rule(most=st.integers(1, 4), deletes=st.booleans())
    def receive_dead_letters(self, most: int, deletes: bool) -> None:
        for body, receipt in self.receive(DEAD_ID, most):
            if deletes:
                self.driver.submit(prepared.delete(self.queue(DEAD_ID), receipt))
                self.bodies.discard(body)

    @rule(to_other=st.booleans(), rate=st.sampled_from((0, 0, 1, 3, 500)))
    def start(self, to_other: bool, rate: int) -> None:
        dead, other = self.queue(DEAD_ID), self.queue(OTHER_ID)
        running = self.is_active()
        target = other if to_other else None
        request = prepared.start_move_task(dead, target, rate)
        before = self.counted()
        visible = self.driver.state.queue(DEAD_ID).visible
        stay = 0 if to_other else self.without_a_source()
        reply = self.driver.submit(request)
        if running:
            assert isinstance(reply.refusal, InvalidParameterValue)
            return
        assert isinstance(reply.answer, StartMessageMoveTaskResult)
        newest = self.listed()[0]
        assert newest.approximate_number_of_messages_to_move == visible
        if not rate and not self.sealing.refuses:
            assert newest.status == ("FAILED" if stay else "COMPLETED")
        if newest.status != "RUNNING" and not self.sealing.refuses:
            assert newest.approximate_number_of_messages_moved == visible - stay
            expected = OTHER_ID if to_other else None
            for body in before[DEAD_ID] - self.counted()[DEAD_ID]:
                assert body in self.counted()[expected or self.home[body]]

    @rule(positions=st.lists(st.integers(0, 30), min_size=1, max_size=5))
    def move_selected(self, positions: list[int]) -> None:
        stored = self.stored(DEAD_ID)
        if self.is_active() or not stored:
            return
        sequences = [stored[position % len(stored)][0] for position in positions]
        operation = MoveSelected(sequences=sequences)
        self.driver.submit(Request(operation, self.queue(DEAD_ID), prepared.CALLER, "request"))
        assert self.listed()[0].approximate_number_of_messages_to_move == len(set(sequences))

    @rule(canary=st.integers(0, 5), stop_after=st.integers(0, 3), rate=st.sampled_from((0, 3)))
    def move_with_care(self, canary: int, stop_after: int, rate: int) -> None:
        """Nothing is compared with a model: the invariants are that nothing is lost or doubled."""
        pace = Pace(2 if rate else 0, canary, stop_after)
        wanted = MessageFilter(received_min=1)
        operation = MoveSelected(rate=rate, pace=pace, filter=wanted)
        self.driver.submit(Request(operation, self.queue(DEAD_ID), prepared.CALLER, "request"))

    @rule(change=st.sampled_from(("pause", "resume", "pace", "undo")), rate=st.integers(0, 3))
    def change(self, change: str, rate: int) -> None:
        task = self.latest()
        if task is None or (change != "undo" and task.status != "RUNNING"):
            return
        operation: Operation = ChangeMoveTask(encode_handle(task), change, rate, rate)
        self.driver.submit(prepared.prepared(self.queue(DEAD_ID), operation))
        if change == "undo":
            wanted = MessageFilter(message_id=task.task_id[:13], received_max=0)
            operation = MoveSelected(filter=wanted, undoes=task.task_id, sources=task.sources)
            dead = self.queue(DEAD_ID)
            for queue_id in (ONE_ID, TWO_ID, OTHER_ID):
                request = Request(
                    operation, self.queue(queue_id), prepared.CALLER, "request", destination=dead
                )
                self.driver.submit(request)

    def latest(self) -> MoveTask | None:
        tasks = self.driver.state.queue(DEAD_ID).tasks
        return tasks[max(tasks)] if tasks else None

    @rule(refuses=st.sampled_from(("", "", "some", "all")))
    def switch_keys(self, refuses: str) -> None:
        self.sealing.refuses = refuses

    @rule()
    def cancel(self) -> None:
        newest = self.listed()[:1]
        tasks = self.driver.state.queue(DEAD_ID).tasks
        if newest and newest[0].status == "RUNNING":
            handle = newest[0].task_handle
            assert handle == encode_handle(tasks[max(tasks)])
            operation = CancelMessageMoveTask(task_handle=handle)
            reply = self.driver.submit(prepared.prepared(self.queue(DEAD_ID), operation))
            assert isinstance(reply.answer, CancelMessageMoveTaskResult)
            moved = reply.answer.approximate_number_of_messages_moved
            assert moved == newest[0].approximate_number_of_messages_moved
            self.driver.pass_time(1000)
            self.now_ms = self.driver.now_ms
            now = self.listed()[0]
            assert (now.status, now.approximate_number_of_messages_moved) == ("CANCELLED", moved)

    @rule(ms=st.sampled_from((1, 400, 1000, 3000, 20_000)))
    def pass_time(self, ms: int) -> None:
        before = self.listed()[:1]
        self.driver.pass_time(ms)
        self.now_ms += ms
        task = self.latest()
        if task is not None and (task.paced_from_ms or task.paused or task.filter):
            return
        if before and before[0].status == "RUNNING":
            now = self.listed()[0]
            rate = now.max_number_of_messages_per_second
            assert rate is not None
            assert now.started_timestamp is not None
            most = (self.now_ms - now.started_timestamp) * rate // 1000 + 1
            moved = now.approximate_number_of_messages_moved or 0
            assert moved <= most, "not faster than it may"
            if self.sealing.refuses:
                return
            assert now.status != "RUNNING" or moved == most, "and not slower"

    @precondition(lambda self: self.sent % 3 == 1)
    @rule(exists=st.booleans())
    def delete_or_restore_a_destination(self, exists: bool) -> None:
        if not exists and ONE_ID in self.known.queues and not self.counted()[ONE_ID]:
            self.gone = self.known.queues.pop(ONE_ID)
            self.driver.pass_time(3_000)
            self.now_ms = self.driver.now_ms
            newest = self.listed()[:1]
            if newest and newest[0].status == "FAILED":
                assert newest[0].failure_reason in REASONS
                assert newest[0].task_handle is None
            self.known.define(self.gone)

    @rule()
    def sync(self) -> None:
        self.store.sync_all()
        self.durable = set(self.bodies)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        if is_clean:
            self.store.sync_all()
            self.durable = set(self.bodies)
        else:
            self.store.crash()
            self.bodies = set(self.durable)
        self.start_driver()
        self.sync()

    # -- checks after every step -------------------------------------------------------------------

    def listed(self) -> list[ListMessageMoveTasksResultEntry]:
        operation = ListMessageMoveTasks(max_results=10)
        answer = self.driver.submit(prepared.prepared(self.queue(DEAD_ID), operation)).answer
        assert isinstance(answer, ListMessageMoveTasksResult)
        return answer.results or []

    def is_active(self) -> bool:
        return any(task.status in ("RUNNING", "CANCELLING") for task in self.listed())

    def stored(self, queue_id: int) -> list[tuple[int, bytes]]:
        """(sequence, body) of a queue's rows, in order."""
        rows = rows_by_queue(self.store).get(queue_id)
        if rows is None:
            return []
        assert not rows.table(DELAYED)
        found = rows.of_kind(MESSAGE, StoredMessage)
        return [(s, m.data) for s, m in sorted(found.items()) if isinstance(m, StoredMessage)]

    def counted(self) -> dict[int, set[bytes]]:
        return {queue_id: {body for _, body in self.stored(queue_id)} for queue_id in NAMES}

    @invariant()
    def every_message_is_at_one_place(self) -> None:
        places = [body for queue_id in NAMES for _, body in self.stored(queue_id)]
        assert sorted(places) == sorted(self.bodies)

    @invariant()
    def rows_are_sound(self) -> None:
        check_rows(self.store, self.driver.state)

    @invariant()
    def tasks_are_told_right(self) -> None:
        listed = self.listed()
        assert len(listed) <= 10
        for task in listed:
            assert (task.task_handle is not None) == (task.status == "RUNNING")
            assert (task.failure_reason is not None) == (task.status == "FAILED")
            moved = task.approximate_number_of_messages_moved or 0
            assert moved >= 0
        started = [task.started_timestamp or 0 for task in listed]
        assert all(later >= earlier for later, earlier in pairwise(started)), "newest first"


class FifoMoveTasks(MoveTasks):
    """The same with FIFO queues: groups keep their order."""

    fifo = True

    @rule()
    def move_all_to_other_in_order(self) -> None:
        """Run a whole task at once: a group's moved messages keep their order."""
        if self.is_active():
            return
        before = self.stored(DEAD_ID)
        there = len(self.stored(OTHER_ID))
        self.driver.submit(prepared.start_move_task(self.queue(DEAD_ID), self.queue(OTHER_ID), 0))
        moved = [body for _, body in self.stored(OTHER_ID)][there:]
        for group in "ghi":
            in_source = [b for _, b in before if self.group_of[b] == group and b in moved]
            assert [b for b in moved if self.group_of[b] == group] == in_source


_SETTINGS = model_settings(examples=100, steps=30)
TestMoveTasks = MoveTasks.TestCase
TestMoveTasks.settings = _SETTINGS
TestFifoMoveTasks = FifoMoveTasks.TestCase
TestFifoMoveTasks.settings = _SETTINGS


def test_what_stayed_is_logged_at_the_end() -> None:
    dead = prepared.queue_named("dead", 1)
    one = prepared.queue_named("one", 2, dead_letters_to=dead)
    driver = Driver(KnownQueues(dead, one))
    driver.submit(prepared.send_batch(dead, ["a", "b"]))

    driver.submit(prepared.start_move_task(dead, None, 0))

    (ended,) = driver.notices
    assert ended.event == "move_task_ended"
    assert ended.fields["source_arn"] == dead.arn
    told = [ended.fields[name] for name in ("reason", "moved", "stayed")]
    assert told == [REASONS[1], 0, 2]
