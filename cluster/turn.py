"""Turn: one pass of a shard over the requests that waited.

It reads what they will need, decides each, applies and writes what that changes, and serves the long polls for which a
message became visible. Everything it changes goes into one batch, which the shard commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import structlog

from cluster.clock import Entropy
from storage.appliers import APPLIERS, write_queue
from storage.codec import DamagedRecord, QueueRow
from storage.keys import message_key
from storage.store import Store
from visibility.engine import DECIDE, PAGE_BYTES, Engine, PageWanted
from visibility.errors import InternalError, QueueDoesNotExist, QueueError
from visibility.events import (
    Event,
    MessageDeadLettered,
    MessagesSent,
    QueueDropped,
    StoredMessage,
)
from visibility.model import Request
from visibility.operations import ReceiveMessage
from visibility.outcomes import Answer, Deliveries, NoAnswer
from visibility.receive import wait_ms
from visibility.stamp import Stamp
from visibility.waiters import Wait

NO_MESSAGES = Deliveries([], [])
_log = structlog.get_logger("turn")

OnAnswer = Callable[[Answer | QueueError], None]
Renew = Callable[[Request], Request | None]
"""The same request with the definitions of now; None if its queue is gone."""
_NOTHING_READ: Mapping[int, StoredMessage] = {}


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


Answers = list[tuple[Ticket, Answer | QueueError]]
"""Who is answered what, in order."""


class Turn:
    """One pass. Made, run, committed, and forgotten."""

    __slots__ = (
        "_changed",
        "_engine",
        "_entropy",
        "_events",
        "_now_ms",
        "_parks",
        "_renew",
        "_store",
        "_unreadable",
        "answers",
        "deferred",
    )

    def __init__(
        self,
        engine: Engine,
        store: Store,
        now_ms: int,
        entropy: Entropy,
        *,
        renew: Renew,
        parks: bool,
    ) -> None:
        """`parks` is False while the shard stops: then no receive begins to wait."""
        self._renew = renew
        self._engine = engine
        self._store = store
        self._now_ms = now_ms
        self._entropy = entropy
        self._parks = parks
        self.answers: Answers = []
        self.deferred: list[Ticket] = []
        """To be decided in the next turn, which reads another page first."""
        self._changed: dict[int, None] = {}
        """Queues whose rows this turn writes, in order."""
        self._events: list[Event] = []
        """What was decided so far: it is not in the store yet."""
        self._unreadable: set[int] = set()
        """Queues whose next page could not be read."""

    def run(self, deferred: list[Ticket], tickets: list[Ticket]) -> None:
        """Let time pass up to now, then decide what the turn before deferred, and the new requests, in order."""
        for wait in self._engine.advance(self._now_ms):
            self.answers.append((ticket_of(wait), NO_MESSAGES))
        self._prefetch(deferred + tickets)
        for ticket in deferred:
            self._decide_later(ticket)
        for ticket in tickets:
            self._decide(ticket)
        if self._engine.stirred:
            self._wake()

    def end_batch(self) -> bool:
        """Add the changed queues' own rows to the batch. Whether there is anything to commit."""
        for queue_id in self._changed:
            write_queue(self._store.batch, queue_id, self._row(queue_id))
        return bool(self._events or self._changed)

    def _prefetch(self, tickets: list[Ticket]) -> None:
        """Read the pages that this turn's receives will take from, before it changes anything."""
        demand: dict[int, int] = {}
        for ticket in tickets:
            operation = ticket.request.operation
            if type(operation) is ReceiveMessage:
                queue_id = ticket.request.queue.queue_id
                wanted = operation.max_number_of_messages or 1
                demand[queue_id] = demand.get(queue_id, 0) + wanted
        for queue_id, messages in demand.items():
            page = self._engine.wants(queue_id, messages)
            if page is not None:
                self._load_page(page)

    def _load_page(self, page: PageWanted) -> None:
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
            _log.error("record_damaged", queue_id=queue_id, error=str(error))
            self._unreadable.add(queue_id)
            return
        missing = self._engine.load(page, found, next_sequence or page.until_sequence)
        if missing:
            _log.error("messages_missing", queue_id=queue_id, messages=missing)
            self._unreadable.add(queue_id)

    def _decide(self, ticket: Ticket) -> None:
        request = ticket.request
        stamp = Stamp(self._now_ms, self._entropy.bits128())
        try:
            answer, events = DECIDE[type(request.operation)](self._engine.state, request, stamp)
            read: dict[int, StoredMessage] = {}
            while (needed := _needed(answer, events)) and not read:
                read = self._read_or_set_aside(request.queue.queue_id, needed)
                if not read:
                    answer, events = DECIDE[type(request.operation)](
                        self._engine.state, request, stamp
                    )
        except QueueError as refusal:
            self.answers.append((ticket, refusal))
            return
        except Exception:  # deciding changes nothing, so only this request is lost
            _log.exception("decision_failed", request_id=request.request_id)
            self.answers.append((ticket, InternalError()))
            return
        for event in events:
            self.do(event, read)
        if type(answer) is Deliveries:
            self.answers.append((ticket, _completed(answer, read) if answer.missing else answer))
        elif answer is NoAnswer.PARK:
            self._park(ticket)
        elif answer is NoAnswer.DEFER:
            self._defer(ticket)
        else:
            assert not isinstance(answer, NoAnswer)
            self.answers.append((ticket, answer))

    def _read_or_set_aside(self, queue_id: int, sequences: list[int]) -> dict[int, StoredMessage]:
        """The messages by sequence; none if one cannot be read: then it is set aside, to decide again without it.

        Raises DamagedRecord if it is not clear which.
        """
        try:
            return dict(zip(sequences, self._read(queue_id, sequences), strict=True))
        except DamagedRecord:
            set_aside = self._engine.state.queue(queue_id).set_aside
            before = len(set_aside)
            for sequence in sequences:
                try:
                    self._read(queue_id, [sequence])
                except DamagedRecord as error:
                    _log.error("record_damaged", queue_id=queue_id, error=str(error))
                    set_aside.add(sequence)
            if len(set_aside) == before:
                raise
            return {}

    def _park(self, ticket: Ticket) -> None:
        if not self._parks or ticket.is_cancelled:
            self.answers.append((ticket, NO_MESSAGES))
        elif not ticket.wait_number:
            request = ticket.request
            assert isinstance(request.operation, ReceiveMessage)
            if not ticket.until_ms:
                ticket.until_ms = self._now_ms + wait_ms(request.operation, request.queue.settings)
            wait = self._engine.park(request, ticket, ticket.until_ms)
            ticket.wait_number = wait.number

    def _defer(self, ticket: Ticket) -> None:
        """Decide again next turn, after the next page was read; a page that cannot be read is our fault."""
        if ticket.request.queue.queue_id in self._unreadable:
            self.answers.append((ticket, InternalError()))
        else:
            self.deferred.append(ticket)

    def _wake(self) -> None:
        """Give messages that became visible to the receives that wait for them, longest waiting first."""
        waits = self._engine.state.waits
        stirred = self._engine.stirred
        while stirred:
            queue_id = next(iter(stirred))
            del stirred[queue_id]
            while (wait := waits.first(queue_id)) is not None:
                ticket = ticket_of(wait)
                before = len(self.answers) + len(self.deferred)
                self._decide_later(ticket)
                if len(self.answers) + len(self.deferred) == before:
                    break
                waits.remove(wait.number)
                ticket.wait_number = 0

    def _decide_later(self, ticket: Ticket) -> None:
        """Decide a request that waited, by the definitions of now: its queue or the dead letters' may have changed."""
        renewed = self._renew(ticket.request)
        if renewed is None:
            self.answers.append((ticket, QueueDoesNotExist()))
        else:
            ticket.request = renewed
            self._decide(ticket)

    def do(self, event: Event, read: Mapping[int, StoredMessage] = _NOTHING_READ) -> None:
        """Apply an event to memory and put it into the turn's batch. `read` has the messages it moves, by sequence."""
        self._engine.apply(event)
        self._events.append(event)
        self._changed[event.queue_id] = None
        moved = None
        if type(event) is MessageDeadLettered:
            moved = read[event.sequence]
            self._changed[event.target_queue_id] = None
        APPLIERS[type(event)](self._store.batch, event, moved)
        if type(event) is QueueDropped:
            del self._changed[event.queue_id]
            for wait in self._engine.state.waits.of_queue(event.queue_id):
                self._engine.state.waits.remove(wait.number)
                self.answers.append((ticket_of(wait), QueueDoesNotExist()))

    def _row(self, queue_id: int) -> QueueRow:
        queue = self._engine.state.queue(queue_id)
        return QueueRow(queue.next_sequence, queue.low_water, queue.waiting, queue.purged_at_ms)

    def _read(self, queue_id: int, sequences: list[int]) -> list[StoredMessage]:
        """Messages that were stored earlier, or sent in this very turn. Raises DamagedRecord."""
        messages = self._store.read_messages([(queue_id, sequence) for sequence in sequences])
        if None in messages:
            sent = {
                sequence: message
                for event in self._events
                if type(event) is MessagesSent and event.queue_id == queue_id
                for sequence, _, message in event.numbered()
            }
            messages = [
                sent.get(sequence) if message is None else message
                for sequence, message in zip(sequences, messages, strict=True)
            ]
        found = [message for message in messages if message is not None]
        if len(found) < len(sequences):
            raise DamagedRecord(message_key(queue_id, sequences[0]), "it or a neighbour is missing")
        return found


def _needed(answer: Answer | NoAnswer, events: tuple[Event, ...]) -> list[int]:
    """Sequences of the messages that a decision hands out or moves and that are not in memory."""
    needed: list[int] = []
    if type(answer) is Deliveries and answer.missing:
        pairs = zip(answer.leases, answer.messages, strict=True)
        needed = [lease.sequence for lease, message in pairs if message is None]
    if len(events) > 1 or (events and type(events[0]) is MessageDeadLettered):
        needed += [event.sequence for event in events if type(event) is MessageDeadLettered]
    return needed


def _completed(deliveries: Deliveries, read: Mapping[int, StoredMessage]) -> Deliveries:
    """The deliveries with every message."""
    messages = [
        read[lease.sequence] if message is None else message
        for lease, message in zip(deliveries.leases, deliveries.messages, strict=True)
    ]
    return Deliveries(deliveries.leases, list(messages))


def ticket_of(wait: Wait) -> Ticket:
    """Who waits."""
    assert isinstance(wait.ticket, Ticket)
    return wait.ticket
