"""Engine: the rules of one shard. Requests and time in, answers and events out; no socket, disk or clock.

Decide reads, apply writes. Whoever drives the engine picks a decision from DECIDE and applies its events at once, so that
the next request sees them, and holds the answer back until they are durable. What memory does not hold a decision reads
through `ShardState.rows`, which the driver provides.
"""

from __future__ import annotations

from collections.abc import Callable

from visibility.content.sealing import Sealing
from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import Definitions, Request
from visibility.contract.operations import (
    AcknowledgeArchive,
    BrowseMessages,
    CancelMessageMoveTask,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    CloseQueue,
    ContinueQueue,
    DeleteMessage,
    DeleteMessageBatch,
    DropQueue,
    ListMessageMoveTasks,
    MoveSelected,
    Operation,
    QueueChanged,
    ReadCounters,
    ReceiveMessage,
    ResendMessage,
    RestoreMessages,
    ReturnMessages,
    SealArchive,
    SendMessage,
    SendMessageBatch,
    StartMessageMoveTask,
)
from visibility.contract.outcomes import Outcome
from visibility.rules.acknowledge import (
    decide_change_message_visibility,
    decide_change_message_visibility_batch,
    decide_delete_message,
    decide_delete_message_batch,
    decide_return_messages,
)
from visibility.rules.archive import decide_acknowledge_archive, decide_seal_archive
from visibility.rules.browse import decide_browse_messages
from visibility.rules.kept_queues import (
    decide_continue_queue,
    decide_drop_queue,
    decide_restore_messages,
)
from visibility.rules.move_tasks import (
    decide_cancel_message_move_task,
    decide_list_message_move_tasks,
    decide_move_selected,
    decide_start_message_move_task,
)
from visibility.rules.pulse import Step
from visibility.rules.queues import (
    decide_close_queue,
    decide_queue_changed,
    decide_read_counters,
)
from visibility.rules.receive import decide_receive_message
from visibility.rules.resend import decide_resend_message
from visibility.rules.send import decide_send_message, decide_send_message_batch
from visibility.state.apply import APPLY, restore_lease, show
from visibility.state.events import (
    Event,
    GroupsChanged,
    Lease,
    LeasesEnded,
    MessagesDeleted,
    MessagesExpired,
    MessagesMoved,
    MessagesSent,
    MoveTask,
    VisibilityChanged,
)
from visibility.state.rows import Rows
from visibility.state.stamp import Stamp
from visibility.state.state import QueueState, ShardState
from visibility.state.waiters import Wait

ADVANCE_MAX = 20_000
"""Deadlines handled in one turn: bounds how long the event loop is held."""
_REBUILD_SLACK = 4096
_WAITS = 0
"""The queue id under which the deadline heap keeps the ends of long polls; queue ids start at 1."""

Decide = Callable[[ShardState, Request, Stamp], Outcome]

DECIDE: dict[type[Operation], Decide] = {
    SendMessage: decide_send_message,
    SendMessageBatch: decide_send_message_batch,
    ReceiveMessage: decide_receive_message,
    DeleteMessage: decide_delete_message,
    DeleteMessageBatch: decide_delete_message_batch,
    ChangeMessageVisibility: decide_change_message_visibility,
    ChangeMessageVisibilityBatch: decide_change_message_visibility_batch,
    ContinueQueue: decide_continue_queue,
    RestoreMessages: decide_restore_messages,
    StartMessageMoveTask: decide_start_message_move_task,
    CancelMessageMoveTask: decide_cancel_message_move_task,
    ListMessageMoveTasks: decide_list_message_move_tasks,
    DropQueue: decide_drop_queue,
    CloseQueue: decide_close_queue,
    QueueChanged: decide_queue_changed,
    ReadCounters: decide_read_counters,
    ReturnMessages: decide_return_messages,
    BrowseMessages: decide_browse_messages,
    MoveSelected: decide_move_selected,
    ResendMessage: decide_resend_message,
    SealArchive: decide_seal_archive,
    AcknowledgeArchive: decide_acknowledge_archive,
}
"""What to answer and what changes by it. Each raises QueueError for a refusal, and changes nothing itself."""

_SHOWING = (MessagesSent, VisibilityChanged, LeasesEnded, GroupsChanged)


