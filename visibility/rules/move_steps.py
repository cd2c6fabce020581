"""The step of a pulse that moves messages of a task.

A task walks over the sequences that its queue had at its start, in order, and skips messages in
flight and those that its filter does not choose. A message that cannot be moved stays, and the task
fails once all others have moved; it fails at once if its destination cannot be used. It waits for a
key that is not there yet. A moved message is a new one at its destination: new id, new time, no
receives. Of a destination of several parts each step draws one. The task is a row written with
every step, so it continues after a restart and moves nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from visibility.content.content import unpack
from visibility.content.edits import edited
from visibility.content.filters import matches_inside, matches_outside
from visibility.content.sealing import KEY_AGAIN_MS
from visibility.contract.death import redriven
from visibility.contract.errors import InternalError, QueueError, ServiceUnavailable
from visibility.contract.limits import MOVE_TASK_SECONDS_MAX
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter, MoveTask, whole
from visibility.contract.origin import after_redrive, before_redrive
from visibility.contract.priority import joining_level
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.time_to_live_tags import expiry
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.closing_parts import open_part, shares_out
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.failure_pages import FailurePage, FailureWalk
from visibility.rules.groups import GroupBook
from visibility.rules.leases import no_lease
from visibility.rules.message_events import MessagesMoved, Move
from visibility.rules.move_pace import (
    WATCH_MS,
    after_canary,
    allowed_now,
    moved_id,
    next_move_ms,
    source_of,
    watched,
    with_source,
    without_canary,
)
from visibility.rules.move_tasks import MoveTaskChanged
from visibility.rules.orders import order_of
from visibility.rules.retention import TooOld
from visibility.rules.room import Room, takes
from visibility.rules.selected import is_hidden
from visibility.state.noted_spans import Walked
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

CHUNK_MESSAGES = 100
_CHUNK_BYTES = 2 << 20
FILTERED_MESSAGES = 100
_FILTERED_STEP_MS = 50
"""Least time between two steps at a rate: each reads a page, of which it may move one message."""
"""Messages that one step compares with a filter: some milliseconds."""
_FILTERED_BYTES = 256 << 10
"""The same for their content."""
_TASK_MS_MAX = MOVE_TASK_SECONDS_MAX * 1000
_SOURCE_UNKNOWN = "CouldNotDetermineMessageSource"
_DENIED = "AccessDenied"
_TOO_LONG = "TaskTimedOut"
_END_LOST = "TaskEndLost"
_NO_ROOM_AGAIN_MS = 1_000
"""Pause of a task while the outbox is full with messages of others, or its destination is full."""


def advance_move_tasks(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Move the messages that the active task may move now; see `pulse.Step`."""
    task, now_ms = queue.active_task, stamp.now_ms
    if task is None:
        return _without_end(queue, now_ms), None
    if task.status == "CANCELLING":
        if shard.outbox.has_of_task(task.task_id):
            return (), None  # the end follows when the outbox is cleared
        if not all(share.is_ended for share in task.shares):
            return (), None  # the other parts say when they have stopped
        return ended(queue, task, now_ms, "CANCELLED"), None
    if not task.until_sequence:
        return (), None
    if now_ms - task.started_at_ms > _TASK_MS_MAX:
        return ended(queue, task, now_ms, "FAILED", _TOO_LONG), None
    before, task = task, watched(shard, queue, task)
    allowed = _allowed(task, now_ms)
    if task.paused or task.is_walked or (task.is_granted and allowed <= 0):
        changed = (MoveTaskChanged(queue.queue_id, task),) if task != before else ()
        return changed, now_ms + WATCH_MS
    if allowed <= 0:
        return (), max(now_ms + 1, next_move_ms(task))
    return _Moving(shard, queue, definition, stamp, task).step(allowed)


def _allowed(task: MoveTask, now_ms: int) -> int:
    if task.is_granted:
        return min(CHUNK_MESSAGES, task.granted - task.moved)
    return allowed_now(task, now_ms, CHUNK_MESSAGES)


def _without_end(queue: QueueState, now_ms: int) -> tuple[Event, ...]:
    """End a task that has a successor: the Entry of its end was lost with a damaged log."""
    for task in queue.tasks.values():
        if task.is_active:
            return ended(queue, task, now_ms, "FAILED", _END_LOST)
    return ()


def ended(
    queue: QueueState, task: MoveTask, now_ms: int, status: str, reason: str | None = None
) -> tuple[Event, ...]:
    """The end of a task."""
    over = msgspec.structs.replace(
        task, status=status, failure_reason=reason, selected=None, paused="", ended_at_ms=now_ms
    )
    return (MoveTaskChanged(queue.queue_id, over),)


