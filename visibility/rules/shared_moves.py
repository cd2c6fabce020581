"""Move tasks of queues with several parts: the home has the task, each other part a share.

    home                       another part
    begins with all shares
    AdvanceMoveTask ── order ─→ WorkOnMoveTask: begins, or does what the order says
         ↑                          │
         └────── its own task ──────┘
    ends when all have ended

The leader of the home asks both in turn (`cluster/parts/shared_tasks.py`) and remembers nothing:
task, shares and what they were granted are rows. A part walks over its own messages and moves as
many as it was granted, so rate, ramp and canary hold for the whole queue, whoever is away. A part
takes no older order than it had, and an order for what it has done changes nothing. All shares stay
until all have walked, since the home counts the messages that come back to any of them, and a part
with a task transfers nothing.

A part that drains could transfer a message behind the walk of another part. So those parts begin
first, which ends their transfers, and the others once what had left them has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MoveTask, Share
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MoveTasks
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.move_pace import after_canary, allowed_now, merged_sources, stopped
from visibility.rules.move_steps import completed
from visibility.rules.move_tasks import ENDED_KEPT, MoveTaskChanged, begun_task, next_number
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_AHEAD = 10_000
"""Most messages that a part may move before the next order."""
_ALL = _AHEAD * 1_000
"""More than can be granted at once."""


class AdvanceMoveTask(Operation, frozen=True):
    """Take the numbers of a queue's shared task from other parts, and say what these are to do;
    answers `outcomes.MoveTasks` with an order for each part whose share is not over.

    `heard` are the parts' own tasks; `gone` are the places of parts that are gone.
    """

    heard: list[MoveTask] = msgspec.field(default_factory=list)
    gone: list[int] = msgspec.field(default_factory=list)


class WorkOnMoveTask(Operation, frozen=True):
    """Do what the home's order says; answers `outcomes.MoveTasks` with the part's own task, or
    without one while another task runs here."""

    order: MoveTask


class KeepMoveTasks(Operation, frozen=True):
    """Keep tasks that ended at a home before; answers None."""

    tasks: list[MoveTask] = msgspec.field(default_factory=list)


# -- the home --------------------------------------------------------------------------------------


def decide_advance_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Merge what was heard, end the task or grant more, and give orders."""
    operation = request.operation
    assert isinstance(operation, AdvanceMoveTask)
    queue = shard.queue(request.queue.queue_id)
    before = queue.active_task
    if before is None or not before.shares:
        return MoveTasks([]), ()
    task = _merged(before, operation)
    if _may_all_begin(task) and not task.until_sequence:
        until = queue.next_sequence
        task = msgspec.structs.replace(task, until_sequence=until, watched=until)
    if task.status == "RUNNING" and task.is_walked and all(each.is_ended for each in task.shares):
        return MoveTasks([]), completed(queue, task, stamp.now_ms)
    task = _granted(_paused(before, task), stamp.now_ms)
    if task == before:
        return MoveTasks(_orders(task)), ()
    task = msgspec.structs.replace(task, order=task.order + 1)
    return MoveTasks(_orders(task)), (MoveTaskChanged(queue.queue_id, task),)


def _merged(task: MoveTask, heard: AdvanceMoveTask) -> MoveTask:
    """The task with the numbers of the other parts."""
    shares, sources = list(task.shares), task.sources
    for each in heard.heard:
        if each.task_id != task.task_id or not 0 < each.place <= len(shares):
            continue
        share = shares[each.place - 1]
        if not share.is_ended and (each.is_walked or not share.is_walked):
            shares[each.place - 1] = _as_heard(share, each)
            sources = merged_sources(sources, each.sources)
    for place in heard.gone:
        shares[place - 1] = msgspec.structs.replace(shares[place - 1], is_ended=True)
    return msgspec.structs.replace(task, shares=shares, sources=sources)


def _as_heard(share: Share, task: MoveTask) -> Share:
    return msgspec.structs.replace(
        share,
        selected=None,
        has_begun=task.until_sequence > 0,
        is_walked=task.is_walked,
        is_ended=not task.is_active,
        to_move=task.to_move,
        moved=task.moved,
        stayed=task.stayed,
        looked_at=task.looked_at,
        came_back=task.came_back,
        failure_reason=task.failure_reason,
    )


def _may_all_begin(task: MoveTask) -> bool:
    """True once the parts that drain have begun."""
    return all(each.has_begun or each.is_ended for each in task.shares if each.drains)


def _are_walked(task: MoveTask) -> bool:
    return task.is_walked and all(each.is_walked or each.is_ended for each in task.shares)


def _paused(before: MoveTask, task: MoveTask) -> MoveTask:
    """The task, paused after its canary or for what came back."""
    if task.status != "RUNNING" or task.paused or _are_walked(task):
        return task
    return stopped(before, after_canary(task))


