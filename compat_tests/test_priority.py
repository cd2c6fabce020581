"""Priority: tag and attribute, with unmodified clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.facade import Client, counts, eventually, receive


def priority(value: int) -> dict[str, Any]:
    return {"holdfast.priority": {"DataType": "Number", "StringValue": str(value)}}


def send(sqs: Client, url: str, *priorities: int) -> None:
    """Send messages whose bodies are their priorities, in one batch."""
    entries = [
        {"Id": str(n), "MessageBody": str(value), "MessageAttributes": priority(value)}
        for n, value in enumerate(priorities)
    ]
    assert "Failed" not in sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)


@pytest.mark.parametrize("mode", ["strict", "weighted"])
def test_the_highest_goes_first(sqs: Client, make_queue: Callable[..., str], mode: str) -> None:
    url = make_queue()
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:priority": mode})
    send(sqs, url, 0, 5, 9, 3)
    sqs.call("SendMessage", QueueUrl=url, MessageBody="default")

    bodies = [message["Body"] for message in receive(sqs, url)]

    assert bodies == ["9", "5", "default", "3", "0"]


def test_a_redriven_message_keeps_its_priority(sqs: Client, make_queue: Callable[..., str]) -> None:
    dead = make_queue()
    attributes = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = attributes["Attributes"]["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 1}
    url = make_queue(RedrivePolicy=json.dumps(policy), VisibilityTimeout="0")
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:priority": "strict"})
    send(sqs, url, 1, 8)
    for _ in range(2):
        receive(sqs, url)
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "30"})
    send(sqs, url, 5)

    sqs.call("StartMessageMoveTask", SourceArn=arn)

    eventually(lambda: counts(sqs, url) == (3, 0, 0))
    assert [message["Body"] for message in receive(sqs, url)] == ["8", "5", "1"]
