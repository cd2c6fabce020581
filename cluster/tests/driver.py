"""Drives turns as `cluster/shards/shard.py` does, but at once, and on a clock that moves on
command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.shards.loading import load
from cluster.shards.shard_report import ArchiveLimits
from storage.rows.entry_body import EntryBody, encode_body
from storage.rows.stored_rows import StoredRows
from storage.tests.memory_store import MemoryStore
from visibility.content.sealing import Sealing
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Deduplicated, Deliveries, Progress
from visibility.rules.decided import Decided
from visibility.rules.events import Effects, Event, Notice
from visibility.rules.turn import run
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.waiters import Ticket
from visibility.tests import prepared
from visibility.tests.invariants import check_shard
from visibility.tests.prepared import START_MS, KnownQueues

_TURNS_MAX = 10_000


class Reply:
    """The answer of a request, once it has one."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answers: list[Answer | QueueError] = []
        self.ticket = Ticket(request, self.answers.append)

    @property
    def waits(self) -> bool:
        """True while there is no answer: a long poll."""
        return not self.answers

    @property
    def answer(self) -> Answer:
        """The answer, which must be there and no refusal."""
        (answer,) = self.answers
        assert not isinstance(answer, QueueError), answer.message
        return answer.result if isinstance(answer, Deduplicated) else answer

    @property
    def refusal(self) -> QueueError | None:
        """The refusal, if it was refused."""
        (answer,) = self.answers
        return answer if isinstance(answer, QueueError) else None

    @property
    def deliveries(self) -> Deliveries:
        """The answer of a receive."""
        assert isinstance(self.answer, Deliveries)
        return self.answer

    @property
    def bodies(self) -> list[str]:
        """The bodies that a receive got."""
        return [message.data.decode() for message in self.deliveries.messages]

    @property
    def taken(self) -> dict[str, Receipt]:
        """The same, with their receipts."""
        leases = self.deliveries.leases
        receipts = [Receipt(lease.sequence, lease.receive_count) for lease in leases]
        return dict(zip(self.bodies, receipts, strict=True))


class SteadyEntropy:
    """Chance that is the same every time."""

    def __init__(self, seed: int = 0) -> None:
        self._bits = 1 + seed

    def _next(self) -> int:
        self._bits = self._bits * 6364136223846793005 + 1442695040888963407 & (1 << 128) - 1
        return self._bits

    @property
    def bits128(self) -> Callable[[], int]:
        return self._next

    def secret(self, size: int) -> bytes:
        return self._next().to_bytes(16, "big") * (size // 16 + 1)


def loaded(store: MemoryStore, queues: KnownQueues) -> ShardState:
    """Memory as a start makes it from the rows."""
    rows = StoredRows(store)
    state = ShardState(rows, queues)
    load_at_once(state, rows)
    return state


class Driver:
    """One shard, its disk and its time."""

    def __init__(
        self,
        queues: KnownQueues,
        *,
        store: MemoryStore | None = None,
        now_ms: int = START_MS,
        on_event: Callable[[Event], None] | None = None,
        seed: int = 0,
        archive: ArchiveLimits | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """`on_event` gets every event, like a follower. A restart with the same `seed` repeats its
        chance."""
        self.queues = queues
        self.store = store or MemoryStore()
        self.rows = StoredRows(self.store)
        self.state = ShardState(self.rows, queues, sealing)
        load_at_once(self.state, self.rows)
        if archive is not None:
            known = self.state.archive
            known.is_on, known.source = True, known.source or "source"
            known.size_max, known.retains = archive
        self.now_ms = now_ms
        self.trusted_ms = 0
        self.turns = 0
        self.notices: list[Notice] = []
        """The lines that a shard would log."""
        self._entropy = SteadyEntropy(now_ms + seed)
        self._on_event = on_event
        self.turn([])

    def _run(self, stamp: Stamp, deferred: list[Ticket], tickets: list[Ticket]) -> Decided:
        on_event, do = self._on_event, Effects.do
        if on_event is None:
            return run(self.state, stamp, deferred, tickets)

        def do_and_tell(turn: Effects, event: Event) -> None:
            do(turn, event)
            on_event(event)

        Effects.do = do_and_tell  # type: ignore[assignment,method-assign]
        try:
            return run(self.state, stamp, deferred, tickets)
        finally:
            Effects.do = do  # type: ignore[method-assign]

    def restarted(self, *, store: MemoryStore | None = None, passed_ms: int = 0) -> Driver:
        """A new leader of the shard, some time later, over what is stored; or over a copy of it."""
        return Driver(self.queues, store=store or self.store, now_ms=self.now_ms + passed_ms)

    def submit(self, request: Request) -> Reply:
        """Run one request and everything that follows at once."""
        return self.turn([request])[0]

    def purge(self, queue: QueueDefinition) -> QueueDefinition:
        """Purge a queue; returns the one that continues it."""
        successor = self.queues.purge(queue)
        assert self.submit(prepared.purge(queue, successor)).answer is None
        return successor

    def drop(self, queue: QueueDefinition) -> None:
        """Forget a deleted or purged queue."""
        while not (step := self._progress(prepared.drop(queue))).is_done:
            self.pass_time(step.again_in_ms)

    def restore(self, queue: QueueDefinition, successor: QueueDefinition) -> Progress:
        """Move the messages of a purged queue to its successor, except those in flight."""
        step = self._progress(prepared.restore(queue, successor))
        while step.next_sequence:
            step = self._progress(
                prepared.restore(queue, successor, step.next_sequence, step.blocked)
            )
        return step

    def _progress(self, request: Request) -> Progress:
        answer = self.submit(request).answer
        assert isinstance(answer, Progress)
        return answer

    def pass_time(self, ms: int) -> None:
        """Advance the clock, stopping at every deadline as the shard's timer does."""
        end_ms = self.now_ms + ms
        while (next_ms := self.state.deadlines.next_at_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.turn([])
        self.now_ms = end_ms
        self.turn([])

    def turn(self, requests: Sequence[Request]) -> list[Reply]:
        """Decide the requests, in as many turns as it takes; all of them are answered or wait when
        this returns."""
        replies = [Reply(request) for request in requests]
        deferred: list[Ticket] = []
        tickets = [reply.ticket for reply in replies]
        for _ in range(_TURNS_MAX):
            deferred, tickets = self.one_turn(deferred, tickets)
            due_ms = self.state.deadlines.next_at_ms()
            is_due = due_ms is not None and due_ms <= self.now_ms
            if not (deferred or tickets or self.state.due or self.state.to_wake or is_due):
                return replies
        raise AssertionError("the shard never comes to rest")

    def one_turn(
        self, deferred: list[Ticket], tickets: list[Ticket]
    ) -> tuple[list[Ticket], list[Ticket]]:
        """Returns the tickets that the next Turn decides first, and those without room in this
        one."""
        self.turns += 1
        stamp = Stamp(self.now_ms, self._entropy.bits128, self.trusted_ms)
        decided = self._run(stamp, deferred, tickets)
        changes = self.rows.take_changes()
        if changes:
            body = EntryBody(self.now_ms, decided.request_ids, changes.ops)
            self.store.append(encode_body(body), decided.queue_ids)
            self.store.sync(lambda failure: None)
            self.store.apply(changes)
            self.rows.forget(changes)
        self.notices += decided.notices
        check_shard(self.state)
        for ticket, answer in decided.answers:
            ticket.on_answer(answer)
        return decided.deferred, decided.untaken


def load_at_once(state: ShardState, rows: StoredRows) -> int:
    """Load everything without pauses; returns the time of the last stamp."""
    steps = load(state, rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)
