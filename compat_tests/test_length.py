"""Limits of a queue's length: tags, with unmodified clients."""

from __future__ import annotations

import json
from collections.abc import Callable

from compat_tests.facade import Client, counts, receive, refusal


def test_what_does_not_fit_is_refused(sqs: Client, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:max-messages": "3"})
    entries = [{"Id": name, "MessageBody": name} for name in "abcde"]

    answer = sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    error = refusal(sqs, "SendMessage", QueueUrl=url, MessageBody="f")

    assert [entry["Id"] for entry in answer["Successful"]] == [*"abc"]
    failed = [(each["Id"], each["Code"], each["SenderFault"]) for each in answer["Failed"]]
    assert failed == [("d", "OverLimit", True), ("e", "OverLimit", True)]
    assert (error.code, error.status) == ("OverLimit", 403)
    assert len(receive(sqs, url)) == 3
    assert refusal(sqs, "SendMessage", QueueUrl=url, MessageBody="f").code == "OverLimit"


def test_the_oldest_makes_room(sqs: Client, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    tags = {"holdfast:max-bytes": "1024", "holdfast:overflow": "drop-oldest"}
    sqs.call("TagQueue", QueueUrl=url, Tags=tags)
    for name in "abc":
        sqs.call("SendMessage", QueueUrl=url, MessageBody=name * 400)

    assert [message["Body"][0] for message in receive(sqs, url)] == ["b", "c"]


def test_the_oldest_becomes_a_dead_letter(sqs: Client, make_queue: Callable[..., str]) -> None:
    dead = make_queue()
    attributes = sqs.call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = attributes["Attributes"]["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 5}
    url = make_queue(RedrivePolicy=json.dumps(policy))
    tags = {"holdfast:max-messages": "1", "holdfast:overflow": "dead-letter"}
    sqs.call("TagQueue", QueueUrl=url, Tags=tags)
    for name in "ab":
        sqs.call("SendMessage", QueueUrl=url, MessageBody=name)

    answer = sqs.call("ReceiveMessage", QueueUrl=dead, WaitTimeSeconds=10)

    assert [message["Body"] for message in answer["Messages"]] == ["a"]
    assert counts(sqs, url) == (1, 0, 0)


def test_limits_below_a_batch_do_not_drop(sqs: Client, queue: str) -> None:
    tags = {"holdfast:max-messages": "9", "holdfast:overflow": "drop-oldest"}

    assert refusal(sqs, "TagQueue", QueueUrl=queue, Tags=tags).code == "InvalidParameterValue"
