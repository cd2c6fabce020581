"""Shard: drives one Engine and one Store, a Turn at a time.

A Turn takes the requests that wait, lets time pass, reads what they will need, decides them, puts their events into one
batch, and holds every answer, read-only ones too, until all it could have seen is durable. Nothing here awaits: the only
seam to the gateway is `submit(request, on_answer)`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import structlog

from cluster.clock import Clock, Entropy
from storage.appliers import write_event, write_queue
from storage.codec import DamagedRecord, QueueRow
from storage.store import Store, StoreFailed
from visibility.engine import PAGE_BYTES, Engine
from visibility.errors import InternalError, QueueDoesNotExist, QueueError, ServiceUnavailable
from visibility.events import Event, MessageDeadLettered, QueueDropped, StoredMessage
from visibility.model import Request
from visibility.operations import ReceiveMessage
from visibility.outcomes import Answer, Deliveries, NoAnswer
from visibility.receive import wait_ms
from visibility.stamp import Stamp
from visibility.state import QueueState

TURN_REQUESTS_MAX = 512
"""Requests of one Turn: bounds how long the event loop is held."""
_REOPEN_S = 1.0
_NO_MESSAGES = Deliveries([], [])

OnAnswer = Callable[[Answer | QueueError], None]
OpenStore = Callable[[Callable[[StoreFailed], None]], Store]


class Ticket:
    """A submitted request and who waits for its answer."""

    __slots__ = ("on_answer", "request", "until_ms", "wait_number")

    def __init__(self, request: Request, on_answer: OnAnswer) -> None:
        self.request = request
        self.on_answer = on_answer
        self.wait_number = 0
        """The long poll's number while it is parked, else 0."""
        self.until_ms = 0
        """When its waiting ends, once it has begun to wait."""


