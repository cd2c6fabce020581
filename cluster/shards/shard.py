"""Shard: one state, one log, one loop of Turns. The only file that drives them.

    inbox → run a Turn → append its Entry → sync → (committed) answers leave → rows

Only this order counts. While an Entry is under way, the inbox fills. Every answer, even a refusal
or one without changes, leaves only when all Entries that its Turn could see are committed (in a
cluster with asynchronous replication see `EarlyAnswers`). The next Turn runs at the next pass of
the event loop after the last one's answers, so that it finds the requests that they cause; with
peers it waits while more of them come (`Gathering`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from cluster.clock import Clock, Entropy
from cluster.shards.alarm import Alarm
from cluster.shards.answers import (
    GIVING_BACK,
    EarlyAnswers,
    NotDecided,
    ReadBarrier,
    RefusedReceives,
    UnderWay,
    answer_all,
    in_time,
    notice,
)
from cluster.shards.damaged_queues import DamagedQueues
from cluster.shards.gathering import TURN_REQUESTS_MAX, Gathering
from cluster.shards.issued_ids import SharedCatalog, check_ids, learn_all, raise_ids
from cluster.shards.loading import load_healed
from cluster.shards.observed import Observed, OnDeparture
from cluster.shards.reopening import Reopening
from cluster.shards.shard_report import ArchiveLimits, Phase
from storage.engines.store import SharedStore, Store, StoreFailed
from storage.rows.answer_rows import StoredAnswers
from storage.rows.entry_body import EntryBody, encode_body
from storage.rows.stored_rows import StoredRows
from visibility.content.sealing import Sealing
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Definitions, Request
from visibility.rules.decided import NO_MESSAGES, Answers, DamageMet, Decided, TurnFailed
from visibility.rules.kept_queues import unfinished_purges
from visibility.rules.turn import begin, run
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.waiters import OnAnswer, Room, Ticket

OpenStore = Callable[[], Awaitable[Store]]

_LEADING = Phase.LEADING
"""Read for each request: from the class it takes 0.2 µs."""


class Shard(Observed):
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
        shared_catalog: SharedCatalog | None = None,
    ) -> None:
        """`definitions` is the catalog's view of queues; without `archive`, nothing is archived.

        Without `sealing`, messages that move between queues keep their seals. `under_way_max`:
        Entries that may be appended and not committed; `remembers`: answers are kept for retries.
        Over a replicated store a new leader asks `shared_catalog`: `definitions` may lag behind.
        """
        super().__init__(number, clock, ShardState(None, definitions, sealing))
        self._open_store = open_store
        self._entropy = entropy
        self._definitions = definitions
        self._archive = archive
        self._sealing = sealing
        self._under_way_max = under_way_max
        self._remembers = remembers
        self._shared_catalog = shared_catalog
        self._log = structlog.get_logger("shard").bind(shard=number)
        self._answer_all = partial(answer_all, self._log)
        self._store: Store | None = None
        self._shared: SharedStore | None = None
        """The same if other hosts have its log too, else None."""
        self._rows: StoredRows | None = None
        self._inbox: deque[Ticket] = deque()
        self._deferred: list[Ticket] = []
        """Tickets to decide in the next Turn, before the inbox."""
        self._under_way: deque[UnderWay] = deque()
        self._is_damaged = False
        """True if the next Turn waits for a reopening, which rebuilds a queue."""
        self._refuses_new = False  # while a replicated shard stops: others ask as long as it leads
        self._wanted = False
        """True while a Turn is planned: soon, or once an Entry under way is committed."""
        self._gathering = Gathering(self._run_turn)
        self._barrier = ReadBarrier(self._under_way, self._answer_all)
        self._refused = RefusedReceives()
        self._early: EarlyAnswers | None = None
        """None if all answers wait for a majority."""
        self._alarm = Alarm(self._want_turn)
        self._damaged = DamagedQueues(self._log)
        self._reopening = Reopening(self.start, lambda: self.ready, self._log)
        self._loading: asyncio.Task[None] | None = None
        """Loads the memory of a shard that is to lead."""
        self.on_departure: OnDeparture | None = None
        """Called when messages leave for other shards, or this one begins to lead."""

    # -- life --------------------------------------------------------------------------------------

    async def start(self, highest_queue_id: int | None = None) -> None:
        """Open the store, load memory, finish purges that a crash interrupted.

        Over a replicated store the rest follows when this host is to lead. `highest_queue_id`: the
        last that the catalog issued. Raises StoreFailed, DamagedRecord, CatalogOlder.
        """
        store = await self._open_store()
        self._shared = store.shared
        if self._shared is not None:
            self._store, self.phase = store, Phase.FOLLOWING
            self._under_way_max = max(self._under_way_max, self._shared.under_way_max)
            if self._shared.answers_early:
                self._early = EarlyAnswers(self._shared, self._answer_all)
            self._shared.follow(self)
            return
        try:
            await self._load(store, highest_queue_id)
        except BaseException:
            self.phase = Phase.FAILED
            self._under_way.clear()
            self._store = None
            await self._reopening.abandon(store)
            raise

    async def _load(self, store: Store, highest_queue_id: int | None = None) -> None:
        """Load memory from the rows, and decide requests from then on."""
        rows, state, last_stamp_ms = await load_healed(
            store, self._definitions, self._sealing, self._log
        )
        if self._shared is None:
            if highest_queue_id is not None:
                check_ids(self.number, state.queues, highest_queue_id)
            self._clock.continue_from(last_stamp_ms)
        else:
            if self._shared_catalog is not None:
                await raise_ids(self.number, state.queues, self._shared_catalog, self._log)
            self._clock.take_over(last_stamp_ms)
        state.memory = StoredAnswers(rows, self._entropy.bits128()) if self._remembers else None
        state.waits.is_open = not self._reopening.is_stopping
        self._store, self._rows, self._state = store, rows, state
        rows.bytes_max = store.turn_bytes_max
        store.on_room = self._go_on
        self.phase = Phase.LEADING
        self._wanted = self._is_damaged = False
        self._begin(is_older=store.came_back_shorter)
        self._refused.give_back(self.submit)
        self._want_turn()
        if self.on_departure is not None:
            self.on_departure(self.number, is_new=True)

    def _begin(self, *, is_older: bool) -> None:
        """Commit the events that a crash prevented.

        An older store gets a new source and a new origin: it would repeat numbers of batches that
        the archive has, and of messages that other shards know.
        """
        self._loaded_at_ms = self._clock.now_ms()
        stamp = self._stamp(self._loaded_at_ms)
        archive = self._state.archive
        if is_older:
            self._state.outbox.renew_origin()
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
        self._reopening.stop()
        self._state.waits.is_open = False
        self._answer_all([(ticket, NO_MESSAGES) for ticket in self._state.waits.take_all()])

    async def stop(self) -> None:
        """Finish the submitted requests, then close the store. Raises StoreFailed."""
        self._refuses_new = self._shared is not None
        self.end_long_polls()
        await self._reopening.ended()
        # An event instead of polling would cost every Turn; a stop happens once.
        while self.ready and self._pending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self._alarm.cancel()
        await self._reopening.ended()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        store, self._store = self._store, None
        self.phase = Phase.STOPPED
        await self._reopening.abandon()
        if store is not None:
            await store.close()

    @property
    def _pending(self) -> bool:
        return bool(self._inbox or self._deferred or self._under_way or self._barrier)

    def _fail(self, error: StoreFailed, tickets: Sequence[Ticket] = ()) -> None:
        """Refuse everything unreleased, whose outcome is unknown, and a Turn's `tickets`; then
        reopen the store."""
        self._failures += 1
        self.phase = Phase.FAILED
        self._log.error("store_failed", error=str(error))
        broken, self._store = self._store, None
        self._refuse(tickets)
        self._refuse_all()
        if self._shared is not None:
            self._shared.give_up(str(error))
        self._reopening.begin(broken)

    def _refuse_all(self) -> None:
        """Refuse everything unreleased."""
        if self._loading is not None:
            self._loading.cancel()
        tickets = [ticket for entry in self._under_way for ticket, _ in entry.answers]
        tickets += [ticket for ticket, _ in self._barrier.take_all()]
        if self._early is not None:
            tickets += [ticket for ticket, _ in self._early.take_all()]
        tickets += [*self._state.waits.take_all(), *self._deferred]
        undecided = list(self._inbox)
        if not self._remembers:  # else who asked tries again, or undoes them
            self._refused.note(self._under_way)
        self._under_way.clear()
        self._deferred = []
        self._inbox.clear()
        self._wanted = False
        self._alarm.cancel()
        self._refuse(tickets)
        self._refuse(undecided, self._undecided())

    def _undecided(self) -> ServiceUnavailable:
        """The answer to a request that was not decided."""
        return ServiceUnavailable() if self._shared is None else NotDecided()

    def _refuse(self, tickets: Sequence[Ticket], refusal: QueueError | None = None) -> None:
        """Refuse each ticket once, although a failed Turn may have parked or answered some."""
        for ticket in {id(ticket): ticket for ticket in tickets}.values():
            self._state.waits.remove(ticket.number)
            self._answer_all([(ticket, refusal or ServiceUnavailable())])

    # -- leading and following ---------------------------------------------------------------------

    def on_leading(self) -> None:
        """See `Leader`."""
        assert self._shared is not None
        if not self._reopening.is_stopping:
            self._loading = asyncio.create_task(self._lead(self._shared))

    async def _lead(self, store: SharedStore) -> None:
        try:
            if self._shared_catalog is not None:
                await learn_all(self._shared_catalog)
            await self._load(store)
        except Exception as error:  # any error: another host may do better
            self._log.error("shard_not_loaded", error=str(error))
            store.give_up(str(error))
        else:
            self._log.info("shard_leads")

    def on_deposed(self) -> None:
        """See `Leader`. Drop memory; what is not released is refused."""
        if self.phase not in (Phase.LEADING, Phase.FOLLOWING):
            return
        self.phase = Phase.FOLLOWING
        self._refuse_all()
        self._rows = None
        self._state = ShardState(None, self._definitions, self._sealing)
        self._log.info("shard_follows")

    def _damage_met(self, error: DamageMet, new: list[Ticket]) -> None:
        """Leave the lead to a host with sound rows: nothing of the Turn was appended.

        The requests that came before it may have changed something in earlier Turns; who asked
        sees that this host leads no longer, and asks the next leader.
        """
        assert self._shared is not None
        self.phase = Phase.FOLLOWING
        self._refuse(new, NotDecided())
        are_new = {id(ticket) for ticket in new}
        self._refuse([ticket for ticket in error.tickets if id(ticket) not in are_new])
        self._shared.replace_rows(str(error.__cause__))
        if self._rows is not None:
            self.on_deposed()

    def on_failed(self, error: StoreFailed) -> None:
        """See `Leader`."""
        if self._store is not None:
            self._fail(error)

    # -- requests ----------------------------------------------------------------------------------

    def submit(
        self, request: Request, on_answer: OnAnswer, age_ms: int = 0, room: Room | None = None
    ) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is
        committed. `age_ms` and `room`: see `Ticket`."""
        ticket = Ticket(request, on_answer, age_ms=age_ms, room=room)
        if self.phase is not _LEADING or (
            self._refuses_new and type(request.operation) not in GIVING_BACK
        ):
            refused: Answers = [(ticket, self._undecided())]
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
        if not self._wanted or len(self._under_way) >= self._under_way_max:
            return  # a commit runs the planned Turn
        if self.phase is not _LEADING:
            self._wanted = False
            return
        assert self._store is not None
        if not self._store.has_room:
            return  # the end of a flush runs it
        if self._shared is not None and self._gathering.goes_on(len(self._inbox)):
            return
        self._wanted = False
        if self._is_damaged and (failure := self._damaged.note(self._store)):
            self._fail(failure)
            return
        now_ms = self._clock.now_ms()
        stamp = self._stamp(now_ms)
        deferred, self._deferred = self._deferred, []
        tickets = self._take_inbox()
        begun_s = self._clock.monotonic_s()
        self._state.quarantines = self._shared is None or self._shared.quarantines
        try:
            decided = run(self._state, stamp, deferred, tickets)
        except DamageMet as error:
            self._damage_met(error, tickets)
            return
        except TurnFailed as error:
            self._log.exception("turn_failed")
            self._fail(StoreFailed(str(error)), error.tickets)
            return
        self._deferred = decided.deferred
        self._inbox.extendleft(reversed(decided.untaken))
        if decided.deferred or decided.untaken or self._state.due or self._state.to_wake:
            self._want_turn()
        self._alarm.set(self._state.deadlines.next_at_ms(), now_ms)
        self._commit(decided, stamp)
        if decided.departs and self.on_departure is not None:
            self.on_departure(self.number)
        if decided.damage is not None and self._shared is None:
            self._is_damaged = self._damaged.meet(decided.damage)
            self._want_turn()
        self._turn_s.observe(self._clock.monotonic_s() - begun_s)
        self._turn_requests.observe(len(tickets) - len(decided.untaken))

    def _go_on(self) -> None:
        """Run the Turn that waited for a commit, or for the end of a flush."""
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
        for told in decided.notices:
            notice(told, self._log)
        changes, answers = self._rows.take_changes(), decided.answers
        if self._early is not None:
            answers = self._early.hold(answers, has_entry=bool(changes))
        if not changes:
            if self._shared is not None and decided.answers:  # also if all of them left early:
                self._barrier.hold(answers, self._shared)  # without peers it must not lead on
            elif self._under_way:
                self._under_way[-1].answers.extend(answers)
            else:
                self._answer_all(answers)
            return
        self._under_way.append(UnderWay(changes, answers, stamp.now_ms))
        body = EntryBody(stamp.now_ms, decided.request_ids, changes.ops)
        try:
            self._store.append(encode_body(body), decided.queue_ids)
            self._store.sync(partial(self._committed, self._store))
            if self._early is not None:
                self._early.appended()
        except Exception as error:
            if not isinstance(error, StoreFailed):
                self._log.exception("append_failed")
                error = StoreFailed("an append failed; the shard is loaded anew")
            if self.ready:  # a replica that failed was deposed before
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
        if self._shared is None:
            self._answer_all(entry.answers)
        else:
            self._answer_all(in_time(entry, self._clock.now_ms(), self.submit))
        try:
            store.apply(entry.changes)
        except StoreFailed as error:
            self._fail(error)
            return
        self._rows.forget(entry.changes)
        self._go_on()
