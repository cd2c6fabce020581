"""Dead letters: a message's attributes, source lists, and policies. Transcripts show the moves."""

from __future__ import annotations

import json
from collections.abc import Callable

from compat_tests.facade import Client, Members, receive, receive_count, refusal
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


def test_source_queues_are_listed(sqs: Client, queue: str, make_queue: MakeQueue) -> None:
    assert sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue).get("queueUrls", []) == []
    policy = redrive(arn(sqs, queue))
    sources = sorted(make_queue(RedrivePolicy=policy) for _ in range(3))

    answer = sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue)
    page = sqs.call("ListDeadLetterSourceQueues", QueueUrl=queue, MaxResults=2)
    rest = sqs.call(
        "ListDeadLetterSourceQueues", QueueUrl=queue, MaxResults=2, NextToken=page["NextToken"]
    )

    assert sorted(answer["queueUrls"]) == sources
    assert "NextToken" not in answer
    assert sorted(page["queueUrls"] + rest["queueUrls"]) == sources
    assert "NextToken" not in rest


def test_incomplete_policies_are_refused(sqs: Client, queue: str) -> None:
    target = arn(sqs, queue)
    for policy in (
        {"maxReceiveCount": 1},
        {"deadLetterTargetArn": target},
        {"deadLetterTargetArn": target, "maxReceiveCount": "many"},
    ):
        given = {"RedrivePolicy": json.dumps(policy)}

        error = refusal(sqs, "SetQueueAttributes", QueueUrl=queue, Attributes=given)

        assert error.code == "InvalidParameterValue"
