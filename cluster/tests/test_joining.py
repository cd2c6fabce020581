"""Sends to a queue with tags, whose meaning is read once: the same messages as on the long way."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from visibility.contract.errors import OverLimit, RequestThrottled
from visibility.contract.operations import SendMessageBatch, SendMessageBatchRequestEntry
from visibility.contract.stored_message import StoredMessage
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

LIMITS = {"holdfast:max-messages": "2", "holdfast:max-bytes": "1024"}


def stored(tags: dict[str, str], *, ttl_ms: int, level: int, in_batch: bool) -> StoredMessage:
    """A message as a receive gets it; batches go the long way."""
    queue = prepared.queue_named("q", 1, tags=tags)
    driver = Driver(KnownQueues(queue))
    if in_batch:
        content = prepared.content("x", queue, ttl_ms=ttl_ms, level=level)
        entry = SendMessageBatchRequestEntry("0")
        driver.submit(prepared.prepared(queue, SendMessageBatch(entries=[entry]), [content]))
    else:
        driver.submit(prepared.send(queue, "x", ttl_ms=ttl_ms, level=level))
    (message,) = driver.submit(prepared.receive(queue, 1)).deliveries.messages
    return message


@pytest.mark.parametrize(
    ("tags", "ttl_ms", "level"),
    [
        ({"holdfast:ttl": "60"}, 0, 0),
        ({"holdfast:ttl": "60"}, 5_000, 0),
        ({"holdfast:ttl": "60"}, 90_000, 0),
        ({"holdfast:expired": "discard"}, 5_000, 0),
        ({"holdfast:expired": "discard"}, 0, 0),
        ({"holdfast:priority": "weighted"}, 0, 0),
        ({"holdfast:priority": "strict", "holdfast:ttl": "60"}, 0, 10),
        ({"holdfast:throttle-depth": "9", **LIMITS}, 0, 0),
    ],
)
def test_a_message_is_the_same_as_in_a_batch(tags: dict[str, str], ttl_ms: int, level: int) -> None:
    alone = stored(tags, ttl_ms=ttl_ms, level=level, in_batch=False)
    in_batch = stored(tags, ttl_ms=ttl_ms, level=level, in_batch=True)

    assert (alone.expires_ms, alone.level) == (in_batch.expires_ms, in_batch.level)
    assert bool(alone.expires_ms) == ("holdfast:ttl" in tags or ttl_ms > 0)
    assert bool(alone.level) == ("holdfast:priority" in tags)


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [(LIMITS, [400, 400, 1]), (LIMITS, [400, 1000]), (LIMITS, [1025])],
)
def test_the_first_message_above_a_limit_is_refused(
    limits: dict[str, str], sizes: list[int]
) -> None:
    queue = prepared.queue_named("q", 1, tags=limits)
    driver = Driver(KnownQueues(queue))

    refusals = [driver.submit(prepared.send(queue, "x" * size)).refusal for size in sizes]

    assert refusals[:-1] == [None] * (len(sizes) - 1)
    assert isinstance(refusals[-1], OverLimit)


def test_a_send_is_throttled_on_the_short_way_too() -> None:
    queue = prepared.queue_named("q", 1, tags={"holdfast:throttle-depth": "1"})
    driver = Driver(KnownQueues(queue))

    assert driver.submit(prepared.send(queue, "x")).refusal is None
    assert isinstance(driver.submit(prepared.send(queue, "x")).refusal, RequestThrottled)
