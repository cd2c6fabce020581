"""Scheduled messages: the attribute `holdfast.deliver-at`, sent by unmodified clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.facade import Client, counts, receive

DAY_MS = 86_400_000


def at(ms_from_now: int) -> dict[str, Any]:
    value = str(int(time.time() * 1000) + ms_from_now)
    return {"holdfast.deliver-at": {"DataType": "Number", "StringValue": value}}


@pytest.fixture
def url(sqs: Client, make_queue: Callable[..., str]) -> str:
    made = make_queue()
    sqs.call("TagQueue", QueueUrl=made, Tags={"holdfast:deliver-at": "on"})
    return made


def test_a_message_comes_at_its_time_to_a_long_poll(sqs: Client, url: str) -> None:
    begun = time.time()
    sqs.call("SendMessage", QueueUrl=url, MessageBody="later", MessageAttributes=at(1_500))

    assert counts(sqs, url) == (0, 0, 1)
    (message,) = sqs.call(
        "ReceiveMessage", QueueUrl=url, WaitTimeSeconds=10, MessageAttributeNames=["All"]
    )["Messages"]

    assert 1.4 < time.time() - begun < 10
    assert message["Body"] == "later"
    assert list(message["MessageAttributes"]) == ["holdfast.deliver-at"]


def test_entries_of_a_batch_have_times_of_their_own(sqs: Client, url: str) -> None:
    entries = [
        {"Id": name, "MessageBody": name, "MessageAttributes": at(ahead_ms)}
        for name, ahead_ms in (("past", -5_000), ("year", 365 * DAY_MS), ("far", 367 * DAY_MS))
    ]

    answer = sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)

    assert [each["Id"] for each in answer["Successful"]] == ["past", "year"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == (
        "far",
        "InvalidParameterValue",
        True,
    )
    assert [message["Body"] for message in receive(sqs, url)] == ["past"]
    assert counts(sqs, url) == (0, 1, 1)
