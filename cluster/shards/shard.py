"""Shard: one state, one log, one loop of Turns. The only file that drives them.

    inbox → run a Turn → append its Entry → sync → (committed) answers leave → rows

Only this order counts. While an Entry is under way, the inbox fills. Every answer, even a refusal
or one without changes, leaves only when all Entries that its Turn could see are committed. The next
Turn runs at the next pass of the event loop after the last one's answers, so that it finds the
requests that they cause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog

from cluster.shards.clock import Clock, Entropy
from cluster.shards.loading import load_healed
from cluster.shards.report import (
    Phase,
    QueueReport,
    ShardReport,
    TimesReport,
    archive_report,
    queue_reports,
    times_reports,
)
from storage.engines.store import Store, StoreFailed
from storage.histogram import Histogram
from storage.rows.answer_rows import StoredAnswers
from storage.rows.changes import Changes
from storage.rows.entry_body import EntryBody, encode_body
from storage.rows.stored_rows import StoredRows
from visibility.content.sealing import Sealing
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Definitions, QueueCounters, Request
from visibility.rules.kept_queues import unfinished_purges
from visibility.rules.turn import NO_MESSAGES, Answers, Decided, Notice, TurnFailed, begin, run
from visibility.state.stamp import Stamp
from visibility.state.state import ShardState
from visibility.state.waiters import OnAnswer, Ticket

TURN_REQUESTS_MAX = 512
"""Requests of one Turn; bounds the time for which the event loop is held."""
TURN_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
TURN_BOUNDS_REQUESTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_REOPEN_S = 1.0

OpenStore = Callable[[], Awaitable[Store]]


class ArchiveLimits(NamedTuple):
    """The limits on the messages that a shard keeps for the archive."""

    size_max: int
    """Bytes on disk that may wait for the archive."""
    retains: bool
    """True if messages that find no room there stay in their queues instead of being discarded."""


class CatalogOlder(Exception):
    """The shard holds queues that the catalog never issued: the catalog is an older copy."""


_LEADING = Phase.LEADING
"""Read for each request: from the class it takes 0.2 µs."""


class _UnderWay(NamedTuple):
    """An Entry that was appended and not committed yet, and the answers that wait for it."""

    changes: Changes
    answers: Answers


class Shard:
    """A hash slice of queues. Belongs to the event loop's thread."""

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
        under_way_max: int = 1,
        remembers: bool = False,
    ) -> None:
        """`definitions` is the catalog's view of queues; without `archive`, nothing is archived.

        Without `sealing`, messages that move between queues keep their seals. `under_way_max`:
        Entries that may be appended and not committed; `remembers`: answers are kept for retries.
        """
        self.number = number
        self.phase = Phase.LOADING
        self._turn_s = Histogram(TURN_BOUNDS_S)
        self._turn_requests = Histogram(TURN_BOUNDS_REQUESTS)
        self._failures = 0
        self._loaded_at_ms = 0
        self._open_store = open_store
        self._clock = clock
        self._entropy = entropy
        self._definitions = definitions
        self._archive = archive
        self._sealing = sealing
        self._under_way_max = under_way_max
        self._remembers = remembers
        self._log = structlog.get_logger("shard").bind(shard=number)
        self._store: Store | None = None
        self._broken: Store | None = None
        """The store that failed, until it is abandoned."""
        self._rows: StoredRows | None = None
        self._state = ShardState(None, definitions, sealing)
        self._inbox: deque[Ticket] = deque()
        self._deferred: list[Ticket] = []
        """Tickets to decide in the next Turn, before the inbox."""
        self._under_way: deque[_UnderWay] = deque()
        self._wanted = False
        """True while a Turn is planned: soon, or once an Entry under way is committed."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._stopping = asyncio.Event()
        self._reopening: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True while requests are decided here; else they are answered ServiceUnavailable."""
        return self.phase is _LEADING

    async def start(self, highest_queue_id: int | None = None) -> None:
        """Open the store, load memory, finish purges that a crash interrupted.

        `highest_queue_id` is the last one that the catalog issued. Raises StoreFailed,
        DamagedRecord, CatalogOlder.
        """
        store = await self._open_store()
        try:
            rows, state, last_stamp_ms = await load_healed(
                store, self._definitions, self._sealing, self._log
            )
            highest = max(state.queues, default=0)
            if highest_queue_id is not None and highest > highest_queue_id:
                raise CatalogOlder(
                    f"shard {self.number} holds queue {highest}, but the catalog has issued ids up "
                    f"to {highest_queue_id}: it is missing or an older copy"
                )
            self._clock.continue_from(last_stamp_ms)
            state.memory = StoredAnswers(rows, self._entropy.bits128()) if self._remembers else None
            state.waits.is_open = not self._stopping.is_set()
            self._store, self._rows, self._state = store, rows, state
            rows.bytes_max = store.turn_bytes_max
            store.on_room = self._room_again
            self.phase = Phase.LEADING
            self._begin(is_older=store.came_back_shorter)
        except BaseException:
            self.phase = Phase.FAILED
            self._under_way.clear()
            self._store, self._broken = None, store
            await self._abandon_broken()
            raise
        self._want_turn()

    def _begin(self, *, is_older: bool) -> None:
        """Commit the events that a crash prevented.

        An older store gets a new source: it would repeat batch numbers that the archive has.
        """
        self._loaded_at_ms = self._clock.now_ms()
        stamp = self._stamp(self._loaded_at_ms)
        archive = self._state.archive
        if self._archive is not None:
            archive.is_on = True
            archive.size_max, archive.retains = self._archive
            if is_older or not archive.source:
                archive.source = f"{self._entropy.bits128():032x}"
                self._commit(begin(self._state, stamp, []), stamp)
        while self.ready and (unfinished := unfinished_purges(self._state)):
            # One at a time: the next may continue from its result.
            self._commit(begin(self._state, stamp, [unfinished[0]]), stamp)

    def end_long_polls(self) -> None:
        """Answer every parked receive now, empty, and park no more: the node is stopping."""
        self._stopping.set()
        self._state.waits.is_open = False
        self._answer_all([(ticket, NO_MESSAGES) for ticket in self._state.waits.take_all()])

    async def stop(self) -> None:
        """Finish the submitted requests, then close the store. Raises StoreFailed."""
        self.end_long_polls()
        await self._reopened()
        # An event instead of polling would cost every Turn; a stop happens once.
        while self.ready and (self._inbox or self._deferred or self._under_way):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        await self._reopened()
        store, self._store = self._store, None
        self.phase = Phase.STOPPED
        await self._abandon_broken()
        if store is not None:
            await store.close()

    async def _reopened(self) -> None:
        """Wait until the shard is open again; once it is to stop, until it has given up trying."""
        while self._reopening is not None and not self._reopening.done():
            await asyncio.wait([self._reopening])

    def _fail(self, error: StoreFailed) -> None:
        """Refuse everything unreleased, whose outcome is unknown; then reopen the store."""
        self._failures += 1
        self.phase = Phase.FAILED
        self._log.error("store_failed", error=str(error))
        self._broken, self._store = self._store, None
        held = [ticket for entry in self._under_way for ticket, _ in entry.answers]
        self._under_way.clear()
        submitted = [*self._deferred, *self._inbox]
        self._deferred = []
        self._inbox.clear()
        self._wanted = False
        self._refuse([*held, *self._state.waits.take_all(), *submitted])
        self._reopening = asyncio.create_task(self._reopen())

    async def _reopen(self) -> None:
        said = ""
        while not await self._is_stopping_within(_REOPEN_S):
            try:
                await self._abandon_broken()
                await self.start()
                if self.ready:  # else another reopening has begun
                    self._log.warning("store_reopened")
                return
            except Exception as error:  # any error: the only remedy is to retry
                if str(error) != said:  # a full disk gives the same each second
                    said = str(error)
                    self._log.error("store_reopen_failed", error=said)

    async def _is_stopping_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _abandon_broken(self) -> None:
        if self._broken is not None:
            await self._broken.abandon()
            self._broken = None

    def _refuse(self, tickets: list[Ticket]) -> None:
        """Refuse each ticket once, although a failed Turn may have parked or answered some."""
        for ticket in {id(ticket): ticket for ticket in tickets}.values():
            self._state.waits.remove(ticket.number)
            self._answer_all([(ticket, ServiceUnavailable())])

    # -- requests ----------------------------------------------------------------------------------

    def submit(self, request: Request, on_answer: OnAnswer, age_ms: int = 0) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is
        committed. `age_ms` marks a retry, see `Ticket`."""
        ticket = Ticket(request, on_answer, age_ms=age_ms)
        if self.phase is not _LEADING:
            refused: Answers = [(ticket, ServiceUnavailable())]
            asyncio.get_running_loop().call_soon(self._answer_all, refused)
            return ticket
        self._inbox.append(ticket)
        if not self._wanted:
            self._want_turn()
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Remove a parked receive whose client hung up. Anything else runs its course: False."""
        ticket.is_cancelled = True
        return self._state.waits.remove(ticket.number) is not None

    # -- the Turn ----------------------------------------------------------------------------------

    def _want_turn(self) -> None:
        """Run a Turn once the loop has read the input, and an Entry may be appended."""
        if not self._wanted:
            self._wanted = True
            if len(self._under_way) < self._under_way_max:
                asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        if len(self._under_way) >= self._under_way_max:
            return  # a commit runs the planned Turn
        if self._store is not None and not self._store.has_room:
            return  # the end of a flush runs it
        self._wanted = False
        if self.phase is not _LEADING:
            return
        now_ms = self._clock.now_ms()
        stamp = self._stamp(now_ms)
        deferred, self._deferred = self._deferred, []
        tickets = self._take_inbox()
        begun_s = self._clock.monotonic_s()
        try:
            decided = run(self._state, stamp, deferred, tickets)
        except TurnFailed as error:
            self._log.exception("turn_failed")
            self._refuse(error.tickets)
            self._fail(StoreFailed(str(error)))
            return
        self._deferred = decided.deferred
        self._inbox.extendleft(reversed(decided.untaken))
        if decided.deferred or decided.untaken or self._state.due or self._state.to_wake:
            self._want_turn()
        self._arm_timer(now_ms)
        self._commit(decided, stamp)
        self._turn_s.observe(self._clock.monotonic_s() - begun_s)
        self._turn_requests.observe(len(tickets) - len(decided.untaken))

    def _room_again(self) -> None:
        """Continue after the end of a flush."""
        if self._wanted:
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _stamp(self, now_ms: int) -> Stamp:
        return Stamp(now_ms, self._entropy.bits128, self._clock.trusted_ms(now_ms))

    def _take_inbox(self) -> list[Ticket]:
        if len(self._inbox) <= TURN_REQUESTS_MAX:
            tickets = list(self._inbox)
            self._inbox.clear()
            return tickets
        self._want_turn()
        return [self._inbox.popleft() for _ in range(TURN_REQUESTS_MAX)]

    def _commit(self, decided: Decided, stamp: Stamp) -> None:
        """Append the Entry, and hold the Turn's answers until it is committed."""
        assert self._store is not None
        assert self._rows is not None
        for notice in decided.notices:
            self._notice(notice)
        changes = self._rows.take_changes()
        if not changes:
            if self._under_way:
                self._under_way[-1].answers.extend(decided.answers)
            else:
                self._answer_all(decided.answers)
            return
        self._under_way.append(_UnderWay(changes, decided.answers))
        body = EntryBody(stamp.now_ms, decided.request_ids, changes.ops)
        try:
            self._store.append(encode_body(body), decided.queue_ids)
            self._store.sync(partial(self._committed, self._store))
        except Exception as error:
            if not isinstance(error, StoreFailed):
                self._log.exception("append_failed")
                error = StoreFailed("an append failed; the shard is loaded anew")
            self._fail(error)

    def _committed(self, store: Store, failure: StoreFailed | None) -> None:
        """Release the answers of the oldest Entry, now committed; then apply it to the rows."""
        if store is not self._store:
            return
        if failure is not None:
            self._fail(failure)
            return
        assert self._rows is not None
        entry = self._under_way.popleft()
        self._answer_all(entry.answers)
        try:
            store.apply(entry.changes)
        except StoreFailed as error:
            self._fail(error)
            return
        self._rows.forget(entry.changes)
        if self._wanted:
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _answer_all(self, answers: Answers) -> None:
        """Call back in order. A callback that raises has a bug, which must not delay the others."""
        rest = iter(answers)
        while True:
            try:
                for ticket, answer in rest:
                    ticket.on_answer(answer)
            except Exception:
                self._log.exception("answer_failed", request_id=ticket.request.request_id)
            else:
                return

    def _notice(self, notice: Notice) -> None:
        if notice.error is not None:
            self._log.error(notice.event, exc_info=notice.error, **notice.fields)
        elif notice.is_damage:
            self._log.error(notice.event, **notice.fields)
        else:
            self._log.info(notice.event, **notice.fields)

    # -- time --------------------------------------------------------------------------------------

    def _arm_timer(self, now_ms: int) -> None:
        """Set the one timer: wake when the next deadline is due."""
        next_ms = self._state.deadlines.next_at_ms()
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

    # -- looking in --------------------------------------------------------------------------------

    def report(self) -> ShardReport:
        """The shard's present state, without its queues."""
        return ShardReport(
            number=self.number,
            phase=self.phase,
            loaded_at_ms=self._loaded_at_ms,
            parked=len(self._state.waits),
            failures=self._failures,
            trusted_ms=self._clock.trusted_ms(self._clock.now_ms()),
            turn_s=self._turn_s.report(),
            turn_requests=self._turn_requests.report(),
            archive=archive_report(self._state.archive),
        )

    def counters(self) -> dict[int, QueueCounters]:
        """Counters by id of the queues that hold or held messages."""
        return {queue.queue_id: queue.counters() for queue in self._state.queues.values()}

    def queues(
        self, queue_ids: Iterable[int], detailed_ids: Container[int] = ()
    ) -> list[QueueReport]:
        """Report these queues, without those that never held a message; details may read rows."""
        looked_into = detailed_ids if self.ready else ()
        return queue_reports(self._state, queue_ids, looked_into, self._clock.now_ms())

    def times_in_queues(self, queue_ids: Iterable[int]) -> list[TimesReport]:
        """Report these queues and the times that deleted messages spent there."""
        return times_reports(self._state, queue_ids)

    def limit_archive(self, size_max: int) -> None:
        """Hand nothing over to the archive from now on above `size_max` bytes on disk."""
        self._state.archive.size_max = size_max