def completed(queue: QueueState, task: MoveTask, now_ms: int) -> tuple[Event, ...]:
    """The end of a task that has looked at all messages."""
    reason = whole(task).failure_reason
    return ended(queue, task, now_ms, "COMPLETED" if reason is None else "FAILED", reason)


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
        self._rooms: dict[int, Room | None] = {}
        self._drawn: dict[int, QueueDefinition | None] = {}
        """Parts of destinations by the id of the whole queue."""
        self._moves: list[Move] = []
        self._departures = Departures(shard, definition, stamp)
        self._freed: dict[bytes, None] = {}
        self._looked_at = 0
        self._of_failure: FailurePage | None = None
        self._at = 0
        """The sequence looked at last."""
        self._stayed = 0
        self._reason = task.failure_reason
        self._too_old = TooOld(shard, queue, definition.settings, stamp)

    def step(self, allowed: int) -> tuple[tuple[Event, ...], int | None]:
        """Move up to `allowed` messages, or those before one whose key is not there yet. Raises
        DamagedRecord."""
        try:
            return self._step(allowed)
        except ServiceUnavailable:
            self._looked_at -= 1
            cursor = self._cursor_at(self._at)
            return self._events(cursor, is_last=False, wait_ms=KEY_AGAIN_MS)

    def _step(self, allowed: int) -> tuple[tuple[Event, ...], int | None]:
        found, cursor, is_last = self._page(allowed)
        for sequence, message in found:
            if self._moved >= allowed:
                return self._events(self._cursor_at(sequence), is_last=False)
            self._looked_at += 1
            self._at = sequence
            if not self._is_chosen(sequence, message):
                continue
            target = target_of(
                self._shard,
                self._definition,
                self._task.destination_arn,
                self._task.targets,
                message,
            )
            if not isinstance(target, str):
                target = self._part_of(target, message.group)
            if not isinstance(target, str):
                if target.shard != self._definition.shard:
                    if not self._departures.has_room_for(target):
                        self._looked_at -= 1
                        return self._events(self._cursor_at(sequence), is_last=False)
                elif target.queue_id not in self._books and not self._shard.is_ready(
                    target.queue_id
                ):
                    return (), self._stamp.now_ms + 1
                if not self._takes(target, message.size):
                    self._looked_at -= 1
                    return self._events(self._cursor_at(sequence), is_last=False)
                self._move(sequence, message, target)
                continue
            self._stay(target)
            if self._task.destination_arn is not None:
                return self._events(cursor, is_last=True)  # no other can be moved either
        if is_last and self._are_under_way():
            return self._waiting(cursor)
        return self._events(cursor, is_last=is_last)

    def _takes(self, target: QueueDefinition, size: int) -> bool:
        """Take room for a message in a queue that its tags limit; False if there is none now."""
        if target.shard != self._definition.shard:
            return not self._shard.is_full(target.queue_id, self._stamp.now_ms)
        if not target.settings.own_tags or target.queue_id == self._queue.queue_id:
            return True
        if target.queue_id not in self._rooms:
            self._rooms[target.queue_id] = Room.of(self._shard.queue(target.queue_id), target)
        return takes(self._rooms[target.queue_id], size)

    def _part_of(self, target: QueueDefinition, group: bytes) -> QueueDefinition | str:
        """The part for the messages of this step (in a FIFO queue, of the group), or the reason why
        there is none."""
        if shares_out(target):
            return target.part_for(group)
        if not target.parts:
            return target
        if target.queue_id not in self._drawn:
            self._drawn[target.queue_id] = open_part(self._shard, target, self._stamp, group)
        return self._drawn[target.queue_id] or TARGET_GONE

    def _is_chosen(self, sequence: int, message: StoredMessage) -> bool:
        """True for a message that should move; one that cannot be compared stays."""
        if message.group in self._queue.quarantined.groups or is_hidden(self._queue, sequence):
            return False
        if self._too_old.passes(message):
            return False
        wanted = self._task.filter
        if wanted is None:
            return True
        try:
            search = Search(self._shard, self._definition, wanted, self._task.targets)
            return search.matches(sequence, message)
        except ServiceUnavailable:
            raise
        except QueueError as refusal:
            self._stay(refusal.code)
            return False

    def _are_under_way(self) -> bool:
        """True while the task's messages are on their way to other shards, which may refuse
        them."""
        return bool(self._departures) or self._shard.outbox.has_of_task(self._task.task_id)

    def _waiting(self, cursor: int) -> tuple[tuple[Event, ...], int | None]:
        """The last step but for the end of the task, which follows when the outbox is cleared."""
        if cursor == self._task.cursor and not (self._moved or self._stayed):
            return (), None
        return self._events(cursor, is_last=False, is_over=True)[0], None

    @property
    def _moved(self) -> int:
        return len(self._moves) + len(self._departures)

    def _cursor_at(self, sequence: int) -> int:
        """The cursor before a message of the page."""
        selected = self._task.picked
        return sequence if selected is None else selected.index(sequence)

    def _stay(self, reason: str) -> None:
        self._stayed += 1
        self._reason = self._reason or reason

    def _events(
        self,
        cursor: int,
        *,
        is_last: bool,
        is_over: bool = False,
        wait_ms: int = _NO_ROOM_AGAIN_MS,
    ) -> tuple[tuple[Event, ...], int | None]:
        """The step. `is_last`: the task ends with it; `is_over`: nothing is left to move;
        `wait_ms`: the pause after a step that changes nothing."""
        now_ms, looked_at = self._stamp.now_ms, self._looked_at
        if self._of_failure is not None:
            looked_at = self._of_failure.looked_at(cursor)
        task = msgspec.structs.replace(
            self._task,
            moved=self._task.moved + self._moved,
            cursor=cursor,
            failure_reason=self._reason,
            stayed=self._task.stayed + self._stayed,
            looked_at=self._task.looked_at + looked_at,
        )
        for group in self._freed:
            self._book(self._definition).settle(group, (), [])
        events: list[Event] = []
        for book in self._books.values():
            events += book.events()
        if self._moves:
            events.append(MessagesMoved(self._queue.queue_id, now_ms, self._moves))
        events += self._departures.events()
        if is_last and task.is_granted:
            walked = msgspec.structs.replace(task, is_walked=True)
            return (*events, MoveTaskChanged(self._queue.queue_id, walked)), now_ms + WATCH_MS
        if is_last:
            return (*events, *completed(self._queue, task, now_ms)), None
        if task == self._task:  # the outbox has no room, or a key is not there yet
            return (), now_ms + wait_ms
        if not task.is_granted:
            task = without_canary(task) if is_over else after_canary(task)
        changed = MoveTaskChanged(self._queue.queue_id, task)
        wait_ms = _FILTERED_STEP_MS if task.opens and task.rate else 0
        return (*events, changed), max(now_ms + wait_ms, next_move_ms(task))

    def _page(self, allowed: int) -> tuple[list[tuple[int, StoredMessage]], int, bool]:
        """The next messages, the cursor after them, and True if they are the last."""
        task = self._task
        if task.picked is not None:
            found, cursor = self._selected(task.picked, allowed)
            return found, cursor, cursor == len(task.picked)
        first, until = max(task.cursor, self._queue.floor), task.until_sequence
        if task.filter is not None and task.filter.failure is not None:
            of_failure = self._of_failure = self._may_have(task.filter.failure, first)
            return of_failure.messages, of_failure.cursor, of_failure.cursor >= until
        page = self._shard.rows.line(
            self._queue.queue_id,
            first,
            until,
            messages=FILTERED_MESSAGES if task.opens else allowed,
            size=_FILTERED_BYTES if task.opens else _CHUNK_BYTES,
            quarantined=self._queue.quarantined,
            spans=self._queue.spans,
        )
        cursor = page.next_sequence or until
        return page.messages, cursor, cursor >= until

    def _may_have(self, failure_id: str, first: int) -> FailurePage:
        """Messages that may have a failure, from a sequence on; see `FailureWalk`."""
        notes, task = self._queue.failure_notes, self._task
        walked = Walked() if notes is None else notes.walked_by(task.task_id)
        walked.pass_by(first)
        walk = FailureWalk(self._shard, self._queue, failure_id, walked)
        return walk.page(
            first, task.until_sequence, messages=FILTERED_MESSAGES, size=_FILTERED_BYTES
        )

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
            sealed = self._for_target(message, target)
        except ServiceUnavailable:
            raise
        except QueueError as refusal:
            self._stay(refusal.code)
            return
        if isinstance(sealed, str):
            self._stay(sealed)
            return
        entry = self._queue.entries.get(sequence)
        order = order_of(self._definition.settings)
        history = order.lease_of(self._shard.rows, self._queue, sequence, message)
        lease = no_lease(sequence, message) if entry is None else entry.lease
        if entry is None and message.group:
            book = self._book(self._definition)
            if target.shard == self._definition.shard:
                book.leave(message.group, sequence)
            else:
                book.depart(message.group, sequence)
            self._freed[message.group] = None
        if target.shard != self._definition.shard:
            arriving = self._moving(sealed, history, message.group, target)
            self._departures.add(lease, message, target, arriving, self._task.task_id)
            return
        book = self._book(target)
        to = book.allocate()
        group = book.group_of(message.group)
        if group:
            book.arrive(group, to)
        moved = self._moving(sealed, history, group, target)
        self._moves.append(Move(lease, -1, target.queue_id, to, moved, sealed is not message))

    def _for_target(self, message: StoredMessage, target: QueueDefinition) -> StoredMessage | str:
        """The message with the task's edit, sealed for its target; or the reason why it stays.
        Raises QueueError."""
        sealing = self._shard.sealing
        if not self._task.edit:
            return sealing.sealed_for(message, target)
        changed = edited_in(
            self._shard, self._definition, self._task.edit, self._task.targets, message, target
        )
        if isinstance(changed, str):
            return changed
        sealed = sealing.with_content(message, changed.data, target)
        return msgspec.structs.replace(sealed, size=changed.size)

    def _moving(
        self, message: StoredMessage, history: Lease, group: bytes, target: QueueDefinition
    ) -> StoredMessage:
        """The message as its destination gets it: a new one, or a dead letter again."""
        now_ms = self._stamp.now_ms
        if self._task.undoes:
            source_arn = source_of(message.message_id, self._task.sources)
            clock_ms = order_of(target.settings).dead_letter_clock_ms(message, now_ms)
            message = before_redrive(message, history, now_ms)
        else:
            edited_at_ms = now_ms if self._task.edit else 0
            clock_ms, source_arn = 0, None
            message = msgspec.structs.replace(
                message,
                message_id=self._new_id(message.dead_letter_source_arn),
                sent_at_ms=now_ms,
                receive_count=0,
                first_received_at_ms=0,
                death=redriven(message.death),
                origin=after_redrive(message, history, edited_at_ms=edited_at_ms),
            )
        return msgspec.structs.replace(
            message,
            dead_letter_source_arn=source_arn,
            group=group,
            clock_ms=clock_ms,
            expires_ms=expiry(target.settings.own_tags, now_ms),
            level=joining_level(target.settings.own_tags, message.level),
            original_sequence=0,
            received_here=0,
        )

    def _new_id(self, source_arn: str | None) -> str:
        self._task = with_source(self._task, source_arn)
        return moved_id(self._task, source_arn, self._stamp)

    def _book(self, definition: QueueDefinition) -> GroupBook:
        book = self._books.get(definition.queue_id)
        if book is None:
            queue = self._shard.queue(definition.queue_id)
            book = order_of(definition.settings).book(self._shard, queue)
            self._books[definition.queue_id] = book
        return book


