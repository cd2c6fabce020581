"""Shard: drives one Engine and one Store, a Turn at a time.

A Turn takes the requests that wait, lets time pass, reads what they will need, decides them, puts their events into one
batch, and holds every answer, read-only ones too, until all it could have seen is durable. Nothing here awaits: the only
seam to the gateway is `submit(request, on_answer)`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import structlog

from cluster.clock import Clock, Entropy
from storage.appliers import write_event, write_queue
from storage.codec import DamagedRecord, QueueRow
from storage.keys import message_key
from storage.store import MessageName, Store, StoredQueue, StoreFailed
from visibility.engine import PAGE_BYTES, Engine, PageWanted
from visibility.errors import InternalError, QueueDoesNotExist, QueueError, ServiceUnavailable
from visibility.events import (
    Event,
    MessageDeadLettered,
    MessageSent,
    QueueDropped,
    StoredMessage,
)
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


class Ticket(msgspec.Struct):
    """A submitted request and who waits for its answer. A msgspec Struct since those are made fastest."""

    request: Request
    on_answer: OnAnswer
    wait_number: int = 0
    """The long poll's number while it is parked, else 0."""
    until_ms: int = 0
    """When its waiting ends, once it has begun to wait."""
    is_cancelled: bool = False
    """Whether the client hung up: then it does not begin to wait."""


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
        self._held: list[tuple[Ticket, Answer | QueueError]] | None = None
        """Answers of the turn that is on its way to the disk, None if there is none: one at a time."""
        self._answers: list[tuple[Ticket, Answer | QueueError]] = []
        self._changed: dict[int, None] = {}
        """Queues whose rows this turn writes, in order."""
        self._events: list[Event] = []
        """What this turn decided so far: it is not in the store yet."""
        self._unreadable: set[int] = set()
        """Queues whose next page could not be read in this turn."""
        self._wanted = False
        """Whether a turn is to be run: soon, or as soon as the one before it is durable."""
        self._is_deciding = False
        """Whether a turn is running: a store may release it before it returns."""
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
        try:
            for stored in store.load():
                _restore(engine, stored)
        except BaseException:
            store.abandon()
            raise
        self._store, self._engine = store, engine
        for queue_id in engine.state.queues.keys() - set(known_queue_ids):
            self._do(QueueDropped(queue_id))
        self._run_turn()

    def end_long_polls(self) -> None:
        """Answer every parked receive now, with nothing, and park none from here on: the node is stopping."""
        self._stopping = True
        for wait in self._engine.state.waits.all():
            self._engine.state.waits.remove(wait.number)
            assert isinstance(wait.ticket, Ticket)
            self._answers.append((wait.ticket, _NO_MESSAGES))
        self._want_turn()

    async def stop(self) -> None:
        """Finish what was submitted, then close the store."""
        self.end_long_polls()
        # An event instead of looking would cost every turn; a stop happens once.
        while self._store is not None and self._is_busy():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _is_busy(self) -> bool:
        return bool(self._inbox or self._answers) or self._held is not None

    def _failed(self, error: StoreFailed) -> None:
        """The store refused a write: nothing that was not released is known. Refuse, then open it anew."""
        self._log.error("store_failed", error=str(error))
        broken, self._store = self._store, None
        self._refuse_all(ServiceUnavailable())
        if not self._stopping:
            asyncio.get_running_loop().call_later(_REOPEN_S, self._reopen, broken)

    def _reopen(self, broken: Store | None) -> None:
        if self._stopping:
            return
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
        tickets = [ticket for ticket, _ in (self._held or []) + self._answers]
        tickets += self._inbox
        for wait in self._engine.state.waits.all():
            self._engine.state.waits.remove(wait.number)
            assert isinstance(wait.ticket, Ticket)
            tickets.append(wait.ticket)
        self._held = None
        self._answers = []
        self._inbox.clear()
        self._changed = {}
        self._events = []
        for ticket in {id(ticket): ticket for ticket in tickets}.values():
            self._answer(ticket, error)

    # -- requests ---------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is durable."""
        ticket = Ticket(request, on_answer)
        if self._store is None:
            asyncio.get_running_loop().call_soon(self._answer, ticket, ServiceUnavailable())
            return ticket
        self._inbox.append(ticket)
        if not self._wanted:
            self._want_turn()
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """The client hung up: a parked receive leaves the line. Anything else runs its course: False."""
        ticket.is_cancelled = True
        number, ticket.wait_number = ticket.wait_number, 0
        return self._engine.state.waits.remove(number) is not None

    def queues(self) -> Iterable[QueueState]:
        """The queues of this shard that hold or held messages, to read counters from."""
        return self._engine.state.queues.values()

    def _want_turn(self) -> None:
        """Run a turn once the loop has read what came in; while one is on its way to the disk, the next one fills."""
        if not self._wanted:
            self._wanted = True
            if self._held is None:
                asyncio.get_running_loop().call_soon(self._run_turn)

    # -- the turn ---------------------------------------------------------------------------------------------------------

    def _run_turn(self) -> None:
        if self._held is not None:
            return  # its release runs the turn that is wanted
        self._wanted = False
        if self._store is None:
            return
        now_ms = self._clock.now_ms()
        tickets = self._take_inbox()
        self._is_deciding = True
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
            self._inbox.extendleft(reversed(tickets))
            self._failed(StoreFailed("a turn failed; the shard is loaded anew"))
            return
        finally:
            self._is_deciding = False
        self._arm_timer(now_ms)

    def _take_inbox(self) -> list[Ticket]:
        if len(self._inbox) <= TURN_REQUESTS_MAX:
            tickets = list(self._inbox)
            self._inbox.clear()
            return tickets
        self._want_turn()
        return [self._inbox.popleft() for _ in range(TURN_REQUESTS_MAX)]

    def _prefetch(self, tickets: list[Ticket]) -> None:
        """Read the pages that this turn's receives will take from, before it changes anything."""
        demand: dict[int, int] = {}
        for ticket in tickets:
            operation = ticket.request.operation
            if type(operation) is ReceiveMessage:
                queue_id = ticket.request.queue.queue_id
                wanted = operation.max_number_of_messages or 1
                demand[queue_id] = demand.get(queue_id, 0) + wanted
        self._unreadable.clear()
        for queue_id, messages in demand.items():
            page = self._engine.wants(queue_id, messages)
            if page is not None:
                self._load_page(page)

    def _load_page(self, page: PageWanted) -> None:
        assert self._store is not None
        queue_id = page.queue_id
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
            self._unreadable.add(queue_id)
            return
        missing = self._engine.load(page, found, next_sequence or page.until_sequence)
        if missing:
            self._log.error("messages_missing", queue_id=queue_id, messages=missing)
            self._changed[queue_id] = None

    def _execute(self, ticket: Ticket, now_ms: int) -> None:
        request = ticket.request
        try:
            answer, events = self._engine.decide(request, Stamp(now_ms, self._entropy.bits128()))
        except QueueError as refusal:
            self._answers.append((ticket, refusal))
            return
        except Exception:  # deciding changes nothing, so only this request is lost
            self._log.exception("decision_failed", request_id=request.request_id)
            self._answers.append((ticket, InternalError()))
            return
        for event in events:
            self._do(event)
        if type(answer) is Deliveries:
            if None in answer.messages:
                self._answers.append((ticket, self._pinned(request, answer)))
            else:
                self._answers.append((ticket, answer))
        elif answer is NoAnswer.PARK:
            self._park(ticket, now_ms)
        elif answer is NoAnswer.DEFER:
            self._defer(ticket)
        else:
            assert not isinstance(answer, NoAnswer)
            self._answers.append((ticket, answer))

    def _park(self, ticket: Ticket, now_ms: int) -> None:
        if self._stopping or ticket.is_cancelled:
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
        if ticket.request.queue.queue_id in self._unreadable:
            self._answers.append((ticket, InternalError()))
        else:
            self._inbox.append(ticket)
            self._want_turn()

    def _wake(self, now_ms: int) -> None:
        """Give messages that became visible to the receives that wait for them, longest waiting first."""
        waits = self._engine.state.waits
        while self._engine.stirred:
            queue_id = next(iter(self._engine.stirred))
            del self._engine.stirred[queue_id]
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

    def _do(self, event: Event) -> None:
        """Apply an event to memory and put it into the turn's batch."""
        assert self._store is not None
        if type(event) is MessageDeadLettered:
            self._move(event)
            return
        self._engine.apply(event)
        self._events.append(event)
        self._changed[event.queue_id] = None
        write_event(self._store.batch, event)
        if type(event) is QueueDropped:
            del self._changed[event.queue_id]
            for wait in self._engine.state.waits.of_queue(event.queue_id):
                self._engine.state.waits.remove(wait.number)
                assert isinstance(wait.ticket, Ticket)
                self._answers.append((wait.ticket, QueueDoesNotExist()))

    def _move(self, event: MessageDeadLettered) -> None:
        """A message that cannot be read stays where it is."""
        assert self._store is not None
        try:
            moved = self._read([(event.queue_id, event.sequence)])[0]
        except DamagedRecord as error:
            self._log.error("record_damaged", queue_id=event.queue_id, error=str(error))
            return
        self._engine.apply(event)
        self._events.append(event)
        self._changed[event.queue_id] = self._changed[event.target_queue_id] = None
        write_event(self._store.batch, event, moved)

    def _commit(self) -> None:
        """End the turn's batch and hold its answers until it is durable; answer now if nothing changed."""
        store = self._store
        assert store is not None
        answers, self._answers = self._answers, []
        if self._events or self._changed:
            for queue_id in self._changed:
                write_queue(store.batch, queue_id, self._row(queue_id))
            self._changed = {}
            self._events = []
            self._held = answers
            store.commit(self._release)
        else:
            for ticket, answer in answers:
                self._answer(ticket, answer)

    def _row(self, queue_id: int) -> QueueRow:
        queue = self._engine.state.queue(queue_id)
        return QueueRow(queue.next_sequence, queue.low_water, queue.waiting, queue.purged_at_ms)

    def _pinned(self, request: Request, deliveries: Deliveries) -> Deliveries | QueueError:
        """The deliveries with every message, those not in memory read from the store."""
        queue_id = request.queue.queue_id
        pairs = list(zip(deliveries.leases, deliveries.messages, strict=True))
        try:
            read = iter(
                self._read(
                    [(queue_id, lease.sequence) for lease, message in pairs if message is None]
                )
            )
        except DamagedRecord as error:
            self._log.error("record_damaged", queue_id=queue_id, error=str(error))
            return InternalError()
        messages = [next(read) if message is None else message for _, message in pairs]
        return Deliveries(deliveries.leases, list(messages))

    def _read(self, names: list[MessageName]) -> list[StoredMessage]:
        """Messages that were stored earlier, or sent in this very turn. Raises DamagedRecord."""
        assert self._store is not None
        messages = self._store.read_messages(names)
        if None in messages:
            sent = {
                (event.queue_id, event.sequence): event.message
                for event in self._events
                if type(event) is MessageSent
            }
            messages = [
                sent.get(name) if message is None else message
                for name, message in zip(names, messages, strict=True)
            ]
        found = [message for message in messages if message is not None]
        if len(found) < len(names):
            raise DamagedRecord(message_key(*names[0]), "a message or its neighbour is missing")
        return found

    def _release(self) -> None:
        """The turn is durable: begin the next one, which the disk works on while this one's answers are written."""
        held, self._held = self._held, None
        if self._wanted and self._is_deciding:
            asyncio.get_running_loop().call_soon(self._run_turn)
        elif self._wanted:
            self._run_turn()
        for ticket, answer in held or ():
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
        self._want_turn()


def _restore(engine: Engine, stored: StoredQueue) -> None:
    row = stored.row
    engine.restore_queue(
        stored.queue_id,
        next_sequence=row.next_sequence,
        low_water=row.low_water,
        waiting=row.waiting,
        purged_at_ms=row.purged_at_ms,
    )
    for lease in stored.leases:
        engine.restore_lease(stored.queue_id, lease)
