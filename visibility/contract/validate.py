"""Rules that need no queue: required members, ranges, alphabets, the shape of batches.

Each check raises AWS's refusal or returns nothing; `actions.ACTIONS` names the check of each
action. Those of the message actions are written out for speed. The rules on a message's attributes
are at the end; `content` uses them and has the rules that need the queue's settings (sizes, FIFO).
Source: SQS API reference; wording recorded from AWS where a test says so, else the common wording
of emulators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeVar

from visibility.contract import errors, limits
from visibility.contract import operations as ops
from visibility.contract.death import CAUSE_ATTRIBUTE
from visibility.contract.digests import Attributes
from visibility.contract.naming import (
    SYSTEM_ATTRIBUTE_NAMES,
    check_label,
    check_message_attribute_name,
    check_tag_count,
    check_tag_key,
    check_tags,
    check_token,
    checked_utf8,
    is_number,
    parse_arn,
)

_RECEIVABLE = frozenset(SYSTEM_ATTRIBUTE_NAMES) | {"All", CAUSE_ATTRIBUTE}
_NAMES_MAX = 200
"""Names of attributes in one list; ours, several times as many as there can be of use."""
_ENTRY_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.BATCH_ENTRY_ID_LENGTH_MAX}}}").fullmatch
_ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\.[!-~]+)?").fullmatch
"""With a label of printable ASCII without spaces, or without one."""


def check_delay_seconds(value: int) -> None:
    """Refuse a message's DelaySeconds out of range."""
    low, high = limits.DELAY_SECONDS.low, limits.DELAY_SECONDS.high
    if not low <= value <= high:
        raise errors.InvalidParameterValue(
            f"Value {value} for parameter DelaySeconds is invalid. Reason: "
            f"DelaySeconds must be >= {low} and <= {high}."
        )


def check_visibility_timeout(value: int | None, *, is_received: bool = False) -> None:
    """Refuse a VisibilityTimeout that is missing or out of range; entries of a batch are not
    checked with the batch."""
    if value is None:
        raise _missing("VisibilityTimeout")
    low, high = limits.VISIBILITY_TIMEOUT.low, limits.VISIBILITY_TIMEOUT.high
    if not low <= value <= high:
        bounds = (
            f">= {low} and <= {high}, if provided" if is_received else f"between {low} and {high}"
        )
        raise errors.InvalidParameterValue(
            f"Value {value} for parameter VisibilityTimeout is invalid. Reason: Must be {bounds}."
        )


def _missing(member: str) -> errors.MissingParameter:
    return errors.MissingParameter(f"The request must contain the parameter {member}.")


# -- messages --------------------------------------------------------------------------------------


def check_send_message(operation: ops.SendMessage) -> None:
    """The rules of SendMessage."""
    if not operation.queue_url:
        raise _missing("QueueUrl")
    if not operation.message_body:
        raise _missing("MessageBody")
    if operation.delay_seconds is not None:
        check_delay_seconds(operation.delay_seconds)


def check_receive_message(operation: ops.ReceiveMessage) -> None:
    """The rules of ReceiveMessage."""
    if not operation.queue_url:
        raise _missing("QueueUrl")
    count = operation.max_number_of_messages
    if count is not None and not 1 <= count <= limits.MAX_NUMBER_OF_MESSAGES.high:
        raise errors.InvalidParameterValue(
            f"Value {count} for parameter MaxNumberOfMessages is invalid. "
            f"Reason: Must be between 1 and {limits.MAX_NUMBER_OF_MESSAGES.high}, if provided."
        )
    wait = operation.wait_time_seconds
    if wait is not None and not 0 <= wait <= limits.WAIT_TIME_SECONDS.high:
        raise errors.InvalidParameterValue(
            f"Value {wait} for parameter WaitTimeSeconds is invalid. "
            f"Reason: Must be >= 0 and <= {limits.WAIT_TIME_SECONDS.high}, if provided."
        )
    if operation.visibility_timeout is not None:
        check_visibility_timeout(operation.visibility_timeout, is_received=True)
    if operation.attribute_names:
        _check_system_attribute_names("AttributeNames", operation.attribute_names)
    if operation.message_system_attribute_names:
        _check_system_attribute_names(
            "MessageSystemAttributeNames", operation.message_system_attribute_names
        )
    if operation.message_attribute_names:
        _check_number_of_names("MessageAttributeNames", operation.message_attribute_names)
    if operation.receive_request_attempt_id is not None:
        check_token("ReceiveRequestAttemptId", operation.receive_request_attempt_id)


def _check_number_of_names(member: str, names: Sequence[str] | None) -> None:
    if names is not None and len(names) > _NAMES_MAX:
        raise errors.InvalidParameterValue(
            f"Value for parameter {member} is invalid. Reason: "
            f"A request cannot have more than {_NAMES_MAX} names."
        )


def _check_system_attribute_names(member: str, names: Sequence[str]) -> None:
    _check_number_of_names(member, names)
    for name in names:
        if name not in _RECEIVABLE:
            raise errors.InvalidAttributeName(f"Unknown Attribute {name}.")


