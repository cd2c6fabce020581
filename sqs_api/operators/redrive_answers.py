"""Answers about redrives: plan, start, list. `redrive_controls.py` has the rest.

A redrive is a message move task, so those that `aws sqs start-message-move-task` began are listed
and controlled here, and the reverse.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from cluster.parts.part_requests import by_sequences
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import GET_QUEUE, REDRIVE_MESSAGES, REDRIVES, Route
from sqs_api.http.http_limits import BODY_BYTES_MAX
from sqs_api.operators.edit_samples import EditedSample, edited_samples
from sqs_api.operators.filter_fields import (
    GivenFilter,
    check_bodies,
    check_reading,
    may_read,
    shown_filter,
)
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_redrives import ShownRedrive, Undone, shown_redrive
from visibility.content.edits import edit_of
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_RATE
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter, MoveTask, Pace
from visibility.contract.operations import StartMessageMoveTask
from visibility.contract.outcomes import MovePlan, MoveTasks, Planned
from visibility.contract.results import StartMessageMoveTaskResult
from visibility.rules.move_plans import GONE, SAMPLES_MAX, PlanMove
from visibility.rules.move_tasks import READ_MAX, MoveSelected, ReadMoveTasks, check_start
from visibility.rules.selected import selected

_PLAN_STEPS_MAX = 20
"""Steps of one request: 20,000 messages."""
_LISTED = 25
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Rate = Annotated[int, Meta(ge=MOVE_RATE.low, le=MOVE_RATE.high)]
_Seconds = Annotated[int, Meta(ge=0, le=86_400)]
_SUM_MAX = 1 << 52
_Number = Annotated[int, Meta(ge=0, le=_SUM_MAX)]


class GivenRedrive(msgspec.Struct, forbid_unknown_fields=True):
    """A redrive as an operator asks for it."""

    sequences: Annotated[
        list[int] | None, Meta(description="The selected messages, else all or those that match.")
    ] = None
    filter: GivenFilter | None = None
    destination: Annotated[
        str | None, Meta(description="Name of a queue; by default each message's own source.")
    ] = None
    rate: Annotated[_Rate | None, Meta(description="Messages a second.")] = None
    ramp_s: _Seconds = 0
    canary: Count = 0
    stop_after: Count = 0
    reason: str = ""
    edit: Annotated[
        dict[str, Any] | None,
        Meta(
            description="A JSON merge patch (RFC 7396) of the bodies that move; not with sequences."
        ),
    ] = None

    @property
    def pace(self) -> Pace:
        """The limits beyond the rate."""
        return Pace(self.ramp_s, self.canary, self.stop_after)


class PlannedRedrive(GivenRedrive, forbid_unknown_fields=True):
    """A redrive to plan."""

    token: Annotated[str | None, Meta(description="`next` of the answer before.")] = None


class StartedRedrive(GivenRedrive, forbid_unknown_fields=True):
    """A redrive to start."""

    planned: Annotated[
        Count, Meta(description="`messages` of its plan, by which the progress is shown.")
    ] = 0


class _Ends(NamedTuple):
    """The queues of a redrive, its filter and its edit; `targets` are the sources to which the
    caller may send, None for all."""

    source: QueueDefinition
    destination: QueueDefinition | None
    targets: tuple[str, ...] | None
    filter: MessageFilter | None
    edit: str


class PlannedTarget(TypedDict):
    """Share of one target. `returns_after`: receives after which a message that fails there is
    back; null if it never is, since the redrive policy names another queue or is not allowed."""

    messages: int
    bytes: int
    too_large: int
    returns_after: int | None


class RedrivePlan(TypedDict):
    """Effects of a redrive, summed up to here: targets by ARN, all `messages` that would move, and
    those that would stay by the code of the reason. With `next` the plan goes on. `samples` show
    what an edit does to the first ten messages, in the answer that found them."""

    targets: dict[str, PlannedTarget]
    messages: int
    refused: dict[str, int]
    passed: int
    expiring: int
    overtaking: int
    samples: list[EditedSample]
    next: str | None


class _Sums(msgspec.Struct):
    """A plan up to the sequence `at`, None at the end; its form for clients is a token."""

    at: _Number | None = 0
    targets: dict[str, Planned] = {}
    refused: dict[str, _Number] = {}
    passed: _Number = 0
    expiring: _Number = 0
    overtaking: _Number = 0
    sampled: _Number = 0

    @property
    def messages(self) -> int:
        """Messages that would move."""
        return sum(target.messages for target in self.targets.values())

    def add(self, step: MovePlan) -> None:
        """Add the next step."""
        self.at = step.next_sequence
        for arn, more in step.targets.items():
            known = self.targets.get(arn)
            self.targets[arn] = more if known is None else _sum(known, more)
        for reason, messages in step.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + messages
        self.passed += step.passed
        self.expiring += step.expiring
        self.overtaking += step.overtaking


class BegunRedrive(TypedDict):
    """The handle of a redrive."""

    handle: str | None


async def plan_redrive(
    context: OperatorContext, asked: Asked, wanted: PlannedRedrive
) -> RedrivePlan:
    """Messages and bytes by target, and those that would stay with the reason, of all steps up to
    this one; `next` goes on."""
    ends = _ends(context, asked, wanted)
    sums, samples = _read_token(wanted.token), list[int]()
    user, queue_id, goes_on = asked.caller.arn, ends.source.queue_id, wanted.token is not None
    async with context.scans.turn(user, queue_id, goes_on=goes_on):
        await _go_on(context, asked, wanted, ends, sums, samples)
    del samples[max(0, SAMPLES_MAX - sums.sampled) :]
    sums.sampled += len(samples)
    return {
        "targets": {
            arn: _shown_target(context, ends.source, arn, each)
            for arn, each in sums.targets.items()
        },
        "messages": sums.messages,
        "refused": sums.refused,
        "passed": sums.passed,
        "expiring": sums.expiring,
        "overtaking": sums.overtaking,
        "samples": await edited_samples(context, asked, ends.source, ends.edit, samples),
        "next": None if sums.at is None else _token(sums),
    }


async def _go_on(
    context: OperatorContext,
    asked: Asked,
    wanted: PlannedRedrive,
    ends: _Ends,
    sums: _Sums,
    samples: list[int],
) -> None:
    """Add some steps to a plan."""
    groups: list[bytes] = []
    for _ in range(_PLAN_STEPS_MAX):
        operation = PlanMove(
            wanted.sequences,
            sums.at or 0,
            ends.filter,
            wanted.rate or 0,
            sums.messages,
            groups,
            ends.edit,
        )
        step = await _step(context, asked, operation, ends)
        sums.add(step)
        samples += step.samples
        groups = step.groups
        if sums.at is None:
            break


async def _step(
    context: OperatorContext, asked: Asked, operation: PlanMove, ends: _Ends
) -> MovePlan:
    """A step of the plan: of the named messages, or of one part's from a sequence on. The parts
    follow each other by their sequences."""
    queue = ends.source
    if operation.sequences is not None:
        sums, chosen = _Sums(), selected(operation.sequences)
        for part, sequences in by_sequences(queue, chosen):
            named = msgspec.structs.replace(operation, sequences=sequences)
            step = await _plan(context, asked, named, ends, part)
            sums.add(step)
        sums.refused.pop(GONE, None)  # several parts may be asked for one
        gone = len(chosen) - sums.messages - sums.passed - sum(sums.refused.values())
        if gone:
            sums.refused[GONE] = gone
        return MovePlan(
            sums.targets, sums.refused, None, sums.passed, sums.expiring, sums.overtaking, [], []
        )
    parts = sorted(queue.all_parts(), key=lambda part: part.first_sequence)
    later = [part for part in parts[1:] if part.first_sequence > operation.from_sequence]
    part = parts[len(parts) - len(later) - 1]
    step = await _plan(context, asked, operation, ends, part)
    if step.next_sequence is None and later:
        step = msgspec.structs.replace(step, next_sequence=later[0].first_sequence)
    return step


async def _plan(
    context: OperatorContext, asked: Asked, operation: PlanMove, ends: _Ends, part: QueueDefinition
) -> MovePlan:
    answer = await context.ask(
        asked, operation, part, destination=ends.destination, targets=ends.targets
    )
    assert isinstance(answer, MovePlan)
    return answer


def _sum(known: Planned, more: Planned) -> Planned:
    return Planned(
        known.messages + more.messages, known.size + more.size, known.too_large + more.too_large
    )


def _token(sums: _Sums) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(sums)).decode()


def _read_token(token: str | None) -> _Sums:
    """A plan so far. Raises InvalidParameterValue."""
    if token is None:
        return _Sums()
    try:
        sums = msgspec.msgpack.decode(urlsafe_b64decode(token), type=_Sums)
    except (ValueError, msgspec.MsgspecError):
        sums = _Sums(at=None)
    numbers = [number for each in sums.targets.values() for number in msgspec.structs.astuple(each)]
    if sums.at is None or min(numbers, default=0) < 0 or sum(numbers) > _SUM_MAX:
        raise InvalidParameterValue("token is not that of a plan.")
    return sums


def _shown_target(
    context: OperatorContext, source: QueueDefinition, arn: str, planned: Planned
) -> PlannedTarget:
    target = context.catalog.queue_of_arn(arn)
    policy = None if target is None else target.settings.redrive_policy
    back = None if target is None else context.catalog.dead_letter_queue(target)
    returns = policy is not None and back is not None and back.queue_id == source.queue_id
    return {
        "messages": planned.messages,
        "bytes": planned.size,
        "too_large": planned.too_large,
        "returns_after": policy.max_receive_count if policy and returns else None,
    }


async def start_redrive(
    context: OperatorContext, asked: Asked, wanted: StartedRedrive
) -> BegunRedrive:
    """Begin to move all messages, the selected ones, or those that match."""
    ends = _ends(context, asked, wanted)
    operation = MoveSelected(
        wanted.sequences,
        wanted.rate or 0,
        ends.filter,
        wanted.pace,
        wanted.reason,
        planned=wanted.planned,
        edit=ends.edit,
    )
    answer = await context.ask(
        asked, operation, ends.source, destination=ends.destination, targets=ends.targets
    )
    assert isinstance(answer, StartMessageMoveTaskResult)
    return {"handle": answer.task_handle}


def _ends(context: OperatorContext, asked: Asked, wanted: GivenRedrive) -> _Ends:
    """The queues of a redrive that the caller may do. Raises QueueError, AccessDenied."""
    source = asked.queue(asked.parts[0])
    destination = None if wanted.destination is None else asked.queue(wanted.destination)
    chosen = None if wanted.filter is None else wanted.filter.at(context.now_ms)
    edit = "" if wanted.edit is None else edit_of(wanted.edit)
    _note(asked, wanted, destination, chosen)
    if edit and wanted.sequences is not None:
        raise InvalidParameterValue("Give an edit with a filter, or for all messages.")
    if chosen is not None and wanted.sequences is not None:
        raise InvalidParameterValue("Give sequences or a filter, not both.")
    sources = context.catalog.dead_letter_sources(source)
    refusal = check_start(source, destination, is_dead_letter_queue=bool(sources))
    if refusal is not None:
        raise refusal
    if chosen is not None:
        check_reading(asked, source, chosen, sources)
    if edit:
        check_bodies(asked, source, sources)
    destination_arn = None if destination is None else destination.arn
    operation = StartMessageMoveTask(source.arn, destination_arn, wanted.rate)
    ACTIONS["StartMessageMoveTask"].check(operation)
    if asked.is_trusted:
        return _Ends(source, destination, None, chosen, edit)
    asked.access.check_move(operation, asked.asker)
    # Only these were checked: meanwhile, a message's source may name another dead-letter queue.
    return _Ends(source, destination, tuple(queue.arn for queue in sources), chosen, edit)


def _note(
    asked: Asked,
    wanted: GivenRedrive,
    destination: QueueDefinition | None,
    chosen: MessageFilter | None,
) -> None:
    """Note the request for the audit log."""
    asked.noted |= {
        "messages": "all" if wanted.sequences is None else wanted.sequences,
        "destination": None if destination is None else destination.arn,
        "rate": wanted.rate,
    }
    if chosen is not None:
        asked.noted |= {"messages": "filtered", "filter": shown_filter(chosen)}
    if wanted.edit is not None:
        asked.noted["edit"] = wanted.edit
    if wanted.reason:
        asked.noted["reason"] = wanted.reason


# -- the history -----------------------------------------------------------------------------------


class RedriveListing(msgspec.Struct):
    """A page of redrives."""

    limit: Annotated[int, Meta(ge=1, le=READ_MAX)] = _LISTED
    before: Annotated[int, Meta(ge=0, le=1 << 52, description="`next` of the page before.")] = 0


class RedrivePage(TypedDict):
    """Redrives, newest first."""

    redrives: list[ShownRedrive]
    next: int | None


async def list_redrives(
    context: OperatorContext, asked: Asked, listing: RedriveListing
) -> RedrivePage:
    """A page of a queue's redrives, newest first; `next` is the number before which it goes on."""
    queue = asked.queue(asked.parts[0])
    tasks = await tasks_of(context, asked, queue, listing.before, listing.limit)
    undone = await _undone(context, asked, [task for task in tasks if task.undone_at_ms])
    more = len(tasks) == listing.limit and tasks[-1].number > 1
    reads = may_read_all(context, asked, queue, tasks)
    return {
        "redrives": [shown_redrive(task, undone.get(task.task_id), reads=reads) for task in tasks],
        "next": tasks[-1].number if more else None,
    }


