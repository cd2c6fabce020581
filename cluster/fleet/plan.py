"""The plan: from records, loads and the clock to changes, each with its reason. Pure.

Priorities: what an operator empties, then what is overloaded, then hot queues, then balance, which
begins with warm queues, then idle queues. All share the same budgets, so a fleet is never turned
upside down at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from cluster.fleet.draft import BUDGET_LEAST, Draft
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.moves import balance, empty_clusters, relieve
from cluster.fleet.plan_table import Applied, Change, Fleet, PartState
from cluster.fleet.reasons import Reason, Refusal, Warned, Why, reason
from cluster.fleet.shrink import shrink
from cluster.fleet.split import split, split_warm
from cluster.fleet.thresholds import STOP_AT, UNDO_MS

ILL_SHARE = 0.10
"""With more of its clusters ill at once, a fleet is left as it is: more likely the planner is cut
off. One ill cluster does not stop it."""
LOST_SHARE = 0.10
"""No plan takes away more of all parts, and none is made if more of them are gone from the
records."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to make now, and those not to make, with their reasons."""

    at_ms: int
    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[Warned, ...] = ()


def plan(fleet: Fleet, history: LoadHistory, now_ms: int, parts_before: int = 0) -> Plan:
    """The changes to make now. Each is valid for the version of its queue in `fleet` only.

    `parts_before` is the number of parts at the last plan, 0 for the first one.
    """
    draft = Draft(fleet, history, now_ms)
    draft.warn_of_silence()
    draft.warn_of_zones()
    stopped = _stopped(fleet, history, parts_before)
    if stopped is not None:
        return _refused(draft, stopped)
    for rule in (empty_clusters, relieve, split, split_warm, balance, shrink):
        rule(draft)
    _warn_of_capacity(draft)
    made = Plan(
        at_ms=now_ms,
        changes=tuple(draft.changes),
        refusals=tuple(draft.refusals),
        warnings=tuple(draft.warnings),
    )
    harm = harm_of(fleet, made.changes)
    return made if harm is None else _refused(draft, harm)


def _refused(draft: Draft, why: Reason) -> Plan:
    refusal = Refusal("plan", "fleet", why)
    return Plan(at_ms=draft.now_ms, refusals=(refusal,), warnings=tuple(draft.warnings))


def _stopped(fleet: Fleet, history: LoadHistory, parts_before: int) -> Reason | None:
    """The reason for planning nothing at all, None without one."""
    ill, clusters = len(history.ill), len(fleet.clusters)
    if ill > max(1, ILL_SHARE * clusters):
        return reason(Why.MANY_ILL, ill=ill, clusters=clusters)
    lost = parts_before - fleet.parts
    if lost > max(BUDGET_LEAST, LOST_SHARE * parts_before) or (parts_before and not fleet.parts):
        return reason(Why.RECORDS_LOST, parts=fleet.parts, before=parts_before)
    return None


def harm_of(fleet: Fleet, changes: Iterable[Change]) -> Reason | None:
    """The reason against these changes whoever decided them, None without one.

    Checked once more behind all rules: a plan that takes away too much would be the worst of
    faults, and the one that automation repairs least.
    """
    drains = 0
    for change in changes:
        drains += len(change.drains)
        queue = fleet.queues.get(change.queue)
        stays = queue is not None and any(
            part.number not in change.drains for part in queue.open_parts
        )
        if not (stays or change.opens):
            return reason(Why.TOO_FEW)
    if drains > max(BUDGET_LEAST, LOST_SHARE * fleet.parts):
        return reason(Why.TAKES_TOO_MUCH, drains=drains, parts=fleet.parts)
    return None


def _warn_of_capacity(draft: Draft) -> None:
    history = draft.history
    able = [
        name
        for name, cluster in draft.fleet.clusters.items()
        if not cluster.is_draining
        and name not in history.silent_since_ms
        and name in history.utilisation
    ]
    room = sum(max(0.0, STOP_AT - draft.counted.load(name)) for name in able)
    wanted = STOP_AT + history.growth(draft.now_ms)
    if able and room < wanted:
        figures = {"room": room / STOP_AT, "wanted": wanted / STOP_AT}
        draft.warn("fleet", reason(Why.CAPACITY, **figures))


class Cleaned(NamedTuple):
    """The changes that are kept, and those whose records may go."""

    kept: tuple[Applied, ...]
    gone: tuple[Applied, ...]


def clean(fleet: Fleet, now_ms: int) -> Cleaned:
    """Sort the records of changes: one goes after an hour, but never while a part still drains
    because of it, or an older one of its queue stays: it may say which id the queue has now."""
    kept: list[Applied] = []
    gone: list[Applied] = []
    queues: set[str] = set()
    for applied in fleet.changes:
        change = applied.change
        is_kept = now_ms - applied.at_ms < UNDO_MS or _is_under_way(fleet, change)
        if is_kept or change.queue in queues:
            kept.append(applied)
            queues.add(change.queue)
        else:
            gone.append(applied)
    return Cleaned(tuple(kept), tuple(gone))


def _is_under_way(fleet: Fleet, change: Change) -> bool:
    queue = fleet.queues.get(change.queue)
    parts = [queue.part(number) for number in change.drains] if queue is not None else []
    return any(part is not None and part.state is PartState.DRAINING for part in parts)
