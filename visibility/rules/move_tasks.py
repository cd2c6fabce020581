"""Message move tasks: decisions to start, change, cancel and list. `move_steps.py` moves.

A redrive of an operator is such a task, with more than `aws` can ask for: selected or filtered
messages, a pace, a pause, an undo. All of them are listed together. The latest tasks that ended
stay in their rows as a history.
Source: API reference (2023), recorded statuses and errors.
"""

from __future__ import annotations

import msgspec
from typing_extensions import override

from visibility.content.filters import check_filter
from visibility.contract.errors import InvalidParameterValue, Moved, QueueError, ResourceNotFound
from visibility.contract.limits import MOVE_TASK_RESULTS, MOVE_TASKS_PER_ACCOUNT_MAX
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import (
    BY_OPERATOR,
    MessageFilter,
    MoveTask,
    Pace,
    Share,
    decode_handle,
    encode_handle,
    whole,
)
from visibility.contract.naming import shown_arn
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    Operation,
    StartMessageMoveTask,
)
from visibility.contract.outcomes import MoveTasks
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import Lease
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import MOVE_TASK, row_key
from visibility.rules.closing_parts import check_open, closing
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event, Notice
from visibility.rules.operation_kinds import NOTHING, OperationKind, Operations, Replay
from visibility.rules.selected import selected
from visibility.rules.tables import NUMBER_KEY, Table, Tables, has_its_number, keep
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp

ENDED_KEPT = 200
"""Tasks of a queue that stay listed after their end; AWS shows the last ten."""
READ_MAX = 100
_NOTE_MAX = 500
_NUMBER_BITS = 20
_FILTERED_AS = 250
"""A step that compares messages with a filter counts as this many that move."""


class MoveSelected(Operation, frozen=True):
    """Begin a move task for the messages with these sequences, those that match a filter, or all;
    answers as StartMessageMoveTask.

    They move to the request's `destination`, or each to its own source; `rate` is in messages a
    second, 0 for no limit. `note` is the operator's reason. A task that `undoes` another returns
    messages as dead letters, which came from that one's `sources`; while it runs, a
    second one answers with its handle. `planned` is the number of messages that a plan counted, 0
    without one. `edit` is that of `visibility.content.edits`, for no named messages.
    """

    sequences: list[int] | None = None
    rate: int = 0
    filter: MessageFilter | None = None
    pace: Pace = Pace()
    note: str = ""
    undoes: str = ""
    sources: list[str] = msgspec.field(default_factory=list)
    planned: int = 0
    edit: str = ""


class ChangeMoveTask(Operation, frozen=True):
    """Pause or resume the move task of this handle, pace it, or note that it is undone; answers
    None."""

    task_handle: str = ""
    change: str = "pause"
    """"pause", "resume", "pace" or "undo"."""
    rate: int | None = None
    """The new pace in messages a second, 0 for no limit; None keeps it."""
    stop_after: int | None = None
    """Messages that come back before the task pauses, 0 for no limit; None keeps it."""


class ReadMoveTasks(Operation, frozen=True):
    """Read move tasks with all that is known of them; answers `outcomes.MoveTasks`.

    They are those with a number below `before` (0: all), newest first.
    """

    before: int = 0
    limit: int = 50


def decide_start_message_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Begin a task for all present messages."""
    operation = request.operation
    assert isinstance(operation, StartMessageMoveTask)
    rate = operation.max_number_of_messages_per_second or 0
    return _start(shard, request, stamp, operation.destination_arn, MoveSelected(rate=rate))


def decide_move_selected(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Begin a task for the named messages, or for those that match. Raises
    InvalidParameterValue."""
    operation = request.operation
    assert isinstance(operation, MoveSelected)
    destination_arn = None if request.destination is None else request.destination.arn
    if operation.filter is not None:
        check_filter(operation.filter)
    if operation.pace.ramp_s and not operation.rate:
        raise InvalidParameterValue("A ramp needs a rate, up to which it rises.")
    return _start(shard, request, stamp, destination_arn, operation)


