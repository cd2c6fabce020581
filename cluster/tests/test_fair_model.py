"""A standard queue with groups, while some of them are noisy: quiet ones first, nothing lost,
nothing twice.

Which groups are noisy is the engine's estimate, with thresholds so low that a few messages make
noise. Everything else is the standard model. Source: SQS developer guide, how fair queues work.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.tests.driver import Driver
from cluster.tests.model_rules import model_settings
from cluster.tests.row_consistency import check_rows
from cluster.tests.standard_model import Handle, Model, Taken
from storage.tests.memory_store import CountingStore, MemoryStore
from visibility.content.id_digests import group_digest
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.operations import StartMessageMoveTask
from visibility.state import fairness
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

QUEUE_ID = 1
groups = st.sampled_from((None, "a", "a", "b", "c"))
timeouts_s = st.sampled_from((0, 1, 5, 30, 30))


@pytest.fixture
def few_make_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    lower_thresholds(monkeypatch)


def lower_thresholds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fairness, "IN_FLIGHT_MIN", 3)
    patch.setattr(fairness, "FINISHED_MIN", 3.0)


class FairQueue(RuleBasedStateMachine):
    """One standard queue of up to 60 messages, the number that one receive examines."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        lower_thresholds(self.patch)
        self.store = MemoryStore(auto_sync=False)
        self.queue = prepared.queue_named("queue", QUEUE_ID, MessageRetentionPeriod="90")
        self.driver = Driver(KnownQueues(self.queue), store=self.store)
        self.model = Model(START_MS, retention_ms=90_000)
        self.durable = self.model.copy()
        self.group_of: dict[bytes, str | None] = {}
        self.sent = 0

    def teardown(self) -> None:
        self.patch.undo()

    @rule(every=st.lists(groups, min_size=1, max_size=10), delay_s=st.sampled_from((0, 0, 0, 1, 5)))
    def send(self, every: list[str | None], delay_s: int) -> None:
        if len(self.model.messages) > 50:
            return
        self.sent += len(every)
        bodies = [f"m{self.sent - position}" for position in range(len(every))]
        request = prepared.send_batch(self.queue, bodies, groups=every, delay_s=delay_s)
        self.driver.submit(request)
        for body, group in zip(bodies, every, strict=True):
            self.group_of[body.encode()] = group
            self.model.send(QUEUE_ID, body.encode(), delay_s)

    @rule(most=st.integers(1, 10), timeout_s=timeouts_s)
    def receive(self, most: int, timeout_s: int) -> None:
        state = self.driver.state.queue(QUEUE_ID)
        noisy = set(state.fairness.noisy_now(self.driver.now_ms))
        visible = [message.body for message in self.model.visible(QUEUE_ID)]
        quiet = [body for body in visible if not self.is_noisy(body, noisy)]

        deliveries = self.driver.submit(
            prepared.receive(self.queue, most, timeout_s=timeout_s)
        ).deliveries

        bodies = [message.data for message in deliveries.messages]
        assert len(bodies) == min(most, len(visible)), "as many as there are"
        assert bodies[: len(quiet)] == quiet[:most], "quiet ones first, in order"
        loud = bodies[len(quiet) :]
        for group in {self.group_of[body] for body in loud}:
            in_line = [body for body in visible if self.group_of[body] == group]
            taken = [body for body in loud if self.group_of[body] == group]
            assert taken == in_line[: len(taken)], "a noisy group keeps its order"
        for body, lease in zip(bodies, deliveries.leases, strict=True):
            wanted = self.model.take(self.model.messages[body], timeout_s)
            assert wanted == Taken(body, lease.receive_count, lease.first_received_at_ms)
        for message, lease in zip(deliveries.messages, deliveries.leases, strict=True):
            receipt = Receipt(message.original_sequence or lease.sequence, lease.receive_count)
            self.model.handles.append(Handle(QUEUE_ID, message.data, receipt))
        self.model.settle()

    @rule(group=groups, count=st.integers(1, 6))
    def send_and_take_all(self, group: str | None, count: int) -> None:
        """A group may be noisy without a message that waits."""
        self.send([group] * count, 0)
        while self.model.visible(QUEUE_ID):
            self.receive(10, 30)

    def is_noisy(self, body: bytes, noisy: set[bytes]) -> bool:
        group = self.group_of[body]
        return group is not None and group_digest(group) in noisy

    @rule(newest=st.integers(1, 8))
    def delete(self, newest: int) -> None:
        for handle in self.model.handles[-newest:]:
            self.driver.submit(prepared.delete(self.queue, handle.receipt))
            self.model.delete(handle)
            self.model.handles.remove(handle)

    @rule(newest=st.integers(1, 8), timeout_s=timeouts_s)
    def change(self, newest: int, timeout_s: int) -> None:
        for handle in self.model.handles[-newest:]:
            reply = self.driver.submit(prepared.change(self.queue, handle.receipt, timeout_s))
            assert self.model.change(handle, timeout_s) == (reply.refusal is None)
            self.model.settle()

    @rule(ms=st.sampled_from((1, 1000, 5000, 30_000)))
    def pass_time(self, ms: int) -> None:
        self.driver.pass_time(ms)
        self.model.pass_time(ms)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        if is_clean:
            self.store.sync_all()
        else:
            self.store.crash()
            now_ms = self.model.now_ms
            self.model = self.durable.copy()
            self.model.now_ms = now_ms
            self.model.settle()
        known = KnownQueues(self.queue)
        self.driver = Driver(known, store=self.store, now_ms=self.model.now_ms)
        self.sync()

    @rule()
    def sync(self) -> None:
        self.store.sync_all()
        self.durable = self.model.copy()

    @invariant()
    def counters_are_exact(self) -> None:
        answer = self.driver.submit(prepared.counters(self.queue)).answer
        assert answer == self.model.counters(QUEUE_ID)

    @invariant()
    def rows_are_sound(self) -> None:
        check_rows(self.store, self.driver.state)


