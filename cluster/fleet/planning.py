"""Planning: the out-cluster manager in a host: its report, the plan if this host has the key, and
what operators do with it.

A fleet of one cluster has none: there `tick` returns at once. All else goes on without it: nobody
waits for it, and what it decided is in records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from cluster.catalog.catalog import Catalog
from cluster.coordination.coordination import Conflict, Done, Outcome, Unavailable
from cluster.fleet.catalog_table import table_of
from cluster.fleet.load_meter import Counters, Figures, LoadMeter
from cluster.fleet.load_records import LoadBoard
from cluster.fleet.loads import REPORT_MS, HostLoad
from cluster.fleet.peaks import KnownPeaks
from cluster.fleet.plan import clean
from cluster.fleet.plan_records import MadeChange, Mode, PlanRecords, Seen, change_id_of
from cluster.fleet.plan_table import Change, Cluster, Fleet
from cluster.fleet.planner import NotNow, Planner, ShownPlan, Sources
from cluster.fleet.planner_key import PlannerKey
from cluster.fleet.steps import StepRefused, Steps, not_available, undoing
from visibility.contract.errors import QueueError, UnsupportedOperation

BY_ITSELF = "manager"
_PEAKS_MS = 60_000


class Parts(NamedTuple):
    """All that a manager is made from."""

    records: PlanRecords
    board: LoadBoard
    key: PlannerKey
    meter: LoadMeter
    steps: Steps
    catalog: Catalog
    clusters: Callable[[], list[Cluster]]
    """Those of the fleet; fewer than two before it has several."""
    read_counters: Callable[[], Counters]
    read_figures: Callable[[], Figures]
    now_ms: Callable[[], int]
    window_ms: int = REPORT_MS
    """The interval of reports."""


class Planning:
    """`tick` is due with each report of a load."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._seen = Seen()
        self._table: Fleet | None = None
        self._learned_under: dict[str, int] = {}
        """The taking of the key after which it took over the peaks that were known."""
        self._kept_peaks_ms = 0
        self.has_key = False
        self.unreadable_reads = 0
        """Ticks that found records that cannot be read, or none at all."""
        sources = Sources(
            self._read_fleet,
            self._read_loads,
            self._apply,
            lambda change: not_available(parts.catalog, change, parts.steps.queue_of(change)),
        )
        self.planner = Planner(parts.key, sources, parts.now_ms, window_ms=parts.window_ms)
        self._log = structlog.get_logger("manager")

    @property
    def is_needed(self) -> bool:
        """True in a fleet of several clusters."""
        return len(self._parts.clusters()) > 1

    async def tick(self) -> None:
        """Report this host's load; plan, if this host has the key or can take it."""
        parts = self._parts
        if not self.is_needed:
            return
        load = parts.meter.report(parts.read_counters(), parts.read_figures())
        if load is not None:
            await parts.board.publish(load)
        self.has_key = await parts.key.hold()
        if self.has_key:
            await self._plan()
            self.has_key = parts.key.is_held

    async def _plan(self) -> None:
        found = await self._parts.records.read()
        if isinstance(found, Unavailable) or found.unreadable:
            self.unreadable_reads += 1
            self._log.warning(
                "manager_records_unreadable",
                keys=[] if isinstance(found, Unavailable) else list(found.unreadable),
            )
        if isinstance(found, Unavailable):
            await self.planner.hear_nothing()
            return
        self._seen = found
        self._table = table_of(self._parts.catalog, self._parts.clusters(), found.made)
        self.planner.mode = found.mode
        self._learn(found.peaks)
        await self.planner.tick()
        if self._parts.key.is_held:  # else it was lost, or given up, meanwhile
            await self._forget()
            await self._keep_peaks(found.peaks)

    def _learn(self, known: KnownPeaks | None) -> None:
        """Take over the peaks that another planner knew, once after each taking of the key."""
        taken = self._parts.key.conditions
        if self._learned_under != taken:
            self._learned_under = taken
            if known is not None:
                self.planner.history.peaks.learn(known)

    async def _keep_peaks(self, kept: KnownPeaks | None) -> None:
        """Write down the peaks for the next planner: new ones within a minute."""
        now_ms, table = self._parts.now_ms(), self._table
        if table is None or 0 <= now_ms - self._kept_peaks_ms < _PEAKS_MS:
            return
        self._kept_peaks_ms = now_ms
        names = [table.name_of(queue_id) for queue_id in table.split]
        known = self.planner.history.peaks.known(names, now_ms)
        if known.is_news(kept):
            await self._parts.records.keep_peaks(known, self._parts.key.conditions)

    async def _forget(self) -> None:
        """Remove the records of changes that count for nothing any more."""
        if self._table is not None:
            gone = clean(self._table, self._parts.now_ms()).gone
            ids = {change_id_of(each.change) for each in gone}
            old = [each for each in self._seen.made if change_id_of(each.change) in ids]
            await self._parts.records.forget(old, self._parts.key.conditions)

    # -- sources of the planner --------------------------------------------------------------------

    async def _read_fleet(self) -> Fleet | Unavailable:
        return self._table or Unavailable("the records were not read")

    async def _read_loads(self) -> list[HostLoad] | Unavailable:
        return list(self._seen.loads)

    async def _apply(self, change: Change, conditions: Mapping[str, int]) -> Outcome | NotNow:
        """As `Sources.apply`. A pause that comes first ends it, too."""
        known = {**conditions, "mode": self._seen.mode_revision}
        try:
            await self._parts.steps.make(change, BY_ITSELF, known)
        except StepRefused as refusal:
            self._log.warning("change_refused_late", change=change_id_of(change), why=str(refusal))
            return Conflict(0)
        except UnsupportedOperation as error:
            return NotNow(error.message.rstrip("."))
        except QueueError as error:
            return Unavailable(error.message)
        return Done(0)

    # -- operators ---------------------------------------------------------------------------------

    @property
    def shown(self) -> ShownPlan:
        """The last plan of this host, if it has the key."""
        return self.planner.shown

    async def read(self) -> Seen:
        """The records of now. Raises StepRefused."""
        found = await self._parts.records.read()
        if isinstance(found, Unavailable):
            raise StepRefused(f"etcd cannot be read: {found.reason}")
        return found

    async def records_or_none(self) -> Seen | None:
        """The records of now, None if etcd does not answer."""
        found = await self._parts.records.read()
        return None if isinstance(found, Unavailable) else found

    async def apply(self, change: Change, by: str, seen: Seen) -> MadeChange:
        """Make one change of a plan for an operator. Raises StepRefused, QueueError."""
        if seen.mode is Mode.PAUSED:
            raise StepRefused("the manager is paused: `fleet resume` first")
        return await self._make(change, by, seen)

    async def undo(self, change_id: str, by: str, seen: Seen) -> MadeChange:
        """Undo a change by another one; the last one if no id is given. Raises StepRefused,
        QueueError."""
        known = [each for each in seen.made if change_id in ("", each.change_id)]
        if not known:
            raise StepRefused(
                f"there is no change {change_id} within the last hour"
                if change_id
                else "no change was made within the last hour"
            )
        queue = self._parts.steps.queue_of(known[-1].change)
        return await self._make(undoing(known[-1], queue), by, seen)

    async def _make(self, change: Change, by: str, seen: Seen) -> MadeChange:
        made = await self._parts.steps.make(change, by, {"mode": seen.mode_revision})
        self._log.info("change_made", change=made.change_id, by=by, reason=str(change.reason))
        return made

    async def set_mode(self, mode: Mode | None) -> None:
        """Change the mode, in force with the next transaction; None ends a pause. Raises
        StepRefused."""
        seen = await self.read()
        mode = mode or seen.unpaused
        outcome = await self._parts.records.set_mode(mode, seen)
        if not isinstance(outcome, Done):
            raise StepRefused("etcd did not take the change in time: look at the plan")
        self._log.info("manager_mode", mode=mode.value)
