"""Deaths: each dead letter knows its cause, and none goes round in a circle of queues for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.driver import Driver
from visibility.contract.death import EXPIRED, HOPS, HOPS_MAX, MAX_RECEIVES, OVER_LENGTH, Death
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import ARCHIVED
from visibility.rows.row_values import ArchivedMessage
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

FIFO = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
EXPIRING = {"holdfast:ttl": "10", "holdfast:expired": "dead-letter"}
ARCHIVE = ArchiveLimits(1 << 20, False)


class Circle:
    """Queues each of which is the dead-letter queue of the one before."""

    def __init__(
        self,
        *tags: dict[str, str],
        suffix: str = "",
        archive: ArchiveLimits | None = None,
        retention_s: int = 345_600,
    ) -> None:
        self.suffix = suffix
        places = [prepared.queue_named(f"q{n}{suffix}", n) for n in range(1, len(tags) + 1)]
        self.queues = [
            prepared.queue_named(
                place.name,
                place.queue_id,
                tags=own,
                dead_letters_to=places[place.queue_id % len(places)],
                max_receive_count=1,
                VisibilityTimeout="0",
                MessageRetentionPeriod=str(retention_s),
            )
            for place, own in zip(places, tags, strict=True)
        ]
        self.driver = Driver(KnownQueues(*self.queues), archive=archive)

    def send(self, *bodies: str, group: str = "g") -> None:
        """Send messages to the first queue."""
        for body in bodies:
            fifo: dict[str, Any] = {"group": group, "deduplication_id": body} if self.suffix else {}
            assert self.driver.submit(prepared.send(self.queues[0], body, **fifo)).refusal is None

    def received(self, queue: QueueDefinition) -> list[StoredMessage]:
        """The messages that a receive gets."""
        target = self.queues[queue.queue_id % len(self.queues)]
        request = prepared.receive(queue, 10)
        request = prepared.prepared(queue, request.operation, dead_letter_queue=target)
        return self.driver.submit(request).deliveries.messages

    def depths(self) -> list[int]:
        """Messages of each queue."""
        return [self.driver.state.queue(each.queue_id).stored for each in self.queues]

    def archived(self) -> list[ArchivedMessage]:
        """The messages that wait for the archive."""
        return [
            decode_row(ArchivedMessage, key, value)
            for key, value in sorted(self.driver.store.rows.items())
            if key[8:9] == ARCHIVED
        ]

    def deaths(self) -> list[dict[str, int]]:
        """The counted deaths of each queue."""
        return [self.driver.state.queue(each.queue_id).counts.deaths for each in self.queues]


# -- causes ----------------------------------------------------------------------------------------


@FIFO
def test_a_message_received_too_often_has_its_cause_and_no_hop(suffix: str) -> None:
    circle = Circle({}, {}, suffix=suffix)
    first, second = circle.queues
    circle.send("a")
    assert [each.death for each in circle.received(first)] == [None]
    circle.driver.now_ms += 7

    assert circle.received(first) == []
    (letter,) = circle.received(second)

    assert letter.death == Death(MAX_RECEIVES, START_MS + 7, 0)
    assert letter.dead_letter_source_arn == first.arn
    assert circle.deaths() == [{}, {MAX_RECEIVES: 1}]


@FIFO
def test_an_expired_message_and_one_that_made_room_have_theirs(suffix: str) -> None:
    expired = Circle(EXPIRING, {}, suffix=suffix)
    expired.send("a")
    expired.driver.pass_time(10_000)
    full = {"holdfast:max-messages": "2", "holdfast:overflow": "dead-letter"}
    pushed_out = Circle(full, {}, suffix=suffix)
    pushed_out.send("a", "b", "c")

    (one,), (other,) = (
        expired.received(expired.queues[1]),
        pushed_out.received(pushed_out.queues[1]),
    )

    assert one.death == Death(EXPIRED, START_MS + 10_000, 1)
    assert other.death == Death(OVER_LENGTH, START_MS, 1)
    assert expired.deaths()[1] == {EXPIRED: 1}
    assert pushed_out.deaths()[1] == {OVER_LENGTH: 1}


def test_a_restart_keeps_the_cause() -> None:
    circle = Circle(EXPIRING, {})
    circle.send("a")
    circle.driver.pass_time(10_000)

    circle.driver = Driver(
        circle.driver.queues, store=circle.driver.store, now_ms=circle.driver.now_ms
    )
    (letter,) = circle.received(circle.queues[1])

    assert letter.death == Death(EXPIRED, START_MS + 10_000, 1)


def test_a_redrive_begins_anew_and_its_undo_shows_the_cause_again() -> None:
    circle = Circle(EXPIRING, {})
    first, second = circle.queues
    circle.send("a")
    circle.driver.pass_time(10_000)

    circle.driver.submit(prepared.prepared(second, MoveSelected([1])))
    (redriven,) = circle.received(first)
    (task,) = circle.driver.state.queue(second.queue_id).tasks.values()
    (sequence,) = circle.driver.state.queue(first.queue_id).entries
    undo = MoveSelected([sequence], undoes=task.task_id, sources=task.sources)
    request = prepared.prepared(first, undo)
    circle.driver.submit(msgspec.structs.replace(request, destination=second))

    assert redriven.dead_letter_source_arn is None
    assert redriven.death == Death(EXPIRED, START_MS + 10_000, 0)
    (again,) = circle.received(second)
    assert again.death == Death(EXPIRED, START_MS + 10_000, 1)
    assert again.dead_letter_source_arn == first.arn


# -- circles ---------------------------------------------------------------------------------------


@FIFO
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_circle_of_queues_ends_in_the_archive(suffix: str, size: int) -> None:
    circle = Circle(*[EXPIRING] * size, suffix=suffix, archive=ARCHIVE)
    circle.send("a", "b")

    circle.driver.pass_time(10_000 * HOPS_MAX)
    assert sum(circle.depths()) == 2
    assert circle.archived() == []
    circle.driver.pass_time(10_000)

    assert circle.depths() == [0] * size
    first, second = circle.archived()
    assert (first.reason, first.message.death) == (
        "hops",
        Death(EXPIRED, START_MS + 10_000 * HOPS_MAX, HOPS_MAX),
    )
    assert [first.message.data, second.message.data] == [b"a", b"b"]
    assert sum(each.get("hops", 0) for each in circle.deaths()) == 2


@FIFO
@pytest.mark.parametrize("archive", [None, ArchiveLimits(1, False)], ids=["none", "full"])
def test_without_room_in_an_archive_the_message_stays_until_its_retention(
    suffix: str, archive: ArchiveLimits | None
) -> None:
    circle = Circle(EXPIRING, EXPIRING, suffix=suffix, archive=archive, retention_s=300)
    circle.send("a")

    circle.driver.pass_time(10_000 * HOPS_MAX + 60_000)
    assert circle.depths() == [1, 0]  # an even number of hops
    assert circle.received(circle.queues[0]) == []
    circle.send("b")
    assert [each.data for each in circle.received(circle.queues[0])] == [b"b"]

    circle.driver.pass_time(400_000)
    assert circle.driver.state.queue(1).counts.expired >= 1


def test_messages_that_stay_hold_up_no_later_ones() -> None:
    circle = Circle(EXPIRING, EXPIRING)
    circle.send(*map(str, range(600)))
    circle.driver.pass_time(10_000 * HOPS_MAX + 60_000)
    assert circle.depths() == [600, 0]

    circle.send("late")
    circle.driver.pass_time(10_000 + 20_000)

    assert sum(circle.depths()) == 601
    assert circle.deaths()[1][EXPIRED] == 600 * (HOPS_MAX // 2) + 1


def test_receives_are_no_hops() -> None:
    circle = Circle({}, {}, archive=ARCHIVE)
    circle.send("a")
    for _ in range(2 * HOPS_MAX):
        for queue in circle.queues:
            circle.received(queue)

    assert sum(circle.depths()) == 1
    assert circle.archived() == []


def test_a_full_queue_refuses_sends_if_its_oldest_message_may_go_no_further() -> None:
    full = EXPIRING | {"holdfast:max-messages": "1", "holdfast:overflow": "dead-letter"}
    circle = Circle(full, EXPIRING)
    circle.send("a")
    circle.driver.pass_time(10_000 * HOPS_MAX + 5_000)

    refused = circle.driver.submit(prepared.send(circle.queues[0], "b")).refusal

    assert refused is not None
    assert refused.code == "OverLimit"
    assert circle.depths() == [1, 0]


def test_a_full_queue_hands_such_a_message_to_the_archive() -> None:
    full = {"holdfast:max-messages": "1", "holdfast:overflow": "dead-letter"}
    circle = Circle(EXPIRING | full, EXPIRING, archive=ARCHIVE)
    circle.send("a")
    circle.driver.pass_time(10_000 * HOPS_MAX)
    circle.send("b")

    assert circle.depths() == [1, 0]
    (archived,) = circle.archived()
    assert (archived.reason, archived.message.data) == ("hops", b"a")
    assert circle.deaths()[0][HOPS] == 1
