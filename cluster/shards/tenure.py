"""Tenure: the life of a shard on this host. It opens the store, follows, leads, fails and stops.

    LOADING → LEADING                     a single host
    LOADING → FOLLOWING ⇄ LEADING         over a store that other hosts have too
    → FAILED → (opened anew) LEADING or FOLLOWING; in the end STOPPED

There is a `Lead` exactly while the phase is LEADING. A store that failed is abandoned and opened
anew, until that works or the shard is to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from cluster.shards.answers import NotDecided, RefusedReceives
from cluster.shards.issued_ids import check_ids, learn_all, raise_ids
from cluster.shards.lead import Lead, ShardParts, TurnTimes
from cluster.shards.loading import load_healed
from cluster.shards.shard_report import Followed, News, Phase
from storage.engines.store import SharedStore, Store, StoreFailed
from storage.rows.answer_rows import StoredAnswers
from storage.rows.stored_rows import StoredRows
from visibility.contract.errors import ServiceUnavailable
from visibility.rules.decided import Damage, DamageMet
from visibility.state.shard_state import ShardState
from visibility.state.waiters import Ticket

_REOPEN_S = 1.0


class Tenure:
    """Belongs to the event loop's thread."""

    def __init__(self, number: int, parts: ShardParts, report: Callable[[News], None]) -> None:
        self.phase = Phase.LOADING
        self.lead: Lead | None = None
        self.state = ShardState(None, parts.definitions, parts.sealing)
        """The memory of the present lead, or of the one that failed; a follower's is empty."""
        self.times = TurnTimes()
        self.failures = 0
        """Failures of the store."""
        self.loaded_at_ms = 0
        self._number = number
        self._parts = parts
        self.report = report
        self._log = structlog.get_logger("shard").bind(shard=number)
        self.followed = Followed()
        self._store: Store | None = None
        """None while it is not open, or failed."""
        self._shared: SharedStore | None = None
        """The store that was opened last, if other hosts have its log too."""
        self._refused = RefusedReceives()
        self._rebuilt: set[Damage] = set()
        """See `Lead`."""
        self._loading: asyncio.Task[None] | None = None
        """Loads the memory of a shard that is to lead."""
        self._broken: Store | None = None
        """The store that failed, until it is abandoned."""
        self._reopening: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    # -- opening and stopping ----------------------------------------------------------------------

    async def start(self, highest_queue_id: int | None = None) -> None:
        """See `Shard.start`."""
        store = await self._parts.open_store()
        self._shared = store.shared
        if self._shared is not None:
            self._store, self.phase = store, Phase.FOLLOWING
            self._shared.follow(self)
            return
        try:
            await self._load(store, highest_queue_id)
        except BaseException:
            self._leave(Phase.FAILED)
            self._store, self._broken = None, store
            await self.abandon()
            raise

    async def _load(self, store: Store, highest_queue_id: int | None = None) -> None:
        """Load memory from the rows, and decide requests from then on."""
        parts = self._parts
        rows, state, last_stamp_ms = await load_healed(
            store, parts.definitions, parts.sealing, self._log
        )
        if self._shared is None:
            if highest_queue_id is not None:
                check_ids(self._number, state.queues, highest_queue_id)
            parts.clock.continue_from(last_stamp_ms)
        else:
            if parts.shared_catalog is not None:
                await raise_ids(self._number, state.queues, parts.shared_catalog, self._log)
            parts.clock.take_over(last_stamp_ms)
        state.memory = StoredAnswers(rows, parts.entropy.bits128()) if parts.remembers else None
        state.waits.is_open = not self._stopping.is_set()
        self._begin_lead(store, rows, state)

    def _begin_lead(self, store: Store, rows: StoredRows, state: ShardState) -> None:
        lead = Lead(
            self,
            store,
            rows,
            state,
            self._parts,
            times=self.times,
            rebuilt=self._rebuilt,
            log=self._log,
        )
        self._store, self.state, self.lead, self.phase = store, state, lead, Phase.LEADING
        self.loaded_at_ms = self._parts.clock.now_ms()
        lead.begin(self.loaded_at_ms, is_older=store.came_back_shorter)
        if self.lead is lead:
            self._refused.give_back(lead.submit)
            self.report(News.LEADS)

    def end_long_polls(self) -> None:
        """See `Shard.end_long_polls`."""
        self._stopping.set()
        if self.lead is not None:
            self.lead.end_long_polls()

    async def stop(self) -> None:
        """See `Shard.stop`."""
        self.end_long_polls()
        if self._shared is not None and self.lead is not None:
            self.lead.stop_taking()
        await self.reopened()
        # An event instead of polling would cost every Turn; a stop happens once.
        while self.lead is not None and self.lead.is_pending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self.reopened()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        store, self._store = self._store, None
        self._leave(Phase.STOPPED)
        await self.abandon()
        if store is not None:
            await store.close()

    # -- leading and following ---------------------------------------------------------------------

    def on_leading(self) -> None:
        """See `Leader`."""
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

    def on_deposed(self) -> None:
        """See `Leader`. Drop memory; what is not released is refused."""
        if self.phase in (Phase.LEADING, Phase.FOLLOWING):
            self._leave(Phase.FOLLOWING)
            self._log.info("shard_follows")

    def on_failed(self, error: StoreFailed) -> None:
        """See `Leader`."""
        if self._store is not None:
            self.on_failure(error)

    def _leave(
        self, phase: Phase, tickets: Sequence[Ticket] = (), undecided: Sequence[Ticket] = ()
    ) -> None:
        """Lead no longer, and refuse everything unreleased: a Turn's own `tickets` first, whose
        outcome is unknown, and `undecided` ones."""
        self.phase = phase
        if self._loading is not None:
            self._loading.cancel()
        lead, self.lead = self.lead, None
        if lead is not None:
            lead.refuse(undecided, NotDecided())
            lead.refuse(tickets)
            # Those of a shard that remembers: who asked tries again, or undoes them.
            lead.end(None if self._parts.remembers else self._refused)
        if phase is Phase.FOLLOWING:
            self.state = ShardState(None, self._parts.definitions, self._parts.sealing)

    def undecided(self) -> ServiceUnavailable:
        """The answer to a request that was not decided."""
        return ServiceUnavailable() if self._shared is None else NotDecided()

    # -- failures: the calls of the lead -----------------------------------------------------------

    def on_failure(self, error: StoreFailed, tickets: Sequence[Ticket] = ()) -> None:
        """See `LeadOwner`. Open the store anew."""
        self.failures += 1
        self._log.error("store_failed", error=str(error))
        self._broken, self._store = self._store, None
        self._leave(Phase.FAILED, tickets)
        if self._shared is not None:
            self._shared.give_up(str(error))
        self._reopening = asyncio.create_task(self._reopen())

    def on_damage(self, error: DamageMet, new: Sequence[Ticket]) -> None:
        """See `LeadOwner`. Leave the lead to a host with sound rows: nothing of the Turn was
        appended.

        The requests that came before it may have changed something in earlier Turns: whoever sent
        them finds that this host leads no longer, and asks the next leader.
        """
        assert self._shared is not None
        are_new = {id(ticket) for ticket in new}
        earlier = [ticket for ticket in error.tickets if id(ticket) not in are_new]
        self._leave(Phase.FOLLOWING, earlier, new)
        self._shared.replace_rows(str(error.__cause__))

    # -- reopening ---------------------------------------------------------------------------------

    async def _reopen(self) -> None:
        reported = ""
        while not await self._is_stopping_within(_REOPEN_S):
            try:
                await self.abandon()
                await self.start()
                if self.phase is Phase.LEADING:
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
