"""Policies that a service checks beyond their tags, and a priority that a redrive keeps. That each
policy holds is told in `test_policies.py`."""

from __future__ import annotations

from collections.abc import Callable

from compat_tests.facade import Client, counts, eventually, receive, refusal
from compat_tests.test_dead_letter import MakeQueue, arn, redrive


def test_archive_without_an_archive_is_refused(sqs: Client, queue: str) -> None:
    for tag in ("holdfast:expired", "holdfast:overflow"):
        refused = refusal(sqs, "TagQueue", QueueUrl=queue, Tags={tag: "archive"})

        assert refused.code == "InvalidParameterValue"
        assert refused.message == (
            f"Tag {tag} with value archive needs an archive, but this service has none "
            "(setting lake)."
        )
    given = {"QueueName": "refused", "tags": {"holdfast:expired": "archive"}}
    assert refusal(sqs, "CreateQueue", **given).code == "InvalidParameterValue"


def test_limits_below_a_batch_do_not_drop(sqs: Client, queue: str) -> None:
    tags = {"holdfast:max-messages": "9", "holdfast:overflow": "drop-oldest"}

    assert refusal(sqs, "TagQueue", QueueUrl=queue, Tags=tags).code == "InvalidParameterValue"


def test_a_queue_is_checked_with_its_order(sqs: Client, queue: str) -> None:
    order = {"holdfast:order": "sender-clock", "holdfast:order-window": "1000"}
    sqs.call("TagQueue", QueueUrl=queue, Tags=order)
    missing = {"holdfast:late-queue": arn(sqs, queue) + "-missing"}

    for operation, members in (
        ("TagQueue", {"Tags": missing}),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "5"}}),
    ):
        error = refusal(sqs, operation, QueueUrl=queue, **members)
        assert error.code == "InvalidParameterValue", members


def test_a_redriven_message_keeps_its_priority(sqs: Client, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive(arn(sqs, dead)), VisibilityTimeout="0")
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:priority": "strict"})
    send = _sender(sqs, url)
    send("1", "8")
    for _ in range(2):
        receive(sqs, url)
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "30"})
    send("5")

    sqs.call("StartMessageMoveTask", SourceArn=arn(sqs, dead))

    eventually(lambda: counts(sqs, url) == (3, 0, 0))
    assert [message["Body"] for message in receive(sqs, url)] == ["8", "5", "1"]


def _sender(sqs: Client, url: str) -> Callable[..., None]:
    def send(*priorities: str) -> None:
        for value in priorities:
            priority = {"holdfast.priority": {"DataType": "Number", "StringValue": value}}
            sqs.call("SendMessage", QueueUrl=url, MessageBody=value, MessageAttributes=priority)

    return send