def _start(
    shard: ShardState,
    request: Request,
    stamp: Stamp,
    destination_arn: str | None,
    wanted: MoveSelected,
) -> Outcome:
    queue, definition = shard.queue(request.queue.queue_id), request.queue
    check_open(shard, definition)
    if not definition.is_home:  # it was, for a gateway that has not heard of the next one
        raise Moved()
    begun = _undo_of(queue, wanted.undoes)
    if begun is not None:
        return StartMessageMoveTaskResult(encode_handle(begun)), ()
    if queue.active_task is not None:
        raise one_at_a_time()
    if _active_tasks(shard, request.queue.account) >= MOVE_TASKS_PER_ACCOUNT_MAX:
        raise InvalidParameterValue(
            f"The maximum number of active tasks of an account is {MOVE_TASKS_PER_ACCOUNT_MAX}."
        )
    chosen = None if wanted.sequences is None else selected(wanted.sequences)
    shares: list[Share] = []
    if definition.parts:
        shares, chosen = _shares(definition, chosen)
    waits = any(share.drains for share in shares)
    task = MoveTask(
        number=next_number(queue, definition),
        task_id=stamp.message_id(),
        source_arn=request.queue.arn,
        destination_arn=destination_arn,
        rate=wanted.rate,
        started_at_ms=stamp.now_ms,
        to_move=wanted.planned or (queue.visible if chosen is None else len(chosen)),
        until_sequence=0 if waits else queue.next_sequence,
        cursor=queue.floor if chosen is None else 0,
        selected=[] if wanted.edit or wanted.filter is not None else chosen,
        targets=None if request.targets is None else list(request.targets),
        filter=wanted.filter,
        pace=wanted.pace,
        watched=queue.next_sequence,
        started_by=request.caller.arn,
        note=wanted.note[:_NOTE_MAX],
        sources=list(wanted.sources),
        undoes=wanted.undoes,
        is_planned=wanted.planned > 0,
        edit=wanted.edit,
        shares=shares,
    )
    return StartMessageMoveTaskResult(encode_handle(task)), (begun_task(queue, task),)


def one_at_a_time() -> InvalidParameterValue:
    """The refusal of a second task of a queue."""
    return InvalidParameterValue(
        "There is already a task running. "
        "Only one active task is allowed for a source queue arn at a given time."
    )


def next_number(queue: QueueState, definition: QueueDefinition) -> int:
    """The number of the next task. Those of a later home are higher than those of one before."""
    return max(queue.tasks, default=definition.part_number << _NUMBER_BITS) + 1


def begun_task(queue: QueueState, task: MoveTask) -> MoveTaskChanged:
    """The event of a task that begins, for which the oldest one may be forgotten."""
    forgotten = min(queue.tasks) if len(queue.tasks) >= ENDED_KEPT else 0
    return MoveTaskChanged(queue.queue_id, task, forgotten)


def _shares(
    home: QueueDefinition, chosen: list[int] | None
) -> tuple[list[Share], list[int] | None]:
    """The shares of the other parts, and the selected messages of the home."""
    of_part: dict[int, list[int]] = {part.number: [] for part in home.parts}
    for sequence in chosen or ():
        of_part[home.way_of(sequence)[0].part_number].append(sequence)
    shares = [
        Share(part.number, not part.is_open, None if chosen is None else of_part[part.number])
        for part in home.parts
        if part.queue_id != home.queue_id
    ]
    return shares, None if chosen is None else of_part[home.part_number]


def _undo_of(queue: QueueState, task_id: str) -> MoveTask | None:
    """The undo of a task that runs here; one that ended may begin once more, for messages that it
    could not take."""
    for task in queue.tasks.values():
        if task_id and task.undoes == task_id and task.status == "RUNNING":
            return task
    return None


def _active_tasks(shard: ShardState, account: str) -> int:
    active = 0
    for queue in shard.queues.values():
        task = queue.active_task if queue.tasks else None
        if task is not None and not task.place:
            definition = shard.definitions.queue_of_id(queue.queue_id)
            active += definition is not None and definition.account == account
    return active


