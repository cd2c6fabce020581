"""Time to live: tag and attribute, with unmodified clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from compat_tests.facade import Client, counts, receive, refusal


def ttl(seconds: int) -> dict[str, Any]:
    return {"holdfast.ttl": {"DataType": "Number", "StringValue": str(seconds)}}


def test_what_was_not_received_in_time_is_gone(sqs: Client, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:ttl": "600"})
    sqs.call("SendMessage", QueueUrl=url, MessageBody="brief", MessageAttributes=ttl(1))
    sqs.call("SendMessage", QueueUrl=url, MessageBody="long")

    time.sleep(1.1)

    assert [message["Body"] for message in receive(sqs, url)] == ["long"]
    assert counts(sqs, url) == (0, 1, 0)


def test_an_expired_message_becomes_a_dead_letter(
    sqs: Client, make_queue: Callable[..., str]
) -> None:
    dead = make_queue()
    arn = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 5}
    url = make_queue(RedrivePolicy=json.dumps(policy))
    tags = {"holdfast:ttl": "1", "holdfast:expired": "dead-letter"}
    sqs.call("TagQueue", QueueUrl=url, Tags=tags)
    sqs.call("SendMessage", QueueUrl=url, MessageBody="late", MessageAttributes=ttl(5))

    answer = sqs.call(
        "ReceiveMessage",
        QueueUrl=dead,
        WaitTimeSeconds=10,
        AttributeNames=["DeadLetterQueueSourceArn", "ApproximateReceiveCount"],
    )

    (message,) = answer["Messages"]
    assert message["Body"] == "late"
    assert message["Attributes"]["DeadLetterQueueSourceArn"].endswith(url.rpartition("/")[2])
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert counts(sqs, url) == (0, 0, 0)


def test_archive_without_an_archive_is_refused(
    sqs: Client, queue: str, make_queue: Callable[..., str]
) -> None:
    for tag in ("holdfast:expired", "holdfast:overflow"):
        refused = refusal(sqs, "TagQueue", QueueUrl=queue, Tags={tag: "archive"})

        assert refused.code == "InvalidParameterValue"
        assert refused.message == (
            f"Tag {tag} with value archive needs an archive, but this service has none "
            "(setting lake)."
        )
    given = {"QueueName": "refused", "tags": {"holdfast:expired": "archive"}}
    assert refusal(sqs, "CreateQueue", **given).code == "InvalidParameterValue"
