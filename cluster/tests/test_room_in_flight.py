"""A long poll on a queue with too many messages in flight is served as soon as there is room
again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.tests.driver import Driver
from visibility.contract.errors import OverLimit
from visibility.contract.model import Receipt
from visibility.rules import message_events, receive
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

QUEUE = prepared.queue_named("queue", 1, MessageRetentionPeriod="60")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Two messages are in flight, which is all that may be, and a third waits."""
    for module in (message_events, receive):
        monkeypatch.setattr(module, "IN_FLIGHT_MAX", 2)
    driver = Driver(KnownQueues(QUEUE))
    driver.submit(prepared.send_batch(QUEUE, ["a", "b"]))
    driver.submit(prepared.receive(QUEUE, 2, timeout_s=600))
    driver.pass_time(45_000)
    driver.submit(prepared.send(QUEUE, "c"))
    return driver


def deleted(driver: Driver) -> None:
    driver.submit(prepared.delete(QUEUE, Receipt(1, 1)))


def expired(driver: Driver) -> None:
    driver.pass_time(15_000)


@pytest.mark.parametrize("make_room", [deleted, expired])
def test_poll_is_served_when_there_is_room(
    driver: Driver, make_room: Callable[[Driver], None]
) -> None:
    reply = driver.submit(prepared.receive(QUEUE, wait_s=20))
    assert reply.waits

    make_room(driver)

    assert [message.data for message in reply.deliveries.messages] == [b"c"]


def test_short_poll_is_refused_until_there_is_room(driver: Driver) -> None:
    assert isinstance(driver.submit(prepared.receive(QUEUE)).refusal, OverLimit)

    deleted(driver)

    (message,) = driver.submit(prepared.receive(QUEUE)).deliveries.messages
    assert message.data == b"c"
