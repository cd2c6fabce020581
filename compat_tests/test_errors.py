"""Refusals in AWS's wording: one row each, in both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.clients.raw import RawClient
from compat_tests.facade import Client, Members, counts, receive, refusal
from compat_tests.node_process import NodeProcess

GROUP_ID = (
    "Value {} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
    "alphanumeric and punctuation characters. 1 to 128 in length."
)
SSE = (
    "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS "
    "SSE or SQS SSE."
)
NO_QUEUE = "The specified queue does not exist."


class Row(NamedTuple):
    """A call and its refusal. `message` and `status` are None where AWS's are not recorded."""

    operation: str
    members: Members
    code: str
    shape: str
    message: str | None
    status: int | None = 400


def invalid_value(operation: str, members: Members, message: str | None) -> Row:
    return Row(
        operation, members, "InvalidParameterValue", "InvalidParameterValueException", message
    )


def invalid_name(operation: str, attributes: dict[str, str], message: str) -> Row:
    members = {"Attributes": attributes}
    return Row(operation, members, "InvalidAttributeName", "InvalidAttributeName", message)


def out_of_range(attribute: str, value: str) -> Row:
    members = {"Attributes": {attribute: value}}
    return Row(
        "SetQueueAttributes", members, "InvalidAttributeValue", "InvalidAttributeValue", None
    )


def string(value: str) -> Members:
    return {"k": {"DataType": "String", "StringValue": value}}


ROWS: dict[str, Row] = {
    "no body": Row(
        "SendMessage",
        {},
        "MissingParameter",
        "MissingRequiredParameterException",
        "The request must contain the parameter MessageBody.",
    ),
    "group with a space": invalid_value(
        "SendMessage", {"MessageBody": "x", "MessageGroupId": "a b"}, GROUP_ID.format("a b")
    ),
    "delay too long": invalid_value("SendMessage", {"MessageBody": "x", "DelaySeconds": 901}, None),
    "eleven messages asked": invalid_value(
        "ReceiveMessage",
        {"MaxNumberOfMessages": 11},
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, "
        "if provided.",
    ),
    "garbage handle": Row(
        "DeleteMessage",
        {"ReceiptHandle": "garbage"},
        "ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
        'The input receipt handle "garbage" is not a valid receipt handle.',
        None,
    ),
    "garbage handle in a change": Row(
        "ChangeMessageVisibility",
        {"ReceiptHandle": "INVALID", "VisibilityTimeout": 0},
        "ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
        None,
        None,
    ),
    "unknown attribute set": invalid_name(
        "SetQueueAttributes", {"Foobar": "1"}, "Unknown Attribute Foobar."
    ),
    "unknown attribute asked": Row(
        "GetQueueAttributes",
        {"AttributeNames": ["Foobar"]},
        "InvalidAttributeName",
        "InvalidAttributeName",
        "Unknown Attribute Foobar.",
    ),
    "two encryptions": invalid_name(
        "SetQueueAttributes", {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, SSE
    ),
    "retention attribute out of range": out_of_range("MessageRetentionPeriod", "59"),
}


def check(client: Client, error: Any, row: Row) -> None:
    assert error.code == row.code
    if client.protocol == "json":
        assert error.query_code == row.shape
    if row.message is not None:
        assert error.message == row.message
    assert error.status == row.status or (row.status is None and 400 <= error.status < 500)


@pytest.mark.parametrize("case", ROWS)
def test_refusal(sqs: Client, queue: str, case: str) -> None:
    row = ROWS[case]

    error = refusal(sqs, row.operation, QueueUrl=queue, **row.members)

    check(sqs, error, row)


@pytest.mark.parametrize("body", ["\x00", "\uffff"])
def test_forbidden_characters_are_refused(sqs: Client, queue: str, body: str) -> None:
    error = refusal(sqs, "SendMessage", QueueUrl=queue, MessageBody=body)

    row = Row("SendMessage", {}, "InvalidMessageContents", "InvalidMessageContents", None)
    check(sqs, error, row)


# Every action that names a queue, with its minimal members.
_BY_QUEUE: dict[str, Members] = {
    "SendMessage": {"MessageBody": "x"},
    "SendMessageBatch": {"Entries": [{"Id": "a", "MessageBody": "x"}]},
    "ReceiveMessage": {},
    "DeleteMessage": {"ReceiptHandle": "x"},
    "DeleteMessageBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "x"}]},
    "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 0},
    "ChangeMessageVisibilityBatch": {
        "Entries": [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 0}]
    },
    "PurgeQueue": {},
    "DeleteQueue": {},
    "GetQueueAttributes": {"AttributeNames": ["All"]},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "ListQueueTags": {},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "ListDeadLetterSourceQueues": {},
    "AddPermission": {"Label": "l", "AWSAccountIds": ["1" * 12], "Actions": ["SendMessage"]},
    "RemovePermission": {"Label": "l"},
}


