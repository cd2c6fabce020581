"""Delivery at most once: what a receive got comes to no other, whatever fails."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.one_queue import OneQueue
from cluster.tests.remembering import a_world, answer_to, named
from cluster.tests.virtual_time import virtual
from cluster.tests.world import settled
from storage.checks.consistency import check_queue
from visibility.contract.errors import InvalidParameterValue, MessageNotInflight
from visibility.contract.model import QueueCounters, Receipt
from visibility.contract.outcomes import Deliveries
from visibility.contract.stored_message import Lease
from visibility.rules.at_most_once import RemoveTaken
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

TAGS = {"holdfast:delivery": "at-most-once"}
NOTHING_LEFT = QueueCounters(0, 0, 0)
EACH = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])


class Once(OneQueue):
    """A queue that delivers at most once."""

    def __init__(self, suffix: str = "", tags: dict[str, str] = TAGS) -> None:
        self.suffix = suffix
        self.define(tags)
        self.driver = Driver(KnownQueues(self.queue))

    def define(self, tags: dict[str, str]) -> None:
        """Give the queue these tags."""
        self.queue = prepared.queue_named("q" + self.suffix, 1, tags=tags, VisibilityTimeout="1")

    def send(self, *bodies: str) -> None:
        """Send messages, of one group in a FIFO queue."""
        for body in bodies:
            group = "g" if self.suffix else None
            request = prepared.send(self.queue, body, group=group, deduplication_id=body)
            assert self.driver.submit(request).refusal is None

    def leases(self, most: int = 10) -> list[Lease]:
        """The leases that a receive gets."""
        return self.driver.submit(prepared.receive(self.queue, most)).deliveries.leases

    def received(self, most: int = 10) -> list[str]:
        """The bodies that a receive gets."""
        return self.driver.submit(prepared.receive(self.queue, most)).bodies

    def remove(self, leases: list[Lease]) -> None:
        """Tell that the answer with these was written."""
        request = prepared.prepared(self.queue, RemoveTaken(), receipts(leases))
        assert self.driver.submit(request).refusal is None


def receipts(leases: list[Lease]) -> list[Receipt]:
    return [Receipt(lease.sequence, lease.receive_count) for lease in leases]


@EACH
def test_what_was_received_never_comes_again(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b")
    assert once.received(1) == ["a"]

    once.driver.pass_time(59_000)
    assert once.received() == ([] if suffix else ["b"])  # the group waits for the first
    once.driver.pass_time(2_000)

    assert once.received() == (["b"] if suffix else [])


@EACH
def test_a_written_answer_removes_its_messages(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b", "c")

    once.remove(once.leases(2))

    assert once.counts() == QueueCounters(1, 0, 0)
    assert once.received() == ["c"]


@EACH
def test_a_new_leader_delivers_nothing_again(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b")
    once.leases()

    once.restart()

    assert once.received() == []
    once.driver.pass_time(61_000)
    assert once.received() == []
    assert once.counts() == NOTHING_LEFT


@EACH
def test_messages_that_were_not_written_are_given_back_once(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b")
    first = once.leases()

    once.driver.submit(prepared.give_back(once.queue, receipts(first)))

    assert once.received() == ["a", "b"]
    once.driver.pass_time(61_000)
    assert once.received() == []
    assert once.counts() == NOTHING_LEFT


@EACH
def test_a_late_return_brings_nothing_back(suffix: str) -> None:
    once = Once(suffix)
    once.send("a")
    first = once.leases()
    once.remove(first)

    once.driver.submit(prepared.give_back(once.queue, receipts(first)))

    assert once.counts() == NOTHING_LEFT


@EACH
def test_a_handle_deletes_at_once_and_changes_nothing(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b")
    first, second = receipts(once.leases())

    refused = once.driver.submit(prepared.change(once.queue, first, 0)).refusal
    assert isinstance(refused, MessageNotInflight)
    assert once.driver.submit(prepared.delete(once.queue, first)).refusal is None
    assert once.counts() == QueueCounters(0, 1, 0)
    assert once.driver.submit(prepared.delete(once.queue, first)).refusal is None
    once.driver.submit(prepared.delete(once.queue, second))

    refused = once.driver.submit(prepared.change(once.queue, second, 9)).refusal
    assert isinstance(refused, MessageNotInflight)
    assert once.counts() == NOTHING_LEFT


@EACH
def test_taken_messages_end_also_without_the_tag(suffix: str) -> None:
    once = Once(suffix)
    once.send("a")
    once.leases()

    once.define({})
    once.driver.queues.define(once.queue)
    once.driver.pass_time(61_000)

    assert once.received() == []
    assert once.counts() == NOTHING_LEFT


def test_messages_received_before_the_tag_come_again_once() -> None:
    once = Once(tags={})
    once.send("a")
    once.leases()

    once.define(TAGS)
    once.driver.queues.define(once.queue)
    once.driver.pass_time(1_000)

    assert once.received() == ["a"]
    once.driver.pass_time(1_000)
    assert once.received() == []


def test_an_attempt_id_is_refused() -> None:
    once = Once(".fifo")
    once.send("a")
    request = prepared.receive(once.queue, attempt="attempt")

    assert isinstance(once.driver.submit(request).refusal, InvalidParameterValue)
    assert once.received() == ["a"]


@EACH
def test_rows_are_consistent(suffix: str) -> None:
    once = Once(suffix)
    once.send("a", "b")
    once.remove(once.leases(1))
    once.leases()

    assert list(check_queue(once.driver.store, once.queue.queue_id)) == []


@virtual
async def test_a_retry_inside_gets_nothing_that_may_have_reached_the_client() -> None:
    world = await a_world()
    queue = prepared.queue_named("once", 4, tags=TAGS)
    world.queues.define(queue)
    await answer_to(world, named(prepared.send(queue, "a")))
    request = named(prepared.receive(queue))

    first = await answer_to(world, request)
    again = await answer_to(world, request, age_ms=10)
    other = world.ask(named(prepared.receive(queue)))
    await settled()

    assert isinstance(first, Deliveries)
    assert len(first.leases) == 1
    assert isinstance(again, Deliveries)
    assert again.leases == []
    assert other.bodies == []
