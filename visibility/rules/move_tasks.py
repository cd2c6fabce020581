"""Message move tasks: decisions to start, cancel and list, and the step that moves.

A task walks over the sequences that its queue had at its start, in order, and skips messages in
flight. A message that cannot be moved stays, and the task fails once all others have moved; it
fails at once if its destination cannot be used. A moved message is a new one at its destination:
new id, new time, no receives. The task is a row written with every step, so it continues after a
restart and moves nothing twice.
Source: API reference (2023), recorded statuses and errors.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from visibility.contract.errors import (
    InternalError,
    InvalidParameterValue,
    QueueError,
    ResourceNotFound,
)
from visibility.contract.limits import (
    MOVE_SELECTED_MAX,
    MOVE_TASK_RESULTS,
    MOVE_TASK_SECONDS_MAX,
    MOVE_TASKS_PER_ACCOUNT_MAX,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    MoveSelected,
    StartMessageMoveTask,
)
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import StoredMessage
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.decided import Outcome
from visibility.rules.groups import GroupBook
from visibility.rules.leases import no_lease
from visibility.rules.outbox import Departures
from visibility.rules.task_handles import decode_handle, encode_handle
from visibility.state.events import Event, MessagesMoved, Move, MoveTask, MoveTaskChanged
from visibility.state.stamp import Stamp
from visibility.state.state import QueueState, ShardState

CHUNK_MESSAGES = 100
_CHUNK_BYTES = 2 << 20
_ENDED_KEPT = 10
_TASK_MS_MAX = MOVE_TASK_SECONDS_MAX * 1000
_SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"
_DENIED = "AccessDenied"
_TOO_LONG = "TaskTimedOut"
_NO_ROOM_AGAIN_MS = 1_000
"""Pause of a task while the outbox is full with messages of others."""


def decide_start_message_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Begin a task for all present messages."""
    operation = request.operation
    assert isinstance(operation, StartMessageMoveTask)
    rate = operation.max_number_of_messages_per_second or 0
    return _start(shard, request, stamp, operation.destination_arn, rate, None)


