"""Shard: a hash slice of queues, as the rest of the service sees it, and its life on this host.

    LOADING → LEADING                     a single host
    LOADING → FOLLOWING ⇄ LEADING         over a store that other hosts have too
    → FAILED → (opened anew) LEADING or FOLLOWING; in the end STOPPED

There is a `Lead`, which decides its requests, exactly while the phase is LEADING. A store that
failed is abandoned and opened anew, until that works or the shard is to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from contextlib import suppress

import structlog
from typing_extensions import override

from cluster.shards import shard_report
from cluster.shards.answers import NotDecided, RefusedReceives
from cluster.shards.issued_ids import (
    check_ids,
    known_ids,
    learn_all,
    noted_ids,
    raise_ids,
    write_back,
)
from cluster.shards.lead import Lead
from cluster.shards.loading import load_healed
from cluster.shards.shard_parts import LeadOwner, ShardParts, TurnTimes
from cluster.shards.turn_sample import QueueShare, TurnSample
from storage.engines.store import Leader, SharedStore, Store, StoreFailed
from storage.rows.answer_rows import StoredAnswers
from storage.rows.stored_rows import StoredRows
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, Request
from visibility.contract.move_task import MoveTask
from visibility.rows.row_changes import Ops
from visibility.rules.decided import DamageMet
from visibility.rules.events import Damage
from visibility.rules.waiting_sends import moving_since_ms, waiting_messages, waiting_share
from visibility.state.shard_state import ShardState
from visibility.state.waiters import OnAnswer, Room, Ticket

_REOPEN_S = 1.0
_COMPARE_AGAIN_S = 1.0
_COMPARED_S = 5.0
"""Bound of the time for which a question waits for it."""


class Shard(Leader, LeadOwner):
    """One of this host's shards."""

    def __init__(self, number: int, parts: ShardParts) -> None:
        self.number = number
        self.phase = shard_report.Phase.LOADING
        self.lead: Lead | None = None
        """Decides requests while this host leads."""
        self.followed = shard_report.Followed()
        self._state = ShardState(None, parts.definitions, parts.sealing)
        """The memory of the present lead, or of the one that failed; a follower's is empty."""
        self._times = TurnTimes()
        self._failures = 0
        """Failures of the store."""
        self._parts_written_back = 0
        """Queues whose parts in etcd were older than those that this shard noted."""
        self._loaded_at_ms = 0
        self._prepares = True
        self._parts = parts
        self._listeners: list[shard_report.OnNews] = []
        self._log = structlog.get_logger("shard").bind(shard=number)
        self._store: Store | None = None
        """None while it is not open, or failed."""
        self._shared: SharedStore | None = None
        """The store that was opened last, if other hosts have its log too."""
        self._refused = RefusedReceives()
        self._rebuilt: set[Damage] = set()
        """Damage for which a reopening rebuilt a queue: that is tried once."""
        self._loading: asyncio.Task[None] | None = None
        """Loads the memory of a shard that is to lead."""
        self._comparing: asyncio.Task[None] | None = None
        """Compares what it knows with an etcd that was restored while it leads."""
        self._is_compared = True
        """False until that is done; it is done whenever this host begins to lead."""
        self._asking: set[asyncio.Task[bool]] = set()
        self._broken: Store | None = None
        """The store that failed, until it is abandoned."""
        self._reopening: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        if parts.shared_catalog is not None:
            parts.shared_catalog.on_restored.append(self._etcd_went_back)

    # -- opening and stopping ----------------------------------------------------------------------

    async def start(self, highest_queue_id: int | None = None) -> None:
        """Open the store, load memory, finish purges that a crash interrupted.

        Over a replicated store the rest follows when this host is to lead. `highest_queue_id`: the
        last that the catalog issued. Raises StoreFailed, DamagedRecord, CatalogOlder.
        """
        store = await self._parts.open_store()
        self._shared = store.shared
        if self._shared is not None:
            self._store, self.phase = store, shard_report.Phase.FOLLOWING
            self._shared.follow(self)
            return
        try:
            await self._load(store, highest_queue_id)
        except BaseException:
            self._leave(shard_report.Phase.FAILED)
            self._store, self._broken = None, store
            await self.abandon()
            raise

    async def _load(self, store: Store, highest_queue_id: int | None = None) -> None:
        """Load memory from the rows, and decide requests from then on."""
        parts = self._parts
        restored = 0 if parts.shared_catalog is None else parts.shared_catalog.times_restored
        rows, state, last_stamp_ms = await load_healed(
            store, parts.definitions, parts.sealing, self._log
        )
        if self._shared is None:
            if highest_queue_id is not None:
                check_ids(self.number, known_ids(state), highest_queue_id)
            parts.clock.continue_from(last_stamp_ms)
        else:
            if parts.shared_catalog is not None:
                catalog = parts.shared_catalog
                written = await write_back(self.number, state.noted_parts, catalog, self._log)
                if written:  # what it loaded was by the older records
                    self._parts_written_back += written
                    rows, state, last_stamp_ms = await load_healed(
                        store, parts.definitions, parts.sealing, self._log
                    )
                known = known_ids(state) | noted_ids(state)
                await raise_ids(self.number, known, catalog, self._log)
            parts.clock.take_over(last_stamp_ms)
        state.memory = StoredAnswers(rows, parts.entropy.bits128()) if parts.remembers else None
        state.waits.is_open = not self._stopping.is_set()
        self._is_compared = True
        self._begin_lead(store, rows, state)
        if parts.shared_catalog is not None and parts.shared_catalog.times_restored != restored:
            self._etcd_went_back()  # meanwhile

    def _begin_lead(self, store: Store, rows: StoredRows, state: ShardState) -> None:
        lead = Lead(
            self,
            store,
            rows,
            state,
            self._parts,
            times=self._times,
            log=self._log,
        )
        self._store, self._state, self.lead, self.phase = (
            store,
            state,
            lead,
            shard_report.Phase.LEADING,
        )
        self._loaded_at_ms = self._parts.clock.now_ms()
        state.prepares = self._prepares
        lead.begin(self._loaded_at_ms, self.number, is_older=store.came_back_shorter)
        if self.lead is lead:
            self._refused.give_back(lead.submit)
            self.tell(shard_report.News.LEADS)

    def let_prepare(self, *, prepares: bool) -> None:
        """Prepare deletes of transactions from now on, or none, also after another start."""
        self._prepares = self._state.prepares = prepares

    def end_long_polls(self) -> None:
        """Answer every parked receive now, empty, and park no more: the node is stopping."""
        self._stopping.set()
        if self.lead is not None:
            self.lead.end_long_polls()

    async def stop(self) -> None:
        """Finish the submitted requests, then close the store. Raises StoreFailed."""
        self.end_long_polls()
        if self._shared is not None and self.lead is not None:
            self.lead.stop_taking()
        await self.reopened()
        # An event instead of polling would cost every Turn; a stop happens once.
        while self.lead is not None and self.lead.is_pending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self.reopened()
        for task in (self._loading, self._comparing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        store, self._store = self._store, None
        self._leave(shard_report.Phase.STOPPED)
        await self.abandon()
        if store is not None:
            await store.close()

    # -- requests ----------------------------------------------------------------------------------

    @override
    def submit(
        self, request: Request, on_answer: OnAnswer, age_ms: int = 0, room: Room | None = None
    ) -> Ticket:
        """Have a request decided; `on_answer` is called once, later, when its outcome is
        committed. `age_ms` and `room`: see `Ticket`."""
        lead = self.lead
        if lead is not None:
            return lead.submit(request, on_answer, age_ms, room)
        ticket = Ticket(request, on_answer, age_ms=age_ms, room=room)
        refusal = self.undecided()
        asyncio.get_running_loop().call_soon(on_answer, refusal)
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Remove a parked receive whose client hung up. Anything else runs its course: False."""
        ticket.is_cancelled = True
        return self._state.waits.remove(ticket.number) is not None

    # -- what others may look into -----------------------------------------------------------------

    def subscribe(self, on_news: shard_report.OnNews) -> None:
        """Report the shard's news to a listener from now on."""
        self._listeners.append(on_news)

    def follow(self, queue_ids: Collection[int], on_rows: shard_report.OnRows) -> None:
        """Report row changes of Entries that change one of these queues, instead of those followed
        before. After `News.LEADS` some may have been missed."""

        def tell(ops: Ops) -> None:
            try:
                on_rows(ops)
            except Exception:  # a bug, which must not stop the shard
                self._log.exception("rows_not_followed")

        self.followed.follow(queue_ids, tell)

    @override
    def tell(self, news: shard_report.News) -> None:
        for listener in self._listeners:
            try:
                listener(self.number, news)
            except Exception:  # a bug, which must not stop the shard
                self._log.exception("news_failed")

    @property
    def ready(self) -> bool:
        """True while requests are decided here; else they are answered ServiceUnavailable."""
        return self.lead is not None

    def report(self) -> shard_report.ShardReport:
        """The shard's present state, without its queues."""
        state = self._state
        return shard_report.ShardReport(
            number=self.number,
            phase=self.phase,
            loaded_at_ms=self._loaded_at_ms,
            parked=len(state.waits),
            failures=self._failures,
            parts_written_back=self._parts_written_back,
            trusted_ms=self._parts.clock.trusted_ms(self._parts.clock.now_ms()),
            turn_s=self._times.seconds.report(),
            turn_requests=self._times.requests.report(),
            archive=shard_report.archive_report(state.archive),
            outbox=len(state.outbox.departures),
            outbox_since_ms=moving_since_ms(state),
            outbox_waiting=waiting_messages(state),
            outbox_waiting_share=waiting_share(state),
            prepared=sum(len(each.leases) for _, each in state.outbox.prepared()),
        )

    def departs_to(self) -> set[int]:
        """The shards for which messages are in the outbox. O(those messages)."""
        return {each.to_shard for each in self._state.outbox.departures.values()}

    def locking(self) -> list[int]:
        """Ids of the queues with locked groups."""
        state = self._state
        return [each for each in state.locking if each in state.queues]

    def sharing(self) -> dict[int, MoveTask]:
        """The move tasks shared by several parts, by the id of their queue or part."""
        state = self._state
        tasks = {
            each: state.queues[each].active_task for each in state.sharing.keys() & state.queues
        }
        return {each: task for each, task in tasks.items() if task is not None and task.is_shared}

    def tasks_since(self, queue_ids: Iterable[int], since_ms: int) -> dict[int, list[MoveTask]]:
        """Move tasks that changed since then, by queue; none while this host does not lead."""
        return shard_report.tasks_since(self._state, queue_ids, since_ms) if self.ready else {}

    def counters(self) -> dict[int, QueueCounters]:
        """Counters by id of the queues that hold or held messages."""
        return {queue.queue_id: queue.counters() for queue in self._state.queues.values()}

    def queues(
        self, queue_ids: Iterable[int], detailed_ids: Container[int] = ()
    ) -> list[shard_report.QueueReport]:
        """Report these queues, without those that never held a message; details may read rows."""
        looked_into = detailed_ids if self.ready else ()
        return shard_report.queue_reports(
            self._state, queue_ids, looked_into, self._parts.clock.now_ms()
        )

    def times_in_queues(self, queue_ids: Iterable[int]) -> list[shard_report.TimesReport]:
        """Report these queues and the times that deleted messages spent there."""
        return shard_report.times_reports(self._state, queue_ids)

    def take_sample(self) -> dict[int, QueueShare]:
        """The queues of the Turns since the last call, as a sample; the first call begins it."""
        times = self._times
        if times.sample is None:
            times.sample = TurnSample()
        return times.sample.take()

    def limit_archive(self, size_max: int) -> None:
        """Hand nothing over to the archive from now on above `size_max` bytes on disk."""
        self._state.archive.size_max = size_max

    # -- leading and following ---------------------------------------------------------------------

    @override
    def on_leading(self) -> None:
        assert self._shared is not None
        if not self._stopping.is_set():
            self._loading = asyncio.create_task(self._take_lead(self._shared))

    async def _take_lead(self, store: SharedStore) -> None:
        try:
            if self._parts.shared_catalog is not None:
                await learn_all(self._parts.shared_catalog)
            await self._load(store)
        except Exception as error:  # any error: another host may do better
            self._log.error("shard_not_loaded", error=str(error))
            store.give_up(str(error))
        else:
            self._log.info("shard_leads")

    # -- an etcd that is restored while this host leads --------------------------------------------

    def _etcd_went_back(self) -> None:
        if self._shared is not None and self.lead is not None:
            self._is_compared = False
            if self._comparing is not None:
                self._comparing.cancel()
            self._comparing = asyncio.create_task(self._compare(self.lead, self._state))

    async def _compare(self, lead: Lead, state: ShardState) -> None:
        """Write later parts back, and raise ids, as at the begin of a lead."""
        catalog, reported = self._parts.shared_catalog, ""
        assert catalog is not None
        while self.lead is lead and not self._is_compared:
            try:
                await learn_all(catalog)
                noted = dict(state.noted_parts)
                self._parts_written_back += await write_back(self.number, noted, catalog, self._log)
                known = known_ids(state) | noted_ids(state)
                await raise_ids(self.number, known, catalog, self._log)
                self._is_compared = True
            except Exception as error:  # any error: the only remedy is to retry
                if str(error) != reported:
                    reported = str(error)
                    self._log.error("records_not_compared", error=reported)
                await asyncio.sleep(_COMPARE_AGAIN_S)
        lead.check_queues()  # some were unknown for a while

    async def knows_all(self) -> bool:
        """Wait until etcd has all that this shard knows, also if etcd was just restored; False if
        that is not known soon, or if this host does not lead."""
        catalog = self._parts.shared_catalog
        if catalog is not None and not await catalog.caught_up():
            return False
        if not self._is_compared and self._comparing is not None:
            await asyncio.wait([self._comparing], timeout=_COMPARED_S)
        return self._is_compared and self.lead is not None

    def when_knows_all(self, then: Callable[[bool], None]) -> None:
        """Call back with that."""
        task = asyncio.create_task(self.knows_all())
        self._asking.add(task)

        def done(task: asyncio.Task[bool]) -> None:
            self._asking.discard(task)
            then(not task.cancelled() and task.exception() is None and task.result())

        task.add_done_callback(done)

    @override
    def on_deposed(self) -> None:
        """Drop memory and refuse unreleased answers."""
        if self.phase in (shard_report.Phase.LEADING, shard_report.Phase.FOLLOWING):
            self._leave(shard_report.Phase.FOLLOWING)
            self._log.info("shard_follows")

    @override
    def on_failed(self, error: StoreFailed) -> None:
        if self._store is not None:
            self.on_failure(error)

    def _leave(
        self,
        phase: shard_report.Phase,
        tickets: Sequence[Ticket] = (),
        undecided: Sequence[Ticket] = (),
    ) -> None:
        """Lead no longer, and refuse everything unreleased: a Turn's own `tickets` first, whose
        outcome is unknown, and `undecided` ones."""
        self.phase = phase
        for task in (self._loading, self._comparing):
            if task is not None:
                task.cancel()
        lead, self.lead = self.lead, None
        if lead is not None:
            lead.refuse(undecided, NotDecided())
            lead.refuse(tickets)
            # Those of a shard that remembers: who asked tries again, or undoes them.
            lead.end(None if self._parts.remembers else self._refused)
        if phase is shard_report.Phase.FOLLOWING:
            self._state = ShardState(None, self._parts.definitions, self._parts.sealing)

    @override
    def undecided(self) -> ServiceUnavailable:
        """The answer to a request that was not decided."""
        return ServiceUnavailable() if self._shared is None else NotDecided()

    # -- failures: the calls of the lead -----------------------------------------------------------

    @override
    def on_failure(self, error: StoreFailed, tickets: Sequence[Ticket] = ()) -> None:
        """Open the store anew."""
        self._failures += 1
        self._log.error("store_failed", error=str(error))
        self._broken, self._store = self._store, None
        self._leave(shard_report.Phase.FAILED, tickets)
        if self._shared is not None:
            self._shared.give_up(str(error))
        self._reopening = asyncio.create_task(self._reopen())

    @override
    def on_damage(self, error: DamageMet, new: Sequence[Ticket]) -> None:
        """Leave the lead to a host with sound rows: nothing of the Turn was appended.

        Requests from before this Turn may have changed something: their senders hear that this
        host leads no longer, and ask the next leader.
        """
        assert self._shared is not None
        are_new = {id(ticket) for ticket in new}
        earlier = [ticket for ticket in error.tickets if id(ticket) not in are_new]
        self._leave(shard_report.Phase.FOLLOWING, earlier, new)
        self._shared.replace_rows(str(error.__cause__))

    @override
    def rebuilds(self, damage: Damage) -> bool:
        """Only of a store that no other host has."""
        self._log.error("damage_found", queue_id=damage.queue_id, reason=damage.reason)
        if damage in self._rebuilt or self._store is None:
            return False
        self._rebuilt.add(damage)
        failure = StoreFailed(f"queue {damage.queue_id} is rebuilt: {damage.reason}")
        try:
            self._store.note_damage(*damage)
        except StoreFailed as error:
            failure = error
        self.on_failure(failure)
        return True

    # -- reopening ---------------------------------------------------------------------------------

    async def _reopen(self) -> None:
        reported = ""
        while not await self._is_stopping_within(_REOPEN_S):
            try:
                await self.abandon()
                await self.start()
                if self.phase is shard_report.Phase.LEADING:
                    self._log.warning("store_reopened")
                return
            except Exception as error:  # any error: the only remedy is to retry
                if str(error) != reported:  # a full disk gives the same each second
                    reported = str(error)
                    self._log.error("store_reopen_failed", error=reported)

    async def reopened(self) -> None:
        """Wait until the shard is open again; once it is to stop, until it has given up trying."""
        while self._reopening is not None and not self._reopening.done():
            await asyncio.wait([self._reopening])

    async def abandon(self) -> None:
        """Abandon the store that failed, if there is one."""
        if self._broken is not None:
            await self._broken.abandon()
            self._broken = None

    async def _is_stopping_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()
