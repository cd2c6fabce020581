"""Order by the sender's clock: tags and attribute, with unmodified clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.facade import Client, counts, eventually, receive, refusal
from compat_tests.test_deaths import CAUSE

ORDER = {"holdfast:order": "sender-clock", "holdfast:order-window": "1000"}


def sent(ms_ago: int) -> dict[str, Any]:
    value = str(int(time.time() * 1000) - ms_ago)
    return {"holdfast.sent-at": {"DataType": "Number", "StringValue": value}}


def send(sqs: Client, url: str, *ages_ms: int) -> None:
    """Send messages whose bodies are their ages, in one batch."""
    entries = [
        {"Id": str(n), "MessageBody": str(age_ms), "MessageAttributes": sent(age_ms)}
        for n, age_ms in enumerate(ages_ms)
    ]
    assert "Failed" not in sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)


@pytest.fixture
def late(sqs: Client, make_queue: Callable[..., str]) -> str:
    return make_queue()


@pytest.fixture
def url(sqs: Client, make_queue: Callable[..., str], late: str) -> str:
    made = make_queue()
    tags = ORDER | {"holdfast:late-queue": arn_of(sqs, late)}
    sqs.call("TagQueue", QueueUrl=made, Tags=tags)
    assert sqs.call("ListQueueTags", QueueUrl=made)["Tags"] == tags
    return made


def arn_of(sqs: Client, url: str) -> str:
    answer = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def test_messages_come_in_the_order_of_their_senders(sqs: Client, url: str) -> None:
    send(sqs, url, 100, 300, 200)
    sqs.call("SendMessage", QueueUrl=url, MessageBody="now")

    assert counts(sqs, url) == (0, 0, 4)
    found: list[str] = []
    while len(found) < 4:
        found += [each["Body"] for each in receive(sqs, url, WaitTimeSeconds=20)]
    assert found == ["300", "200", "100", "now"]


def test_what_is_late_goes_to_the_late_queue(sqs: Client, url: str, late: str) -> None:
    send(sqs, url, 5_000)
    assert [each["Body"] for each in receive(sqs, url, WaitTimeSeconds=20)] == ["5000"]
    send(sqs, url, 60_000, 1_500)

    assert [each["Body"] for each in receive(sqs, url, WaitTimeSeconds=20)] == ["1500"]
    eventually(lambda: counts(sqs, late) == (1, 0, 0))
    (message,) = sqs.call(
        "ReceiveMessage",
        QueueUrl=late,
        AttributeNames=["All", CAUSE],
        MessageAttributeNames=["All"],
    )["Messages"]
    assert message["Body"] == "60000"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)
    assert json.loads(message["Attributes"][CAUSE])["cause"] == "late"
    assert list(message["MessageAttributes"]) == ["holdfast.sent-at"]


def test_a_queue_is_checked_with_its_order(sqs: Client, url: str, queue: str) -> None:
    missing = {"holdfast:late-queue": arn_of(sqs, queue) + "-missing"}

    for operation, members in (
        ("TagQueue", {"Tags": missing}),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "5"}}),
    ):
        error = refusal(sqs, operation, QueueUrl=url, **members)
        assert error.code == "InvalidParameterValue", members