def may_read_all(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, tasks: list[MoveTask]
) -> bool:
    """True if the caller may read the parts of bodies that redrives of a queue show. Only if one
    shows some, the queue's sources are searched, which looks at all queues."""
    if not any(task.edit or (task.filter and task.filter.reads_bodies) for task in tasks):
        return True
    return may_read(asked, queue, context.catalog.dead_letter_sources(queue))


async def tasks_of(
    context: OperatorContext,
    asked: Asked,
    queue: QueueDefinition,
    before: int = 0,
    limit: int = READ_MAX,
) -> list[MoveTask]:
    """The move tasks of a queue, newest first."""
    answer = await context.ask(asked, ReadMoveTasks(before, limit), queue)
    assert isinstance(answer, MoveTasks)
    return answer.tasks


def targets_of(task: MoveTask) -> list[str]:
    """ARNs of the queues to which a task moved messages."""
    if task.destination_arn is not None:
        return [task.destination_arn]
    return [arn for arn in task.sources if arn]


async def _undone(
    context: OperatorContext, asked: Asked, tasks: list[MoveTask]
) -> dict[str, Undone]:
    """By the id of an undone task, what its undo has brought back."""
    found = {task.task_id: Undone(moved=0, is_running=False) for task in tasks}
    for arn in dict.fromkeys(arn for task in tasks for arn in targets_of(task)):
        target = context.catalog.queue_of_arn(arn)
        for other in [] if target is None else await tasks_of(context, asked, target):
            if other.undoes in found:
                sums = found[other.undoes]
                sums["moved"] += other.moved
                sums["is_running"] = sums["is_running"] or other.is_active
    return found


ROUTES = (
    Route(
        "POST",
        REDRIVES + "/plan",
        REDRIVE_MESSAGES,
        plan_redrive,
        "redrive plan",
        body_bytes_max=BODY_BYTES_MAX,
    ),
    Route("POST", REDRIVES, REDRIVE_MESSAGES, start_redrive, "redrive start"),
    Route("GET", REDRIVES, GET_QUEUE, list_redrives, "redrive list"),
)
