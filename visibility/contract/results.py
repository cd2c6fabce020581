"""The typed answers of the 23 actions.

Fields are AWS's member names in snake_case. An absent member is None and omitted on the wire (AWS
never sends null or empty lists; an empty receive is `{}`). Actions without a result answer None.
"""

from __future__ import annotations

import msgspec

from visibility.contract.operations import member_name


class Result(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """The answer to an Operation."""


class Part(msgspec.Struct, frozen=True, rename=member_name, omit_defaults=True):
    """A member structure of a Result."""


class SendMessageResult(Result, frozen=True, gc=False):
    """Digests are lower-case hex; `sequence_number` is a decimal string, FIFO only."""

    md5_of_message_body: str
    message_id: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class SendMessageBatchResultEntry(Part, frozen=True, gc=False):
    """A sent message of a batch."""

    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class BatchResultErrorEntry(Part, frozen=True, gc=False):
    """A refused entry; `code` is the query protocol's code in both protocols."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class SendMessageBatchResult(Result, frozen=True):
    """Entries in the order of the request; each list is None when empty."""

    successful: list[SendMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ReceivedAttributeValue(Part, frozen=True, gc=False):
    """A message attribute in a received message; `binary_value` holds raw bytes (base64 on the
    wire)."""

    string_value: str | None = None
    binary_value: bytes | None = None
    data_type: str | None = None


class Message(Part, frozen=True):
    """A received message. `attributes` are system attributes, all strings."""

    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, ReceivedAttributeValue] | None = None


class ReceiveMessageResult(Result, frozen=True):
    """At most ten messages; None when there are none."""

    messages: list[Message] | None = None


class DeleteMessageBatchResultEntry(Part, frozen=True, gc=False):
    """A deleted message of a batch."""

    id: str


class DeleteMessageBatchResult(Result, frozen=True):
    """Entries in the order of the request; each list is None when empty."""

    successful: list[DeleteMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class ChangeMessageVisibilityBatchResultEntry(Part, frozen=True, gc=False):
    """A changed message of a batch."""

    id: str


class ChangeMessageVisibilityBatchResult(Result, frozen=True):
    """Entries in the order of the request; each list is None when empty."""

    successful: list[ChangeMessageVisibilityBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class CreateQueueResult(Result, frozen=True, gc=False):
    """The URL of the new or the equal existing queue."""

    queue_url: str


class GetQueueUrlResult(Result, frozen=True, gc=False):
    """The queue's URL."""

    queue_url: str


class ListQueuesResult(Result, frozen=True):
    """URLs by name; `next_token` only when `max_results` was given and more remain."""

    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributesResult(Result, frozen=True):
    """Names and values, all strings; None when no requested attribute is set."""

    attributes: dict[str, str] | None = None


class ListQueueTagsResult(Result, frozen=True):
    """Tags by key; None when there are none."""

    tags: dict[str, str] | None = None


class ListDeadLetterSourceQueuesResult(Result, frozen=True):
    """URLs by name. The member is `queueUrls` on the wire (AWS's spelling), even when empty."""

    source_queue_urls: list[str]
    next_token: str | None = None


class StartMessageMoveTaskResult(Result, frozen=True, gc=False):
    """The handle that cancels the task."""

    task_handle: str


class CancelMessageMoveTaskResult(Result, frozen=True, gc=False):
    """Number of messages moved before the task was asked to stop."""

    approximate_number_of_messages_moved: int


class ListMessageMoveTasksResultEntry(Part, frozen=True, gc=False):
    """One task; `started_timestamp` is epoch milliseconds."""

    task_handle: str | None = None
    status: str | None = None
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None


class ListMessageMoveTasksResult(Result, frozen=True):
    """Tasks, newest first; None when there are none."""

    results: list[ListMessageMoveTasksResultEntry] | None = None