def check_delete_message(operation: ops.DeleteMessage) -> None:
    """The rules of DeleteMessage."""
    if not operation.queue_url:
        raise _missing("QueueUrl")
    if not operation.receipt_handle:
        raise _missing("ReceiptHandle")


def check_change_message_visibility(operation: ops.ChangeMessageVisibility) -> None:
    """The rules of ChangeMessageVisibility."""
    if not operation.queue_url:
        raise _missing("QueueUrl")
    if not operation.receipt_handle:
        raise _missing("ReceiptHandle")
    check_visibility_timeout(operation.visibility_timeout)


# -- batches ---------------------------------------------------------------------------------------


def check_send_message_batch(operation: ops.SendMessageBatch) -> None:
    """The rules of SendMessageBatch."""
    entries = _checked_entries(
        operation.queue_url, operation.entries, "SendMessageBatchRequestEntry"
    )
    for number, entry in enumerate(entries, 1):
        if not entry.message_body:
            raise _missing(f"SendMessageBatchRequestEntry.{number}.MessageBody")


def check_delete_message_batch(operation: ops.DeleteMessageBatch) -> None:
    """The rules of DeleteMessageBatch."""
    entries = _checked_entries(
        operation.queue_url, operation.entries, "DeleteMessageBatchRequestEntry"
    )
    for number, entry in enumerate(entries, 1):
        if not entry.receipt_handle:
            raise _missing(f"DeleteMessageBatchRequestEntry.{number}.ReceiptHandle")


def check_change_message_visibility_batch(operation: ops.ChangeMessageVisibilityBatch) -> None:
    """The rules of ChangeMessageVisibilityBatch."""
    shape = "ChangeMessageVisibilityBatchRequestEntry"
    entries = _checked_entries(operation.queue_url, operation.entries, shape)
    for number, entry in enumerate(entries, 1):
        if not entry.receipt_handle:
            raise _missing(f"{shape}.{number}.ReceiptHandle")


_EntryT = TypeVar("_EntryT", bound=ops.Entry)


def _checked_entries(
    queue_url: str | None, entries: list[_EntryT] | None, shape: str
) -> list[_EntryT]:
    """Check a batch's entries, their number and ids; `shape` is the query protocol's name of
    one."""
    if not queue_url:
        raise _missing("QueueUrl")
    if not entries:
        raise errors.EmptyBatchRequest(f"There should be at least one {shape} in the request.")
    if len(entries) > limits.BATCH_ENTRIES_MAX:
        raise errors.TooManyEntriesInBatchRequest(
            f"Maximum number of entries per request are {limits.BATCH_ENTRIES_MAX}. "
            f"You have sent {len(entries)}."
        )
    seen: set[str] = set()
    repeated: str | None = None
    for number, entry in enumerate(entries, 1):
        if entry.id is None:
            raise _missing(f"{shape}.{number}.Id")
        if _ENTRY_ID(entry.id) is None:
            raise errors.InvalidBatchEntryId()
        if entry.id in seen and repeated is None:
            repeated = entry.id
        seen.add(entry.id)
    if repeated is not None:
        raise errors.BatchEntryIdsNotDistinct(f"Id {repeated} repeated.")
    return entries


# -- queues, permissions, move tasks ---------------------------------------------------------------


def check_required(members: tuple[str, ...], operation: ops.Operation) -> None:
    """Refuse the first absent member; an empty text, list or map counts as absent."""
    for field in members:
        value: object = getattr(operation, field)
        if value is None or (isinstance(value, Collection) and not value):
            raise _missing(ops.member_name(field))


def check_create_queue(operation: ops.CreateQueue) -> None:
    """The rules of CreateQueue."""
    _check_queue_name(operation.queue_name)
    if operation.tags_on_create:
        check_tag_count(operation.queue_name or "", operation.tags_on_create)
        check_tags(operation.tags_on_create)


def check_get_queue_url(operation: ops.GetQueueUrl) -> None:
    """The rules of GetQueueUrl."""
    _check_queue_name(operation.queue_name)


def _check_queue_name(name: str | None) -> None:
    if name is None:
        raise _missing("QueueName")
    if not name:
        raise errors.InvalidParameterValue("Queue name cannot be empty")


def check_tag_queue(operation: ops.TagQueue) -> None:
    """The rules of TagQueue."""
    check_required(("queue_url", "tags"), operation)
    check_tag_count(_name_in(operation.queue_url), operation.tags or {})
    check_tags(operation.tags or {})


def check_untag_queue(operation: ops.UntagQueue) -> None:
    """The rules of UntagQueue."""
    if not operation.queue_url:
        raise _missing("QueueUrl")
    if len(operation.tag_keys or ()) > limits.TAGS_MAX:
        raise errors.InvalidParameterValue(
            f"Too many tag keys for queue {_name_in(operation.queue_url)}."
        )
    for key in operation.tag_keys or ("",):  # without keys, the refusal is that of an empty key
        check_tag_key(key)