def decide_move_selected(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Begin a task for the named messages. Raises InvalidParameterValue."""
    operation = request.operation
    assert isinstance(operation, MoveSelected)
    destination_arn = None if request.destination is None else request.destination.arn
    chosen = selected(operation.sequences)
    return _start(shard, request, stamp, destination_arn, operation.rate, chosen)


def selected(sequences: Collection[int]) -> list[int]:
    """The sequences in order, each once. Raises InvalidParameterValue if they are too many."""
    chosen = sorted(set(sequences))
    if len(chosen) > MOVE_SELECTED_MAX:
        raise InvalidParameterValue(
            f"A move task takes up to {MOVE_SELECTED_MAX} selected messages, not {len(chosen)}."
        )
    return chosen


def _start(
    shard: ShardState,
    request: Request,
    stamp: Stamp,
    destination_arn: str | None,
    rate: int,
    selected: list[int] | None,
) -> Outcome:
    queue = shard.queue(request.queue.queue_id)
    if any(task.is_active for task in queue.tasks.values()):
        raise InvalidParameterValue(
            "There is already a task running. "
            "Only one active task is allowed for a source queue arn at a given time."
        )
    if _active_tasks(shard, request.queue.account) >= MOVE_TASKS_PER_ACCOUNT_MAX:
        raise InvalidParameterValue(
            f"The maximum number of active tasks of an account is {MOVE_TASKS_PER_ACCOUNT_MAX}."
        )
    task = MoveTask(
        number=max(queue.tasks, default=0) + 1,
        task_id=stamp.message_id(),
        source_arn=request.queue.arn,
        destination_arn=destination_arn,
        rate=rate,
        started_at_ms=stamp.now_ms,
        to_move=queue.visible if selected is None else len(selected),
        until_sequence=queue.next_sequence,
        cursor=queue.floor if selected is None else 0,
        selected=selected,
        targets=None if request.targets is None else list(request.targets),
    )
    forgotten = task.number - _ENDED_KEPT if len(queue.tasks) >= _ENDED_KEPT else 0
    changed = MoveTaskChanged(queue.queue_id, task, forgotten)
    return StartMessageMoveTaskResult(encode_handle(task)), (changed,)


def _active_tasks(shard: ShardState, account: str) -> int:
    active = 0
    for queue in shard.queues.values():
        if queue.tasks and any(task.is_active for task in queue.tasks.values()):
            definition = shard.definitions.queue_of_id(queue.queue_id)
            active += definition is not None and definition.account == account
    return active


def decide_cancel_message_move_task(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Ask a running task to stop, which it does at its next step."""
    operation = request.operation
    assert isinstance(operation, CancelMessageMoveTask)
    queue = shard.queue(request.queue.queue_id)
    task_id = decode_handle(operation.task_handle or "").task_id
    for task in queue.tasks.values():
        if task.task_id == task_id:
            if task.status != "RUNNING":
                raise InvalidParameterValue("Only active tasks can be cancelled.")
            cancelling = msgspec.structs.replace(task, status="CANCELLING")
            result = CancelMessageMoveTaskResult(task.moved)
            return result, (MoveTaskChanged(queue.queue_id, cancelling),)
    raise ResourceNotFound("Task does not exist.")


def decide_list_message_move_tasks(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The latest tasks, newest first."""
    operation = request.operation
    assert isinstance(operation, ListMessageMoveTasks)
    limit = operation.max_results or MOVE_TASK_RESULTS.default or 1
    tasks = sorted(shard.queue(request.queue.queue_id).tasks.values(), key=lambda t: -t.number)
    results = [shown_task(task) for task in tasks[:limit]]
    return ListMessageMoveTasksResult(results or None), ()


def shown_task(task: MoveTask) -> ListMessageMoveTasksResultEntry:
    """A task as clients see it."""
    return ListMessageMoveTasksResultEntry(
        task_handle=encode_handle(task) if task.status == "RUNNING" else None,
        status=task.status,
        source_arn=task.source_arn,
        destination_arn=task.destination_arn,
        max_number_of_messages_per_second=task.rate or None,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure_reason if task.status == "FAILED" else None,
        started_timestamp=task.started_at_ms,
    )


# -- the step of a pulse ---------------------------------------------------------------------------


def advance_move_tasks(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Move the messages that the active task may move now; see `pulse.Step`."""
    task = next((task for task in queue.tasks.values() if task.is_active), None)
    if task is None:
        return (), None
    now_ms = stamp.now_ms
    if task.status == "CANCELLING":
        return _ended(queue, task, "CANCELLED"), None
    if now_ms - task.started_at_ms > _TASK_MS_MAX:
        return _ended(queue, task, "FAILED", _TOO_LONG), None
    allowed = CHUNK_MESSAGES
    if task.rate:
        allowed = min(allowed, (now_ms - task.started_at_ms) * task.rate // 1000 + 1 - task.moved)
        if allowed <= 0:
            return (), task.started_at_ms + -(-task.moved * 1000 // task.rate)
    return _Moving(shard, queue, definition, stamp, task).step(allowed)


def _ended(
    queue: QueueState, task: MoveTask, status: str, reason: str | None = None
) -> tuple[Event, ...]:
    ended = msgspec.structs.replace(task, status=status, failure_reason=reason, selected=None)
    return (MoveTaskChanged(queue.queue_id, ended),)


class _Moving:
    """One step of one task."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        stamp: Stamp,
        task: MoveTask,
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._definition = definition
        self._stamp = stamp
        self._task = task
        self._books: dict[int, GroupBook] = {}
        self._moves: list[Move] = []
        self._departures = Departures(shard, definition, stamp)
        self._freed: dict[bytes, None] = {}
        self._stayed = 0
        self._reason = task.failure_reason

    def step(self, allowed: int) -> tuple[tuple[Event, ...], int | None]:
        """Move up to `allowed` messages. Raises DamagedRecord."""
        found, cursor, is_last = self._page(allowed)
        for sequence, message in found:
            is_blocked = message.group in self._queue.quarantined.groups
            if is_blocked or is_hidden(self._queue, sequence):
                continue
            target = target_of(
                self._shard,
                self._definition,
                self._task.destination_arn,
                self._task.targets,
                message,
            )
            if not isinstance(target, str):
                if target.shard != self._definition.shard:
                    if not self._departures.has_room:
                        return self._events(self._cursor_at(sequence), is_last=False)
                elif target.queue_id not in self._books and not self._shard.is_ready(
                    target.queue_id
                ):
                    return (), self._stamp.now_ms + 1
                self._move(sequence, message, target)
                continue
            self._stay(target)
            if self._task.destination_arn is not None:
                return self._events(cursor, is_last=True)  # no other can be moved either
        if is_last and self._are_under_way():
            return self._waiting(cursor)
        return self._events(cursor, is_last=is_last)

    def _are_under_way(self) -> bool:
        """True while the task's messages are on their way to other shards, which may refuse
        them."""
        return bool(self._departures) or self._shard.outbox.has_of_task(self._task.task_id)

    def _waiting(self, cursor: int) -> tuple[tuple[Event, ...], int | None]:
        """The last step but for the end of the task, which follows when the outbox is cleared."""
        if cursor == self._task.cursor and not (self._moved or self._stayed):
            return (), None
        return self._events(cursor, is_last=False)[0], None

    @property
    def _moved(self) -> int:
        return len(self._moves) + len(self._departures)

    def _cursor_at(self, sequence: int) -> int:
        """The cursor before a message of the page."""
        selected = self._task.selected
        return sequence if selected is None else selected.index(sequence)

    def _stay(self, reason: str) -> None:
        self._stayed += 1
        self._reason = self._reason or reason

    def _events(self, cursor: int, *, is_last: bool) -> tuple[tuple[Event, ...], int | None]:
        task = msgspec.structs.replace(
            self._task,
            moved=self._task.moved + self._moved,
            cursor=cursor,
            failure_reason=self._reason,
            stayed=self._task.stayed + self._stayed,
        )
        for group in self._freed:
            self._book(self._definition).settle(group, (), [])
        events: list[Event] = []
        for book in self._books.values():
            events += book.events()
        if self._moves:
            events.append(MessagesMoved(self._queue.queue_id, self._stamp.now_ms, self._moves))
        events += self._departures.events()
        if is_last:
            status = "COMPLETED" if self._reason is None else "FAILED"
            return (*events, *_ended(self._queue, task, status, self._reason)), None
        if task == self._task:  # the outbox has no room
            return (), self._stamp.now_ms + _NO_ROOM_AGAIN_MS
        changed = MoveTaskChanged(self._queue.queue_id, task)
        wait_ms = task.started_at_ms + -(-task.moved * 1000 // task.rate) if task.rate else 0
        return (*events, changed), max(self._stamp.now_ms, wait_ms)

    def _page(self, allowed: int) -> tuple[list[tuple[int, StoredMessage]], int, bool]:
        """The next messages, the cursor after them, and True if they are the last."""
        task = self._task
        if task.selected is not None:
            found, cursor = self._selected(task.selected, allowed)
            return found, cursor, cursor == len(task.selected)
        page = self._shard.rows.line(
            self._queue.queue_id,
            max(task.cursor, self._queue.floor),
            task.until_sequence,
            messages=allowed,
            size=_CHUNK_BYTES,
            quarantined=self._queue.quarantined,
            spans=self._queue.spans,
        )
        cursor = page.next_sequence or task.until_sequence
        return page.messages, cursor, page.next_sequence is None

    def _selected(
        self, selected: list[int], allowed: int
    ) -> tuple[list[tuple[int, StoredMessage]], int]:
        found: list[tuple[int, StoredMessage]] = []
        cursor, size = self._task.cursor, 0
        for sequence in selected[cursor : cursor + allowed]:
            if size >= _CHUNK_BYTES:
                break
            cursor += 1
            page = self._shard.rows.unless_quarantined(self._queue, [sequence])
            found += page
            size += sum(len(message.data) for _, message in page)
        return found, cursor

    def _move(self, sequence: int, message: StoredMessage, target: QueueDefinition) -> None:
        there = self._shard.queues.get(target.queue_id)
        if there is not None and message.group in there.quarantined.groups:
            self._stay(InternalError.code)
            return
        try:
            sealed = self._shard.sealing.sealed_for(message, target)
        except QueueError as refusal:
            self._stay(refusal.code)
            return
        entry = self._queue.entries.get(sequence)
        lease = no_lease(sequence, message) if entry is None else entry.lease
        if entry is None and message.group:
            book = self._book(self._definition)
            if target.shard == self._definition.shard:
                book.leave(message.group, sequence)
            else:
                book.depart(message.group, sequence)
            if self._definition.settings.fifo:
                self._freed[message.group] = None
        if target.shard != self._definition.shard:
            arriving = self._as_new(sealed, message.group)
            self._departures.add(lease, message, target, arriving, self._task.task_id)
            return
        book = self._book(target)
        to = book.allocate()
        group = book.group_of(message.group)
        if group:
            book.arrive(group, to)
        moved = self._as_new(sealed, group)
        self._moves.append(Move(lease, -1, target.queue_id, to, moved, sealed is not message))

    def _as_new(self, message: StoredMessage, group: bytes) -> StoredMessage:
        return msgspec.structs.replace(
            message,
            message_id=self._stamp.message_id(),
            sent_at_ms=self._stamp.now_ms,
            dead_letter_source_arn=None,
            receive_count=0,
            first_received_at_ms=0,
            group=group,
            clock_ms=0,
            original_sequence=0,
            received_here=0,
        )

    def _book(self, definition: QueueDefinition) -> GroupBook:
        book = self._books.get(definition.queue_id)
        if book is None:
            queue = self._shard.queue(definition.queue_id)
            book = GroupBook(self._shard, queue, fifo=definition.settings.fifo)
            self._books[definition.queue_id] = book
        return book


def is_hidden(queue: QueueState, sequence: int) -> bool:
    """True for a message in flight."""
    entry = queue.entries.get(sequence)
    return entry is not None and entry.hidden


def target_of(
    shard: ShardState,
    source: QueueDefinition,
    destination_arn: str | None,
    targets: Collection[str] | None,
    message: StoredMessage,
) -> QueueDefinition | str:
    """A message's destination, or the reason why it has none.

    Without a given destination, only one of `targets` is allowed unless that is None.
    """
    arn = destination_arn or message.dead_letter_source_arn
    if arn is None:
        return _SOURCE_UNKNOWN
    if destination_arn is None and targets is not None and arn not in targets:
        return _DENIED
    target = shard.definitions.queue_of_arn(arn)
    if target is None or target.settings.fifo != source.settings.fifo:
        return TARGET_GONE
    try:
        shard.sealing.check(target)
    except QueueError as refusal:
        return refusal.code
    return target


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
