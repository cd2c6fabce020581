"""The 23 SQS actions as typed requests; `actions.py` has the table that describes them.

Both wire protocols decode to an Operation, and a shard executes it; there is no handler layer
between. Fields are AWS's member names in snake_case and carry AWS's units. Every field is optional
here, since AWS reports a missing parameter with an error of its own: `visibility.contract.validate`
checks for it.
Source: the SQS service model (compat_tests/test_model_drift.py compares this file with the
installed botocore).
"""

from __future__ import annotations

import msgspec

from visibility.contract.move_task import MessageFilter, Pace
from visibility.contract.stored_message import Arrival

_IRREGULAR_MEMBERS = {
    "aws_account_ids": "AWSAccountIds",
    "queue_owner_aws_account_id": "QueueOwnerAWSAccountId",
    "tags_on_create": "tags",
}


def member_name(field: str) -> str:
    """AWS's spelling of a request field: `delay_seconds` is `DelaySeconds`."""
    regular = "".join(word.capitalize() for word in field.split("_"))
    return _IRREGULAR_MEMBERS.get(field, regular)


class Operation(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """One request to the service. Absent members are None."""


class Entry(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """One entry of a batch request. Absent members are None."""

    id: str | None = None


class MessageAttributeValue(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """A typed attribute of a message; `binary_value` holds raw bytes (base64 on the wire)."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


# -- messages --------------------------------------------------------------------------------------


class SendMessage(Operation, frozen=True):
    """Put one message into a queue."""

    queue_url: str | None = None
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_system_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchRequestEntry(Entry, frozen=True):
    """One message of a SendMessageBatch."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_system_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatch(Operation, frozen=True):
    """Put up to ten messages into a queue; each entry succeeds or fails alone."""

    queue_url: str | None = None
    entries: list[SendMessageBatchRequestEntry] | None = None


class ReceiveMessage(Operation, frozen=True):
    """Take up to ten messages and hide them for the visibility timeout; waits when asked to."""

    queue_url: str | None = None
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(Operation, frozen=True):
    """Remove a received message for good."""

    queue_url: str | None = None
    receipt_handle: str | None = None


class DeleteMessageBatchRequestEntry(Entry, frozen=True):
    """One message of a DeleteMessageBatch."""

    receipt_handle: str | None = None


class DeleteMessageBatch(Operation, frozen=True):
    """Remove up to ten received messages; each entry succeeds or fails alone."""

    queue_url: str | None = None
    entries: list[DeleteMessageBatchRequestEntry] | None = None


class ChangeMessageVisibility(Operation, frozen=True):
    """Hide a received message for `visibility_timeout` seconds from now; 0 shows it at once."""

    queue_url: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatchRequestEntry(Entry, frozen=True):
    """One message of a ChangeMessageVisibilityBatch."""

    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(Operation, frozen=True):
    """Change the visibility of up to ten received messages; each entry succeeds or fails alone."""

    queue_url: str | None = None
    entries: list[ChangeMessageVisibilityBatchRequestEntry] | None = None


class PurgeQueue(Operation, frozen=True):
    """Remove every message of a queue."""

    queue_url: str | None = None


# -- queues ----------------------------------------------------------------------------------------


class CreateQueue(Operation, frozen=True):
    """Make a queue, or return the URL of an equal one."""

    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags_on_create: dict[str, str] | None = None


class DeleteQueue(Operation, frozen=True):
    """Remove a queue and all of its messages."""

    queue_url: str | None = None


class GetQueueUrl(Operation, frozen=True):
    """Find a queue's URL by name, in the caller's account or the given one."""

    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None


class ListQueues(Operation, frozen=True):
    """List the caller's queues by name; pages when `max_results` is given."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(Operation, frozen=True):
    """Read settings and counters of a queue; `All` names every one."""

    queue_url: str | None = None
    attribute_names: list[str] | None = None


class SetQueueAttributes(Operation, frozen=True):
    """Change settings of a queue."""

    queue_url: str | None = None
    attributes: dict[str, str] | None = None


class ListQueueTags(Operation, frozen=True):
    """Read a queue's tags."""

    queue_url: str | None = None


class TagQueue(Operation, frozen=True):
    """Add or overwrite tags of a queue."""

    queue_url: str | None = None
    tags: dict[str, str] | None = None


class UntagQueue(Operation, frozen=True):
    """Remove tags of a queue; unknown keys are ignored."""

    queue_url: str | None = None
    tag_keys: list[str] | None = None


class ListDeadLetterSourceQueues(Operation, frozen=True):
    """List the queues whose RedrivePolicy names this one."""

    queue_url: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class AddPermission(Operation, frozen=True):
    """Add a statement to a queue's policy."""

    queue_url: str | None = None
    label: str | None = None
    aws_account_ids: list[str] | None = None
    actions: list[str] | None = None


class RemovePermission(Operation, frozen=True):
    """Remove a statement from a queue's policy."""

    queue_url: str | None = None
    label: str | None = None


# -- message move tasks ----------------------------------------------------------------------------


class StartMessageMoveTask(Operation, frozen=True):
    """Begin to move a dead-letter queue's messages back."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Operation, frozen=True):
    """Ask a running move task to stop."""

    task_handle: str | None = None


class ListMessageMoveTasks(Operation, frozen=True):
    """List the move tasks of a dead-letter queue, newest first."""

    source_arn: str | None = None
    max_results: int | None = None


# -- internal operations: not part of SQS, never decoded from the wire -----------------------------


class ReadCounters(Operation, frozen=True):
    """Read a queue's counters; answers `model.QueueCounters`."""


class ReadQueues(Operation, frozen=True):
    """Read counters, ages and the latest move task of queues; answers `outcomes.QueuesRead`.

    The queues are in the shard of the request's queue. For operators.
    """

    queue_ids: list[int] = []


class ContinueQueue(Operation, frozen=True):
    """Make the request's empty `destination` the successor of a purged queue; answers None.

    The messages stay in the old queue, which clients no longer reach.
    """


class RestoreMessages(Operation, frozen=True):
    """Put messages of a purged queue into the request's `destination`; answers `outcomes.Progress`.

    One bounded step, from `from_sequence` on. FIFO: messages of `blocked` groups wait for the next
    pass.
    """

    from_sequence: int = 0
    blocked: frozenset[bytes] = frozenset()


class DropQueue(Operation, frozen=True):
    """Forget a deleted queue and end its long polls; answers `outcomes.Progress`.

    Messages for the archive are exported first, one bounded step at a time.
    """


class CloseQueue(Operation, frozen=True):
    """End the long polls of a queue that was deleted and may be restored; answers None."""


FIXED_TO_QUEUE = frozenset({ContinueQueue, RestoreMessages, DropQueue, CloseQueue})
"""Operations on one deleted or purged queue, never on the queue that continues it."""


class QueueChanged(Operation, frozen=True):
    """Look at a queue's delays and retention again after a change of its settings; answers None."""


class SealArchive(Operation, frozen=True):
    """Make a batch of the messages that wait for the archive; answers None.

    The request's queue is `archive.the_shard`.
    """


class AcknowledgeArchive(Operation, frozen=True):
    """Forget the messages of `source`'s batches up to `batch`, which are archived; answers None.

    The request's queue is `archive.the_shard`.
    """

    source: str = ""
    batch: int = 0


class ReadOutbox(Operation, frozen=True):
    """Read the next messages of the outbox for another shard; answers `outcomes.OutboxPage`.

    The request's queue is `archive.the_shard`, as for the next two.
    """

    to_shard: int = 0


class AcceptMessages(Operation, frozen=True):
    """Take messages from another shard's outbox; answers `outcomes.Accepted`.

    By origin, what was remembered below the number in `floors` is forgotten.
    """

    arrivals: list[Arrival] = []
    floors: list[tuple[bytes, int]] = []


class ClearOutbox(Operation, frozen=True):
    """Remove messages from the outbox; answers None.

    `outcomes` are those of `outcomes.Accepted`: a message with a reason returns to its queue.
    """

    outcomes: list[tuple[bytes, int, str]] = []


class ReturnMessages(Operation, frozen=True):
    """Return undelivered messages to the queue without counting the receive; answers None.

    Used when an answer could not be written. The request's parts are the Receipts of the
    deliveries.
    """


class UndoReceive(Operation, frozen=True):
    """Return what the receive with this request's id got, as a retry of it; answers None."""


class BrowseMessages(Operation, frozen=True):
    """Look at messages without receiving them; answers `outcomes.BrowsedPage`.

    Either the delayed ones or all others, or the `held` ones alone, up to `limit` of them after
    `after`, a page's `next_token`.
    """

    delayed: bool = False
    after: tuple[int, int] | None = None
    limit: int = 100
    held: bool = False


class MoveSelected(Operation, frozen=True):
    """Begin a move task for the messages with these sequences, those that match a filter, or all;
    answers as StartMessageMoveTask.

    They move to the request's `destination`, or each to its own source; `rate` is in messages a
    second, 0 for no limit. `note` is the operator's reason. A task that `undoes` another returns
    messages as dead letters, which came from that one's `sources`; while it runs, a
    second one answers with its handle. `planned` is the number of messages that a plan counted, 0
    without one.
    """

    sequences: list[int] | None = None
    rate: int = 0
    filter: MessageFilter | None = None
    pace: Pace = Pace()
    note: str = ""
    undoes: str = ""
    sources: list[str] = []
    planned: int = 0


class ChangeMoveTask(Operation, frozen=True):
    """Pause or resume the move task of this handle, or note that it is undone; answers None."""

    task_handle: str = ""
    change: str = "pause"
    """"pause", "resume" or "undo"."""


class ReadMoveTasks(Operation, frozen=True):
    """Read move tasks with all that is known of them; answers `outcomes.MoveTasks`.

    They are those with a number below `before` (0: all), newest first.
    """

    before: int = 0
    limit: int = 50


class PlanMove(Operation, frozen=True):
    """Tell what a move task would do; answers `outcomes.MovePlan`.

    With `sequences` it is about these messages, otherwise about one bounded step of all messages,
    from `from_sequence` on, or of those that match a filter. Earlier steps planned `planned`
    messages, which take their time at this rate, and left messages of `groups` in their places.
    """

    sequences: list[int] | None = None
    from_sequence: int = 0
    filter: MessageFilter | None = None
    rate: int = 0
    planned: int = 0
    groups: list[bytes] = []


class DeleteSelected(Operation, frozen=True):
    """Delete the waiting messages with these sequences; answers `outcomes.SelectedDeleted`."""

    sequences: list[int] = []


class ResendMessage(Operation, frozen=True):
    """Send the request's Content, an edited copy, to its `destination`; answers SendMessageResult.

    With `replaces`, the message of that sequence, which must not be in flight, leaves its queue in
    the same step.
    """

    replaces: int = 0
