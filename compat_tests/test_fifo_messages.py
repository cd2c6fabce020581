"""FIFO queues: refusals, sequence numbers, delays, receipt handles, repeated receives, counters, dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from compat_tests.facade import (
    SHORT_S,
    Client,
    ClientError,
    Members,
    bodies,
    counts,
    create_fifo_queue,
    eventually,
    receive,
    receive_count,
    refusal,
    send_in_order,
    send_to_group,
)
from compat_tests.test_dead_letter import arn, redrive
from compat_tests.test_send import TRACE, string
from compat_tests.test_visibility import change, delete

Names = Callable[[], str]
MakeFifo = Callable[..., str]

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


@pytest.fixture
def make_fifo(current: Client, fresh_name: Names) -> MakeFifo:
    """Makes FIFO queues with the given attributes."""

    def make(**given: str) -> str:
        return create_fifo_queue(current, fresh_name(), **given)

    return make


@pytest.fixture
def fifo(make_fifo: MakeFifo) -> str:
    """A FIFO queue with every default."""
    return make_fifo()


# -- refusals of a send -----------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Members of a send, and the refusal it meets."""

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


# -- sequence numbers and system attributes ---------------------------------------------------------------------------


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


# -- delays -----------------------------------------------------------------------------------------------------------


def test_delay_of_zero_leaves_the_queues_delay(sqs: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(DelaySeconds="900")

    send_to_group(sqs, url, "g", "x", MessageDeduplicationId="d", DelaySeconds=0)

    assert counts(sqs, url) == (0, 0, 1)
    assert receive(sqs, url) == []


def test_queues_delay_holds_back_and_keeps_the_order(current: Client, make_fifo: MakeFifo) -> None:
    url = make_fifo(DelaySeconds=str(SHORT_S))
    start = time.monotonic()
    send_in_order(current, url, "g1-m1 g2-m1 g1-m2")
    assert counts(current, url) == (0, 0, 3)

    got = receive_count(current, url, 3)

    assert bodies(got) == "g1-m1 g1-m2 g2-m1"
    assert time.monotonic() - start > 0.9 * SHORT_S


def test_change_of_the_queues_delay_reaches_waiting_messages(
    sqs: Client, make_fifo: MakeFifo
) -> None:
    url = make_fifo(DelaySeconds="900")
    send_in_order(sqs, url, "g1-m1 g1-m2")
    assert receive(sqs, url) == []

    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "0"})

    eventually(lambda: counts(sqs, url) == (2, 0, 0))
    assert bodies(receive(sqs, url)) == "g1-m1 g1-m2"


# -- receipt handles --------------------------------------------------------------------------------------------------


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


def test_handles_expire_by_themselves_unless_extended(current: Client, make_fifo: MakeFifo) -> None:
    fifo, batch = make_fifo(), make_fifo()
    send_in_order(current, fifo, "g1-m1 g2-m1")
    send_in_order(current, batch, "g-m1")
    left, extended = receive(current, fifo, VisibilityTimeout=SHORT_S)
    (entry,) = receive(current, batch, VisibilityTimeout=SHORT_S)
    change(current, fifo, extended["ReceiptHandle"], 60)
    time.sleep(SHORT_S + 0.3)

    handle = left["ReceiptHandle"]
    error = refusal(current, "DeleteMessage", QueueUrl=fifo, ReceiptHandle=handle)
    delete(current, fifo, extended["ReceiptHandle"])
    entries = [{"Id": "a", "ReceiptHandle": entry["ReceiptHandle"]}]
    answer = current.call("DeleteMessageBatch", QueueUrl=batch, Entries=entries)

    check(current, error, expired(handle))
    assert counts(current, fifo) == (1, 0, 0)
    assert answer["Failed"][0]["Code"] == "InvalidParameterValue"
    assert counts(current, batch) == (1, 0, 0)