def decide_cancel_message_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Ask a running task to stop, which it does at its next step."""
    operation = request.operation
    assert isinstance(operation, CancelMessageMoveTask)
    queue = shard.queue(request.queue.queue_id)
    task = _task_of(queue, operation.task_handle)
    if task.status != "RUNNING":
        raise InvalidParameterValue("Only active tasks can be cancelled.")
    cancelling = msgspec.structs.replace(task, status="CANCELLING", order=task.order + 1)
    result = CancelMessageMoveTaskResult(whole(task).moved)
    return result, (MoveTaskChanged(queue.queue_id, cancelling),)


def _task_of(queue: QueueState, handle: str | None) -> MoveTask:
    """The task that a handle names. Raises InvalidParameterValue, ResourceNotFound."""
    task_id = decode_handle(handle or "").task_id
    for task in queue.tasks.values():
        if task.task_id == task_id and not task.place:
            return task
    raise ResourceNotFound("Task does not exist.")


def decide_change_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Pause, resume, pace, or note an undo, which ends a running task.

    Raises InvalidParameterValue, ResourceNotFound.
    """
    operation = request.operation
    assert isinstance(operation, ChangeMoveTask)
    queue = shard.queue(request.queue.queue_id)
    task = _task_of(queue, operation.task_handle)
    if operation.change == "undo":
        status = "CANCELLING" if task.is_active else task.status
        undone_at_ms = task.undone_at_ms or stamp.now_ms
        changed = msgspec.structs.replace(task, status=status, undone_at_ms=undone_at_ms)
    elif task.status != "RUNNING":
        raise InvalidParameterValue(f"Only active tasks can be {operation.change}d.")
    elif operation.change == "pause":
        changed = msgspec.structs.replace(task, paused=task.paused or BY_OPERATOR)
    elif operation.change == "pace":
        changed = _repaced(task, operation, stamp.now_ms)
    else:
        changed = _resumed(task, stamp.now_ms)
    if changed == task:
        return None, ()
    changed = msgspec.structs.replace(changed, order=task.order + 1)
    return None, (MoveTaskChanged(queue.queue_id, changed),)


def _resumed(task: MoveTask, now_ms: int) -> MoveTask:
    if not task.paused:
        return task
    return _paced_from(msgspec.structs.replace(task, paused=""), now_ms)


def _paced_from(task: MoveTask, now_ms: int) -> MoveTask:
    """The task, whose rate counts from now on; what was granted and not moved is so no more."""
    shares = [msgspec.structs.replace(each, granted=each.moved) for each in task.shares]
    task = msgspec.structs.replace(task, granted=task.moved, shares=shares, paced_from_ms=now_ms)
    return msgspec.structs.replace(task, paced_moved=task.charged)


def _repaced(task: MoveTask, wanted: ChangeMoveTask, now_ms: int) -> MoveTask:
    """The task with another rate, which holds at once, or another limit of those that come back."""
    if wanted.stop_after is not None:
        pace = msgspec.structs.replace(task.pace, stop_after=wanted.stop_after)
        task = msgspec.structs.replace(task, pace=pace)
    if wanted.rate is None or wanted.rate == task.rate:
        return task
    pace = msgspec.structs.replace(task.pace, ramp_s=0)
    return _paced_from(msgspec.structs.replace(task, rate=wanted.rate, pace=pace), now_ms)


