"""The engine over a store, step by step beside the model of a standard queue, through restarts and
power losses.

It is not in `visibility/tests` because restarts need a store, which that package may not import.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from cluster.tests.archive_rules import LIMITS, TAGS
from cluster.tests.driver import Driver
from cluster.tests.model_rules import SOURCE_ID, TARGET_ID, ModelRules, model_settings
from cluster.tests.standard_model import Handle, Model, Taken
from storage.tests.memory_store import MemoryStore
from visibility.content.receipts import ReceiptKey
from visibility.contract.errors import (
    InvalidMessageContents,
    InvalidParameterValue,
    QueueError,
    ReceiptHandleIsInvalid,
)
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.results import (
    ChangeMessageVisibilityBatchResult,
    DeleteMessageBatchResult,
    SendMessageBatchResult,
)
from visibility.state import fairness
from visibility.state.ages import oldest_messages
from visibility.state.shard_state import ShardState
from visibility.state.window import PAGE_MESSAGES
from visibility.tests import prepared
from visibility.tests.prepared import START_MS

QUEUE_TIMEOUT_S = {SOURCE_ID: 30, TARGET_ID: 3}
TWELVE_HOURS_S = 43_200

queue_ids = st.sampled_from((SOURCE_ID, SOURCE_ID, SOURCE_ID, TARGET_ID))
picks = st.lists(st.integers(0, 4) | st.integers(0, 10_000), min_size=1, max_size=10)
timeouts_s = st.sampled_from((0, 0, 1, 5, 30))
delays_s = st.sampled_from((None, None, 0, 1, 5, 900))
groups = st.sampled_from((None, None, "g", "h"))


class StandardQueue(ModelRules):
    """Two queues; messages of the first may leave for the second. No group becomes noisy: see
    test_fair_model."""

    def __init__(self) -> None:
        super().__init__()
        self._thresholds = pytest.MonkeyPatch()
        self._thresholds.setattr(fairness, "IN_FLIGHT_MIN", 1 << 31)
        self._thresholds.setattr(fairness, "FINISHED_MIN", float("inf"))
        self.store = MemoryStore(auto_sync=False)
        self.follower = ShardState()
        """Knows events only, as a follower does: no requests, no pages."""
        self.target = prepared.queue_named("target", TARGET_ID, VisibilityTimeout="3")
        self.known = prepared.KnownQueues(self.target)
        self.driver = Driver(
            self.known,
            store=self.store,
            on_event=lambda event: event.apply(self.follower),
            archive=LIMITS,
        )
        self.model = Model(START_MS)
        self.durable = self.model.copy()
        self.source = prepared.queue_named("source", SOURCE_ID)
        self.queue_delay_s = 0
        self.sent = 0

    @initialize(
        max_receives=st.sampled_from((None, 1, 2, 3, 4)),
        queue_delay_s=st.sampled_from((0, 0, 2)),
        retention_s=st.sampled_from((60, 60, 90, 345_600)),
        refuses=st.sampled_from(("", "", "some", "all")),
    )
    def define_queue(
        self, max_receives: int | None, queue_delay_s: int, retention_s: int, refuses: str
    ) -> None:
        self.sealing = self.driver.state.sealing = prepared.Keys(refuses)
        if refuses == "some":
            self.model.keeps = prepared.is_odd
        self.queue_delay_s = queue_delay_s
        self.model.retention_ms = retention_s * 1000
        if max_receives is not None and refuses != "all":
            self.model.limits[SOURCE_ID] = (TARGET_ID, max_receives)
        self.durable = self.model.copy()
        period = str(retention_s)
        self.target = prepared.queue_named(
            "target", TARGET_ID, VisibilityTimeout="3", MessageRetentionPeriod=period, tags=TAGS
        )
        self.known.define(self.target)
        self.source = prepared.queue_named(
            "source",
            SOURCE_ID,
            dead_letters_to=self.target if max_receives is not None else None,
            max_receive_count=max_receives or 1,
            DelaySeconds=str(queue_delay_s),
            MessageRetentionPeriod=period,
            tags=TAGS,
        )
        self.known.define(self.source)

    def queue(self, queue_id: int) -> QueueDefinition:
        return self.source if queue_id == SOURCE_ID else self.target

    def new_bodies(self, count: int) -> list[str]:
        self.sent += count
        return [f"m{number}" for number in range(self.sent - count, self.sent)]

    def delay_s(self, queue_id: int, asked_s: int | None) -> int:
        default_s = self.queue_delay_s if queue_id == SOURCE_ID else 0
        return default_s if asked_s is None else asked_s

    def chosen(self, picked: Sequence[int], queue_id: int) -> list[Handle]:
        handles = [handle for handle in self.model.handles if handle.queue_id == queue_id]
        living = [handle for handle in handles if handle.body in self.model.messages]
        lines = (living or handles, handles)  # mostly handles that still mean something
        return [
            line[-1 - number % len(line)] for number in picked if (line := lines[number % 5 == 4])
        ]

    # -- calls of clients --------------------------------------------------------------------------

    @rule(queue_id=queue_ids, delay_s=delays_s, group=groups)
    def send(self, queue_id: int, delay_s: int | None, group: str | None) -> None:
        (body,) = self.new_bodies(1)
        request = prepared.send(self.queue(queue_id), body, delay_s=delay_s, group=group)
        self.driver.submit(request)
        self.model.send(queue_id, body.encode(), self.delay_s(queue_id, delay_s))

    @rule(
        queue_id=queue_ids,
        refused=st.lists(st.booleans(), min_size=1, max_size=10),
        delay_s=delays_s,
        group=groups,
    )
    def send_batch(
        self, queue_id: int, refused: list[bool], delay_s: int | None, group: str | None
    ) -> None:
        bodies: list[str | QueueError] = [
            InvalidMessageContents() if bad else body
            for bad, body in zip(refused, self.new_bodies(len(refused)), strict=True)
        ]
        every = [group if position % 2 else None for position in range(len(bodies))]
        request = prepared.send_batch(self.queue(queue_id), bodies, delay_s=delay_s, groups=every)
        result = self.driver.submit(request).answer
        assert isinstance(result, SendMessageBatchResult)
        assert len(result.failed or ()) == sum(refused)
        assert len(result.successful or ()) == len(refused) - sum(refused)
        for body in bodies:
            if isinstance(body, str):
                self.model.send(queue_id, body.encode(), self.delay_s(queue_id, delay_s))

    @precondition(lambda self: self.sent < PAGE_MESSAGES)
    @rule()
    def send_more_than_a_page(self) -> None:
        for _ in range(PAGE_MESSAGES // 10 + 2):
            self.send_batch(SOURCE_ID, [False] * 10, 0, None)

    @rule(queue_id=queue_ids, most=st.integers(1, 10), timeout_s=st.none() | timeouts_s)
    def receive(self, queue_id: int, most: int, timeout_s: int | None) -> None:
        queue = self.queue(queue_id)
        policy = queue.settings.redrive_policy
        request = prepared.receive(
            queue, most, timeout_s=timeout_s, dead_letter_queue=self.target if policy else None
        )
        deliveries = self.driver.submit(request).deliveries
        wanted = self.model.receive(
            queue_id,
            most,
            QUEUE_TIMEOUT_S[queue_id] if timeout_s is None else timeout_s,
        )

        taken: list[Taken] = []
        for lease, message in zip(deliveries.leases, deliveries.messages, strict=True):
            assert message is not None
            taken.append(Taken(message.data, lease.receive_count, lease.first_received_at_ms))
            key = ReceiptKey(queue.receipt_key)
            named = message.original_sequence or lease.sequence
            receipt = key.receipt(key.handle(named, lease.receive_count))
            self.model.handles.append(Handle(queue_id, message.data, receipt))
        assert taken == wanted

    @rule(queue_id=queue_ids, times=st.integers(2, 4))
    def receive_again_and_again(self, queue_id: int, times: int) -> None:
        for _ in range(times):
            self.receive(queue_id, 2, 0)

    @rule(queue_id=queue_ids, picked=picks)
    def delete(self, queue_id: int, picked: list[int]) -> None:
        for handle in self.chosen(picked[:1], queue_id):
            reply = self.driver.submit(prepared.delete(self.queue(queue_id), handle.receipt))
            assert reply.refusal is None
            self.model.delete(handle)

    @rule(queue_id=queue_ids, picked=picks, foreign=st.booleans())
    def delete_batch(self, queue_id: int, picked: list[int], foreign: bool) -> None:
        handles = self.chosen(picked, queue_id)
        parts: list[prepared.Part] = [handle.receipt for handle in handles]
        parts += [ReceiptHandleIsInvalid("foreign")] if foreign else []
        if parts:
            result = self.driver.submit(prepared.delete_batch(self.queue(queue_id), parts)).answer
            assert isinstance(result, DeleteMessageBatchResult)
            assert len(result.successful or ()) == len(handles)
            assert len(result.failed or ()) == foreign
        for handle in handles:
            self.model.delete(handle)

    @rule(queue_id=queue_ids, picked=picks, timeout_s=timeouts_s | st.just(TWELVE_HOURS_S))
    def change_visibility(self, queue_id: int, picked: list[int], timeout_s: int) -> None:
        for handle in self.chosen(picked[:1], queue_id):
            request = prepared.change(self.queue(queue_id), handle.receipt, timeout_s)
            refusal = self.driver.submit(request).refusal
            accepted = self.model.change(handle, timeout_s)
            self.model.settle()
            if accepted:
                assert refusal is None
            else:
                assert isinstance(refusal, InvalidParameterValue)

    @rule(queue_id=queue_ids, picked=picks, timeout_s=timeouts_s)
    def change_visibility_batch(self, queue_id: int, picked: list[int], timeout_s: int) -> None:
        handles = self.chosen(picked, queue_id)
        if not handles:
            return
        receipts: list[Receipt] = [handle.receipt for handle in handles]
        request = prepared.change_batch(self.queue(queue_id), receipts, [timeout_s] * len(receipts))
        result = self.driver.submit(request).answer
        assert isinstance(result, ChangeMessageVisibilityBatchResult)
        wanted = [
            str(i) for i, handle in enumerate(handles) if self.model.change(handle, timeout_s)
        ]
        self.model.settle()
        assert [entry.id for entry in result.successful or ()] == wanted

    @rule(queue_id=queue_ids, newest=st.integers(1, 10))
    def give_messages_back(self, queue_id: int, newest: int) -> None:
        """The answers of the latest deliveries never left."""
        handles = [handle for handle in self.model.handles if handle.queue_id == queue_id][-newest:]
        handles = list({handle.body: handle for handle in handles}.values())
        receipts = [handle.receipt for handle in handles]
        self.driver.submit(prepared.give_back(self.queue(queue_id), receipts))
        for handle in handles:
            self.model.give_back(handle)
            self.model.handles.remove(handle)
        self.model.settle()

    @precondition(lambda self: self.sent % 4 == 1)
    @rule(queue_id=queue_ids)
    def purge(self, queue_id: int) -> None:
        """Purge a queue; the archive takes its messages, and the purge holds whatever fails
        later."""
        purged = self.queue(queue_id)
        successor = self.driver.purge(purged)
        if queue_id == SOURCE_ID:
            self.source = successor
        else:
            self.target = successor
        self.driver.drop(purged)
        self.model.purge(queue_id)
        self.sync()

    # -- events of the world -----------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 500, 1000, 2000, 5000, 20_000, 30_000, 60_000)))
    def pass_time(self, ms: int) -> None:
        self.let_pass(ms)

    @precondition(lambda self: self.model.retention_ms < 100_000)
    @rule()
    def pass_retention(self) -> None:
        """Expire all present messages, except delayed ones."""
        self.pass_time(self.model.retention_ms)

    def teardown(self) -> None:
        self._thresholds.undo()

    # -- checks after every step -------------------------------------------------------------------

    @invariant()
    def ages_are_what_they_say(self) -> None:
        state = self.driver.state
        for queue_id in (SOURCE_ID, TARGET_ID):
            queue = state.queue(self.queue(queue_id).queue_id)
            oldest = oldest_messages(state, queue)
            line = self.model.visible(queue_id)
            sent_ms = [m.sent_at_ms for m in self.model.messages.values() if m.queue_id == queue_id]
            assert bool(oldest.stored_ms) == bool(sent_ms)
            late_ms = oldest.stored_ms - min(sent_ms, default=0)
            assert 0 <= late_ms <= (900_000 if queue.delayed else 0)
            assert oldest.receivable_ms == (line[0].sent_at_ms if line else 0)
            if len(sent_ms) <= 16:
                self._unspent_is(queue_id, oldest.unspent_ms)

    def _unspent_is(self, queue_id: int, unspent_ms: int) -> None:
        since_ms = [
            m.joined_at_ms or m.sent_at_ms
            for m in self.model.messages.values()
            if m.queue_id == queue_id and m.received_here < 3
        ]
        assert bool(unspent_ms) == bool(since_ms)
        assert 0 <= unspent_ms - min(since_ms, default=0) <= 900_000, (
            "of delayed messages the first due"
        )

    @invariant()
    def what_was_deleted_stays_deleted(self) -> None:
        assert not self.model.gone & self.model.messages.keys()


TestStandardQueue = StandardQueue.TestCase
TestStandardQueue.settings = model_settings(examples=200, steps=40)