def _granted(task: MoveTask, now_ms: int) -> MoveTask:
    """The task, whose parts may move what is due now: those with the least left get most."""
    if task.status != "RUNNING" or task.paused or not task.until_sequence:
        return task
    own = Share(0, granted=task.granted, moved=task.moved, is_walked=task.is_walked)
    parts = [own, *task.shares]
    places = [at for at, each in enumerate(parts) if not (each.is_walked or each.is_ended)]
    places.sort(key=lambda at: _left(parts[at]))
    room = allowed_now(task, now_ms, _ALL)
    ahead = min(_AHEAD, task.rate or _AHEAD)
    for count, at in enumerate(places):
        fair = -(-max(0, room) // (len(places) - count))
        more = max(0, min(fair, ahead - _left(parts[at])))
        room -= more
        granted = max(parts[at].granted, parts[at].moved) + more if more else parts[at].granted
        parts[at] = msgspec.structs.replace(parts[at], granted=granted)
    return msgspec.structs.replace(task, granted=parts[0].granted, shares=parts[1:])


def _left(share: Share) -> int:
    """Granted messages that the part has not moved."""
    return max(0, share.granted - share.moved)


def _orders(task: MoveTask) -> list[MoveTask]:
    """The orders for the other parts."""
    may_begin = _may_all_begin(task)
    return [
        _order(task, place, share)
        for place, share in enumerate(task.shares, 1)
        if not share.is_ended and (share.has_begun or share.drains or may_begin)
    ]


def _order(task: MoveTask, place: int, share: Share) -> MoveTask:
    """The task as a part gets it, with the number of the part. If it is walked, all are, and the
    share is over."""
    return MoveTask(
        number=share.number,
        task_id=task.task_id,
        source_arn=task.source_arn,
        destination_arn=task.destination_arn,
        rate=0,
        started_at_ms=task.started_at_ms,
        to_move=0,
        until_sequence=0,
        status=task.status,
        selected=share.selected,
        targets=task.targets,
        filter=task.filter,
        paused=task.paused,
        started_by=task.started_by,
        sources=task.sources if task.undoes else [],
        undoes=task.undoes,
        edit=task.edit,
        place=place,
        granted=share.granted,
        order=task.order,
        is_walked=_are_walked(task),
    )


# -- another part ----------------------------------------------------------------------------------


def decide_work_on_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Begin the share, or change it as the order says."""
    operation = request.operation
    assert isinstance(operation, WorkOnMoveTask)
    order, queue = operation.order, shard.queue(request.queue.queue_id)
    own = next((each for each in queue.tasks.values() if each.task_id == order.task_id), None)
    row = shard.parts.get(queue.queue_id)
    is_over = order.status != "RUNNING" or (row is not None and row.drained_version)
    if own is None and is_over:
        return _answer(msgspec.structs.replace(order, status="CANCELLED"), ())
    if own is None and queue.active_task is not None:
        return MoveTasks([]), ()
    if own is None:
        own = _begun(queue, request.queue, order)
        return _answer(own, (begun_task(queue, own),))
    if not own.is_active or order.order < own.order:
        return _answer(own, ())
    if order.is_walked and own.is_walked and own.status == "RUNNING":
        (event,) = completed(queue, own, stamp.now_ms)
        assert isinstance(event, MoveTaskChanged)
        return _answer(event.task, (event,))
    until = own.until_sequence or _until(queue, request.queue)
    changed = msgspec.structs.replace(
        own,
        granted=order.granted,
        paused=order.paused,
        status=order.status,
        until_sequence=until,
        watched=own.watched or until,
    )
    if changed == own:
        return _answer(own, ())
    changed = msgspec.structs.replace(changed, order=order.order)
    return _answer(changed, (MoveTaskChanged(queue.queue_id, changed),))


def _begun(queue: QueueState, part: QueueDefinition, order: MoveTask) -> MoveTask:
    selected, until = order.selected, _until(queue, part)
    return msgspec.structs.replace(
        order,
        number=next_number(queue, part),
        to_move=queue.visible if selected is None else len(selected),
        until_sequence=until,
        watched=until,
        cursor=queue.floor if selected is None else 0,
        is_walked=False,
    )


def _until(queue: QueueState, part: QueueDefinition) -> int:
    """The end of the part's walk, 0 while what left it is on its way to another part."""
    drains = part.parts and not part.part.is_open
    return 0 if drains and queue.departed else queue.next_sequence


def _answer(task: MoveTask, events: Sequence[Event]) -> Outcome:
    return MoveTasks([msgspec.structs.replace(task, selected=None)]), tuple(events)


def decide_keep_move_tasks(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Add those that are not here; their numbers are lower than those of the queue's own."""
    operation = request.operation
    assert isinstance(operation, KeepMoveTasks)
    queue = shard.queue(request.queue.queue_id)
    room = ENDED_KEPT - len(queue.tasks)
    new = [each for each in operation.tasks if each.number not in queue.tasks][: max(0, room)]
    return None, tuple(MoveTaskChanged(queue.queue_id, each) for each in new)


OPERATIONS: Operations = {
    AdvanceMoveTask: OperationKind(decide_advance_move_task, MoveTasks),
    WorkOnMoveTask: OperationKind(decide_work_on_move_task, MoveTasks),
    KeepMoveTasks: OperationKind(decide_keep_move_tasks, None),
}
