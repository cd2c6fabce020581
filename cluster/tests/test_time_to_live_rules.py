"""Time to live: what is too old is not received, and goes where the tag says."""

from __future__ import annotations

import pytest

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.driver import Driver
from cluster.tests.one_queue import OneQueue
from storage.checks.consistency import check_queue
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.stored_message import Lease
from visibility.rows.row_keys import EXPIRY
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

FIFO = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])


class Living(OneQueue):
    """A queue with these tags, and its dead-letter queue."""

    def __init__(
        self,
        tags: dict[str, str],
        suffix: str = "",
        *,
        target_tags: dict[str, str] | None = None,
        hidden_s: int = 30,
        delay_s: int = 0,
        retention_s: int = 345_600,
        archive: ArchiveLimits | None = None,
        has_target: bool = True,
    ) -> None:
        self.suffix = suffix
        self.dead = prepared.queue_named("dead" + suffix, 2, tags=target_tags)
        self.queue = prepared.queue_named(
            "q" + suffix,
            1,
            tags=tags,
            dead_letters_to=self.dead if has_target else None,
            max_receive_count=100,
            VisibilityTimeout=str(hidden_s),
            DelaySeconds=str(delay_s),
            MessageRetentionPeriod=str(retention_s),
        )
        self.driver = Driver(KnownQueues(self.queue, self.dead), archive=archive)

    def send(self, *bodies: str, ttl_s: int = 0, group: str = "g", at_ms: int = 0) -> None:
        """Send messages, of a group in a FIFO queue."""
        for body in bodies:
            request = prepared.send(
                self.queue,
                body,
                group=group if self.suffix else None,
                deduplication_id=body,
                ttl_ms=ttl_s * 1000,
                at_ms=at_ms,
            )
            assert self.driver.submit(request).refusal is None

    def leases(self, queue: QueueDefinition | None = None, *, wait_s: int = 0) -> list[Lease]:
        """The leases that a receive gets."""
        request = prepared.receive(queue or self.queue, 10, wait_s=wait_s)
        request = self._with_target(request)
        return self.driver.submit(request).deliveries.leases

    def received(self, queue: QueueDefinition | None = None) -> list[str]:
        """The bodies that a receive gets."""
        request = self._with_target(prepared.receive(queue or self.queue, 10))
        return self.driver.submit(request).bodies

    def _with_target(self, request: Request) -> Request:
        target = self.dead if request.queue.settings.redrive_policy else None
        return prepared.prepared(
            request.queue, request.operation, request.parts, dead_letter_queue=target
        )

    def expiry_rows(self) -> int:
        """Rows of the index."""
        return sum(key[8:9] == EXPIRY for key in self.driver.store.rows)


# -- receives --------------------------------------------------------------------------------------


@FIFO
def test_a_message_is_received_until_its_time_is_over(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix)
    living.send("a", "b")

    living.driver.pass_time(9_999)
    assert living.counts() == QueueCounters(2, 0, 0)
    living.driver.pass_time(1)

    assert living.received() == []
    assert living.counts() == QueueCounters(0, 0, 0)
    assert living.expiry_rows() == 0


@FIFO
def test_the_shorter_of_both_times_counts(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix)
    living.send("short", ttl_s=2)
    living.send("long", ttl_s=60)

    living.driver.pass_time(2_000)
    assert living.received() == ["long"]
    living.driver.pass_time(8_000)
    assert living.counts() == QueueCounters(0, 1, 0)


def test_without_a_time_of_the_queue_only_that_of_a_message_counts() -> None:
    living = Living({"holdfast:expired": "discard"})
    living.send("a", ttl_s=2)
    living.send("b")

    living.driver.pass_time(2_000)

    assert living.received() == ["b"]


@FIFO
def test_a_message_in_flight_is_its_consumers_until_its_lease_ends(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix, hidden_s=30)
    living.send("a", "b")
    first, _ = living.leases()

    living.driver.pass_time(29_000)
    assert living.counts() == QueueCounters(0, 2, 0)
    living.driver.submit(prepared.delete(living.queue, Receipt(first.sequence, 1)))
    living.driver.pass_time(1_000)

    assert living.received() == []
    assert living.counts() == QueueCounters(0, 0, 0)
    assert living.expiry_rows() == 0


def test_a_message_that_comes_back_too_late_is_not_received() -> None:
    living = Living({"holdfast:ttl": "10"}, hidden_s=5)
    living.send("a")
    living.leases()

    living.driver.pass_time(5_000)
    assert len(living.leases()) == 1
    living.driver.pass_time(5_000)

    assert living.received() == []


@FIFO
def test_a_message_that_waits_for_its_retry_grows_older(suffix: str) -> None:
    living = Living({"holdfast:ttl": "20", "holdfast:retry-min": "60"}, suffix, hidden_s=5)
    living.send("a", "b", group="g")
    assert len(living.leases()) == 2
    living.send("c", group="h")
    living.driver.pass_time(20_000)

    assert living.received() == []
    living.driver.pass_time(60_000)
    assert living.received() == []
    assert living.counts() == QueueCounters(0, 0, 0)
    assert living.expiry_rows() == 0


@FIFO
def test_a_delayed_message_lives_from_its_delivery(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix, delay_s=60)
    living.send("a")

    living.driver.pass_time(69_000)
    assert living.counts() == QueueCounters(1, 0, 0)
    living.driver.pass_time(1_000)
    assert living.counts() == QueueCounters(0, 0, 0)


def test_a_scheduled_message_lives_from_its_delivery() -> None:
    living = Living({"holdfast:ttl": "10", "holdfast:deliver-at": "on"})
    living.send("a", at_ms=START_MS + 3_600_000)

    living.driver.pass_time(3_609_000)
    assert living.counts() == QueueCounters(1, 0, 0)
    living.driver.pass_time(1_000)
    assert living.counts() == QueueCounters(0, 0, 0)


