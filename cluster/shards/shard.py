"""Shard: drives one Engine and one Store, a Turn at a time.

A Turn takes the requests that wait, lets time pass, reads what they will need, decides them, puts their events into one
batch, and holds every answer, read-only ones too, until all it could have seen is durable. Nothing here awaits: the only
seam to the gateway is `submit(request, on_answer)`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from cluster.shards.clock import Clock, Entropy
from cluster.shards.loading import load_engine
from cluster.shards.turn import NO_MESSAGES, Answers, OnAnswer, Ticket, Turn, ticket_of
from storage.engines.store import Store, StoreFailed
from storage.histogram import Histogram
from storage.rows.codec import DamagedRecord
from storage.rows.stored_rows import StoredRows
from visibility.content.sealing import Sealing
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Definitions, Request
from visibility.rules.engine import Engine
from visibility.rules.kept_queues import unfinished_purges
from visibility.state.ages import OldestMessages, oldest_messages
from visibility.state.archive_state import ArchiveState
from visibility.state.gauges import GroupGauges, group_gauges
from visibility.state.state import QueueState

TURN_REQUESTS_MAX = 512
"""Requests of one Turn: bounds how long the event loop is held."""
TURN_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
TURN_BOUNDS_REQUESTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_REOPEN_S = 1.0

OpenStore = Callable[[Callable[[StoreFailed], None]], Store]


class ArchiveLimits(NamedTuple):
    """What a shard hands over to the archive."""

    size_max: int
    """Bytes on disk that may wait for the archive."""
    retains: bool
    """Whether messages that find no room there stay in their queues, instead of being discarded."""


class CatalogOlder(Exception):
    """The shard holds queues that the catalog never made: it is an older copy."""


class Shard:
    """A hash slice of queues with one engine and one store. Belongs to the event loop's thread."""

    def __init__(
        self,
        number: int,
        *,
        open_store: OpenStore,
        clock: Clock,
        entropy: Entropy,
        definitions: Definitions,
        archive: ArchiveLimits | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """`definitions` is the catalog's knowledge of queues; without `archive` nothing is handed over to one.

        Without `sealing`, messages that move between queues stay sealed as they are.
        """
        self.number = number
        self._sealing = sealing
        self._archive = archive
        self._definitions = definitions
        self._open_store = open_store
        self._clock = clock
        self._entropy = entropy
        self._log = structlog.get_logger("shard").bind(shard=number)
        self._store: Store | None = None
        self._rows: StoredRows | None = None
        self._engine = Engine(definitions=definitions)
        self._inbox: deque[Ticket] = deque()
        self._deferred: list[Ticket] = []
        """To be decided in the next turn, before the inbox."""
        self._held: Answers | None = None
        """Answers of the turn that is on its way to the disk, None if there is none: one at a time."""
        self._wanted = False
        """Whether a turn is to be run: soon, or as soon as the one before it is durable."""
        self._is_deciding = False
        """Whether a turn is running: a store may release it before it returns."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._is_stopping = False
        self._reopen_error = ""
        self.turn_s = Histogram(TURN_BOUNDS_S)
        """How long deciding took, without the disk."""
        self.turn_requests = Histogram(TURN_BOUNDS_REQUESTS)
        self.failures = 0
        """How often the store failed."""

    # -- life -------------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether requests are decided here; else they are answered ServiceUnavailable."""
        return self._store is not None

    def start(self, highest_queue_id: int | None = None) -> None:
        """Open the store, load what memory needs, finish purges that a crash interrupted.

        `highest_queue_id` is the last one the catalog ever gave. Raises StoreFailed, DamagedRecord, CatalogOlder.
        """
        store = self._open_store(self._failed)
        rows = StoredRows(store)
        try:
            engine, last_stamp_ms = load_engine(rows, self._definitions, self._sealing)
            highest = max(engine.state.queues, default=0)
            if highest_queue_id is not None and highest > highest_queue_id:
                raise CatalogOlder(
                    f"shard {self.number} holds queue {highest}, but the catalog made only {highest_queue_id}: "
                    "it is missing or an older copy"
                )
        except BaseException:
            store.abandon()
            raise
        self._clock.continue_from(last_stamp_ms)
        self._store, self._rows, self._engine = store, rows, engine
        turn = self._turn(self._clock.now_ms(), parks=False)
        self._begin_archive(turn, is_older=store.came_back_shorter)
        while unfinished := unfinished_purges(engine.state):
            turn.do(unfinished[0])  # one at a time: the next may continue where it ends
        self._commit(turn)
        self._want_turn()

    def _begin_archive(self, turn: Turn, *, is_older: bool) -> None:
        """An older store would give numbers of batches again that the archive has: to the archive it is another one."""
        if self._archive is None:
            return
        archive = self._engine.state.archive
        archive.is_on = True
        archive.size_max, archive.retains = self._archive
        if is_older or not archive.source:
            archive.source = f"{self._entropy.bits128():032x}"
            turn.note_archive()

    def end_long_polls(self) -> None:
        """Answer every parked receive now, with nothing, and park none from here on: the node is stopping."""
        self._is_stopping = True
        for wait in self._engine.state.waits.all():
            self._engine.state.waits.remove(wait.number)
            self._answer_all([(ticket_of(wait), NO_MESSAGES)])

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
        return bool(self._inbox or self._deferred) or self._held is not None

    def _failed(self, error: StoreFailed) -> None:
        """The store refused a write: nothing that was not released is known. Refuse, then open it anew."""
        self.failures += 1
        self._log.error("store_failed", error=str(error))
        broken, self._store = self._store, None
        self._refuse_all()
        if not self._is_stopping:
            asyncio.get_running_loop().call_later(_REOPEN_S, self._reopen, broken)

    def _reopen(self, broken: Store | None) -> None:
        if self._is_stopping:
            return
        try:
            if broken is not None:
                broken.abandon()
                broken = None
            self.start()
            self._log.warning("store_reopened")
            self._reopen_error = ""
        except Exception as error:  # whatever it was: to try again is all that can be done
            if str(error) != self._reopen_error:  # a full disk says the same each second
                self._reopen_error = str(error)
                self._log.error("store_reopen_failed", error=str(error))
            asyncio.get_running_loop().call_later(_REOPEN_S, self._reopen, broken)

    def _refuse_all(self) -> None:
        held, self._held = self._held or [], None
        waits = self._engine.state.waits
        parked = [ticket_of(wait) for wait in waits.all()]
        for wait in waits.all():
            waits.remove(wait.number)
        submitted = self._deferred + list(self._inbox)
        self._deferred = []
        self._inbox.clear()
        self._wanted = False
        self._refuse([ticket for ticket, _ in held] + parked + submitted)

    def _refuse(self, tickets: list[Ticket]) -> None:
        """Each once, though a turn that failed may have parked or answered some."""
        for ticket in {id(ticket): ticket for ticket in tickets}.values():
            self._engine.state.waits.remove(ticket.wait_number)
            self._answer_all([(ticket, ServiceUnavailable())])

    # -- requests ---------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is durable."""
        ticket = Ticket(request, on_answer)
        if self._store is None:
            refused: Answers = [(ticket, ServiceUnavailable())]
            asyncio.get_running_loop().call_soon(self._answer_all, refused)
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

    def oldest(self, queue: QueueState) -> OldestMessages | None:
        """How old a queue's oldest messages are; None while the shard does not serve or they cannot be read."""
        if self._store is None:
            return None
        try:
            return oldest_messages(self._engine.state, queue)
        except DamagedRecord:
            return None

    @property
    def parked(self) -> int:
        """Long polls that wait for a message."""
        return len(self._engine.state.waits)

    def queue(self, queue_id: int) -> QueueState | None:
        """What memory knows of a queue, None if it never held a message."""
        return self._engine.state.queues.get(queue_id)

    @property
    def archive(self) -> ArchiveState:
        """What waits for the archive."""
        return self._engine.state.archive

    def groups_of(self, queue: QueueState) -> GroupGauges | None:
        """Gauges of a queue that has groups in flight or noisy ones; None for others, and where rows cannot be read."""
        if self._store is None or not (queue.held or queue.fairness.noisy):
            return None
        try:
            return group_gauges(self._engine.state, queue, self._clock.now_ms())
        except DamagedRecord:
            return None

    @property
    def damaged(self) -> int:
        """Rows and blocks that were found damaged since the store was opened."""
        return 0 if self._rows is None else len(self._rows.damaged) + len(self._rows.unreadable)

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
        deferred, self._deferred = self._deferred, []
        tickets = self._take_inbox()
        turn = self._turn(now_ms, parks=not self._is_stopping)
        self._is_deciding = True
        begun_s = self._clock.monotonic_s()
        try:
            turn.run(deferred, tickets)
            self._commit(turn)
            self.turn_s.observe(self._clock.monotonic_s() - begun_s)
            self.turn_requests.observe(len(tickets))
        except Exception as error:
            failure = StoreFailed("a turn failed; the shard is loaded anew")
            if isinstance(error, StoreFailed):  # the disk's, not ours
                failure = error
            else:
                self._log.exception("turn_failed")
            answered = [ticket for ticket, _ in turn.answers]
            self._held = None
            self._refuse(deferred + tickets + answered + turn.deferred)
            self._failed(failure)
            return
        finally:
            self._is_deciding = False
        if not self.ready:
            self._refuse(turn.deferred)
            return
        if turn.deferred or self._engine.due:
            self._deferred = turn.deferred
            self._want_turn()
        self._arm_timer(now_ms)

    def _turn(self, now_ms: int, *, parks: bool) -> Turn:
        assert self._store is not None
        assert self._rows is not None
        return Turn(
            self._engine,
            self._store,
            self._rows,
            now_ms,
            self._entropy,
            believed_ms=self._clock.believed_ms(now_ms),
            parks=parks,
        )

    def _take_inbox(self) -> list[Ticket]:
        if len(self._inbox) <= TURN_REQUESTS_MAX:
            tickets = list(self._inbox)
            self._inbox.clear()
            return tickets
        self._want_turn()
        return [self._inbox.popleft() for _ in range(TURN_REQUESTS_MAX)]

    def _commit(self, turn: Turn) -> None:
        """Hold the turn's answers until its batch is durable; answer now if it changed nothing."""
        assert self._store is not None
        if turn.end_batch():
            self._held = turn.answers
            self._store.commit(self._release)
        else:
            self._answer_all(turn.answers)

    def _release(self) -> None:
        """The turn is durable: begin the next one, which the disk works on while this one's answers are written."""
        held, self._held = self._held, None
        if self._wanted and self._is_deciding:
            asyncio.get_running_loop().call_soon(self._run_turn)
        elif self._wanted:
            self._run_turn()
        self._answer_all(held or [])

    def _answer_all(self, answers: Answers) -> None:
        """Call back in order. One that raises has a bug, which is no reason for the others to wait."""
        rest = iter(answers)
        while True:
            try:
                for ticket, answer in rest:
                    ticket.on_answer(answer)
            except Exception:
                self._log.exception("answer_failed", request_id=ticket.request.request_id)
            else:
                return

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