TestFairQueue = FairQueue.TestCase
TestFairQueue.settings = model_settings(examples=150, steps=40)


# -- a message without a group is quiet however it joined the line ---------------------------------


class Fair:
    """A queue whose group "loud" is noisy and has more waiting than anyone takes."""

    def __init__(self) -> None:
        self.dead = prepared.queue_named("dead", 2)
        self.queue = prepared.queue_named(
            "queue", 1, dead_letters_to=self.dead, max_receive_count=5
        )
        self.driver = Driver(KnownQueues(self.queue, self.dead))

    def send(self, *bodies: str, queue: QueueDefinition | None = None, delay_s: int = 0) -> None:
        every = ["loud" if body.startswith("loud") else None for body in bodies]
        to = queue or self.queue
        self.driver.submit(prepared.send_batch(to, bodies, groups=every, delay_s=delay_s))

    def make_noise(self, queue: QueueDefinition | None = None) -> None:
        self.send(*(f"loud-{number}" for number in range(10)), queue=queue)
        self.receive(4, queue=queue)
        state = self.driver.state.queue((queue or self.queue).queue_id)
        assert group_digest("loud") in state.fairness.noisy

    def receive(
        self, most: int = 1, timeout_s: int = 30, queue: QueueDefinition | None = None
    ) -> list[str]:
        request = prepared.receive(
            queue or self.queue,
            most,
            timeout_s=timeout_s,
            dead_letter_queue=None if queue else self.dead,
        )
        return [m.data.decode() for m in self.driver.submit(request).deliveries.messages]

    def move(self) -> Request:
        operation = StartMessageMoveTask(source_arn=self.dead.arn, destination_arn=self.queue.arn)
        return Request(operation, self.dead, prepared.CALLER, "request", destination=self.queue)


def sent_in_one_batch_behind_noise(fair: Fair) -> None:
    fair.send("loud-0", "loud-1", "loud-2", "loud-3")
    fair.receive(4)
    assert fair.driver.state.queue(1).fairness.noisy
    fair.send("loud-4", "x", "loud-5")


def delayed_before_there_were_groups(fair: Fair) -> None:
    fair.send("x", delay_s=2)
    fair.make_noise()
    fair.driver.pass_time(2000)


def received_three_times_before_there_were_groups(fair: Fair) -> None:
    fair.send("x")
    for _ in range(2):
        fair.receive(timeout_s=0)
    fair.receive(timeout_s=2)
    fair.make_noise()
    fair.driver.pass_time(2000)


def moved_by_a_task(fair: Fair) -> None:
    fair.send("x", queue=fair.dead)
    fair.make_noise()
    assert fair.driver.submit(fair.move()).refusal is None


