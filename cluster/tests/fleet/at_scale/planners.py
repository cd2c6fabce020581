"""PlannerModel: a process that plans while it holds the key, or believes so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import HostLoad
from cluster.fleet.plan import Plan, plan
from cluster.fleet.plan_table import Change
from cluster.fleet.thresholds import DEAF_WINDOWS
from cluster.tests.fleet.made_fleet_records import FleetRecords

_PEAKS_MS = 60_000

Apply = Callable[[Change, str, int], None]
"""Makes a change, for the planner of this name and term."""


@dataclass(frozen=True)
class Bugs:
    """Planted faults of planner and records; none is there by default."""

    writes_unchecked: bool = False
    """A change is written whatever the version of its queue is by now."""
    two_planners: bool = False
    """The key of the planner is no condition of a change."""
    cleans_by_age: bool = False
    """Records of changes are dropped after a minute, whatever still refers to them."""
    reports_served: bool = False
    """A slow shard reports what it served instead of what was asked of it."""


class PlannerModel:
    """One process. It may be stopped between its plan and the changes of it."""

    def __init__(
        self, name: str, records: FleetRecords, kept_ms: int, *, always_hears: bool
    ) -> None:
        """`kept_ms`: the time for which peaks count; `always_hears`: without the key, too."""
        self.name = name
        self._records = records
        self._always_hears = always_hears
        self._history = LoadHistory(kept_ms=kept_ms)
        self.heard_ms: dict[str, int] = {}
        """The newest report of each host that it has, for the judge."""
        self._parts_before = 0
        self._pending: list[tuple[Change, int]] = []
        self.term = -1
        self.stopped_until_ms = 0
        self.stops_amid_ms = 0
        """It stops for so long with its next plan in hand."""

    def take(self) -> None:
        """Take the key, from whoever has it."""
        self._records.term += 1
        self.term = self._records.term
        self._history.deaf = 0
        if self._records.peaks is not None:
            self._history.peaks.learn(self._records.peaks)

    def observe(self, reports: Sequence[HostLoad], now_ms: int) -> None:
        """The reports that arrived; a process that is stopped, or without the key, reads none."""
        if now_ms < self.stopped_until_ms or not (self._has_key or self._always_hears):
            return
        self.heard_ms |= {report.host: report.at_ms for report in reports}
        self._history.observe(self._records.clusters, reports, now_ms)
        if self._has_key and now_ms % _PEAKS_MS == 0:
            self._records.peaks = self._history.peaks.known(self._records.split, now_ms)

    @property
    def _has_key(self) -> bool:
        return self._records.term == self.term

    @property
    def gives_up(self) -> bool:
        """True if it has the key, and lets another one take it since it hears too few hosts."""
        return self._has_key and self._history.deaf >= DEAF_WINDOWS

    def tick(self, now_ms: int, bugs: Bugs, apply: Apply) -> Plan | None:
        """Plan and make the changes, first those that it had in hand when it was stopped."""
        if now_ms < self.stopped_until_ms:
            return None
        for change, term in self._pending:
            apply(change, self.name, term)
        self._pending = []
        if not (self._has_key or bugs.two_planners):
            return None
        fleet = self._records.fleet()
        made = plan(fleet, self._history, now_ms, self._parts_before)
        if not any(refusal.of == "fleet" for refusal in made.refusals):
            self._parts_before = fleet.parts
        if self.stops_amid_ms and made.changes:
            self._pending = [(change, self.term) for change in made.changes]
            self.stopped_until_ms = now_ms + self.stops_amid_ms
            self.stops_amid_ms = 0
            return None
        for change in made.changes:
            apply(change, self.name, self.term)
        return made
