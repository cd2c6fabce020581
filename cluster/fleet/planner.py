"""Planner: what operators call the manager. It makes a plan each ten seconds while it has the key.

In shadow mode, the default, it says what it would do and does nothing. Nobody waits for it:
requests, creates of queues and failovers go on without it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
import structlog

from cluster.coordination.coordination import Done, Outcome, Unavailable
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import REPORT_MS, HostLoad
from cluster.fleet.plan import Plan, plan
from cluster.fleet.plan_records import Mode
from cluster.fleet.plan_table import Change, Fleet
from cluster.fleet.planner_key import PlannerKey
from cluster.fleet.reasons import Reason, Why
from cluster.fleet.thresholds import DEAF_WINDOWS

_SAID_MS = 3_600_000
"""The same decision is a line again after this time."""
_LASTING_MS = 24 * _SAID_MS
_LASTING = {Why.BUSY_LATELY, Why.PEAKS_UNKNOWN}
"""Refusals for days are lines once a day: each idle queue with several parts has one, and they
would push all others out of what is kept."""
_SAID_MAX = 10_000
_HISTORY = 500
"""Decisions that are kept."""


class NotNow(NamedTuple):
    """The queue does not allow the change at the moment; that says nothing of others."""

    means: str


class Sources(NamedTuple):
    """The places that a planner reads, and its way to make a change."""

    read_fleet: Callable[[], Awaitable[Fleet | Unavailable]]
    read_loads: Callable[[], Awaitable[list[HostLoad] | Unavailable]]
    apply: Callable[[Change, Mapping[str, int]], Awaitable[Outcome | NotNow]]
    """Makes one change by one transaction on the queue's record, on condition of the version that
    the change names and of these revisions."""
    not_available: Callable[[Change], str] = lambda change: ""
    """The reason why a change cannot be made by this release; empty if it can."""


class Noted(msgspec.Struct, frozen=True):
    """A decision or a refusal, kept with its reason."""

    at_ms: int
    what: str
    """`refused` or `warned`; of a change the mode in which it was only said, or its outcome."""
    wanted: str
    """The kind of change, `plan` for all of them; empty for a warning."""
    of: str
    """The id of the queue, or a cluster, an account or `fleet`."""
    reason: Reason


class ShownPlan(msgspec.Struct, frozen=True):
    """The last plan, for `holdfast fleet plan`."""

    mode: Mode
    holder: str
    """The host that plans; empty if none is known."""
    plan: Plan | None = None
    """None on hosts that do not plan, and before the first plan."""
    loads: dict[str, float] = {}
    """Load of each cluster that the plan was made from."""
    history: tuple[Noted, ...] = ()
    """The last decisions and refusals, the newest last. What stays so is one of them an hour."""


class Planner:
    """`tick` is due with each report of a load."""

    def __init__(
        self,
        key: PlannerKey,
        sources: Sources,
        now_ms: Callable[[], int],
        mode: Mode = Mode.SHADOW,
        window_ms: int = REPORT_MS,
    ) -> None:
        """`window_ms`: the interval of reports."""
        self.mode = mode
        self.decided: Counter[tuple[str, str, str]] = Counter()
        """Changes by kind, reason and outcome; `shadow` for those that were only said."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Refusals by wanted change and reason."""
        self.gave_up = 0
        """Times that it gave the key up, since it heard too few hosts."""
        self._key = key
        self._sources = sources
        self._now_ms = now_ms
        self._history = LoadHistory(window_ms)
        self._parts_before = 0
        self._taken: dict[str, int] = {}
        """The taking of the key under which it counts windows."""
        self._last: Plan | None = None
        self._said: dict[tuple[str, ...], int] = {}
        """The time from which on each may be said again."""
        self._noted: deque[Noted] = deque(maxlen=_HISTORY)
        self._log = structlog.get_logger("manager")

    @property
    def history(self) -> LoadHistory:
        """The loads that plans are made from."""
        return self._history

    @property
    def shown(self) -> ShownPlan:
        """The last plan and what it was made from."""
        holder = self._key.holder
        loads = {name: each.load for name, each in self._history.utilisation.items()}
        name = holder.host if holder else ""
        return ShownPlan(self.mode, name, self._last, loads, tuple(self._noted))

    async def tick(self) -> None:
        """Make a plan, and its changes unless the mode forbids it. A change that its queue does not
        allow now is left out. Every other outcome but success ends the plan: the next one begins
        with what is there then."""
        if not await self._key.hold():
            self._last = None
            return
        fleet, loads = await self._sources.read_fleet(), await self._sources.read_loads()
        if isinstance(fleet, Unavailable) or isinstance(loads, Unavailable):
            await self.hear_nothing()
            return
        self._count_anew()
        now_ms = self._now_ms()
        self._history.observe(fleet.clusters, loads, now_ms, fleet.name_of)
        if self._history.deaf >= DEAF_WINDOWS:
            await self._give_up()
            return
        made = plan(fleet, self._history, now_ms, self._parts_before)
        if not any(refusal.wanted == "plan" for refusal in made.refusals):
            self._parts_before = fleet.parts
        self._last = made
        self._say(made)
        if self.mode is Mode.ON:
            await self._make(made)

    async def hear_nothing(self) -> None:
        """A window in which the records could not be read: there is no plan, and after some of them
        another process may fare better."""
        self._last = None
        self._count_anew()
        self._history.deaf += 1
        if self._history.deaf >= DEAF_WINDOWS:
            await self._give_up()

    def _count_anew(self) -> None:
        """Windows before the last taking of the key are not in a row with those since."""
        if self._taken != self._key.conditions:
            self._taken = self._key.conditions
            self._history.deaf = 0

    async def _give_up(self) -> None:
        self._last = None
        self._log.warning("manager_gave_up", windows=self._history.deaf)
        self._history.deaf = 0
        self.gave_up += 1
        await self._key.give_up()

    async def _make(self, made: Plan) -> None:
        conditions = self._key.conditions
        for change in made.changes:
            if missing := self._sources.not_available(change):
                self._leave_out(change, made.at_ms, missing)
                continue
            outcome = await self._sources.apply(change, conditions)
            if isinstance(outcome, NotNow):
                self._leave_out(change, made.at_ms, outcome.means)
                continue
            name = type(outcome).__name__.lower()
            self._note(name, change, made.at_ms)
            line = {"outcome": name, **_fields(change)}
            if not isinstance(outcome, Done):
                self._log.warning("change_not_made", **line)
                return
            self._log.info("change_made", **line)

    def _leave_out(self, change: Change, at_ms: int, means: str) -> None:
        if self._is_news(_key_of(change), at_ms):
            self._note("not-available", change, at_ms)
            self._log.info("change_not_available", means=means, **_fields(change))

    def _say(self, made: Plan) -> None:
        """Log what is new in a plan, and count it. In shadow mode nothing is done, so each plan has
        the same changes again."""
        for change in made.changes:
            if self.mode is not Mode.ON and self._is_news(_key_of(change), made.at_ms):
                self._note(self.mode.value, change, made.at_ms)
                self._log.info("change_planned", mode=self.mode.value, **_fields(change))
        for refusal in made.refusals:
            why = refusal.reason.why.value
            again_ms = _LASTING_MS if refusal.reason.why in _LASTING else _SAID_MS
            if self._is_news(("refusal", refusal.wanted, refusal.of, why), made.at_ms, again_ms):
                self.refused[refusal.wanted, why] += 1
                noted = Noted(made.at_ms, "refused", refusal.wanted, refusal.of, refusal.reason)
                self._noted.append(noted)
                line = _said(refusal.reason)
                self._log.info("change_refused", wanted=refusal.wanted, of=refusal.of, **line)
        for warned in made.warnings:
            if self._is_news(("warning", warned.of, warned.reason.why.value), made.at_ms):
                self._noted.append(Noted(made.at_ms, "warned", "", warned.of, warned.reason))
                self._log.warning("manager_warns", of=warned.of, **_said(warned.reason))

    def _note(self, outcome: str, change: Change, at_ms: int) -> None:
        """Count and keep what became of a change; of one that was only said, the mode."""
        kind, of = change.kind.value, change.queue or change.account
        self.decided[kind, change.reason.why.value, outcome] += 1
        self._noted.append(Noted(at_ms, outcome, kind, of, change.reason))

    def _is_news(self, key: tuple[str, ...], now_ms: int, again_ms: int = _SAID_MS) -> bool:
        if now_ms < self._said.get(key, 0):
            return False
        if len(self._said) >= _SAID_MAX:
            self._said = {k: until for k, until in self._said.items() if now_ms < until}
            if len(self._said) >= _SAID_MAX:
                self._said.clear()
        self._said[key] = now_ms + again_ms
        return True


def _key_of(change: Change) -> tuple[str, ...]:
    return ("change", change.kind.value, change.queue, change.account)


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
