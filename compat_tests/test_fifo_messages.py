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
from compat_tests.test_visibility import change

ID_RULE = (
    "Value {} for parameter MessageDeduplicationId is invalid. Reason: MessageDeduplicationId can "
    "only include alphanumeric and punctuation characters. 1 to 128 in length."
)
GROUP_RULE = (
    "Value {} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
    "alphanumeric and punctuation characters. 1 to 128 in length."
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
    "empty group": Row(
        {"MessageGroupId": "", "MessageDeduplicationId": "d"}, GROUP_RULE.format("")
    ),
    "long group": Row(
        {"MessageGroupId": "g" * 129, "MessageDeduplicationId": "d"}, GROUP_RULE.format("g" * 129)
    ),
    "group with a space": Row(
        {"MessageGroupId": "a b", "MessageDeduplicationId": "d"}, GROUP_RULE.format("a b")
    ),
    "no id": Row({"MessageGroupId": "g"}, NO_ID),
    "empty id": Row({"MessageGroupId": "g", "MessageDeduplicationId": ""}, ID_RULE.format("")),
    "long id": Row(
        {"MessageGroupId": "g", "MessageDeduplicationId": "d" * 129}, ID_RULE.format("d" * 129)
    ),
    "id with a space": Row(
        {"MessageGroupId": "g", "MessageDeduplicationId": "a b"}, ID_RULE.format("a b")
    ),
    "delay": Row(
        {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 1},
        "Value 1 for parameter DelaySeconds is invalid. Reason: The request include parameter that "
        "is not valid for this queue type.",
    ),
    "no body": Row(
        {"MessageGroupId": "g", "MessageDeduplicationId": "d", "MessageBody": ""},
        "The request must contain the parameter MessageBody.",
        "MissingParameter",
        "MissingRequiredParameterException",
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


@pytest.mark.parametrize(("missing", "message"), [("group", NO_GROUP), ("id", NO_ID)])
def test_entry_without_group_or_id_refuses_the_whole_batch(
    sqs: Client, fifo: str, missing: str, message: str
) -> None:
    member = {"group": "MessageGroupId", "id": "MessageDeduplicationId"}[missing]
    entries = [
        {"Id": name, "MessageBody": name, "MessageGroupId": "g", "MessageDeduplicationId": name}
        for name in ("a", "b")
    ]
    del entries[1][member]

    error = refusal(sqs, "SendMessageBatch", QueueUrl=fifo, Entries=entries)

    check(sqs, error, Row({}, message))
    assert counts(sqs, fifo) == (0, 0, 0)


@pytest.mark.parametrize("group", ["g" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_group_is_accepted(sqs: Client, fifo: str, group: str) -> None:
    send_to_group(sqs, fifo, group, "x", MessageDeduplicationId="d")

    (got,) = receive(sqs, fifo, AttributeNames=["MessageGroupId"])
    assert got["Attributes"] == {"MessageGroupId": group}


# -- sequence numbers and system attributes --------------------------------------------------------


def test_sequence_numbers_rise_over_all_groups(sqs: Client, fifo: str) -> None:
    alone = [
        send_to_group(sqs, fifo, group, str(number), MessageDeduplicationId=str(number))
        for number, group in enumerate("aba")
    ]
    sent = [*alone, *send_in_order(sqs, fifo, "b-m1 a-m1 c-m1")]

    numbers = [int(answer["SequenceNumber"]) for answer in sent]
    assert numbers == sorted(set(numbers))
    assert {len(answer["SequenceNumber"]) for answer in sent} == {20}
    got = receive(sqs, fifo, AttributeNames=["SequenceNumber"])
    shown = {message["MessageId"]: message["Attributes"]["SequenceNumber"] for message in got}
    assert shown == {answer["MessageId"]: answer["SequenceNumber"] for answer in sent}


def test_answers_of_sends_have_the_sequence_number(sqs: Client, fifo: str) -> None:
    sent = send_to_group(sqs, fifo, "g", "x", MessageDeduplicationId="d")
    (entry,) = send_in_order(sqs, fifo, "g-m1")

    assert set(sent) == {"MessageId", "MD5OfMessageBody", "SequenceNumber"}
    assert set(entry) == {"Id", "MessageId", "MD5OfMessageBody", "SequenceNumber"}


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


def test_bare_receive_shows_only_the_four_members(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g-m1")

    (got,) = receive(sqs, fifo)

    assert set(got) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


# -- delays ----------------------------------------------------------------------------------------


def test_delay_of_zero_leaves_the_queues_delay(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(DelaySeconds="900")

    send_to_group(sqs, url, "g", "x", MessageDeduplicationId="d", DelaySeconds=0)

    assert counts(sqs, url) == (0, 0, 1)
    assert receive(sqs, url) == []


# -- receipt handles -------------------------------------------------------------------------------


def expired(handle: str) -> Row:
    reason = "The receipt handle has expired."
    return Row({}, f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {reason}")


def test_delete_after_the_timeout_ended_is_refused(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g-m1")
    (got,) = receive(sqs, fifo)
    handle = got["ReceiptHandle"]
    change(sqs, fifo, handle, 0)

    error = refusal(sqs, "DeleteMessage", QueueUrl=fifo, ReceiptHandle=handle)

    check(sqs, error, expired(handle))
    assert bodies(receive(sqs, fifo)) == "g-m1"


def test_batches_refuse_in_shorter_words(sqs: Client, fifo: str) -> None:
    """As users of AWS report them, and of an expired handle with another code."""
    send_in_order(sqs, fifo, "g-m1")
    (got,) = receive(sqs, fifo)
    handle = got["ReceiptHandle"]
    change(sqs, fifo, handle, 0)
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


def handles(messages: list[Members]) -> list[tuple[str, str]]:
    return [(message["MessageId"], message["ReceiptHandle"]) for message in messages]


def test_same_attempt_gives_the_same_messages_and_handles(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g1-m1 g1-m2 g1-m3 g2-m1")
    first = attempt(sqs, fifo, "a1")
    assert bodies(first) == "g1-m1 g1-m2"

    again = attempt(sqs, fifo, "a1")

    assert handles(again) == handles(first)
    assert bodies(again) == "g1-m1 g1-m2"
    assert counts(sqs, fifo) == (2, 2, 0)


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


@pytest.mark.parametrize("timeout", [None, 0, 20])
def test_attempt_is_refused_once_a_message_was_deleted_or_changed(
    sqs: Client, fifo: str, timeout: int | None
) -> None:
    """`timeout`: None for a delete."""
    send_in_order(sqs, fifo, "g1-m1 g1-m2 g2-m1")
    _, second = attempt(sqs, fifo, "a1")
    handle = {"QueueUrl": fifo, "ReceiptHandle": second["ReceiptHandle"]}
    if timeout is None:
        sqs.call("DeleteMessage", **handle)
    else:
        sqs.call("ChangeMessageVisibility", VisibilityTimeout=timeout, **handle)

    error = refusal(sqs, "ReceiveMessage", QueueUrl=fifo, ReceiveRequestAttemptId="a1")

    assert (error.code, error.status, error.message) == (
        "InvalidParameterValue",
        400,
        "Value a1 for parameter ReceiveRequestAttemptId is invalid. Reason: The "
        "receiveRequestAttemptId is not valid anymore since the receive call is not retryable.",
    )
    assert bodies(attempt(sqs, fifo, "a2")) == "g2-m1"


@pytest.mark.parametrize("identity", ["a" * 129, "a b"])
def test_attempt_id_is_refused(sqs: Client, fifo: str, identity: str) -> None:
    error = refusal(sqs, "ReceiveMessage", QueueUrl=fifo, ReceiveRequestAttemptId=identity)

    assert (error.code, error.status) == ("InvalidParameterValue", 400)


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
