"""The 23 SQS actions as typed requests; `actions.py` has the table that describes them.

Other operations of shards stand with their feature (`visibility/rules`), for the service itself.

Both wire protocols decode to an Operation, and a shard executes it; there is no handler layer
between. Fields are AWS's member names in snake_case and carry AWS's units. Every field is optional
here, since AWS reports a missing parameter with an error of its own: `visibility.contract.validate`
checks for it.
Source: the SQS service model (compat_tests/test_model_drift.py compares this file with the
installed botocore).
"""

from __future__ import annotations

import msgspec

_IRREGULAR_MEMBERS = {
    "aws_account_ids": "AWSAccountIds",
    "queue_owner_aws_account_id": "QueueOwnerAWSAccountId",
    "tags_on_create": "tags",
    "md5_of_message_body": "MD5OfMessageBody",
    "md5_of_message_attributes": "MD5OfMessageAttributes",
    "md5_of_message_system_attributes": "MD5OfMessageSystemAttributes",
    "md5_of_body": "MD5OfBody",
    "source_queue_urls": "queueUrls",
}


def member_name(field: str) -> str:
    """AWS's spelling of a field of a request or a result: `delay_seconds` is `DelaySeconds`."""
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
