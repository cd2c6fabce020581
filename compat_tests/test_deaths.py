"""Causes of dead letters, and messages of deleted queues, with unmodified clients."""

from __future__ import annotations

import json
import time
from typing import Any

from compat_tests.facade import Client, Members, receive
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
