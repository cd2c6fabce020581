"""Answers about redrives: plan, start, list. `redrive_controls.py` has the rest.

A redrive is a message move task, so those that `aws sqs start-message-move-task` began are listed
and controlled here, and the reverse.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.filter_fields import GivenFilter, check_reading, shown_filter
from sqs_api.operators.shown_redrives import ShownRedrive, Undone, shown_redrive
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_RATE
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter, MoveTask, Pace
from visibility.contract.operations import Operation, StartMessageMoveTask
from visibility.contract.outcomes import MovePlan, MoveTasks, Planned
from visibility.contract.results import StartMessageMoveTaskResult
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import READ_MAX, MoveSelected, ReadMoveTasks, check_start

_PLAN_STEPS_MAX = 20
"""Steps of one request: 20,000 messages."""
_LISTED = 25
_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Rate = Annotated[int, Meta(ge=MOVE_RATE.low, le=MOVE_RATE.high)]
_Seconds = Annotated[int, Meta(ge=0, le=86_400)]


class GivenRedrive(msgspec.Struct, forbid_unknown_fields=True):
    """A redrive as an operator asks for it, or for its plan."""

    sequences: Annotated[
        list[int] | None, Meta(description="The selected messages, else all or those that match.")
    ] = None
    filter: GivenFilter | None = None
    destination: Annotated[
        str | None, Meta(description="Name of a queue; by default each message's own source.")
    ] = None
    rate: Annotated[_Rate | None, Meta(description="Messages a second.")] = None
    ramp_s: _Seconds = 0
    canary: _Count = 0
    stop_after: _Count = 0
    reason: str = ""
    from_sequence: Annotated[int, Meta(description="Of a plan: `next` of the last answer.")] = 0
    planned: Annotated[
        _Count,
        Meta(
            description="Of a plan: messages that earlier answers planned. Of a start: all that "
            "the plan counted, by which the progress is shown."
        ),
    ] = 0

    @property
    def pace(self) -> Pace:
        """The limits beyond the rate."""
        return Pace(self.ramp_s, self.canary, self.stop_after)


class _Ends(NamedTuple):
    """The queues of a redrive and its filter; `targets` are the sources to which the caller may
    send, None for all."""

    source: QueueDefinition
    destination: QueueDefinition | None
    targets: tuple[str, ...] | None
    filter: MessageFilter | None


class PlannedTarget(TypedDict):
    """Share of one target. `returns_after`: receives after which a message that fails there is
    back; null if it never is, since the redrive policy names another queue or is not allowed."""

    messages: int
    bytes: int
    too_large: int
    returns_after: int | None


class RedrivePlan(TypedDict):
    """Effects of a redrive: targets by ARN, and messages that would stay by the code of the reason.
    `next` is `from_sequence` of the next step."""

    targets: dict[str, PlannedTarget]
    refused: dict[str, int]
    passed: int
    expiring: int
    overtaking: int
    next: int | None


class BegunRedrive(TypedDict):
    """The handle of a redrive."""

    handle: str | None


async def plan_redrive(desk: Desk, asked: Asked, wanted: GivenRedrive) -> RedrivePlan:
    """Messages and bytes by target, and those that would stay with the reason; `next` goes on."""
    ends = _ends(desk, asked, wanted)
    targets: dict[str, Planned] = {}
    refused: dict[str, int] = {}
    counts = dict.fromkeys(("passed", "expiring", "overtaking"), 0)
    at: int | None = wanted.from_sequence
    planned, groups = wanted.planned, list[bytes]()
    for _ in range(_PLAN_STEPS_MAX):
        operation = PlanMove(
            wanted.sequences, at or 0, ends.filter, wanted.rate or 0, planned, groups
        )
        plan = await _ask(desk, asked, operation, ends)
        assert isinstance(plan, MovePlan)
        for arn, more in plan.targets.items():
            targets[arn] = _sum(targets.get(arn), more)
            planned += more.messages
        for reason, messages in plan.refused.items():
            refused[reason] = refused.get(reason, 0) + messages
        for name in counts:
            counts[name] += getattr(plan, name)
        at, groups = plan.next_sequence, plan.groups
        if at is None:
            break
    shown = {arn: _shown_target(desk, ends.source, arn, each) for arn, each in targets.items()}
    return {
        "targets": shown,
        "refused": refused,
        "passed": counts["passed"],
        "expiring": counts["expiring"],
        "overtaking": counts["overtaking"],
        "next": at,
    }


def _sum(known: Planned | None, more: Planned) -> Planned:
    if known is None:
        return more
    return Planned(
        known.messages + more.messages, known.size + more.size, known.too_large + more.too_large
    )


def _shown_target(desk: Desk, source: QueueDefinition, arn: str, planned: Planned) -> PlannedTarget:
    target = desk.catalog.queue_of_arn(arn)
    policy = None if target is None else target.settings.redrive_policy
    back = None if target is None else desk.catalog.dead_letter_queue(target)
    returns = policy is not None and back is not None and back.queue_id == source.queue_id
    return {
        "messages": planned.messages,
        "bytes": planned.size,
        "too_large": planned.too_large,
        "returns_after": policy.max_receive_count if policy and returns else None,
    }


async def start_redrive(desk: Desk, asked: Asked, wanted: GivenRedrive) -> BegunRedrive:
    """Begin to move all messages, the selected ones, or those that match."""
    ends = _ends(desk, asked, wanted)
    operation = MoveSelected(
        wanted.sequences,
        wanted.rate or 0,
        ends.filter,
        wanted.pace,
        wanted.reason,
        planned=wanted.planned,
    )
    answer = await _ask(desk, asked, operation, ends)
    assert isinstance(answer, StartMessageMoveTaskResult)
    return {"handle": answer.task_handle}


def _ends(desk: Desk, asked: Asked, wanted: GivenRedrive) -> _Ends:
    """The queues of a redrive that the caller may do. Raises QueueError, AccessDenied."""
    source = asked.queue(asked.parts[0])
    destination = None if wanted.destination is None else asked.queue(wanted.destination)
    chosen = None if wanted.filter is None else wanted.filter.at(desk.now_ms)
    _note(asked, wanted, destination, chosen)
    if chosen is not None and wanted.sequences is not None:
        raise InvalidParameterValue("Give sequences or a filter, not both.")
    sources = desk.catalog.dead_letter_sources(source)
    refusal = check_start(source, destination, is_dead_letter_queue=bool(sources))
    if refusal is not None:
        raise refusal
    if chosen is not None:
        check_reading(asked, source, chosen, sources)
    destination_arn = None if destination is None else destination.arn
    operation = StartMessageMoveTask(source.arn, destination_arn, wanted.rate)
    ACTIONS["StartMessageMoveTask"].check(operation)
    if asked.is_trusted:
        return _Ends(source, destination, None, chosen)
    asked.access.check_move(operation, asked.caller, asked.sent, asked.sent.headers)
    # Only these were checked: meanwhile, a message's source may name another dead-letter queue.
    return _Ends(source, destination, tuple(queue.arn for queue in sources), chosen)


def _note(
    asked: Asked,
    wanted: GivenRedrive,
    destination: QueueDefinition | None,
    chosen: MessageFilter | None,
) -> None:
    """Note for the audit log what is asked for."""
    asked.noted |= {
        "messages": "all" if wanted.sequences is None else wanted.sequences,
        "destination": None if destination is None else destination.arn,
        "rate": wanted.rate,
    }
    if chosen is not None:
        asked.noted |= {"messages": "filtered", "filter": shown_filter(chosen)}
    if wanted.reason:
        asked.noted["reason"] = wanted.reason


async def _ask(desk: Desk, asked: Asked, operation: Operation, ends: _Ends) -> object:
    return await desk.ask(
        asked, operation, ends.source, destination=ends.destination, targets=ends.targets
    )


# -- the history -----------------------------------------------------------------------------------


class RedriveListing(msgspec.Struct):
    """A page of redrives."""

    limit: Annotated[int, Meta(ge=1, le=READ_MAX)] = _LISTED
    before: Annotated[int, Meta(ge=0, le=1 << 52, description="`next` of the page before.")] = 0


class RedrivePage(TypedDict):
    """Redrives, newest first."""

    redrives: list[ShownRedrive]
    next: int | None


async def list_redrives(desk: Desk, asked: Asked, listing: RedriveListing) -> RedrivePage:
    """A page of a queue's redrives, newest first; `next` is the number before which it goes on."""
    queue = asked.queue(asked.parts[0])
    tasks = await tasks_of(desk, asked, queue, listing.before, listing.limit)
    undone = await _undone(desk, asked, [task for task in tasks if task.undone_at_ms])
    more = len(tasks) == listing.limit and tasks[-1].number > 1
    return {
        "redrives": [shown_redrive(task, undone.get(task.task_id)) for task in tasks],
        "next": tasks[-1].number if more else None,
    }


async def tasks_of(
    desk: Desk, asked: Asked, queue: QueueDefinition, before: int = 0, limit: int = READ_MAX
) -> list[MoveTask]:
    """The move tasks of a queue, newest first."""
    answer = await desk.ask(asked, ReadMoveTasks(before, limit), queue)
    assert isinstance(answer, MoveTasks)
    return answer.tasks


def targets_of(task: MoveTask) -> list[str]:
    """ARNs of the queues to which a task moved messages."""
    return task.sources if task.destination_arn is None else [task.destination_arn]


async def _undone(desk: Desk, asked: Asked, tasks: list[MoveTask]) -> dict[str, Undone]:
    """By the id of an undone task, what its undo has brought back."""
    found = {task.task_id: Undone(moved=0, is_running=False) for task in tasks}
    for arn in dict.fromkeys(arn for task in tasks for arn in targets_of(task)):
        target = desk.catalog.queue_of_arn(arn)
        for other in [] if target is None else await tasks_of(desk, asked, target):
            if other.undoes in found:
                sums = found[other.undoes]
                sums["moved"] += other.moved
                sums["is_running"] = sums["is_running"] or other.is_active
    return found