@FIFO
def test_a_restart_keeps_the_times(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix)
    living.send("a")
    living.driver.pass_time(5_000)
    living.send("b")

    living.restart()
    living.driver.pass_time(5_000)

    assert living.received() == ["b"]
    assert living.expiry_rows() == 1


@FIFO
def test_nothing_is_removed_by_a_clock_that_is_not_trusted_nor_received(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10"}, suffix)
    living.send("a")
    living.driver.trusted_ms = START_MS
    living.driver.pass_time(60_000)

    assert living.received() == []
    assert living.counts().visible == 1
    living.driver.trusted_ms = 0
    living.driver.pass_time(20_000)
    assert living.counts() == QueueCounters(0, 0, 0)


def test_many_messages_end_at_once() -> None:
    living = Living({"holdfast:ttl": "10"})
    for number in range(1_500):
        living.send(str(number))
    living.driver.pass_time(5_000)
    living.send("fresh")
    living.driver.now_ms += 5_000

    assert living.received() == ["fresh"]
    assert living.counts() == QueueCounters(0, 1, 0)


def test_a_held_message_lives_until_its_release() -> None:
    living = Living({"holdfast:ttl": "10"})
    living.send("a")
    living.driver.submit(prepared.prepared(living.queue, HoldMessages([1])))
    living.driver.pass_time(60_000)

    assert living.counts() == QueueCounters(0, 1, 0)
    living.driver.submit(prepared.prepared(living.queue, ReleaseMessages([1])))
    living.driver.pass_time(15_000)
    assert living.counts() == QueueCounters(0, 0, 0)


# -- dead letters ----------------------------------------------------------------------------------


@FIFO
def test_expired_messages_become_dead_letters(suffix: str) -> None:
    living = Living({"holdfast:ttl": "10", "holdfast:expired": "dead-letter"}, suffix)
    living.send("a", "b")

    living.driver.pass_time(10_000)

    assert living.counts() == QueueCounters(0, 0, 0)
    assert living.received(living.dead) == ["a", "b"]
    assert living.expiry_rows() == 0


def test_a_dead_letter_has_the_time_of_its_new_queue_only() -> None:
    living = Living(
        {"holdfast:ttl": "10", "holdfast:expired": "dead-letter"},
        target_tags={"holdfast:ttl": "20"},
    )
    living.send("a", ttl_s=5)

    living.driver.pass_time(5_000)
    assert living.counts(living.dead) == QueueCounters(1, 0, 0)
    living.driver.pass_time(19_000)
    assert living.counts(living.dead) == QueueCounters(1, 0, 0)
    living.driver.pass_time(1_000)
    assert living.counts(living.dead) == QueueCounters(0, 0, 0)


@FIFO
def test_without_a_dead_letter_queue_they_wait_and_hold_up_nobody(suffix: str) -> None:
    tags = {"holdfast:ttl": "10", "holdfast:expired": "dead-letter"}
    living = Living(tags, suffix, has_target=False, retention_s=300)
    living.send("a")
    living.driver.pass_time(60_000)
    living.send("b")

    assert living.received() == ["b"]
    assert living.counts() == QueueCounters(1, 1, 0)
    living.driver.pass_time(300_000)
    assert living.counts() == QueueCounters(0, 0, 0)


@FIFO
def test_while_the_dead_letter_queue_is_full_they_wait_and_hold_up_nobody(suffix: str) -> None:
    tags = {"holdfast:ttl": "10", "holdfast:expired": "dead-letter"}
    living = Living(tags, suffix, target_tags={"holdfast:max-messages": "1"})
    living.send("a", "b")
    living.driver.pass_time(10_000)
    living.send("c")

    assert living.received() == ["c"]
    assert living.counts() == QueueCounters(1, 1, 0), "b waits, and is not received"
    (lease,) = living.leases(living.dead)
    receipt = Receipt(lease.sequence, lease.receive_count)
    living.driver.submit(prepared.delete(living.dead, receipt))
    living.driver.pass_time(20_000)
    assert living.received(living.dead) == ["b"]


def test_messages_in_flight_follow_after_their_lease() -> None:
    living = Living({"holdfast:ttl": "10", "holdfast:expired": "dead-letter"})
    living.send("a")
    living.leases()

    living.driver.pass_time(29_000)
    assert living.counts(living.dead) == QueueCounters(0, 0, 0)
    living.driver.pass_time(1_001)
    assert living.counts(living.dead) == QueueCounters(1, 0, 0)
    (lease,) = living.leases(living.dead)
    assert lease.receive_count == 2


# -- the archive -----------------------------------------------------------------------------------


def test_expired_messages_go_to_the_archive_and_wait_for_room_in_it() -> None:
    tags = {"holdfast:ttl": "10", "holdfast:expired": "archive"}
    living = Living(tags, archive=ArchiveLimits(100_000, False))
    living.send("a")
    living.driver.pass_time(10_000)
    assert living.counts() == QueueCounters(0, 0, 0)
    assert living.driver.state.archive.has_open

    full = Living(tags, archive=ArchiveLimits(1, False))
    full.send("a")
    full.driver.pass_time(60_000)
    assert full.received() == []
    assert full.counts().visible == 1


@FIFO
def test_the_index_follows_from_the_messages(suffix: str) -> None:
    living = Living({"holdfast:ttl": "100"}, suffix)
    living.send("a", "b", "c")
    living.send("d", ttl_s=10)
    living.leases()
    living.driver.pass_time(20_000)
    living.send("e")

    assert list(check_queue(living.driver.store, 1)) == []
    assert living.expiry_rows() == 5
