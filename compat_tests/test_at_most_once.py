"""Delivery at most once, with unmodified clients in both protocols."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from compat_tests.facade import PATIENCE_S, Client, counts, receive, refusal


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def once(
    request: pytest.FixtureRequest, sqs: Client, fresh_name: Callable[[], str]
) -> tuple[str, dict[str, str]]:
    """The URL of a queue that delivers at most once, and what its sends need."""
    attributes, of_sends = {"VisibilityTimeout": "1"}, {}
    if request.param:
        attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        of_sends = {"MessageGroupId": "g"}
    name = fresh_name() + request.param
    url = sqs.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:delivery": "at-most-once"})
    return url, of_sends


def test_a_receive_takes_its_messages_for_good(
    sqs: Client, once: tuple[str, dict[str, str]]
) -> None:
    url, of_sends = once
    for body in "abc":
        sqs.call("SendMessage", QueueUrl=url, MessageBody=body, **of_sends)

    bodies: list[str] = []
    handles: list[str] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(bodies) < 3 and time.monotonic() < deadline_s:
        for message in receive(sqs, url):
            bodies.append(message["Body"])
            handles.append(message["ReceiptHandle"])
    time.sleep(1.2)  # the visibility timeout would be over

    assert bodies == ["a", "b", "c"]
    assert receive(sqs, url) == []
    assert counts(sqs, url) == (0, 0, 0)
    for handle in handles:
        sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    change = {"QueueUrl": url, "ReceiptHandle": handles[0], "VisibilityTimeout": 5}
    assert refusal(sqs, "ChangeMessageVisibility", **change).code.endswith("MessageNotInflight")


def test_what_needs_a_second_delivery_is_refused(
    sqs: Client, once: tuple[str, dict[str, str]]
) -> None:
    url, of_sends = once

    tags = {"holdfast:retry-min": "5"}
    assert refusal(sqs, "TagQueue", QueueUrl=url, Tags=tags).code == "InvalidParameterValue"
    if of_sends:
        receive_again = {"QueueUrl": url, "ReceiveRequestAttemptId": "a"}
        assert refusal(sqs, "ReceiveMessage", **receive_again).code == "InvalidParameterValue"
