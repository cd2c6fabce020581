"""FIFO queues: refusals, sequence numbers, delays, receipt handles, repeated receives, dead
letters.

Groups, order and long polls are in the transcripts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from compat_tests.conftest import MakeFifo
from compat_tests.facade import (
    Client,
    ClientError,
    Members,
    bodies,
    counts,
    receive,
    receive_count,
    refusal,
    send_in_order,
    send_to_group,
)
from compat_tests.test_dead_letter import arn, redrive
from compat_tests.test_send import TRACE, string

ID_RULE = (
    "Value {} for parameter MessageDeduplicationId is invalid. Reason: MessageDeduplicationId can "
    "only include alphanumeric and punctuation characters. 1 to 128 in length."
)
NO_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
    "provided explicitly"
)
NO_GROUP = "The request must contain the parameter MessageGroupId."


# -- refusals of a send ----------------------------------------------------------------------------


class Row(NamedTuple):
    """Members of a send, and its refusal."""

    members: Members
    message: str
    code: str = "InvalidParameterValue"
    shape: str = "InvalidParameterValueException"


SENDS: dict[str, Row] = {
    "no group": Row(
        {"MessageDeduplicationId": "d"},
        NO_GROUP,
        "MissingParameter",
        "MissingRequiredParameterException",
    ),
    "no id": Row({"MessageGroupId": "g"}, NO_ID),
    "id with a space": Row(
        {"MessageGroupId": "g", "MessageDeduplicationId": "a b"}, ID_RULE.format("a b")
    ),
}


def check(client: Client, error: ClientError, row: Row) -> None:
    assert (error.code, error.message, error.status) == (row.code, row.message, 400)
    if client.protocol == "json":
        assert error.query_code == row.shape


@pytest.mark.parametrize("case", SENDS)
def test_send_is_refused(sqs: Client, fifo: str, case: str) -> None:
    row = SENDS[case]
    members = {"MessageBody": "x", **row.members}

    check(sqs, refusal(sqs, "SendMessage", QueueUrl=fifo, **members), row)

    assert counts(sqs, fifo) == (0, 0, 0)


@pytest.mark.parametrize("text", ["g" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_group_and_id_are_accepted(sqs: Client, fifo: str, text: str) -> None:
    send_to_group(sqs, fifo, text, "x", MessageDeduplicationId=text)

    names = ["MessageGroupId", "MessageDeduplicationId"]
    (got,) = receive(sqs, fifo, AttributeNames=names)
    assert got["Attributes"] == dict.fromkeys(names, text)


# -- sequence numbers and system attributes --------------------------------------------------------


def test_sequence_numbers_rise_over_all_groups(sqs: Client, fifo: str) -> None:
    alone = [
        send_to_group(sqs, fifo, group, str(number), MessageDeduplicationId=str(number))
        for number, group in enumerate("aba")
    ]
    sent = [*alone, *send_in_order(sqs, fifo, "b-m1 a-m1 c-m1")]

    assert all(answer.keys() == {*alone[0], "Id"} for answer in sent[3:])
    numbers = [int(answer["SequenceNumber"]) for answer in sent]
    assert numbers == sorted(set(numbers))
    assert {len(answer["SequenceNumber"]) for answer in sent} == {20}
    got = receive(sqs, fifo, AttributeNames=["SequenceNumber"])
    shown = {message["MessageId"]: message["Attributes"]["SequenceNumber"] for message in got}
    assert shown == {answer["MessageId"]: answer["SequenceNumber"] for answer in sent}


def test_system_attributes(sqs: Client, fifo: str) -> None:
    trace = {"AWSTraceHeader": string(TRACE)}
    send_to_group(
        sqs, fifo, "group", "x", MessageDeduplicationId="id", MessageSystemAttributes=trace
    )

    (got,) = receive(sqs, fifo, AttributeNames=["All"])

    found = got["Attributes"]
    assert set(found) == {
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "AWSTraceHeader",
        "MessageDeduplicationId",
        "MessageGroupId",
        "SenderId",
        "SentTimestamp",
        "SequenceNumber",
    }
    assert (found["MessageGroupId"], found["MessageDeduplicationId"]) == ("group", "id")


# -- delays ----------------------------------------------------------------------------------------


def test_delay_of_zero_leaves_the_queues_delay(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(DelaySeconds="900")

    send_to_group(sqs, url, "g", "x", MessageDeduplicationId="d", DelaySeconds=0)

    assert counts(sqs, url) == (0, 0, 1)
    assert receive(sqs, url) == []


# -- receipt handles -------------------------------------------------------------------------------


def test_batches_refuse_in_shorter_words(sqs: Client, fifo: str) -> None:
    """As users of AWS report them, and of an expired handle with another code."""
    send_in_order(sqs, fifo, "g-m1")
    (got,) = receive(sqs, fifo)
    handle = got["ReceiptHandle"]
    sqs.call("ChangeMessageVisibility", QueueUrl=fifo, ReceiptHandle=handle, VisibilityTimeout=0)
    deletes = [{"Id": "a", "ReceiptHandle": handle}]
    ids = {"MessageGroupId": "h", "MessageDeduplicationId": "d"}
    sends = [{"Id": "a", "MessageBody": "x", "DelaySeconds": 1, **ids}]

    (deleted,) = sqs.call("DeleteMessageBatch", QueueUrl=fifo, Entries=deletes)["Failed"]
    (sent,) = sqs.call("SendMessageBatch", QueueUrl=fifo, Entries=sends)["Failed"]

    assert (deleted["Code"], deleted["Message"], deleted["SenderFault"]) == (
        "ReceiptHandleIsInvalid",
        "The receipt handle has expired",
        True,
    )
    assert (sent["Code"], sent["Message"], sent["SenderFault"]) == (
        "InvalidParameterValue",
        "The request include parameter that is not valid for this queue type",
        True,
    )


# -- repeated receives -----------------------------------------------------------------------------


def attempt(client: Client, url: str, identity: str | None, **members: Any) -> list[Members]:
    if identity is not None:
        members["ReceiveRequestAttemptId"] = identity
    return receive(client, url, 2, **members)


def test_attempt_is_of_its_queue(sqs: Client, make_fifo: MakeFifo) -> None:
    one, other = make_fifo(), make_fifo()
    send_in_order(sqs, one, "g1-m1")
    send_in_order(sqs, other, "g1-m2")

    assert bodies(attempt(sqs, one, "a")) == "g1-m1"
    assert bodies(attempt(sqs, other, "a")) == "g1-m2"


def test_attempt_that_found_nothing_is_not_remembered(sqs: Client, fifo: str) -> None:
    assert attempt(sqs, fifo, "a1") == []
    send_in_order(sqs, fifo, "g1-m1")

    assert bodies(attempt(sqs, fifo, "a1")) == "g1-m1"


# -- dead letters ----------------------------------------------------------------------------------


def test_dead_letter_keeps_its_group_and_gets_a_new_deduplication_id(
    sqs: Client, fifo: str, make_fifo: MakeFifo
) -> None:
    source = make_fifo(RedrivePolicy=redrive(arn(sqs, fifo)))
    sent = send_to_group(
        sqs, source, "g", "x", MessageDeduplicationId="d", MessageAttributes={"k": string("x")}
    )
    asked: Members = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (before,) = receive(sqs, source, VisibilityTimeout=0, **asked)
    assert receive(sqs, source) == []

    (dead,) = receive_count(sqs, fifo, 1, **asked)

    for member in ("MessageId", "Body", "MD5OfBody", "MD5OfMessageAttributes", "MessageAttributes"):
        assert dead[member] == before[member]
    found = dead["Attributes"]
    assert found["MessageGroupId"] == "g"
    assert found["MessageDeduplicationId"] == sent["MessageId"]
    assert found["ApproximateReceiveCount"] == "2"
    assert found["DeadLetterQueueSourceArn"] == arn(sqs, source)