class Search(NamedTuple):
    """A filter, for messages of one queue. Their content is opened with the keys of the queue and
    of those `targets` (None: all queues) that they came from."""

    shard: ShardState
    definition: QueueDefinition
    filter: MessageFilter
    targets: Collection[str] | None

    def matches(self, sequence: int, message: StoredMessage) -> bool:
        """True if a message matches. Raises QueueError if it cannot be opened, DamagedRecord."""
        shard, queue = self.shard, self.shard.queue(self.definition.queue_id)
        order = order_of(self.definition.settings)
        lease = order.lease_of(shard.rows, queue, sequence, message)
        if not matches_outside(self.filter, message, lease.receive_count):
            return False
        if not self.filter.opens:
            return True
        _, body, extras = unpack(_opened(shard, self.definition, self.targets, message))
        return matches_inside(self.filter, body, extras)


def edited_in(
    shard: ShardState,
    source: QueueDefinition,
    edit: str,
    targets: Collection[str] | None,
    message: StoredMessage,
    target: QueueDefinition,
) -> StoredMessage | str:
    """A message of `source` with the edit, not sealed, or the reason why it stays. Raises
    QueueError if it cannot be opened."""
    data = _opened(shard, source, targets, message)
    return edited(message, data, edit, target.settings.maximum_message_size)


def _opened(
    shard: ShardState,
    queue: QueueDefinition,
    targets: Collection[str] | None,
    message: StoredMessage,
) -> bytes:
    """The content of a message. Raises QueueError if it cannot be opened."""
    arn = message.dead_letter_source_arn
    owners = [queue]
    if arn is not None and (targets is None or arn in targets):
        source = shard.definitions.queue_of_arn(arn)
        owners += [] if source is None else [source]
    data = shard.sealing.opened(message, owners)
    if data is None:
        raise InternalError
    return data


def target_of(
    shard: ShardState,
    source: QueueDefinition,
    destination_arn: str | None,
    targets: Collection[str] | None,
    message: StoredMessage,
) -> QueueDefinition | str:
    """A message's destination, or the reason why it has none. Raises ServiceUnavailable.

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
    except ServiceUnavailable:
        raise
    except QueueError as refusal:
        return refusal.code
    return target
