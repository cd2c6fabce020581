"""The three batches: each entry succeeds or fails alone; faults of the request refuse it whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.facade import Client, Members, counts, receive, receive_count, refusal

MakeQueue = Callable[..., str]

SEND = "SendMessageBatch"
DELETE = "DeleteMessageBatch"
CHANGE = "ChangeMessageVisibilityBatch"
_ENTRY: dict[str, Members] = {
    SEND: {"MessageBody": "x"},
    DELETE: {"ReceiptHandle": "none"},
    CHANGE: {"ReceiptHandle": "none", "VisibilityTimeout": 0},
}


def entries(operation: str, *ids: str) -> list[Members]:
    return [{"Id": each, **_ENTRY[operation]} for each in ids]


def ids(listed: list[Members]) -> list[str]:
    return [str(entry["Id"]) for entry in listed]


def test_ten_messages_are_sent_in_order(sqs: Client, queue: str) -> None:
    batch: list[Any] = [{"Id": f"n-{n}_x", "MessageBody": str(n)} for n in range(10)]

    answer = sqs.call(SEND, QueueUrl=queue, Entries=batch)

    assert ids(answer["Successful"]) == [entry["Id"] for entry in batch]
    assert "Failed" not in answer
    assert set(answer["Successful"][0]) == {"Id", "MessageId", "MD5OfMessageBody"}
    got = receive_count(sqs, queue, 10)
    assert [message["Body"] for message in got] == [str(n) for n in range(10)]
    assert [m["MessageId"] for m in got] == [entry["MessageId"] for entry in answer["Successful"]]


def test_entries_carry_attributes_and_delays(sqs: Client, queue: str) -> None:
    attribute = {"DataType": "String", "StringValue": "x"}
    batch = [
        {"Id": "a", "MessageBody": "a", "MessageAttributes": {"k": attribute}},
        {"Id": "b", "MessageBody": "b", "DelaySeconds": 900},
    ]

    answer = sqs.call(SEND, QueueUrl=queue, Entries=batch)

    first = answer["Successful"][0]
    assert first["MD5OfMessageAttributes"] == "a45daa70926828a2f0a1db3418e6feb4"
    assert counts(sqs, queue) == (1, 0, 1)


def test_an_entry_without_a_visibility_timeout_fails_alone(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")
    (got,) = receive(sqs, queue)
    handle = got["ReceiptHandle"]
    batch = [
        {"Id": "none", "ReceiptHandle": handle},
        {"Id": "shown", "ReceiptHandle": handle, "VisibilityTimeout": 0},
    ]

    answer = sqs.call(CHANGE, QueueUrl=queue, Entries=batch)

    assert ids(answer["Successful"]) == ["shown"]
    assert answer["Failed"] == [
        {
            "Id": "none",
            "SenderFault": True,
            "Code": "MissingParameter",
            "Message": "The request must contain the parameter VisibilityTimeout.",
        }
    ]
    assert counts(sqs, queue) == (1, 0, 0)


def test_delete_batch_answers_entry_by_entry(sqs: Client, queue: str) -> None:
    sqs.call(SEND, QueueUrl=queue, Entries=entries(SEND, "1", "2"))
    handles = [message["ReceiptHandle"] for message in receive_count(sqs, queue, 2)]
    batch = [
        {"Id": "good", "ReceiptHandle": handles[0]},
        {"Id": "bad", "ReceiptHandle": "garbage"},
        {"Id": "also-good", "ReceiptHandle": handles[1]},
    ]

    answer = sqs.call(DELETE, QueueUrl=queue, Entries=batch)

    assert ids(answer["Successful"]) == ["good", "also-good"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
        "bad",
        "ReceiptHandleIsInvalid",
        True,
    )
    assert counts(sqs, queue) == (0, 0, 0)


def test_change_batch_answers_entry_by_entry(sqs: Client, queue: str) -> None:
    sqs.call(SEND, QueueUrl=queue, Entries=entries(SEND, "1", "2"))
    handles = [message["ReceiptHandle"] for message in receive_count(sqs, queue, 2)]
    batch = [
        {"Id": "show", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
        {"Id": "hide", "ReceiptHandle": handles[1], "VisibilityTimeout": 60},
        {"Id": "bad", "ReceiptHandle": "garbage", "VisibilityTimeout": 0},
    ]

    answer = sqs.call(CHANGE, QueueUrl=queue, Entries=batch)

    assert ids(answer["Successful"]) == ["show", "hide"]
    assert ids(answer["Failed"]) == ["bad"]
    assert counts(sqs, queue) == (1, 1, 0)


def test_all_failed_has_no_successful_member(sqs: Client, queue: str) -> None:
    answer = sqs.call(DELETE, QueueUrl=queue, Entries=entries(DELETE, "a", "b"))

    assert "Successful" not in answer
    assert ids(answer["Failed"]) == ["a", "b"]


def test_entry_over_the_queues_limit_fails_alone(sqs: Client, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize="1024")
    batch = [
        {"Id": "exact", "MessageBody": "a" * 1024},
        {"Id": "over", "MessageBody": "a" * 1025},
        {"Id": "together-above-the-queues-limit", "MessageBody": "a" * 1024},
    ]

    answer = sqs.call(SEND, QueueUrl=url, Entries=batch)

    assert ids(answer["Successful"]) == ["exact", "together-above-the-queues-limit"]
    (failed,) = answer["Failed"]
    assert failed["Code"] == "InvalidParameterValue"
    assert failed["SenderFault"] is True
    assert failed["Message"] == (
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 "
        "bytes."
    )


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([str(number) for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([], "EmptyBatchRequest"),
        (["good", "a:b"], "InvalidBatchEntryId"),
        (["a", "b", "a"], "BatchEntryIdsNotDistinct"),
    ],
)
def test_a_fault_of_the_request_refuses_it_whole(
    sqs: Client, queue: str, given: list[str], code: str
) -> None:
    error = refusal(sqs, SEND, QueueUrl=queue, Entries=entries(SEND, *given))

    assert error.code == f"AWS.SimpleQueueService.{code}"
    assert receive(sqs, queue) == []
