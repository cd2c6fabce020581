"""The engine over a store, step by step beside the model of a FIFO queue, through restarts and
power losses."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from cluster.tests.archive_rules import LIMITS, TAGS
from cluster.tests.driver import Driver
from cluster.tests.fifo_model import FifoModel, Taken
from cluster.tests.model_rules import SOURCE_ID, TARGET_ID, ModelRules, model_settings
from cluster.tests.standard_model import Handle
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.operations import SendMessageBatch, SendMessageBatchRequestEntry
from visibility.contract.results import (
    DeleteMessageBatchResult,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from visibility.rules.queues import QueueChanged
from visibility.state.ages import oldest_messages
from visibility.state.shard_state import ShardState
from visibility.tests import prepared
from visibility.tests.prepared import START_MS

NAMES = {SOURCE_ID: "source.fifo", TARGET_ID: "target.fifo"}
QUEUE_TIMEOUT_S = {SOURCE_ID: 30, TARGET_ID: 3}

queue_ids = st.sampled_from((SOURCE_ID, SOURCE_ID, SOURCE_ID, TARGET_ID))
groups = st.sampled_from(("g", "g", "h", "i", "k"))
ids = st.none() | st.none() | st.sampled_from(("1", "2", "3"))
timeouts_s = st.sampled_from((0, 0, 1, 1, 5, 30))
picks = st.lists(st.integers(0, 4) | st.integers(0, 10_000), min_size=1, max_size=10)


class FifoQueue(ModelRules):
    """Two FIFO queues; messages of the first may leave for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(auto_sync=False)
        self.follower = ShardState()
        self.known = prepared.KnownQueues()
        self.ids = {SOURCE_ID: SOURCE_ID, TARGET_ID: TARGET_ID}
        """Queue ids as they are now, since a purge gives a new one."""
        self.scope = "queue"
        self.retention_s = 345_600
        self.max_receives: int | None = None
        self.delays_s = {SOURCE_ID: 0, TARGET_ID: 0}
        self.model = FifoModel(START_MS)
        self.sent = 0

    @initialize(
        scope=st.sampled_from(("queue", "messageGroup")),
        max_receives=st.sampled_from((None, None, 1, 1, 2, 3)),
        retention_s=st.sampled_from((60, 60, 90, 345_600)),
        delay_s=st.sampled_from((0, 0, 0, 2)),
        refuses=st.sampled_from(("", "", "some", "all")),
    )
    def define_queues(
        self, scope: str, max_receives: int | None, retention_s: int, delay_s: int, refuses: str
    ) -> None:
        self.sealing = prepared.Keys(refuses)
        if refuses == "some":
            self.model.keeps = prepared.is_odd
        self.scope = scope
        self.max_receives = max_receives
        self.retention_s = retention_s
        self.delays_s[SOURCE_ID] = delay_s
        self.model.retention_ms = dict.fromkeys((SOURCE_ID, TARGET_ID), retention_s * 1000)
        if max_receives is not None and refuses != "all":
            self.model.limits[SOURCE_ID] = (TARGET_ID, max_receives)
        self.define()
        self.driver = Driver(
            self.known,
            store=self.store,
            on_event=lambda event: event.apply(self.follower),
            archive=LIMITS,
            sealing=self.sealing,
        )
        self.durable = self.model.copy()

    def define(self) -> None:
        target: QueueDefinition | None = None
        for queue_id in (TARGET_ID, SOURCE_ID):
            self.model.delay_ms[queue_id] = self.delays_s[queue_id] * 1000
            target = self.known.define(
                prepared.queue_named(
                    NAMES[queue_id],
                    self.ids[queue_id],
                    dead_letters_to=target if self.max_receives is not None else None,
                    max_receive_count=self.max_receives or 1,
                    DelaySeconds=str(self.delays_s[queue_id]),
                    MessageRetentionPeriod=str(self.retention_s),
                    tags=TAGS,
                    VisibilityTimeout=str(QUEUE_TIMEOUT_S[queue_id]),
                    DeduplicationScope=self.scope,
                )
            )

    def queue(self, queue_id: int) -> QueueDefinition:
        return self.known.queues[self.ids[queue_id]]

    def new_body(self) -> str:
        self.sent += 1
        return f"m{self.sent}"

    def chosen(self, picked: Sequence[int], queue_id: int) -> list[Handle]:
        handles = [handle for handle in self.model.handles if handle.queue_id == queue_id]
        held = [handle for handle in handles if self.model.held(handle)]
        lines = (held or handles, handles)  # mostly handles that still mean something
        return [
            line[-1 - number % len(line)] for number in picked if (line := lines[number % 5 == 4])
        ]

    # -- calls of clients --------------------------------------------------------------------------

    def sent_as(
        self,
        queue_id: int,
        group: str,
        body: str,
        text: str | None,
        told: SendMessageResult | SendMessageBatchResultEntry,
    ) -> None:
        """Record in the model a send that was answered with `told`."""
        scope = group if self.scope == "messageGroup" else ""
        answer = (told.message_id, told.sequence_number)
        first = self.model.duplicate_of(queue_id, scope, text or body)
        if first is not None:
            assert answer == first, "a duplicate is told what the first was told"
        else:
            self.model.remember(queue_id, scope, text or body, answer)
            self.model.send(queue_id, body.encode(), group)

    @rule(queue_id=queue_ids, group=groups, text=ids)
    def send(self, queue_id: int, group: str, text: str | None) -> None:
        body = self.new_body()
        request = prepared.send(self.queue(queue_id), body, group=group, deduplication_id=text)
        told = self.driver.submit(request).answer
        assert isinstance(told, SendMessageResult)
        self.sent_as(queue_id, group, body, text, told)

    @rule(queue_id=queue_ids, entries=st.lists(st.tuples(groups, ids), min_size=1, max_size=10))
    def send_batch(self, queue_id: int, entries: list[tuple[str, str | None]]) -> None:
        queue = self.queue(queue_id)
        bodies = [self.new_body() for _ in entries]
        named = list(zip(bodies, entries, strict=True))
        request = prepared.prepared(
            queue,
            SendMessageBatch(entries=[SendMessageBatchRequestEntry(body) for body in bodies]),
            [
                prepared.content(body, queue, group=group, deduplication_id=text)
                for body, (group, text) in named
            ],
        )
        result = self.driver.submit(request).answer
        assert isinstance(result, SendMessageBatchResult)
        assert [told.id for told in result.successful or ()] == bodies
        for told, (body, (group, text)) in zip(result.successful or (), named, strict=True):
            self.sent_as(queue_id, group, body, text, told)

    @rule(
        queue_id=queue_ids,
        most=st.sampled_from((1, 1, 2, 3, 10)),
        timeout_s=st.none() | timeouts_s,
        attempt=st.none() | st.none() | st.sampled_from(("x", "y")),
    )
    def receive(self, queue_id: int, most: int, timeout_s: int | None, attempt: str | None) -> None:
        queue = self.queue(queue_id)
        target = self.known.dead_letter_queue(queue)
        request = prepared.receive(
            queue, most, timeout_s=timeout_s, dead_letter_queue=target, attempt=attempt
        )
        reply = self.driver.submit(request)
        seconds = QUEUE_TIMEOUT_S[queue_id] if timeout_s is None else timeout_s
        wanted = self.model.receive(queue_id, most, seconds, attempt)
        if wanted is None:
            assert isinstance(reply.refusal, InvalidParameterValue)
            return
        deliveries = reply.deliveries
        taken: list[Taken] = []
        for lease, message in zip(deliveries.leases, deliveries.messages, strict=True):
            taken.append((message.data, lease.receive_count, lease.first_received_at_ms))
            receipt = Receipt(lease.sequence, lease.receive_count)
            self.model.handles.append(Handle(queue_id, message.data, receipt))
        assert taken == wanted

    @rule(queue_id=queue_ids, picked=picks)
    def delete(self, queue_id: int, picked: list[int]) -> None:
        for handle in self.chosen(picked[:1], queue_id):
            reply = self.driver.submit(prepared.delete(self.queue(queue_id), handle.receipt))
            (succeeds,) = self.model.delete([handle])
            assert succeeds == (reply.refusal is None)
            assert succeeds or isinstance(reply.refusal, InvalidParameterValue)

    @rule(queue_id=queue_ids, picked=picks)
    def delete_batch(self, queue_id: int, picked: list[int]) -> None:
        handles = self.chosen(picked, queue_id)
        if handles:
            request = prepared.delete_batch(self.queue(queue_id), [h.receipt for h in handles])
            result = self.driver.submit(request).answer
            assert isinstance(result, DeleteMessageBatchResult)
            wanted = [str(n) for n, done in enumerate(self.model.delete(handles)) if done]
            assert [entry.id for entry in result.successful or ()] == wanted

    @rule(queue_id=queue_ids, picked=picks, timeout_s=timeouts_s)
    def change_visibility(self, queue_id: int, picked: list[int], timeout_s: int) -> None:
        for handle in self.chosen(picked[:1], queue_id):
            request = prepared.change(self.queue(queue_id), handle.receipt, timeout_s)
            refusal = self.driver.submit(request).refusal
            accepted = self.model.change(handle, timeout_s)
            assert accepted == (refusal is None)
            assert accepted or isinstance(refusal, InvalidParameterValue)

    @rule(queue_id=queue_ids, most=st.integers(2, 4), timeout_s=timeouts_s)
    def show_the_first_of_several(self, queue_id: int, most: int, timeout_s: int) -> None:
        """One of a group waits again while later ones of it are in flight."""
        self.receive(queue_id, most, 30, None)
        held = [h for h in self.model.handles if h.queue_id == queue_id and self.model.held(h)]
        if held:
            first = min(held, key=lambda handle: handle.receipt.sequence)
            self.driver.submit(prepared.change(self.queue(queue_id), first.receipt, 0))
            self.model.change(first, 0)
            self.receive(queue_id, most, timeout_s, None)

    @rule(
        queue_id=queue_ids,
        most=st.integers(1, 3),
        between=st.sampled_from(("nothing", "change", "delete", "time", "restart")),
    )
    def repeat_an_attempt(self, queue_id: int, most: int, between: str) -> None:
        """The answer was lost, and the client asks again; something may have happened since."""
        self.receive(queue_id, most, 30, "z")
        newest = [handle for handle in self.model.handles if handle.queue_id == queue_id][-1:]
        if between == "change":
            for handle in newest:
                self.driver.submit(prepared.change(self.queue(queue_id), handle.receipt, 29))
                self.model.change(handle, 29)
        elif between == "delete":
            for handle in newest:
                self.driver.submit(prepared.delete(self.queue(queue_id), handle.receipt))
                self.model.delete([handle])
        elif between == "time":
            self.pass_time(1000)
        elif between == "restart":
            self.stop_and_start()
        self.receive(queue_id, most, 30, "z")

    @precondition(lambda self: self.max_receives is not None)
    @rule(ms=st.sampled_from((0, 1000, 30_000)))
    def let_some_die(self, ms: int) -> None:
        """Those in front are received until they leave for the other queue."""
        self.pass_time(ms)
        for _ in range((self.max_receives or 0) + 1):
            self.receive(SOURCE_ID, 3, 0, None)

    @rule(queue_id=queue_ids, newest=st.integers(1, 10))
    def give_messages_back(self, queue_id: int, newest: int) -> None:
        """The answers of the latest deliveries never left."""
        handles = [handle for handle in self.model.handles if handle.queue_id == queue_id][-newest:]
        receipts = [handle.receipt for handle in handles]
        self.driver.submit(prepared.give_back(self.queue(queue_id), receipts))
        self.model.give_back(handles)
        self.model.handles = [h for h in self.model.handles if h not in handles]

    @precondition(lambda self: self.sent % 5 == 1)
    @rule(queue_id=queue_ids)
    def purge(self, queue_id: int) -> None:
        """Purge a queue; the archive takes its messages, and the purge holds whatever fails
        later."""
        purged = self.queue(queue_id)
        self.ids[queue_id] = self.driver.purge(purged).queue_id
        self.driver.drop(purged)
        self.model.purge(queue_id)
        self.sync()

    @rule(queue_id=queue_ids, delay_s=st.sampled_from((0, 0, 1, 5, 100)))
    def set_delay(self, queue_id: int, delay_s: int) -> None:
        self.delays_s[queue_id] = delay_s
        self.define()
        self.driver.submit(prepared.prepared(self.queue(queue_id), QueueChanged()))
        self.model.settle()

    # -- events of the world -----------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 500, 1000, 2000, 5000, 20_000, 30_000, 60_000, 299_999, 300_000)))
    def pass_time(self, ms: int) -> None:
        self.let_pass(ms)

    @precondition(lambda self: self.retention_s < 100)
    @rule()
    def pass_retention(self) -> None:
        """Expire all present messages, except delayed ones."""
        self.pass_time(self.retention_s * 1000)

    # -- checks after every step -------------------------------------------------------------------

    @invariant()
    def ages_are_exact(self) -> None:
        state, model = self.driver.state, self.model
        for queue_id in (SOURCE_ID, TARGET_ID):
            queue = state.queue(self.ids[queue_id])
            oldest = oldest_messages(state, queue)
            messages = model.of_queue(queue_id)
            receivable = [
                m for g in {m.group for m in messages} for m in model.receivable(queue_id, g)
            ]
            assert oldest.stored_ms == min((m.retained_from_ms for m in messages), default=0)
            if len(messages) <= 16:
                first_ms = min((m.retained_from_ms for m in receivable), default=0)
                assert oldest.receivable_ms == first_ms
                unspent = [m.retained_from_ms for m in messages if m.received_here < 3]
                assert oldest.unspent_ms == min(unspent, default=0)

    @invariant()
    def a_follower_knows_the_groups(self) -> None:
        for queue_id, queue in self.driver.state.queues.items():
            followed = self.follower.queue(queue_id)
            assert followed.ready_groups.total == queue.ready_groups.total
            assert followed.spans == queue.spans
            assert followed.remembered_ms == queue.remembered_ms


TestFifoQueue = FifoQueue.TestCase
TestFifoQueue.settings = model_settings(examples=200, steps=50)