@pytest.mark.parametrize("operation", _BY_QUEUE)
def test_missing_queue(sqs: Client, queue: str, operation: str) -> None:
    error = refusal(sqs, operation, QueueUrl=queue + "-not", **_BY_QUEUE[operation])

    assert error.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert error.status == 400
    if sqs.protocol == "json":
        assert (error.query_code, error.message) == ("QueueDoesNotExist", NO_QUEUE)
    else:
        assert error.message == "The specified queue does not exist for this wsdl version."


# -- AWS's 60-second rules -------------------------------------------------------------------------


@pytest.fixture
def strict(strict_node: NodeProcess) -> Boto3Client:
    """A client of a service that keeps the 60-second rules."""
    return Boto3Client(strict_node.url, strict_node.credentials)


def test_second_purge_within_a_minute_is_refused(strict: Boto3Client) -> None:
    url = strict.call("CreateQueue", QueueName="purged")["QueueUrl"]
    strict.call("PurgeQueue", QueueUrl=url)

    error = refusal(strict, "PurgeQueue", QueueUrl=url)

    assert error.code == "AWS.SimpleQueueService.PurgeQueueInProgress"
    assert error.query_code == "PurgeQueueInProgress"
    assert error.status == 403
    expected = "Only one PurgeQueue operation on purged is allowed every 60 seconds."
    assert error.message == expected


def test_name_cannot_be_used_again_within_a_minute(strict: Boto3Client) -> None:
    url = strict.call("CreateQueue", QueueName="deleted")["QueueUrl"]
    strict.call("DeleteQueue", QueueUrl=url)

    error = refusal(strict, "CreateQueue", QueueName="deleted")

    assert error.code == "AWS.SimpleQueueService.QueueDeletedRecently"
    assert error.query_code == "QueueDeletedRecently"
    assert error.message == (
        "You must wait 60 seconds after deleting a queue before you can create another with the "
        "same name."
    )


# -- the bytes of an error -------------------------------------------------------------------------


def test_json_error_on_the_wire(raw: RawClient, queue: str) -> None:
    answer = raw.json_call("SendMessage", QueueUrl=queue + "-not", MessageBody="x")

    assert answer.status == 400
    assert answer.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.headers["x-amzn-requestid"]
    body = json.loads(answer.body)
    assert body["__type"].rsplit("#", 1)[-1] == "QueueDoesNotExist"
    assert body["message"] == NO_QUEUE
    assert set(body) == {"__type", "message"}


def test_query_error_on_the_wire(raw: RawClient, queue: str) -> None:
    answer = raw.query("SendMessage", QueueUrl=queue)

    request_id = answer.value("RequestId")
    assert answer.status == 400
    assert answer.headers["content-type"].split(";")[0] == "text/xml"
    assert (
        "<Error><Type>Sender</Type><Code>MissingParameter</Code>"
        "<Message>The request must contain the parameter MessageBody.</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId>"
    ) in answer.text.replace("\n", "")
    assert '<ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">' in answer.text
    assert answer.headers["x-amzn-requestid"] == request_id


def test_a_handle_of_another_queue_is_refused(
    sqs: Client, queue: str, make_queue: Callable[..., str]
) -> None:
    """In the words that users of AWS report."""
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")
    (got,) = receive(sqs, queue)
    handle, other = got["ReceiptHandle"], make_queue()
    words = f'The receipt handle "{handle}" is not valid for this queue.'

    error = refusal(sqs, "DeleteMessage", QueueUrl=other, ReceiptHandle=handle)
    entries = [{"Id": "a", "ReceiptHandle": handle}]
    (failed,) = sqs.call("DeleteMessageBatch", QueueUrl=other, Entries=entries)["Failed"]

    assert (error.status, error.code, error.message) == (404, "ReceiptHandleIsInvalid", words)
    assert (failed["Code"], failed["Message"]) == ("ReceiptHandleIsInvalid", words)
    assert counts(sqs, queue) == (0, 1, 0)