class Shard:
    """A hash slice of queues with one engine and one store. Belongs to the event loop's thread."""

    def __init__(
        self,
        number: int,
        *,
        open_store: OpenStore,
        clock: Clock,
        entropy: Entropy,
        purge_interval_ms: int,
    ) -> None:
        self.number = number
        self._open_store = open_store
        self._clock = clock
        self._entropy = entropy
        self._purge_interval_ms = purge_interval_ms
        self._log = structlog.get_logger("shard").bind(shard=number)
        self._store: Store | None = None
        self._engine = Engine(purge_interval_ms)
        self._inbox: deque[Ticket] = deque()
        self._held: deque[list[tuple[Ticket, Answer | QueueError]]] = deque()
        self._answers: list[tuple[Ticket, Answer | QueueError]] = []
        self._changed: dict[int, None] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._stopping = False

    # -- life -------------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether requests are decided here; else they are answered ServiceUnavailable."""
        return self._store is not None

    def start(self, known_queue_ids: Iterable[int]) -> None:
        """Open the store, load what memory needs, sweep queues the catalog does not know.

        Raises StoreFailed, DamagedRecord.
        """
        store = self._open_store(self._failed)
        engine = Engine(self._purge_interval_ms)
        for queue_id, row, leases in store.load():
            engine.restore_queue(
                queue_id,
                next_sequence=row.next_sequence,
                low_water=row.low_water,
                waiting=row.waiting,
                purged_at_ms=row.purged_at_ms,
            )
            for lease in leases:
                engine.restore_lease(queue_id, lease)
        self._store, self._engine = store, engine
        for queue_id in engine.state.queues.keys() - set(known_queue_ids):
            self._write(QueueDropped(queue_id))
            engine.apply(QueueDropped(queue_id))
        self._run_turn()

    def end_long_polls(self) -> None:
        """Answer every parked receive now, with nothing, and park none from here on: the node is stopping."""
        self._stopping = True
        for wait in self._engine.state.waits.all():
            self._engine.state.waits.remove(wait.number)
            assert isinstance(wait.ticket, Ticket)
            self._answers.append((wait.ticket, _NO_MESSAGES))
        self._schedule()

    async def stop(self) -> None:
        """Finish what was submitted, then close the store."""
        self.end_long_polls()
        while self._inbox or self._held or self._answers:
            await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _failed(self, error: StoreFailed) -> None:
        """The store refused a write: nothing that was not released is known. Refuse, then open it anew."""
        self._log.error("store_failed", error=str(error))
        broken, self._store = self._store, None
        self._refuse_all(ServiceUnavailable())
        if not self._stopping:
            asyncio.get_running_loop().call_later(_REOPEN_S, self._reopen, broken)

    def _reopen(self, broken: Store | None) -> None:
        known = set(self._engine.state.queues)
        try:
            if broken is not None:
                broken.abandon()
                broken = None
            self.start(known)
            self._log.warning("store_reopened")
        except (StoreFailed, DamagedRecord) as error:
            self._log.error("store_reopen_failed", error=str(error))
            asyncio.get_running_loop().call_later(_REOPEN_S, self._reopen, broken)

    def _refuse_all(self, error: QueueError) -> None:
        tickets = [ticket for group in self._held for ticket, _ in group]
        tickets += [ticket for ticket, _ in self._answers]
        tickets += self._inbox
        for wait in self._engine.state.waits.all():
            assert isinstance(wait.ticket, Ticket)
            tickets.append(wait.ticket)
        self._held.clear()
        self._answers = []
        self._inbox.clear()
        self._changed = {}
        for ticket in tickets:
            self._answer(ticket, error)

    # -- requests ---------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is durable."""
        ticket = Ticket(request, on_answer)
        if self._store is None:
            asyncio.get_running_loop().call_soon(self._answer, ticket, ServiceUnavailable())
            return ticket
        self._inbox.append(ticket)
        if not self._scheduled:
            self._schedule()
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """The client hung up: a parked receive leaves the line. Anything else runs its course: False."""
        if not ticket.wait_number:
            return False
        self._engine.state.waits.remove(ticket.wait_number)
        ticket.wait_number = 0
        return True

    def queues(self) -> Iterable[QueueState]:
        """The queues of this shard that hold or held messages, to read counters from."""
        return self._engine.state.queues.values()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    # -- the turn ---------------------------------------------------------------------------------------------------------

    def _run_turn(self) -> None:
        self._scheduled = False
        if self._store is None:
            return
        now_ms = self._clock.now_ms()
        tickets = self._take_inbox()
        try:
            for wait in self._engine.advance(now_ms):
                assert isinstance(wait.ticket, Ticket)
                self._answers.append((wait.ticket, _NO_MESSAGES))
            self._prefetch(tickets)
            for ticket in tickets:
                self._execute(ticket, now_ms)
            if self._engine.stirred:
                self._wake(now_ms)
            self._commit()
        except Exception:
            self._log.exception("turn_failed")
            self._failed(StoreFailed("a turn failed; the shard is loaded anew"))
            return
        self._arm_timer(now_ms)

    def _take_inbox(self) -> list[Ticket]:
        if len(self._inbox) <= TURN_REQUESTS_MAX:
            tickets = list(self._inbox)
            self._inbox.clear()
            return tickets
        self._schedule()
        return [self._inbox.popleft() for _ in range(TURN_REQUESTS_MAX)]

    def _prefetch(self, tickets: list[Ticket]) -> None:
        """Read the pages that this turn's receives will take from."""
        demand: dict[int, int] = {}
        for ticket in tickets:
            operation = ticket.request.operation
            if type(operation) is ReceiveMessage:
                queue_id = ticket.request.queue.queue_id
                wanted = operation.max_number_of_messages or 1
                demand[queue_id] = demand.get(queue_id, 0) + wanted
        for queue_id, messages in demand.items():
            self._load_page(queue_id, messages)

    def _load_page(self, queue_id: int, messages: int) -> bool:
        """Read a queue's next page if it is needed; False if it cannot be read."""
        assert self._store is not None
        page = self._engine.wants(queue_id, messages)
        if page is None:
            return True
        try:
            found, next_sequence = self._store.read_page(
                queue_id,
                page.from_sequence,
                page.until_sequence,
                messages=page.messages,
                size=PAGE_BYTES,
            )
        except DamagedRecord as error:
            self._log.error("record_damaged", queue_id=queue_id, error=str(error))
            return False
        missing = self._engine.load(page, found, next_sequence or page.until_sequence)
        if missing:
            self._log.error("messages_missing", queue_id=queue_id, messages=missing)
            self._changed[queue_id] = None
        return True

    def _execute(self, ticket: Ticket, now_ms: int) -> None:
        request = ticket.request
        try:
            answer, events = self._engine.execute(request, Stamp(now_ms, self._entropy.bits128()))
        except QueueError as refusal:
            self._answers.append((ticket, refusal))
            return
        for event in events:
            self._write(event)
        if answer is NoAnswer.PARK:
            self._park(ticket, now_ms)
        elif answer is NoAnswer.DEFER:
            self._defer(ticket)
        else:
            assert not isinstance(answer, NoAnswer)
            if type(answer) is Deliveries and None in answer.messages:
                answer = self._pinned(request, answer)
            self._answers.append((ticket, answer))

    def _park(self, ticket: Ticket, now_ms: int) -> None:
        if self._stopping:
            self._answers.append((ticket, _NO_MESSAGES))
        elif not ticket.wait_number:
            request = ticket.request
            assert isinstance(request.operation, ReceiveMessage)
            if not ticket.until_ms:
                ticket.until_ms = now_ms + wait_ms(request.operation, request.queue.settings)
            wait = self._engine.park(request, ticket, ticket.until_ms)
            ticket.wait_number = wait.number

    def _defer(self, ticket: Ticket) -> None:
        """Decide again next turn, after the next page was read; a page that cannot be read is our fault."""
        if self._load_page(ticket.request.queue.queue_id, 1):
            self._inbox.append(ticket)
            self._schedule()
        else:
            self._answers.append((ticket, InternalError()))

    def _wake(self, now_ms: int) -> None:
        """Give messages that became visible to the receives that wait for them, longest waiting first."""
        waits = self._engine.state.waits
        stirred, self._engine.stirred = self._engine.stirred, {}
        for queue_id in stirred:
            while (wait := waits.first(queue_id)) is not None:
                ticket = wait.ticket
                assert isinstance(ticket, Ticket)
                answered = len(self._answers)
                deferred = len(self._inbox)
                self._execute(ticket, now_ms)
                if len(self._answers) == answered and len(self._inbox) == deferred:
                    break
                waits.remove(wait.number)
                ticket.wait_number = 0

    def _write(self, event: Event) -> None:
        assert self._store is not None
        write_event(self._store.batch, event, self._read_message)
        self._changed[event.queue_id] = None
        if type(event) is MessageDeadLettered:
            self._changed[event.target_queue_id] = None
        elif type(event) is QueueDropped:
            del self._changed[event.queue_id]
            for wait in self._engine.state.waits.of_queue(event.queue_id):
                self._engine.state.waits.remove(wait.number)
                assert isinstance(wait.ticket, Ticket)
                self._answers.append((wait.ticket, QueueDoesNotExist()))

    def _read_message(self, queue_id: int, sequence: int) -> StoredMessage:
        assert self._store is not None
        return self._store.read_messages([(queue_id, sequence)])[0]

    def _commit(self) -> None:
        """End the turn's batch and hold its answers, or answer now if nothing is on its way to the disk."""
        store = self._store
        assert store is not None
        answers, self._answers = self._answers, []
        if self._changed:
            for queue_id in self._changed:
                write_queue(store.batch, queue_id, self._row(queue_id))
            self._changed = {}
            self._held.append(answers)
            store.commit(self._release)
        elif self._held:
            self._held[-1] += answers
        else:
            for ticket, answer in answers:
                self._answer(ticket, answer)

    def _row(self, queue_id: int) -> QueueRow:
        queue = self._engine.state.queue(queue_id)
        return QueueRow(queue.next_sequence, queue.low_water, queue.waiting, queue.purged_at_ms)

    def _pinned(self, request: Request, deliveries: Deliveries) -> Deliveries | QueueError:
        """The deliveries with every message, those not in memory read from the store."""
        assert self._store is not None
        queue_id = request.queue.queue_id
        pairs = list(zip(deliveries.leases, deliveries.messages, strict=True))
        names = [(queue_id, lease.sequence) for lease, message in pairs if message is None]
        try:
            read = iter(self._store.read_messages(names))
        except (DamagedRecord, KeyError) as error:
            self._log.error("record_damaged", queue_id=queue_id, error=str(error))
            return InternalError()
        messages = [next(read) if message is None else message for _, message in pairs]
        return Deliveries(deliveries.leases, list(messages))

    def _release(self) -> None:
        """The oldest held answers are durable."""
        for ticket, answer in self._held.popleft():
            self._answer(ticket, answer)

    def _answer(self, ticket: Ticket, answer: Answer | QueueError) -> None:
        ticket.wait_number = 0
        try:
            ticket.on_answer(answer)
        except Exception:
            self._log.exception("answer_failed", request_id=ticket.request.request_id)

    # -- time -------------------------------------------------------------------------------------------------------------

    def _arm_timer(self, now_ms: int) -> None:
        """One timer: wake when the next deadline is due."""
        next_ms = self._engine.next_deadline_ms()
        if next_ms is None or (self._timer is not None and self._timer_at_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = next_ms
        delay_s = max(0, next_ms - now_ms) / 1000 + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._scheduled:
            self._run_turn()
