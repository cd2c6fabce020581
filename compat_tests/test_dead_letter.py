"""Dead letters: a message's attributes, source lists, and policies. Transcripts show the moves."""

from __future__ import annotations

import json
from collections.abc import Callable

from compat_tests.facade import Client, Members, receive, receive_count
from compat_tests.test_send import TRACE, string

MakeQueue = Callable[..., str]


def arn(client: Client, url: str) -> str:
    asked = {"QueueUrl": url, "AttributeNames": ["QueueArn"]}
    return str(client.call("GetQueueAttributes", **asked)["Attributes"]["QueueArn"])


def redrive(target_arn: str, receives: object = 1) -> str:
    return json.dumps({"deadLetterTargetArn": target_arn, "maxReceiveCount": receives})


def test_dead_letter_keeps_what_the_message_was(
    sqs: Client, queue: str, make_queue: MakeQueue
) -> None:
    source = make_queue(RedrivePolicy=redrive(arn(sqs, queue), "1"))
    sqs.call(
        "SendMessage",
        QueueUrl=source,
        MessageBody="x",
        MessageAttributes={"k": string("x")},
        MessageSystemAttributes={"AWSTraceHeader": string(TRACE)},
    )
    asked: Members = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (before,) = receive(sqs, source, VisibilityTimeout=0, **asked)
    assert "DeadLetterQueueSourceArn" not in before["Attributes"]
    assert receive(sqs, source) == []

    (dead,) = receive_count(sqs, queue, 1, **asked)

    for member in ("MessageId", "Body", "MD5OfBody", "MD5OfMessageAttributes", "MessageAttributes"):
        assert dead[member] == before[member]
    found = dead["Attributes"]
    assert found["ApproximateReceiveCount"] == "2", (
        "the count goes on; the refused one is not in it"
    )
    assert found["DeadLetterQueueSourceArn"] == arn(sqs, source)
    assert found["AWSTraceHeader"] == TRACE
    assert found["SentTimestamp"] == before["Attributes"]["SentTimestamp"]
