"""Resending an edited copy: the original leaves only together with it, and rows stay sound."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver, Reply
from cluster.tests.row_consistency import check_rows
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.rules.resend import ResendMessage
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class Repair:
    """A dead-letter queue and the queue that the copies go to."""

    def __init__(self, suffix: str) -> None:
        self.group = "g" if suffix else None
        self.source = prepared.queue_named("source" + suffix, 1)
        self.target = prepared.queue_named("target" + suffix, 2)
        self.driver = Driver(KnownQueues(self.source, self.target))

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.driver.submit(prepared.send(self.source, body, group=self.group))

    def resend(self, body: str, to: QueueDefinition, replaces: int = 0) -> Reply:
        content = prepared.content(body, to, group=self.group)
        request = Request(
            ResendMessage(replaces=replaces),
            self.source,
            prepared.CALLER,
            "request",
            (content,),
            destination=to,
        )
        reply = self.driver.submit(request)
        check_rows(self.driver.store, self.driver.state)
        return reply

    def received(self, queue: QueueDefinition, most: int = 10) -> list[tuple[str, Receipt]]:
        deliveries = self.driver.submit(prepared.receive(queue, most)).deliveries
        return [
            (message.data.decode(), Receipt(lease.sequence, lease.receive_count))
            for message, lease in zip(deliveries.messages, deliveries.leases, strict=True)
        ]

    def bodies(self, queue: QueueDefinition, most: int = 10) -> list[str]:
        return [body for body, _ in self.received(queue, most)]

    def counters(self, queue: QueueDefinition) -> QueueCounters:
        answer = self.driver.submit(prepared.counters(queue)).answer
        assert isinstance(answer, QueueCounters)
        return answer


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def repair(request: pytest.FixtureRequest) -> Repair:
    return Repair(request.param)


def test_copy_is_sent_and_the_original_stays(repair: Repair) -> None:
    repair.send("a")

    repair.resend("edited", repair.target)

    assert repair.bodies(repair.source) == ["a"]
    assert repair.bodies(repair.target) == ["edited"]


def test_copy_takes_the_original_away(repair: Repair) -> None:
    repair.send("a", "b")

    repair.resend("edited", repair.target, replaces=1)

    assert repair.bodies(repair.source) == ["b"]
    assert repair.bodies(repair.target) == ["edited"]


def test_copy_goes_to_the_end_of_the_same_queue(repair: Repair) -> None:
    repair.send("a", "b")

    repair.resend("edited", repair.source, replaces=1)

    assert repair.bodies(repair.source) == ["b", "edited"]


def test_message_in_flight_is_not_replaced(repair: Repair) -> None:
    repair.send("a")
    repair.received(repair.source)

    reply = repair.resend("edited", repair.target, replaces=1)

    assert isinstance(reply.refusal, InvalidParameterValue)
    assert repair.counters(repair.target) == QueueCounters(0, 0, 0)


def test_message_that_is_visible_again_is_replaced(repair: Repair) -> None:
    repair.send("a", "b")
    (_, receipt), _ = repair.received(repair.source)
    repair.driver.submit(prepared.change(repair.source, receipt, 0))

    repair.resend("edited", repair.target, replaces=1)

    assert repair.counters(repair.source) == QueueCounters(0, 1, 0)
    assert repair.bodies(repair.target) == ["edited"]


@pytest.mark.parametrize("to_source", [True, False])
def test_duplicate_does_not_take_the_original_away(to_source: bool) -> None:
    repair = Repair(".fifo")
    repair.send("a")
    target = repair.source if to_source else repair.target
    repair.driver.submit(prepared.send(target, "copy", group="g"))

    reply = repair.resend("copy", target, replaces=1)

    assert isinstance(reply.refusal, InvalidParameterValue)
    assert "a" in repair.bodies(repair.source)


def test_group_that_is_blocked_by_it_is_not_received_from() -> None:
    """The replaced message was the only one before one in flight."""
    repair = Repair(".fifo")
    repair.send("a", "b", "c")
    (_, first), (_, second) = repair.received(repair.source, 2)
    repair.driver.submit(prepared.change(repair.source, first, 0))

    repair.resend("edited", repair.source, replaces=1)

    assert repair.bodies(repair.source) == []
    repair.driver.submit(prepared.delete(repair.source, second))
    assert repair.bodies(repair.source) == ["c", "edited"]
