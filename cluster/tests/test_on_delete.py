"""Deleted queues whose messages become dead letters: all of them once, in order, and none that a
consumer has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from cluster.tests.shard_pair import in_shard
from visibility.contract.death import QUEUE_DELETED, Death
from visibility.contract.errors import OverLimit
from visibility.contract.model import Receipt
from visibility.contract.outcomes import Accepted, OutboxPage, Progress
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.rules.hold_messages import HoldMessages
from visibility.rules.on_delete import MoveDeleted
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

FIFO = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
TAGS = {"holdfast:on-delete": "dead-letter"}


class Deleting:
    """A queue, its dead-letter queue, and the steps that move messages once it is deleted."""

    def __init__(
        self,
        suffix: str = "",
        *,
        tags: dict[str, str] | None = None,
        target_tags: dict[str, str] | None = None,
        target_shard: int = 0,
        delay_s: int = 0,
        retention_s: int = 345_600,
    ) -> None:
        self.suffix = suffix
        self.until_ms = 1 << 60
        dead = prepared.queue_named("dead" + suffix, 2, tags=target_tags)
        self.dead = in_shard(target_shard, dead)
        self.queue = prepared.queue_named(
            "q" + suffix,
            1,
            tags=TAGS if tags is None else tags,
            dead_letters_to=self.dead,
            max_receive_count=100,
            DelaySeconds=str(delay_s),
            MessageRetentionPeriod=str(retention_s),
        )
        self.queues = KnownQueues(self.queue, self.dead, prepared.queue_named("other", 9))
        self.driver = Driver(self.queues)
        self.there = self.driver if target_shard == 0 else Driver(self.queues, seed=1)

    def send(self, *bodies: str, group: str = "g", at_ms: int = 0) -> None:
        for body in bodies:
            fifo: dict[str, Any] = {"group": group, "deduplication_id": body} if self.suffix else {}
            request = prepared.send(self.queue, body, at_ms=at_ms, **fifo)
            assert self.driver.submit(request).refusal is None

    def receive(self, most: int = 10) -> list[StoredMessage]:
        return self.driver.submit(prepared.receive(self.queue, most)).deliveries.messages

    def delete(self) -> None:
        del self.queues.queues[self.queue.queue_id]

    def restore(self) -> None:
        self.queues.define(self.queue)

    def restart(self) -> None:
        is_one = self.there is self.driver
        self.driver = Driver(self.queues, store=self.driver.store, now_ms=self.driver.now_ms)
        self.there = self.driver if is_one else self.there

    def step(self, before: Progress | None = None) -> Progress:
        """One step, which continues the one before."""
        operation = MoveDeleted(self.until_ms)
        if before is not None:
            operation = MoveDeleted(self.until_ms, before.next_sequence, before.blocked)
        answer = self.driver.submit(prepared.prepared(self.queue, operation)).answer
        assert isinstance(answer, Progress)
        check_rows(self.driver.store, self.driver.state)
        return answer

    def run(self) -> Progress:
        """Steps until the next one would have to wait."""
        step = self.step()
        while not step.is_done and step.again_in_ms <= 1:
            step = self.step(step)
        return step

    def dead_letters(self) -> list[StoredMessage]:
        """The dead letters, in order of their arrival."""
        rows = self.there.state.rows
        page = rows.line(2, 1, 1 << 40, messages=10_000, size=1 << 30)
        return [message for _, message in page.messages]

    def bodies(self) -> list[str]:
        return [message.data.decode() for message in self.dead_letters()]

    @property
    def left(self) -> int:
        """Messages that are still in the deleted queue."""
        return self.driver.state.queue(1).stored

    # -- the outbox --------------------------------------------------------------------------------

    def deliver(self, *, refusal: str = "") -> int:
        """Deliver what departed, or have it refused; the number of messages."""
        page = self._ask(self.driver, ReadOutbox(1), 0)
        assert isinstance(page, OutboxPage)
        if refusal:
            outcomes = [(each.origin, each.number, refusal) for each in page.arrivals]
        else:
            outcomes = self._accept(page.arrivals)
        self._ask(self.driver, ClearOutbox(outcomes), 0)
        check_rows(self.driver.store, self.driver.state)
        check_rows(self.there.store, self.there.state)
        return len(page.arrivals)

    def _accept(self, arrivals: list[Arrival]) -> list[tuple[bytes, int, str]]:
        answer = self._ask(self.there, AcceptMessages(arrivals, []), 1)
        assert isinstance(answer, Accepted)
        return answer.outcomes

    def _ask(self, driver: Driver, operation: object, shard: int) -> object:
        return driver.submit(prepared.prepared(the_shard(shard), operation)).answer  # type: ignore[arg-type]


@FIFO
def test_waiting_messages_become_dead_letters_in_order_with_their_cause(suffix: str) -> None:
    deleting = Deleting(suffix)
    deleting.send("a", "b", "c")
    deleting.driver.now_ms += 5
    deleting.delete()

    assert deleting.run() == Progress(is_done=True)

    letters = deleting.dead_letters()
    assert [each.data for each in letters] == [b"a", b"b", b"c"]
    assert {each.death for each in letters} == {Death(QUEUE_DELETED, START_MS + 5, 0)}
    assert {each.dead_letter_source_arn for each in letters} == {deleting.queue.arn}
    assert deleting.left == 0
    assert deleting.driver.state.queue(1).rescued == 3
    assert deleting.driver.state.queue(2).counts.deaths == {QUEUE_DELETED: 3}
    deleting.restart()
    assert deleting.driver.state.queue(1).rescued == 3


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(lambda queue, dead: msgspec.structs.replace(queue), id="there"),
        pytest.param(
            lambda queue, dead: prepared.queue_named("q", 1, dead_letters_to=dead), id="no tag"
        ),
        pytest.param(lambda queue, dead: prepared.queue_named("q", 1, tags=TAGS), id="no policy"),
        pytest.param(
            lambda queue, dead: prepared.queue_named("q", 1, tags=TAGS, dead_letters_to=queue),
            id="itself",
        ),
    ],
)
def test_others_lose_theirs_as_ever(queue: object) -> None:
    deleting = Deleting()
    deleting.send("a")
    given = queue(deleting.queue, deleting.dead)  # type: ignore[operator]
    is_there = given == deleting.queue
    deleting.queue = given
    if not is_there:
        deleting.delete()

    assert deleting.run().is_done
    assert (deleting.left, deleting.bodies()) == (1, [])


@FIFO
def test_messages_in_flight_follow_after_their_lease(suffix: str) -> None:
    deleting = Deleting(suffix)
    deleting.send("a", "b", "c")
    assert len(deleting.receive(1)) == 1
    deleting.send("d", group="other")
    deleting.delete()

    waits = deleting.run()
    assert not waits.is_done
    assert waits.again_in_ms > 1_000
    assert deleting.bodies() == (["d"] if suffix else ["b", "c", "d"])
    deleting.driver.now_ms += 30_000
    assert deleting.run().is_done

    assert deleting.bodies() == (["d", "a", "b", "c"] if suffix else ["b", "c", "d", "a"])
    assert max(each.receive_count for each in deleting.dead_letters()) == 1


@pytest.mark.parametrize("target_shard", [0, 1])
def test_a_restored_group_goes_on_behind_a_message_whose_lease_was_over(target_shard: int) -> None:
    deleting = Deleting(
        ".fifo", target_tags={"holdfast:max-messages": "1"}, target_shard=target_shard
    )
    deleting.send("a", "b")
    deleting.receive(1)
    deleting.delete()
    deleting.driver.now_ms += 30_000  # no pulse says so of a deleted queue
    deleting.run()
    if target_shard:
        assert deleting.deliver() == 1
    deleting.restore()

    assert deleting.bodies() == ["a"]
    assert [each.data for each in deleting.receive(1)] == [b"b"]


@FIFO
def test_delayed_messages_come_behind_the_others(suffix: str) -> None:
    deleting = Deleting(suffix, delay_s=600)
    deleting.send("late")
    deleting.queue = msgspec.structs.replace(
        deleting.queue, settings=msgspec.structs.replace(deleting.queue.settings, delay_ms=0)
    )
    deleting.queues.define(deleting.queue)
    if not suffix:  # of a FIFO queue the present delay counts
        deleting.send("soon")
    deleting.delete()

    assert deleting.run().is_done
    assert deleting.bodies() == ([] if suffix else ["soon"]) + ["late"]
    assert deleting.driver.state.queue(1).delayed == 0


def test_scheduled_messages_are_retained_from_the_deletion_on() -> None:
    deleting = Deleting(tags=TAGS | {"holdfast:deliver-at": "on"})
    deleting.send("a", at_ms=START_MS + 200 * 86_400_000)
    deleting.driver.pass_time(30 * 86_400_000)
    deleting.delete()

    assert deleting.run().is_done
    (letter,) = deleting.dead_letters()
    assert letter.clock_ms == deleting.driver.now_ms


def test_what_operators_held_goes_too() -> None:
    deleting = Deleting()
    deleting.send("a", "b")
    deleting.driver.submit(prepared.prepared(deleting.queue, HoldMessages([1])))
    deleting.delete()

    assert deleting.run().is_done
    assert sorted(deleting.bodies()) == ["a", "b"]


@FIFO
def test_what_a_receive_took_for_good_does_not(suffix: str) -> None:
    deleting = Deleting(suffix, tags=TAGS | {"holdfast:delivery": "at-most-once"})
    deleting.send("a", "b")
    deleting.receive(1)
    deleting.delete()

    assert deleting.run() == Progress(is_done=True, left=1)
    assert deleting.bodies() == ["b"]


@FIFO
def test_a_big_queue_leaves_in_steps_and_a_crash_doubles_nothing(suffix: str) -> None:
    deleting = Deleting(suffix)
    bodies = [str(number) for number in range(700)]
    deleting.send(*bodies)
    deleting.delete()
    step = deleting.step()
    most = len(deleting.dead_letters())
    assert 0 < most <= 250

    for _ in range(20):
        if step.is_done:
            break
        deleting.restart()
        step = deleting.step()

    assert step.is_done
    assert deleting.bodies() == bodies


@FIFO
def test_a_restored_queue_has_what_is_left_and_nothing_twice(suffix: str) -> None:
    deleting = Deleting(suffix)
    deleting.send(*(str(number) for number in range(300)))
    deleting.delete()
    step = deleting.step()
    gone = len(deleting.dead_letters())
    deleting.restore()

    assert deleting.step(step).is_done
    assert deleting.left + gone == 300
    assert len(deleting.dead_letters()) == deleting.driver.state.queue(1).rescued == gone
    assert deleting.receive(1)[0].data == str(gone).encode()


def test_without_a_dead_letter_queue_they_stay_until_their_retention() -> None:
    deleting = Deleting(retention_s=600)
    deleting.send("a")
    deleting.queues.hidden.add(deleting.dead.arn)
    deleting.delete()

    waits = deleting.run()
    assert (waits.is_done, waits.again_in_ms) == (False, 15_000)
    deleting.driver.now_ms += 600_000
    assert deleting.run() == Progress(is_done=True, left=1)
    deleting.driver.now_ms -= 1
    deleting.queues.hidden.clear()
    assert deleting.run().is_done
    assert deleting.bodies() == ["a"]


def test_nothing_leaves_once_the_retention_since_the_deletion_is_over() -> None:
    deleting = Deleting(tags=TAGS | {"holdfast:deliver-at": "on"})
    deleting.send("a", at_ms=START_MS + 200 * 86_400_000)
    deleting.queues.hidden.add(deleting.dead.arn)
    deleting.delete()
    deleting.until_ms = START_MS + 600_000

    assert not deleting.run().is_done
    deleting.driver.now_ms += 600_000
    assert deleting.run() == Progress(is_done=True, left=1)


def test_a_full_dead_letter_queue_takes_them_later() -> None:
    deleting = Deleting(target_tags={"holdfast:max-messages": "2"})
    deleting.send("a", "b", "c")
    deleting.delete()

    assert not deleting.run().is_done
    assert deleting.bodies() == ["a", "b"]
    (lease,) = deleting.there.submit(prepared.receive(deleting.dead, 1)).deliveries.leases
    receipt = Receipt(lease.sequence, lease.receive_count)
    deleting.there.submit(prepared.delete(deleting.dead, receipt))
    assert deleting.run().is_done
    assert deleting.bodies() == ["b", "c"]


def test_an_expired_message_that_was_to_be_discarded_is_no_dead_letter() -> None:
    deleting = Deleting(tags=TAGS | {"holdfast:ttl": "10"})
    deleting.send("a")
    deleting.delete()
    deleting.driver.now_ms += 10_000

    assert deleting.run().is_done
    assert deleting.bodies() == []


# -- to another shard ------------------------------------------------------------------------------


@FIFO
def test_to_another_shard_nothing_is_done_until_all_have_arrived(suffix: str) -> None:
    deleting = Deleting(suffix, target_shard=1, delay_s=600)
    deleting.send("a", "b")
    deleting.driver.pass_time(600_000)
    deleting.send("c")
    deleting.delete()
    departed = 0
    while not deleting.run().is_done:
        departed += deleting.deliver()

    assert departed == 3
    assert deleting.bodies() == ["a", "b", "c"]
    assert deleting.driver.state.queue(1).rescued == 3
    assert deleting.driver.state.queue(1).departed == 0


@FIFO
def test_what_is_refused_there_comes_back_and_goes_later(suffix: str) -> None:
    deleting = Deleting(suffix, target_shard=1, delay_s=600)
    deleting.send("a")
    deleting.driver.pass_time(600_000)
    deleting.send("b")
    deleting.delete()
    deleting.run()
    refused = deleting.deliver(refusal=OverLimit.code)
    assert refused == (1 if suffix else 2)
    assert deleting.left == 2

    assert not deleting.run().is_done  # for a while nothing departs for a full queue
    deleting.restart()
    while not deleting.run().is_done:
        assert deleting.deliver()

    assert sorted(deleting.bodies()) == ["a", "b"]
    assert deleting.driver.state.queue(1).rescued == 2


def test_a_restored_queue_gets_back_what_was_refused() -> None:
    deleting = Deleting(target_shard=1, delay_s=600)
    deleting.send("a")
    deleting.delete()
    deleting.run()
    deleting.restore()
    deleting.deliver(refusal=OverLimit.code)

    counters = deleting.driver.state.queue(1).counters()
    assert (counters.visible, counters.delayed) == (0, 1)
    deleting.driver.pass_time(600_000)
    assert [each.data for each in deleting.receive()] == [b"a"]


def test_a_restored_queue_has_delays_that_end_before_those_that_left() -> None:
    deleting = Deleting(delay_s=600)
    deleting.send("left")
    deleting.delete()
    deleting.run()
    deleting.restore()

    deleting.driver.submit(prepared.send(deleting.queue, "soon", delay_s=60))
    deleting.driver.pass_time(60_000)

    assert [each.data for each in deleting.receive()] == [b"soon"]
