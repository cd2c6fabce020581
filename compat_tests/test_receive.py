"""ReceiveMessage: what is shown, and when a long poll wakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from compat_tests.facade import Client, Members, eventually, receive, receive_count
from compat_tests.test_send import TRACE, string

MakeQueue = Callable[..., str]

ATTRIBUTES = {"General": string("Kenobi"), "Hello": string("There"), "Help.Me": string("Me")}
ALL_DIGEST = "4c360f3fdafd970e05fae2f149d997f5"
# Filter, names returned, digest of only those (recorded answers of AWS).
FILTERS: list[tuple[list[str], set[str], str | None]] = [
    (["All"], set(ATTRIBUTES), ALL_DIGEST),
    (["*"], set(ATTRIBUTES), ALL_DIGEST),
    ([".*"], set(ATTRIBUTES), ALL_DIGEST),
    (["All", "Hello"], set(ATTRIBUTES), ALL_DIGEST),
    (["General", "Hello"], {"General", "Hello"}, "fca026605781cb4126a1e9044df24232"),
    (["Hello"], {"Hello"}, "a311262e065454b75da111d535b8dacd"),
    (["Hel.*"], {"Hello", "Help.Me"}, "83fee93c1bcd8b9a5a923ffacdc636c7"),
    (["Hello", "Unknown"], {"Hello"}, "a311262e065454b75da111d535b8dacd"),
    (["Help"], set(), None),
    (["AWS.x"], set(), None),
    (["..foo"], set(), None),
    ([], set(), None),
]


@contextmanager
def waiting_receive(client: Client, url: str, **members: Any) -> Iterator[Callable[[], Members]]:
    """Poll in a thread; yields a function that waits for the answer, when the poll is surely under way."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.call, "ReceiveMessage", QueueUrl=url, **members)
        time.sleep(0.15)
        assert not answer.done()
        yield lambda: answer.result(timeout=25)


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


def test_messages_come_in_the_order_sent(sqs: Client, queue: str) -> None:
    for body in "abc":
        sqs.call("SendMessage", QueueUrl=queue, MessageBody=body)

    assert [message["Body"] for message in receive_count(sqs, queue, 3)] == ["a", "b", "c"]


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


def test_system_attributes_by_name(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")

    (got,) = receive(sqs, queue, AttributeNames=["SentTimestamp", "SequenceNumber"])

    assert set(got["Attributes"]) == {"SentTimestamp"}


def test_new_member_decides_when_both_are_given(current: Client, queue: str) -> None:
    current.call("SendMessage", QueueUrl=queue, MessageBody="x")

    (got,) = receive(
        current,
        queue,
        AttributeNames=["SenderId"],
        MessageSystemAttributeNames=["All"],
    )

    assert len(got["Attributes"]) == 4


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


# -- long polls -------------------------------------------------------------------------------------------------------


def test_poll_returns_at_once_with_what_is_there(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")
    start = time.monotonic()

    assert len(receive(sqs, queue, WaitTimeSeconds=20)) == 1

    assert time.monotonic() - start < 20, "it waited although a message was there"


def test_poll_wakes_when_a_message_is_sent(sqs: Client, queue: str) -> None:
    with waiting_receive(sqs, queue, WaitTimeSeconds=20) as answer:
        sent = sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")

        (got,) = answer()["Messages"]

    assert got["MessageId"] == sent["MessageId"]


def test_poll_wakes_when_a_visibility_timeout_ends(current: Client, queue: str) -> None:
    current.call("SendMessage", QueueUrl=queue, MessageBody="x")
    start = time.monotonic()
    receive(current, queue, VisibilityTimeout=1)

    (got,) = receive(current, queue, WaitTimeSeconds=20)

    assert 0.9 < time.monotonic() - start < 20
    assert got["Body"] == "x"


def test_poll_wakes_when_visibility_is_given_back(sqs: Client, queue: str) -> None:
    sqs.call("SendMessage", QueueUrl=queue, MessageBody="x")
    (first,) = receive(sqs, queue)
    with waiting_receive(sqs, queue, WaitTimeSeconds=20) as answer:
        handle = first["ReceiptHandle"]
        change = {"QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 0}
        sqs.call("ChangeMessageVisibility", **change)

        (got,) = answer()["Messages"]

    assert got["MessageId"] == first["MessageId"]


def test_poll_wakes_when_a_delay_ends(current: Client, queue: str) -> None:
    start = time.monotonic()
    current.call("SendMessage", QueueUrl=queue, MessageBody="x", DelaySeconds=1)

    (got,) = receive(current, queue, WaitTimeSeconds=20)

    assert 0.9 < time.monotonic() - start < 20
    assert got["Body"] == "x"


def test_poll_ends_empty_after_its_time(current: Client, queue: str) -> None:
    start = time.monotonic()

    assert receive(current, queue, WaitTimeSeconds=1) == []

    assert time.monotonic() - start > 0.9


def test_queues_wait_time_applies_unless_zero_is_given(
    current: Client, make_queue: MakeQueue
) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds="20")
    start = time.monotonic()
    assert receive(current, url, WaitTimeSeconds=0) == []
    assert time.monotonic() - start < 20

    short = {"ReceiveMessageWaitTimeSeconds": "1"}
    current.call("SetQueueAttributes", QueueUrl=url, Attributes=short)
    start = time.monotonic()
    assert receive(current, url) == []

    assert time.monotonic() - start > 0.9


def test_one_message_wakes_one_of_three_polls(current: Client, queue: str) -> None:
    woken: list[str] = []

    def poll() -> None:
        found = receive(current, queue, 1, WaitTimeSeconds=20)
        woken.extend(message["MessageId"] for message in found)

    polls = [threading.Thread(target=poll) for _ in range(3)]
    for each in polls:
        each.start()
    time.sleep(0.15)

    sent = current.call("SendMessage", QueueUrl=queue, MessageBody="x")

    eventually(lambda: bool(woken))
    assert woken == [sent["MessageId"]]
    others = [current.call("SendMessage", QueueUrl=queue, MessageBody="y") for _ in range(2)]
    for each in polls:
        each.join()
    assert sorted(woken) == sorted(answer["MessageId"] for answer in (sent, *others))