@pytest.mark.usefixtures("few_make_noise")
@pytest.mark.parametrize(
    "arrange",
    [
        sent_in_one_batch_behind_noise,
        delayed_before_there_were_groups,
        received_three_times_before_there_were_groups,
        moved_by_a_task,
    ],
    ids=lambda arrange: str(arrange.__name__),
)
def test_message_without_a_group_goes_before_a_noisy_one(arrange: Callable[[Fair], None]) -> None:
    fair = Fair()
    arrange(fair)

    assert fair.receive() == ["x"]


@pytest.mark.usefixtures("few_make_noise")
def test_dead_letter_without_a_group_goes_before_a_noisy_one() -> None:
    fair = Fair()
    fair.make_noise(queue=fair.dead)
    fair.send("x")
    for _ in range(5):
        assert fair.receive(timeout_s=0) == ["x"]
    assert fair.receive() == []

    assert fair.receive(queue=fair.dead) == ["x"]


@pytest.mark.usefixtures("few_make_noise")
def test_noisy_group_without_messages_does_not_hide_a_quiet_one() -> None:
    fair = Fair()
    driver, queue = fair.driver, fair.queue
    for group in ("one", "two"):
        bodies = [f"{group}{number}" for number in range(4)]
        driver.submit(prepared.send_batch(queue, bodies, groups=[group] * 4))
    fair.receive(8)
    state = driver.state.queue(1)
    assert len(state.fairness.noisy) == 2
    driver.submit(prepared.send_batch(queue, ["one5", "one6"], groups=["one"] * 2))
    driver.submit(prepared.send_batch(queue, ["q"], groups=["quiet"]))

    assert fair.receive() == ["q"]


def test_receive_goes_on_behind_many_that_become_dead_letters() -> None:
    """More messages are visible again than a receive looks at first, and those are all spent."""
    dead = prepared.queue_named("dead", 2)
    queue = prepared.queue_named("queue", 1, dead_letters_to=dead, max_receive_count=2)
    driver = Driver(KnownQueues(queue, dead))
    for first in range(0, 80, 10):
        bodies = [f"loud{number:02}" for number in range(first, first + 10)]
        driver.submit(prepared.send_batch(queue, bodies, groups=["loud"] * 10))
    receive = prepared.receive(queue, 10, timeout_s=5, dead_letter_queue=dead)
    for _ in range(7):
        driver.submit(receive)
    driver.pass_time(5000)
    for _ in range(8):
        driver.submit(receive)
    assert group_digest("loud") in driver.state.queue(1).fairness.noisy
    driver.pass_time(5000)

    reply = driver.submit(prepared.receive(queue, 10, wait_s=20, dead_letter_queue=dead))

    assert [message.data for message in reply.deliveries.messages] == [
        b"loud%d" % number for number in range(70, 80)
    ]


# -- costs -----------------------------------------------------------------------------------------


def test_quiet_messages_behind_a_large_backlog_are_found_with_few_reads() -> None:
    store = CountingStore()
    queue = prepared.queue_named("queue", 1)
    driver = Driver(KnownQueues(queue), store=store)
    bodies = [f"n{number}" for number in range(2000)]
    for first in range(0, 2000, 10):
        batch = bodies[first : first + 10]
        driver.submit(prepared.send_batch(queue, batch, groups=["noisy"] * 10))
    driver.submit(prepared.send_batch(queue, ["q1", "q2", "q3"], groups=["p", "q", None]))
    for _ in range(3):
        driver.submit(prepared.receive(queue, 10, timeout_s=600))
    assert group_digest("noisy") in driver.state.queue(1).fairness.noisy
    store.reads = 0

    deliveries = driver.submit(prepared.receive(queue, 10)).deliveries

    got = [message.data for message in deliveries.messages]
    assert sorted(got[:3]) == [b"q1", b"q2", b"q3"]
    assert got[3:] == [b"n%d" % number for number in range(30, 37)]
    assert store.reads < 200


@pytest.mark.usefixtures("few_make_noise")
def test_messages_deleted_while_they_wait_at_the_back_make_no_noise() -> None:
    """When their last receive was is not known there; it is not the year 1970."""
    fair = Fair()
    receipts = [Receipt(sequence, 1) for sequence in range(1, 5)]
    bodies = [str(receipt.sequence) for receipt in receipts]
    request = prepared.send_batch(fair.queue, bodies, groups=["quiet"] * 4)
    fair.driver.submit(request)
    for _ in range(3):
        fair.receive(4, timeout_s=0)

    for receipt in receipts:
        fair.driver.submit(prepared.delete(fair.queue, receipt))

    queue = fair.driver.state.queue(1)
    assert (queue.stored, queue.fairness.noisy) == (0, {})
