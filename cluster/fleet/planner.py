"""Planner: what operators call the manager. It makes a plan each ten seconds while it has the key.

In shadow mode, the default, it says what it would do and does nothing. Nobody waits for it:
requests, creates of queues and failovers go on without it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
import structlog

from cluster.coordination.coordination import Done, Outcome, Unavailable
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import HostLoad
from cluster.fleet.plan import Plan, plan
from cluster.fleet.plan_table import Change, Fleet
from cluster.fleet.planner_key import PlannerKey
from cluster.fleet.reasons import Reason

_SAID_MS = 3_600_000
"""The same decision is a line again after this time."""
_SAID_MAX = 10_000


class Mode(enum.Enum):
    """The setting `manager`."""

    SHADOW = "shadow"
    ON = "on"
    PAUSED = "paused"


class Sources(NamedTuple):
    """The places that a planner reads, and its way to make a change."""

    read_fleet: Callable[[], Awaitable[Fleet | Unavailable]]
    read_loads: Callable[[], Awaitable[list[HostLoad] | Unavailable]]
    apply: Callable[[Change, Mapping[str, int]], Awaitable[Outcome]]
    """Makes one change by one transaction on the queue's record, on condition of the version that
    the change names and of these revisions."""


class ShownPlan(msgspec.Struct, frozen=True):
    """The last plan, for `holdfast fleet plan`."""

    mode: Mode
    holder: str
    """The host that plans; empty if none is known."""
    plan: Plan | None = None
    """None on hosts that do not plan, and before the first plan."""
    loads: dict[str, float] = {}
    """Load of each cluster that the plan was made from."""


class Planner:
    """Belongs to one event loop; `tick` is due each ten seconds."""

    def __init__(
        self, key: PlannerKey, sources: Sources, now_ms: Callable[[], int], mode: Mode = Mode.SHADOW
    ) -> None:
        self.mode = mode
        self.decided: Counter[tuple[str, str, str]] = Counter()
        """Changes by kind, reason and outcome; `shadow` for those that were only said."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Refusals by wanted change and reason."""
        self._key = key
        self._sources = sources
        self._now_ms = now_ms
        self._history = LoadHistory()
        self._parts_before = 0
        self._last: Plan | None = None
        self._said: dict[tuple[str, ...], int] = {}
        self._log = structlog.get_logger("manager")

    @property
    def shown(self) -> ShownPlan:
        """The last plan and what it was made from."""
        holder = self._key.holder
        loads = {name: each.load for name, each in self._history.utilisation.items()}
        return ShownPlan(self.mode, holder.host if holder else "", self._last, loads)

    async def tick(self) -> None:
        """Make a plan, and its changes unless the mode forbids it. Every outcome but success ends
        it: the next plan begins with what is there then."""
        if not await self._key.hold():
            self._last = None
            return
        fleet, loads = await self._sources.read_fleet(), await self._sources.read_loads()
        if isinstance(fleet, Unavailable) or isinstance(loads, Unavailable):
            self._last = None
            return
        now_ms = self._now_ms()
        self._history.observe(fleet.clusters, loads, now_ms)
        made = plan(fleet, self._history, now_ms, self._parts_before)
        if not any(refusal.wanted == "plan" for refusal in made.refusals):
            self._parts_before = fleet.parts
        self._last = made
        self._say(made)
        if self.mode is Mode.ON:
            await self._make(made)

    async def _make(self, made: Plan) -> None:
        conditions = self._key.conditions
        for change in made.changes:
            outcome = await self._sources.apply(change, conditions)
            name = type(outcome).__name__.lower()
            self._count(change, name)
            line = {"outcome": name, **_fields(change)}
            if not isinstance(outcome, Done):
                self._log.warning("change_not_made", **line)
                return
            self._log.info("change_made", **line)

    def _say(self, made: Plan) -> None:
        """Log what is new in a plan, and count it. In shadow mode nothing is done, so each plan has
        the same changes again."""
        for change in made.changes:
            key = ("change", change.kind.value, change.queue, change.account)
            if self.mode is not Mode.ON and self._is_news(key, made.at_ms):
                self._count(change, self.mode.value)
                self._log.info("change_planned", mode=self.mode.value, **_fields(change))
        for refusal in made.refusals:
            why = refusal.reason.why.value
            if self._is_news(("refusal", refusal.wanted, refusal.of, why), made.at_ms):
                self.refused[refusal.wanted, why] += 1
                line = _said(refusal.reason)
                self._log.info("change_refused", wanted=refusal.wanted, of=refusal.of, **line)
        for warned in made.warnings:
            if self._is_news(("warning", warned.of, warned.reason.why.value), made.at_ms):
                self._log.warning("manager_warns", of=warned.of, **_said(warned.reason))

    def _count(self, change: Change, outcome: str) -> None:
        self.decided[change.kind.value, change.reason.why.value, outcome] += 1

    def _is_news(self, key: tuple[str, ...], now_ms: int) -> bool:
        if now_ms - self._said.get(key, -_SAID_MS) < _SAID_MS:
            return False
        if len(self._said) >= _SAID_MAX:
            self._said = {k: at for k, at in self._said.items() if now_ms - at < _SAID_MS}
            if len(self._said) >= _SAID_MAX:
                self._said.clear()
        self._said[key] = now_ms
        return True


def _fields(change: Change) -> dict[str, object]:
    return {
        "kind": change.kind.value,
        "queue": change.queue,
        "account": change.account,
        "drains": list(change.drains),
        "opens": list(change.opens),
        **_said(change.reason),
    }


def _said(why: Reason) -> dict[str, object]:
    return {"why": why.why.value, "reason": str(why), "figures": why.figures}
