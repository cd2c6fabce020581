"""Answers about the manager: clusters with their loads, the plan with its reasons and refusals, and
its steps: make one, undo one, pause.

The host that plans has the plan in memory; another one asks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from cluster.catalog.queue_view import QueueView
from cluster.fleet.fleet_status import FleetStatus
from cluster.fleet.plan_records import MadeChange, Mode, Seen, change_id_of
from cluster.fleet.plan_table import Change
from cluster.fleet.planner import Noted, ShownPlan
from cluster.fleet.planning import Planning
from cluster.fleet.reasons import Reason
from cluster.fleet.steps import StepRefused, not_available
from cluster.peers.questions import Question, Questions, Said
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import CHANGE_FLEET, READ_FLEET, Refused, Route

_ACTION = "holdfast:ShowPlan"
_WAIT_S = 3.0
_LINES = 200
"""Lines of each list in an answer."""
_decode = msgspec.json.Decoder(ShownPlan).decode


class ShownReason(msgspec.Struct):
    """A reason: its name, a sentence, and its figures."""

    why: str
    text: str
    figures: dict[str, str | int | float]


class ShownQueue(msgspec.Struct):
    """The queue of a change; the name is empty if it is gone."""

    id: str
    name: str
    account: str


class ShownChange(msgspec.Struct):
    """A change of the plan. `opens` are shards of new parts, `drains` numbers of parts;
    `unavailable` is the reason why this release cannot make it, empty if it can."""

    id: str
    kind: str
    queue: ShownQueue
    opens: list[int]
    drains: list[int]
    reason: ShownReason
    unavailable: str


class ShownMade(msgspec.Struct):
    """A change that was made within the last hour, or of which parts still drain."""

    id: str
    kind: str
    queue: ShownQueue
    at_ms: int
    by: str
    opens: list[int]
    drains: list[int]
    reason: ShownReason


class ShownNote(msgspec.Struct):
    """A decision of the past. `what` is `shadow`, `paused`, `done`, `refused`, `warned` or another
    outcome; `wanted` is the kind of change, empty for a warning."""

    at_ms: int
    what: str
    wanted: str
    of: str
    reason: ShownReason


class LoadOfCluster(msgspec.Struct):
    """A cluster with its load, as a share of what it can carry; null while it is not known."""

    number: int
    name: str
    load: float | None
    hosts: list[str]
    away: list[str]
    shards: list[LoadOfShard]


class LoadOfShard(msgspec.Struct):
    """A shard, the share of a loop that is asked of it, and its queues and parts."""

    shard: int
    leader: str | None
    asked: float | None
    queues: int


class ShownPlanning(msgspec.Struct):
    """The manager: its mode, the host that plans, and its plan of `at_ms`; null before the first
    plan, and while that host does not answer. The end of a pause brings back the mode `unpaused`.
    Lists have at most 200 lines, the newest."""

    mode: str
    unpaused: str
    holder: str
    at_ms: int | None
    clusters: list[LoadOfCluster]
    changes: list[ShownChange]
    refusals: list[ShownNote]
    warnings: list[ShownNote]
    made: list[ShownMade]
    history: list[ShownNote]


class AskedChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change, by its id."""

    id: str


class AskedUndo(msgspec.Struct, forbid_unknown_fields=True):
    """A change that was made, by its id; the last one without."""

    id: str = ""


class AskedMode(msgspec.Struct, forbid_unknown_fields=True):
    """The mode that the manager gets; null ends a pause, and brings back the mode before it."""

    mode: Mode | None


class PlanPages(NamedTuple):
    """The part that answers; a single host and a gateway have none."""

    manager: Planning
    questions: Questions
    queues: QueueView
    status: Callable[[], FleetStatus]

    def serve(self) -> None:
        """Answer other hosts from now on."""
        self.questions.serve(_ACTION, self._answer)

    async def _answer(self, question: Question) -> Said:
        return Said(200, msgspec.json.encode(self.manager.shown))

    async def plan_of(self, seen: Seen) -> ShownPlan:
        """The plan of the host that has the key; one without a plan if that does not answer, or has
        a release whose answer this one cannot read."""
        holder = seen.holder.host if seen.holder is not None else ""
        if holder == self.questions.host:
            return self.manager.shown
        nothing = ShownPlan(seen.mode, holder)
        if not holder:
            return nothing
        said = await self.questions.ask(holder, Question(_ACTION, b"", b""), _WAIT_S)
        if said is None or said.status != 200:
            return nothing
        try:
            return _decode(said.body)
        except msgspec.MsgspecError:
            return nothing


def _of_fleet(pages: PlanPages | None) -> PlanPages:
    if pages is None:
        raise Refused(404, "Only the hosts of a fleet have a manager: ask one of them.")
    if not pages.manager.is_needed:
        raise Refused(
            409, "A fleet of one cluster needs no manager: see `fleet split` and `fleet shrink`."
        )
    return pages


async def _seen(pages: PlanPages) -> Seen:
    try:
        return await pages.manager.read()
    except StepRefused as refusal:
        raise Refused(503, str(refusal)) from refusal


async def show_plan(pages: PlanPages | None, asked: Asked) -> ShownPlanning:
    """Show clusters and their loads, and what the manager would do, did, and refused, and why."""
    found = _of_fleet(pages)
    seen = await _seen(found)
    return _shown(found, seen, await found.plan_of(seen))