def _name_in(url: str | None) -> str:
    """The queue's name in its URL, for the text of a refusal."""
    return (url or "")[-limits.QUEUE_NAME_LENGTH_MAX - 1 :].rstrip("/").rpartition("/")[2]


def check_get_queue_attributes(operation: ops.GetQueueAttributes) -> None:
    """The rules of GetQueueAttributes."""
    check_required(("queue_url",), operation)
    _check_number_of_names("AttributeNames", operation.attribute_names)


def check_list_queues(operation: ops.ListQueues) -> None:
    """The rules of ListQueues."""
    _check_max_results(operation.max_results)


def check_list_dead_letter_source_queues(operation: ops.ListDeadLetterSourceQueues) -> None:
    """The rules of ListDeadLetterSourceQueues."""
    check_required(("queue_url",), operation)
    _check_max_results(operation.max_results)


def _check_max_results(value: int | None) -> None:
    low, high = limits.LIST_RESULTS.low, limits.LIST_RESULTS.high
    if value is not None and not low <= value <= high:
        raise errors.InvalidParameterValue(
            "Value for parameter MaxResults is invalid. "
            f"Reason: MaxResults must be an integer between {low} and {high}."
        )


def check_remove_permission(operation: ops.RemovePermission) -> None:
    """The rules of RemovePermission."""
    check_required(("queue_url", "label"), operation)
    check_label(operation.label)


def check_start_message_move_task(operation: ops.StartMessageMoveTask) -> None:
    """The rules of StartMessageMoveTask."""
    _check_arn("SourceArn", operation.source_arn)
    if operation.destination_arn is not None:
        _check_arn("DestinationArn", operation.destination_arn)
    _check_between(
        "MaxNumberOfMessagesPerSecond",
        operation.max_number_of_messages_per_second,
        limits.MOVE_RATE,
    )


def check_list_message_move_tasks(operation: ops.ListMessageMoveTasks) -> None:
    """The rules of ListMessageMoveTasks."""
    _check_arn("SourceArn", operation.source_arn)
    _check_between("MaxResults", operation.max_results, limits.MOVE_TASK_RESULTS)


def _check_arn(member: str, arn: str | None) -> None:
    if arn is None:
        raise _missing(member)
    if parse_arn(arn) is None:
        raise errors.InvalidParameterValue(
            f"You must use this format to specify the {member}: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )


def _check_between(member: str, value: int | None, bounds: limits.Range) -> None:
    if value is not None and not bounds.low <= value <= bounds.high:
        raise errors.InvalidParameterValue(
            f"Value for parameter {member} is invalid. Reason: "
            f"You must enter a number that's between {bounds.low} and {bounds.high}."
        )


# -- attributes of messages ------------------------------------------------------------------------


def checked_attributes(
    given: Mapping[str, ops.MessageAttributeValue], kind: Literal["user", "system"]
) -> Attributes:
    """The attributes of a message as they are stored; raises InvalidParameterValue."""
    if len(given) > limits.MESSAGE_ATTRIBUTES_MAX:
        raise errors.InvalidParameterValue(
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum "
            f"[{limits.MESSAGE_ATTRIBUTES_MAX}]."
        )
    checked: Attributes = {}
    for name, value in given.items():
        if kind == "user":
            check_message_attribute_name(name)
        checked[name] = _checked_attribute(value, f"message ({kind}) attribute '{name}'")
    return checked


def _checked_attribute(value: ops.MessageAttributeValue, which: str) -> tuple[str, bytes]:
    """Data type and value; `which` names the attribute in a refusal."""
    if value.string_list_values or value.binary_list_values:
        raise errors.UnsupportedOperation(
            "Message attribute list values in SendMessage operation are not supported."
        )
    data_type, text, binary = value.data_type or "", value.string_value, value.binary_value
    field, misplaced = ("Binary", text) if data_type.startswith("Binary") else ("String", binary)
    at_start = "M" + which[1:]
    encoded = binary or checked_utf8(text or "")
    if not data_type:
        reason = f"The {which} must contain a non-empty message attribute type."
    elif _ATTRIBUTE_TYPE(data_type) is None:
        reason = (
            f"The type of {which} is invalid. You must use only the following supported type "
            "prefixes: Binary, Number, String."
        )
    elif len(data_type) > limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX:
        reason = (
            f"The type of {which} must be shorter than "
            f"{limits.MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX} bytes."
        )
    elif text and binary:
        reason = f"{at_start} must have a single value."
    elif misplaced:
        reason = f"{at_start} with type '{data_type}' must use field '{field}'."
    elif encoded is None:
        reason = f"Invalid characters found in the value of {which}."
    elif not encoded:
        reason = f"{at_start} must contain a non-empty value of type '{data_type}'."
    elif data_type == "Number" and not is_number(text or ""):
        reason = f"Can't cast the value of {which} to a number."
    else:
        return data_type, encoded
    raise errors.InvalidParameterValue(reason)
