"""ReceiveMessage: the members of a received message. Long polls are in the transcripts."""

from __future__ import annotations

import time

import pytest

from compat_tests.facade import Client, Members, receive, receive_count
from compat_tests.test_send import TRACE, string

ATTRIBUTES = {"General": string("Kenobi"), "Hello": string("There"), "Help.Me": string("Me")}
ALL_DIGEST = "4c360f3fdafd970e05fae2f149d997f5"
# Filter, returned names, digest of only those (recorded answers of AWS).
FILTERS: list[tuple[list[str], set[str], str | None]] = [
    (["All"], set(ATTRIBUTES), ALL_DIGEST),
    (["Hel.*"], {"Hello", "Help.Me"}, "83fee93c1bcd8b9a5a923ffacdc636c7"),
    (["Hello", "Unknown"], {"Hello"}, "a311262e065454b75da111d535b8dacd"),
    (["Help"], set(), None),
]


def test_bare_receive_shows_only_the_four_members(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes={"k": string("v")})

    (got,) = receive(sqs, queue)

    assert set(got) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


def test_empty_receive_has_no_messages_member(sqs: Client, queue: str) -> None:
    assert sqs.call("ReceiveMessage", QueueUrl=queue) == {}


def test_default_is_one_message_and_at_most_ten(sqs: Client, queue: str) -> None:
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
    sqs.call("SendMessageBatch", QueueUrl=queue, Entries=entries)

    assert len(sqs.call("ReceiveMessage", QueueUrl=queue)["Messages"]) == 1

    bodies = {message["Body"] for message in receive_count(sqs, queue, 9)}
    assert len(bodies) == 9


@pytest.mark.parametrize(("names", "shown", "digest"), FILTERS)
def test_attribute_filter(
    sqs: Client, queue: str, names: list[str], shown: set[str], digest: str | None
) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)

    (got,) = receive(sqs, queue, MessageAttributeNames=names)

    assert set(got.get("MessageAttributes", {})) == shown
    assert got.get("MD5OfMessageAttributes") == digest
    assert "Attributes" not in got


@pytest.mark.parametrize("member", ["AttributeNames", "MessageSystemAttributeNames"])
def test_system_attributes(sqs: Client, queue: str, member: str) -> None:
    if sqs.protocol == "query" and member == "MessageSystemAttributeNames":
        pytest.skip("the old client does not know the member")
    before_ms = int(time.time() * 1000) - 1000
    sqs.call(
        "SendMessage",
        QueueUrl=queue,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": string(TRACE)},
    )

    (got,) = receive(sqs, queue, **{member: ["All"]})

    found = got["Attributes"]
    assert set(found) == {
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "AWSTraceHeader",
        "SenderId",
        "SentTimestamp",
    }
    assert found["ApproximateReceiveCount"] == "1"
    sent_ms = int(found["SentTimestamp"])
    first_ms = int(found["ApproximateFirstReceiveTimestamp"])
    assert before_ms <= sent_ms <= first_ms <= before_ms + 60_000
    assert "MessageAttributes" not in got


def test_every_receive_counts_and_gives_a_new_handle(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)
    asked: Members = {
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
        "VisibilityTimeout": 0,
    }

    first, second, third = (receive(sqs, queue, **asked)[0] for _ in range(3))

    handles = {message["ReceiptHandle"] for message in (first, second, third)}
    assert len(handles) == 3
    received = [m["Attributes"]["ApproximateReceiveCount"] for m in (first, second, third)]
    assert received == ["1", "2", "3"]
    firsts = {m["Attributes"]["ApproximateFirstReceiveTimestamp"] for m in (first, third)}
    assert len(firsts) == 1
    assert third["MessageAttributes"] == first["MessageAttributes"]