def decide_read_move_tasks(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """A page of tasks, newest first, without the messages they selected."""
    operation = request.operation
    assert isinstance(operation, ReadMoveTasks)
    limit = max(1, min(operation.limit, READ_MAX))
    latest = latest_tasks(shard.queue(request.queue.queue_id))
    page = [each for each in latest if not operation.before or each.number < operation.before]
    return MoveTasks([whole(task) for task in page[:limit]]), ()


def latest_tasks(queue: QueueState) -> list[MoveTask]:
    """The tasks of a queue, newest first, without shares in those of other parts."""
    tasks = (task for task in queue.tasks.values() if not task.place)
    return sorted(tasks, key=lambda task: -task.number)


def decide_list_message_move_tasks(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The latest tasks, newest first. A part that drains closes: so no task begins there any
    more."""
    operation = request.operation
    assert isinstance(operation, ListMessageMoveTasks)
    limit = operation.max_results or MOVE_TASK_RESULTS.default or 1
    definition = request.queue
    events: tuple[Event, ...] = ()
    if definition.parts and not definition.part.is_open:
        events = closing(shard, definition, stamp.now_ms)
    latest = latest_tasks(shard.queue(definition.queue_id))
    results = [shown_task(task) for task in latest[:limit]]
    return ListMessageMoveTasksResult(results or None), events


def shown_task(task: MoveTask) -> ListMessageMoveTasksResultEntry:
    """A task as clients see it."""
    task = whole(task)
    return ListMessageMoveTasksResultEntry(
        task_handle=encode_handle(task) if task.status == "RUNNING" else None,
        status=task.status,
        source_arn=shown_arn(task.source_arn),
        destination_arn=task.destination_arn and shown_arn(task.destination_arn),
        max_number_of_messages_per_second=task.rate or None,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure_reason if task.status == "FAILED" else None,
        started_timestamp=task.started_at_ms,
    )


def check_start(
    source: QueueDefinition, destination: QueueDefinition | None, *, is_dead_letter_queue: bool
) -> QueueError | None:
    """The reason why a task from `source` to `destination` must not begin, None if it may."""
    if not is_dead_letter_queue:
        return InvalidParameterValue("Source queue must be configured as a Dead Letter Queue.")
    if destination is not None and destination.settings.fifo != source.settings.fifo:
        return InvalidParameterValue(
            "Source queue and destination queue must be of the same type, standard or FIFO."
        )
    return None


# -- events ----------------------------------------------------------------------------------------


class MoveTaskChanged(Event, frozen=True):
    """A move task began, advanced or ended; `forgotten` is the number of a dropped one (0:
    none)."""

    task: MoveTask
    forgotten: int = 0

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        task = self.task
        is_latest = task.number >= max(queue.tasks, default=0)
        queue.tasks[task.number] = task
        queue.tasks.pop(self.forgotten, None)
        if not is_latest:  # the history of a home before
            queue.tasks = dict(sorted(queue.tasks.items()))
        if task.is_active:
            if task.is_shared:
                shard.sharing[queue.queue_id] = None
            shard.plan_pulse(queue, task.started_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        changes.put(row_key(self.queue_id, MOVE_TASK, self.task.number), encode_row(self.task))
        if self.forgotten:
            changes.delete(row_key(self.queue_id, MOVE_TASK, self.forgotten))

    @override
    def tell(self, turn: Effects) -> None:
        """Log the end of a task: ListMessageMoveTasks has no field for messages that stayed."""
        if not self.task.is_active and not self.task.place:
            turn.notices.append(_end_notice(self.task))

    @property
    @override
    def weight(self) -> int:
        """The cost of a comparison with the task's filter, or of its edit."""
        return _FILTERED_AS if self.task.opens else 0


def _end_notice(task: MoveTask) -> Notice:
    """The line for the end of a move task."""
    task = whole(task)
    fields: dict[str, object] = {
        "source_arn": task.source_arn,
        "status": task.status,
        "reason": task.failure_reason,
        "moved": task.moved,
        "stayed": task.stayed,
    }
    return Notice("move_task_ended", fields)


# -- the table -------------------------------------------------------------------------------------


def _load(rows: Rows, queue: QueueState, leases: list[Lease]) -> None:
    for _, task in MOVE_TASKS.read(rows.store, queue.queue_id):
        queue.tasks[task.number] = task


MOVE_TASKS = Table(
    MOVE_TASK,
    "move task",
    NUMBER_KEY,
    MoveTask,
    names_itself=has_its_number,
    load=_load,
    salvage=keep,
)
TABLES: Tables = (MOVE_TASKS,)


# -- the same answer to a retry --------------------------------------------------------------------


def _short_start(request: Request, answer: StartMessageMoveTaskResult) -> ShortAnswer:
    return answer.task_handle


def _start_again(short: str, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return StartMessageMoveTaskResult(short), ()


def _short_cancel(request: Request, answer: CancelMessageMoveTaskResult) -> ShortAnswer:
    return answer.approximate_number_of_messages_moved


def _cancel_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return CancelMessageMoveTaskResult(short), ()


_START = Replay(_short_start, (str,), _start_again)

OPERATIONS: Operations = {
    StartMessageMoveTask: OperationKind(
        decide_start_message_move_task, StartMessageMoveTaskResult, _START
    ),
    MoveSelected: OperationKind(decide_move_selected, StartMessageMoveTaskResult, _START),
    CancelMessageMoveTask: OperationKind(
        decide_cancel_message_move_task,
        CancelMessageMoveTaskResult,
        Replay(_short_cancel, (int,), _cancel_again),
    ),
    ChangeMoveTask: OperationKind(decide_change_move_task, None, NOTHING),
    ListMessageMoveTasks: OperationKind(decide_list_message_move_tasks, ListMessageMoveTasksResult),
    ReadMoveTasks: OperationKind(decide_read_move_tasks, MoveTasks),
}
