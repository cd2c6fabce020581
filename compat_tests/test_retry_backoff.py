"""Retry back-off: the tags of a queue let a message wait that was received and not deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.facade import (
    Client,
    counts,
    create_fifo_queue,
    eventually,
    receive,
    receive_count,
    send_in_order,
)
from compat_tests.test_visibility import change

TAGS = {"holdfast:retry-min": "2", "holdfast:retry-max": "2"}


@pytest.fixture(params=["standard", "fifo"])
def waiting(request: pytest.FixtureRequest, sqs: Client, fresh_name: Callable[[], str]) -> str:
    """A queue whose messages wait for two seconds."""
    name = fresh_name()
    if request.param == "fifo":
        url = create_fifo_queue(sqs, name)
    else:
        url = str(sqs.call("CreateQueue", QueueName=name)["QueueUrl"])
    sqs.call("TagQueue", QueueUrl=url, Tags=TAGS)
    return url


@pytest.mark.slow  # a wait is at least a second
def test_a_failed_message_waits_as_a_delayed_one_and_comes_back(sqs: Client, waiting: str) -> None:
    is_fifo = waiting.endswith(".fifo")
    if is_fifo:
        send_in_order(sqs, waiting, "a-1 a-2")
    else:
        sqs.call("SendMessage", QueueUrl=waiting, MessageBody="a-1")
    (message,) = receive(sqs, waiting, 1)
    change(sqs, waiting, message["ReceiptHandle"], 0)

    assert counts(sqs, waiting) == (int(is_fifo), 0, 1)
    assert receive(sqs, waiting, 1) == [], "its group waits with it"
    eventually(lambda: counts(sqs, waiting) == (1 + is_fifo, 0, 0))
    names = ["ApproximateReceiveCount"]
    (again,) = receive_count(sqs, waiting, 1, AttributeNames=names)
    assert again["Body"] == "a-1"
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
