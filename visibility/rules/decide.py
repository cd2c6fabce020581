"""TABLE: operation to the one function that decides it.

A decision reads state and returns events; it changes nothing itself. It reads data that is not in
memory through `ShardState.rows`.
"""

from __future__ import annotations

from collections.abc import Callable

from visibility.contract.held_messages import HoldMessages, ReleaseMessages
from visibility.contract.model import Request
from visibility.contract.operations import (
    AcceptMessages,
    AcknowledgeArchive,
    BrowseMessages,
    CancelMessageMoveTask,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    ChangeMoveTask,
    ClearOutbox,
    CloseQueue,
    ContinueQueue,
    DeleteMessage,
    DeleteMessageBatch,
    DeleteSelected,
    DropQueue,
    ListMessageMoveTasks,
    MoveSelected,
    Operation,
    PlanMove,
    QueueChanged,
    ReadCounters,
    ReadMoveTasks,
    ReadOutbox,
    ReadQueues,
    ReceiveMessage,
    ResendMessage,
    RestoreMessages,
    ReturnMessages,
    SealArchive,
    SendMessage,
    SendMessageBatch,
    StartMessageMoveTask,
    UndoReceive,
)
from visibility.rules.acknowledge import (
    decide_change_message_visibility,
    decide_change_message_visibility_batch,
    decide_delete_message,
    decide_delete_message_batch,
    decide_return_messages,
    decide_undo_receive,
)
from visibility.rules.archive_batches import decide_acknowledge_archive, decide_seal_archive
from visibility.rules.arrivals import decide_accept_messages
from visibility.rules.browse import decide_browse_messages
from visibility.rules.decided import Outcome
from visibility.rules.delete_selected import decide_delete_selected
from visibility.rules.departures import decide_clear_outbox, decide_read_outbox
from visibility.rules.hold_messages import decide_hold_messages, decide_release_messages
from visibility.rules.kept_queues import (
    decide_continue_queue,
    decide_drop_queue,
    decide_restore_messages,
)
from visibility.rules.move_plans import decide_plan_move
from visibility.rules.move_tasks import (
    decide_cancel_message_move_task,
    decide_change_move_task,
    decide_list_message_move_tasks,
    decide_move_selected,
    decide_read_move_tasks,
    decide_start_message_move_task,
)
from visibility.rules.queues import (
    decide_close_queue,
    decide_queue_changed,
    decide_read_counters,
)
from visibility.rules.read_queues import decide_read_queues
from visibility.rules.receive import decide_receive_message
from visibility.rules.resend import decide_resend_message
from visibility.rules.send import decide_send_message, decide_send_message_batch
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

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
    ReadQueues: decide_read_queues,
    ReturnMessages: decide_return_messages,
    UndoReceive: decide_undo_receive,
    BrowseMessages: decide_browse_messages,
    MoveSelected: decide_move_selected,
    PlanMove: decide_plan_move,
    ChangeMoveTask: decide_change_move_task,
    ReadMoveTasks: decide_read_move_tasks,
    DeleteSelected: decide_delete_selected,
    HoldMessages: decide_hold_messages,
    ReleaseMessages: decide_release_messages,
    ResendMessage: decide_resend_message,
    SealArchive: decide_seal_archive,
    AcknowledgeArchive: decide_acknowledge_archive,
    ReadOutbox: decide_read_outbox,
    AcceptMessages: decide_accept_messages,
    ClearOutbox: decide_clear_outbox,
}
"""The answer and the events of each request. Raises QueueError for a refusal; changes nothing
itself."""