def test_deleted_message_is_gone_and_deleting_again_is_fine(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g-m1")
    (got,) = receive(sqs, fifo)

    for _ in range(3):
        delete(sqs, fifo, got["ReceiptHandle"])

    assert counts(sqs, fifo) == (0, 0, 0)


def test_change_after_delete_is_refused(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g-m1")
    (got,) = receive(sqs, fifo)
    handle = got["ReceiptHandle"]
    delete(sqs, fifo, handle)

    members = {"QueueUrl": fifo, "ReceiptHandle": handle, "VisibilityTimeout": 0}
    error = refusal(sqs, "ChangeMessageVisibility", **members)

    assert error.code == "InvalidParameterValue"


# -- receives asked again ---------------------------------------------------------------------------------------------


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


def test_other_attempts_do_not(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g1-m1 g1-m2")
    first = attempt(sqs, fifo, "a1")
    assert len(first) == 2

    assert attempt(sqs, fifo, "a2") == []
    assert attempt(sqs, fifo, None) == []

    assert handles(attempt(sqs, fifo, "a1")) == handles(first)


def test_attempt_is_of_its_queue(sqs: Client, make_fifo: MakeFifo) -> None:
    one, other = make_fifo(), make_fifo()
    send_in_order(sqs, one, "g1-m1")
    send_in_order(sqs, other, "g1-m2")

    assert bodies(attempt(sqs, one, "a")) == "g1-m1"
    assert bodies(attempt(sqs, other, "a")) == "g1-m2"


def test_attempt_does_not_bring_back_what_was_deleted(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g1-m1 g1-m2")
    first, second = attempt(sqs, fifo, "a1")

    delete(sqs, fifo, first["ReceiptHandle"])
    assert "g1-m1" not in bodies(attempt(sqs, fifo, "a1"))

    delete(sqs, fifo, second["ReceiptHandle"])
    assert attempt(sqs, fifo, "a1") == []
    assert counts(sqs, fifo) == (0, 0, 0)


def test_attempt_after_a_change_of_visibility_is_a_new_receive(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g1-m1 g1-m2")
    first = attempt(sqs, fifo, "a1")
    for message in first:
        change(sqs, fifo, message["ReceiptHandle"], 0)

    again = attempt(sqs, fifo, "a1", AttributeNames=["ApproximateReceiveCount"])

    assert bodies(again) == "g1-m1 g1-m2"
    assert not set(handles(again)) & set(handles(first))
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in again] == ["2", "2"]


def test_attempt_that_found_nothing_is_not_remembered(sqs: Client, fifo: str) -> None:
    assert attempt(sqs, fifo, "a1") == []
    send_in_order(sqs, fifo, "g1-m1")

    assert bodies(attempt(sqs, fifo, "a1")) == "g1-m1"


@pytest.mark.parametrize("identity", ["a" * 129, "a b"])
def test_attempt_id_is_refused(sqs: Client, fifo: str, identity: str) -> None:
    error = refusal(sqs, "ReceiveMessage", QueueUrl=fifo, ReceiveRequestAttemptId=identity)

    assert (error.code, error.status) == ("InvalidParameterValue", 400)


# -- counters ---------------------------------------------------------------------------------------------------------


def test_rest_of_a_blocked_group_counts_as_visible(sqs: Client, fifo: str) -> None:
    send_in_order(sqs, fifo, "g1-m1 g1-m2 g2-m1 g2-m2 g3-m1 g3-m2")
    assert counts(sqs, fifo) == (6, 0, 0)

    for _ in range(2):
        assert len(receive(sqs, fifo, 1)) == 1

    assert counts(sqs, fifo) == (4, 2, 0)


# -- dead letters -----------------------------------------------------------------------------------------------------


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


def test_group_stays_usable_after_its_messages_died(
    sqs: Client, fifo: str, make_fifo: MakeFifo
) -> None:
    source = make_fifo(RedrivePolicy=redrive(arn(sqs, fifo)))
    send_in_order(sqs, source, "g1-m1 g1-m2")
    assert bodies(receive(sqs, source, 1, VisibilityTimeout=0)) == "g1-m1"

    assert bodies(receive_count(sqs, source, 1, VisibilityTimeout=0)) == "g1-m2"
    assert receive(sqs, source) == []
    eventually(lambda: counts(sqs, fifo) == (2, 0, 0))

    send_in_order(sqs, source, "g1-m3 g1-m4")
    assert bodies(receive(sqs, source)) == "g1-m3 g1-m4"
    assert bodies(receive(sqs, fifo)) == "g1-m1 g1-m2", "in the order of their moves"