async def apply_change(pages: PlanPages | None, asked: Asked, given: AskedChange) -> ShownMade:
    """Make one change of the plan now."""
    found = _of_fleet(pages)
    seen = await _seen(found)
    shown = await found.plan_of(seen)
    changes = shown.plan.changes if shown.plan is not None else ()
    change = next((each for each in changes if change_id_of(each) == given.id), None)
    if change is None:
        raise Refused(409, f"The plan has no change {given.id} now: look at the plan again.")
    return await _made(found, asked, lambda: found.manager.apply(change, asked.caller.arn, seen))


async def undo_change(pages: PlanPages | None, asked: Asked, given: AskedUndo) -> ShownMade:
    """Undo a change of the last hour by another one; what closed is never opened again."""
    found = _of_fleet(pages)
    seen = await _seen(found)
    return await _made(found, asked, lambda: found.manager.undo(given.id, asked.caller.arn, seen))


async def set_manager_mode(
    pages: PlanPages | None, asked: Asked, given: AskedMode
) -> ShownPlanning:
    """Let the manager make its changes (`on`), only say them (`shadow`), pause it, or end that."""
    found = _of_fleet(pages)
    asked.noted["mode"] = given.mode.value if given.mode is not None else None
    try:
        await found.manager.set_mode(given.mode)
    except StepRefused as refusal:
        raise Refused(503, str(refusal)) from refusal
    seen = await _seen(found)
    asked.noted["mode"] = seen.mode.value
    return _shown(found, seen, await found.plan_of(seen))


async def _made(
    pages: PlanPages, asked: Asked, make: Callable[[], Awaitable[MadeChange]]
) -> ShownMade:
    try:
        made = await make()
    except StepRefused as refusal:
        raise Refused(409, f"Not done: {refusal}.") from refusal
    shown = _shown_made(pages.queues, made)
    asked.noted |= {"change": made.change_id, "kind": shown.kind, "of": shown.queue.name}
    return shown


# -- what is shown -----------------------------------------------------------------------------


def _shown(pages: PlanPages, seen: Seen, shown: ShownPlan) -> ShownPlanning:
    queues, plan = pages.queues, shown.plan
    at_ms = plan.at_ms if plan is not None else 0
    changes = plan.changes if plan is not None else ()
    refusals = plan.refusals if plan is not None else ()
    warnings = plan.warnings if plan is not None else ()
    return ShownPlanning(
        mode=seen.mode.value,
        unpaused=seen.unpaused.value,
        holder=shown.holder,
        at_ms=plan.at_ms if plan is not None else None,
        clusters=_clusters(pages, seen, shown),
        changes=[_shown_change(queues, each) for each in changes if _is_current(queues, each)][
            :_LINES
        ],
        refusals=[
            _shown_note(queues, Noted(at_ms, "refused", each.wanted, each.of, each.reason))
            for each in refusals[:_LINES]
        ],
        warnings=[
            _shown_note(queues, Noted(at_ms, "warned", "", each.of, each.reason))
            for each in warnings[:_LINES]
        ],
        made=[_shown_made(queues, each) for each in seen.made[-_LINES:]],
        history=[_shown_note(queues, each) for each in shown.history[-_LINES:]],
    )


def _is_current(queues: QueueView, change: Change) -> bool:
    """False for a change whose queue is not as it was when the plan was made."""
    found = queues.queue_of_id(int(change.queue)) if change.queue else None
    return not change.queue or (found is not None and found.version == change.version)


def _clusters(pages: PlanPages, seen: Seen, shown: ShownPlan) -> list[LoadOfCluster]:
    asked = {shard.shard: shard.asked for host in seen.loads for shard in host.shards}
    in_queues = pages.queues.queues_of_shard
    return [
        LoadOfCluster(
            each.number,
            each.name,
            shown.loads.get(str(each.number)),
            [host.name for host in each.hosts],
            [host.name for host in each.hosts if not host.is_alive],
            [
                LoadOfShard(one.shard, one.leader, asked.get(one.shard), in_queues[one.shard])
                for one in each.shards
            ],
        )
        for each in pages.status().clusters
    ]


def _queue(queues: QueueView, queue_id: str, account: str = "") -> ShownQueue:
    found = queues.queue_of_id(int(queue_id)) if queue_id.isdecimal() else None
    if found is None:
        return ShownQueue(queue_id, "", account)
    return ShownQueue(queue_id, found.name, found.account)


def _shown_change(queues: QueueView, change: Change) -> ShownChange:
    found = queues.queue_of_id(int(change.queue)) if change.queue else None
    return ShownChange(
        change_id_of(change),
        change.kind.value,
        _queue(queues, change.queue, change.account),
        list(change.opens),
        list(change.drains),
        _reason(change.reason),
        not_available(queues, change, found),
    )


def _shown_made(queues: QueueView, made: MadeChange) -> ShownMade:
    change = made.change
    return ShownMade(
        made.change_id,
        change.kind.value,
        _queue(queues, change.queue, change.account),
        made.at_ms,
        made.by,
        list(change.opens),
        list(change.drains),
        _reason(change.reason),
    )


def _shown_note(queues: QueueView, noted: Noted) -> ShownNote:
    of = _queue(queues, noted.of).name or noted.of
    return ShownNote(noted.at_ms, noted.what, noted.wanted, of, _reason(noted.reason))


def _reason(reason: Reason) -> ShownReason:
    return ShownReason(reason.why.value, str(reason), reason.figures)


ROUTES = (
    Route("GET", "api/fleet/plan", READ_FLEET, show_plan, "fleet plan"),
    Route("POST", "api/fleet/plan/apply", CHANGE_FLEET, apply_change, "fleet apply"),
    Route("POST", "api/fleet/plan/undo", CHANGE_FLEET, undo_change, "fleet undo"),
    Route("POST", "api/fleet/plan/mode", CHANGE_FLEET, set_manager_mode, "fleet pause"),
)
