"""Causes of dead letters, and messages of deleted queues, with unmodified clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.facade import Client, Members, counts, create_fifo_queue, receive
from compat_tests.test_dead_letter import MakeQueue, arn, redrive

CAUSE = "HoldfastDeadLetterCause"
SYSTEM_NAMES = {"json": "MessageSystemAttributeNames", "query": "AttributeNames"}
"""The newest name of this parameter that the client of a protocol knows."""


def pair(sqs: Client, make_queue: MakeQueue, tags: dict[str, str]) -> tuple[str, str]:
    """The URLs of a queue with these tags, and of its dead-letter queue."""
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive(arn(sqs, dead)), VisibilityTimeout="0")
    if tags:
        sqs.call("TagQueue", QueueUrl=url, Tags=tags)
    return url, dead


def letters(sqs: Client, dead: str, most: int = 1) -> list[Members]:
    """Dead letters with their attributes and causes, in order."""
    found: list[Members] = []
    asked: dict[str, Any] = {"AttributeNames": ["All", CAUSE], "WaitTimeSeconds": 10}
    while len(found) < most:
        answer = sqs.call("ReceiveMessage", QueueUrl=dead, MaxNumberOfMessages=10, **asked)
        found += answer["Messages"]
    return found


def cause(letter: Members) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(letter["Attributes"][CAUSE])
    return shown


def test_a_dead_letter_tells_its_cause_if_it_is_asked_for_by_name(
    sqs: Client, make_queue: MakeQueue
) -> None:
    url, dead = pair(sqs, make_queue, {})
    began_ms = time.time() * 1000
    sqs.call("SendMessage", QueueUrl=url, MessageBody="a")
    assert len(receive(sqs, url, AttributeNames=[CAUSE])) == 1
    assert receive(sqs, url) == []

    answers = [
        receive(sqs, dead, VisibilityTimeout=0, **asked)
        for asked in (
            {"AttributeNames": ["All"]},
            {"AttributeNames": [CAUSE]},
            {SYSTEM_NAMES[sqs.protocol]: [CAUSE]},
        )
    ]

    ((every,), (old,), (new,)) = answers
    assert CAUSE not in every["Attributes"]
    assert every["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, url)
    assert old["Attributes"] == new["Attributes"]
    shown = cause(old)
    assert (shown["cause"], shown["source"], shown["hops"]) == ("max-receives", arn(sqs, url), 0)
    assert began_ms - 1_000 < shown["time"] < time.time() * 1000 + 1_000


def test_expired_and_pushed_out_messages_tell_theirs(sqs: Client, make_queue: MakeQueue) -> None:
    expired = pair(sqs, make_queue, {"holdfast:ttl": "1", "holdfast:expired": "dead-letter"})
    limits = {"holdfast:max-messages": "1", "holdfast:overflow": "dead-letter"}
    full = pair(sqs, make_queue, limits)
    for url, _ in (expired, full, full):
        sqs.call("SendMessage", QueueUrl=url, MessageBody="a")

    found = [cause(*letters(sqs, dead)) for _, dead in (expired, full)]

    assert [(each["cause"], each["hops"]) for each in found] == [("expired", 1), ("over-length", 1)]
    assert [each["source"] for each in found] == [arn(sqs, url) for url, _ in (expired, full)]


@pytest.mark.slow
def test_a_circle_of_queues_ends(sqs: Client, make_queue: MakeQueue) -> None:
    one, other = make_queue(), make_queue()
    tags = {"holdfast:ttl": "1", "holdfast:expired": "dead-letter"}
    for url, target in ((one, other), (other, one)):
        attributes = {"RedrivePolicy": redrive(arn(sqs, target), 1000), "VisibilityTimeout": "0"}
        sqs.call("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
        sqs.call("TagQueue", QueueUrl=url, Tags=tags)
    sqs.call("SendMessage", QueueUrl=one, MessageBody="a")

    hops, latest_s = {0}, time.monotonic()
    while time.monotonic() - latest_s < 5:
        for url in (one, other):
            for message in receive(sqs, url, AttributeNames=[CAUSE]):
                if message.get("Attributes"):
                    hops.add(cause(message)["hops"])
                latest_s = time.monotonic()
        time.sleep(0.2)

    assert max(hops) == 8
    assert [counts(sqs, url)[0] for url in (one, other)] == [1, 0]


def test_messages_of_a_deleted_queue_become_dead_letters(
    sqs: Client, make_queue: MakeQueue
) -> None:
    url, dead = pair(sqs, make_queue, {"holdfast:on-delete": "dead-letter"})
    source = arn(sqs, url)
    for body in "abc":
        sqs.call("SendMessage", QueueUrl=url, MessageBody=body)
    sqs.call("SendMessage", QueueUrl=url, MessageBody="delayed", DelaySeconds=900)
    held = receive(sqs, url, VisibilityTimeout=2)

    sqs.call("DeleteQueue", QueueUrl=url)

    found = letters(sqs, dead, 4)
    assert len(held) == 3
    assert sorted(each["Body"] for each in found) == ["a", "b", "c", "delayed"]
    assert {cause(each)["cause"] for each in found} == {"queue-deleted"}
    assert {cause(each)["source"] for each in found} == {source}


def test_a_deleted_fifo_queue_keeps_the_order_of_groups(
    sqs: Client, fresh_name: Callable[[], str]
) -> None:
    dead = create_fifo_queue(sqs, fresh_name())
    policy = {"RedrivePolicy": redrive(arn(sqs, dead))}
    url = create_fifo_queue(sqs, fresh_name(), ContentBasedDeduplication="true", **policy)
    sqs.call("TagQueue", QueueUrl=url, Tags={"holdfast:on-delete": "dead-letter"})
    for number in range(20):
        group = str(number % 2)
        sqs.call("SendMessage", QueueUrl=url, MessageBody=str(number), MessageGroupId=group)

    sqs.call("DeleteQueue", QueueUrl=url)

    bodies: dict[str, list[int]] = {"0": [], "1": []}
    while sum(map(len, bodies.values())) < 20:
        for letter in letters(sqs, dead):
            bodies[letter["Attributes"]["MessageGroupId"]].append(int(letter["Body"]))
            sqs.call("DeleteMessage", QueueUrl=dead, ReceiptHandle=letter["ReceiptHandle"])
    assert bodies == {"0": list(range(0, 20, 2)), "1": list(range(1, 20, 2))}


def test_without_the_tag_messages_go_with_their_queue(sqs: Client, make_queue: MakeQueue) -> None:
    url, dead = pair(sqs, make_queue, {"holdfast:on-delete": "discard"})
    sqs.call("SendMessage", QueueUrl=url, MessageBody="a")

    sqs.call("DeleteQueue", QueueUrl=url)

    time.sleep(1)
    assert counts(sqs, dead) == (0, 0, 0)