class Engine:
    """One shard's state and rules."""

    def __init__(
        self,
        *,
        rows: Rows | None = None,
        definitions: Definitions | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """A follower, which only applies, needs none of `rows`, `definitions` and `sealing`."""
        self.state = ShardState(rows, definitions, sealing)
        self.stirred: dict[int, None] = {}
        """Queues with long polls in which a message may have become visible, in order."""
        self.due: dict[int, None] = {}
        """Queues that need a pulse, in order."""

    def apply(self, event: Event) -> None:
        """Change the state by an event that was decided here or elsewhere."""
        APPLY[type(event)](self.state, event)
        if self.state.waits.by_queue:
            self._stir(event)

    def _stir(self, event: Event) -> None:
        if type(event) in _SHOWING:
            self.stirred[event.queue_id] = None
        elif type(event) is MessagesMoved:
            for move in event.moves:
                self.stirred[move.target_queue_id] = None
        elif isinstance(event, MessagesDeleted | MessagesExpired):
            in_flight = self.state.queue(event.queue_id).in_flight
            if in_flight < IN_FLIGHT_MAX <= in_flight + len(event.leases):
                self.stirred[event.queue_id] = None  # there is room again

    # -- long polls ---------------------------------------------------------------------------------------------------

    def park(self, request: Request, ticket: object, until_ms: int) -> Wait:
        """Let a receive wait that found nothing."""
        wait = self.state.waits.park(request, ticket, until_ms)
        self.state.deadlines.push(until_ms, _WAITS, wait.number)
        return wait

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> list[Wait]:
        """Let time pass: standard leases that are over show their messages, queues that need a pulse become `due`.

        Returns the long polls that ended.
        """
        state = self.state
        ended: list[Wait] = []
        for _ in range(ADVANCE_MAX):
            due = state.deadlines.pop_due(now_ms)
            if due is None:
                break
            at_ms, queue_id, sequence = due
            if queue_id == _WAITS:
                wait = state.waits.remove(sequence)
                if wait is not None:
                    ended.append(wait)
                continue
            queue = state.queues.get(queue_id)
            if queue is not None:
                self._pass_deadline(queue, sequence, at_ms, now_ms)
        wanted = state.hidden + len(state.waits) + len(state.queues)
        if len(state.deadlines) > 4 * wanted + _REBUILD_SLACK:
            self._rebuild_deadlines()
        return ended

    def _pass_deadline(self, queue: QueueState, sequence: int, at_ms: int, now_ms: int) -> None:
        if not sequence:
            if queue.pulse_at_ms == at_ms:
                queue.pulse_at_ms = 0
                self.due[queue.queue_id] = None
            return
        entry = queue.entries.get(sequence)
        if entry is None or not entry.hidden or entry.lease.visible_at_ms > now_ms:
            return
        if queue.fifo:
            queue.ending.append(sequence)
            self.due[queue.queue_id] = None
        else:
            show(self.state, queue, entry)
            self.stirred[queue.queue_id] = None

    def pulse(self, queue_id: int, step: Step, stamp: Stamp) -> tuple[Event, ...]:
        """Decide one of `pulse.STEPS` for a due queue; its events are applied before the next step. Raises DamagedRecord."""
        queue = self.state.queues.get(queue_id)
        definition = self.state.definitions.queue_of_id(queue_id)
        if queue is None or definition is None:
            return ()
        events, again_ms = step(self.state, queue, definition, stamp)
        if again_ms is not None:
            self.state.plan_pulse(queue, again_ms)
        return events

    def next_deadline_ms(self) -> int | None:
        """When `advance` next has something to do, None for never."""
        return self.state.deadlines.next_at_ms()

    def _rebuild_deadlines(self) -> None:
        """Forget deadlines of deleted messages, which stay in the heap until they are due."""
        items = [
            (entry.lease.visible_at_ms, queue.queue_id, sequence)
            for queue in self.state.queues.values()
            if queue.in_flight
            for sequence, entry in queue.entries.items()
            if entry.hidden
        ]
        items += [
            (queue.pulse_at_ms, queue.queue_id, 0)
            for queue in self.state.queues.values()
            if queue.pulse_at_ms
        ]
        items += [(wait.until_ms, _WAITS, wait.number) for wait in self.state.waits.all()]
        self.state.deadlines.rebuild(items)

    # -- what was stored ----------------------------------------------------------------------------------------------

    def restore(self, queue: QueueState, leases: list[Lease], tasks: list[MoveTask]) -> None:
        """Begin with a queue as it was stored; `advance` shows what is visible again."""
        self.state.queues[queue.queue_id] = queue
        for task in tasks:
            queue.tasks[task.number] = task
        for lease in leases:
            restore_lease(self.state, queue, lease)
        queue.counts.restored = queue.stored
        self.state.plan_pulse(queue, 1)
