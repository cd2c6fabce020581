"""Order by the sender's clock: within the window, late messages, clocks ahead, restarts."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver, Reply
from cluster.tests.one_queue import OneQueue
from cluster.tests.row_consistency import check_rows
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.death import LATE, Death
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.rules import pulse
from visibility.rules.schedules import ChangeSchedule
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, Keys, KnownQueues

WINDOW_MS = 1_000
ORDER = {"holdfast:order": "sender-clock", "holdfast:order-window": str(WINDOW_MS)}
MINUTE = 60_000


class Ordered(OneQueue):
    """A queue in the order of its senders' clocks, and its late queue."""

    def __init__(
        self, late: QueueDefinition | None = None, tags: dict[str, str] | None = None
    ) -> None:
        self.late = late or prepared.queue_named("late", 2)
        self.tags = ORDER | {"holdfast:late-queue": self.late.arn} | (tags or {})
        self.queue = prepared.queue_named("q", 1, tags=self.tags)
        self.driver = Driver(KnownQueues(self.queue, self.late))

    def send(self, *messages: tuple[str, int | None]) -> None:
        """Send (body, sender's time after the start in ms) each; None for one without."""
        for body, at_ms in messages:
            sent_at_ms = 0 if at_ms is None else START_MS + at_ms
            request = prepared.send(self.queue, body, sent_at_ms=sent_at_ms)
            assert self.driver.submit(request).refusal is None
        check_rows(self.driver.store, self.driver.state)

    def received(self, queue: QueueDefinition | None = None, most: int = 10) -> list[str]:
        """The bodies that a receive gets."""
        return list(self.taken(queue, most))

    def taken(self, queue: QueueDefinition | None = None, most: int = 10) -> dict[str, Receipt]:
        """The same, with their receipts."""
        return self.driver.submit(prepared.receive(queue or self.queue, most)).taken

    @property
    def late_and_ahead(self) -> tuple[int, int]:
        """Messages that were late, and those of clocks that were ahead."""
        counts = self.driver.state.queue(self.queue.queue_id).counts
        return counts.late, sum(counts.clocks_ahead.values())

    def retag(self, tags: dict[str, str]) -> None:
        """Change the queue's tags."""
        self.queue = self.driver.queues.define(prepared.queue_named("q", 1, tags=tags))


# -- the order within the window -------------------------------------------------------------------


def test_messages_come_in_the_order_of_their_senders_times() -> None:
    ordered = Ordered()
    ordered.driver.pass_time(500)
    ordered.send(("third", 400), ("first", 100), ("none", None), ("second", 250), ("again", 250))

    assert ordered.counts() == QueueCounters(0, 0, 5)
    ordered.driver.pass_time(599)
    assert ordered.received() == []
    ordered.driver.pass_time(1)
    assert ordered.received() == ["first"]
    ordered.driver.pass_time(WINDOW_MS)
    assert ordered.received() == ["second", "again", "third", "none"]
    assert ordered.late_and_ahead == (0, 0)


def test_a_message_whose_time_is_over_joins_at_once_unless_a_later_one_did() -> None:
    ordered = Ordered()
    ordered.send(("first", -MINUTE), ("second", -WINDOW_MS))

    assert ordered.received() == ["first", "second"]
    assert ordered.counts(ordered.late) == QueueCounters(0, 0, 0)


def test_a_long_poll_wakes_when_the_window_closes() -> None:
    ordered = Ordered()
    waiting = ordered.driver.submit(prepared.receive(ordered.queue, wait_s=20))
    ordered.send(("a", 0))

    ordered.driver.pass_time(WINDOW_MS - 1)
    assert waiting.waits
    ordered.driver.pass_time(1)

    assert [message.data for message in waiting.deliveries.messages] == [b"a"]


def test_a_batch_is_ordered_like_single_messages() -> None:
    ordered = Ordered()
    batch = prepared.send_batch(ordered.queue, [str(n) for n in range(10)])
    parts = [prepared.content(str(n), sent_at_ms=START_MS - n) for n in range(10)]

    ordered.driver.submit(prepared.prepared(ordered.queue, batch.operation, parts))
    ordered.driver.pass_time(WINDOW_MS)

    assert ordered.received() == [str(n) for n in reversed(range(10))]


def test_a_clock_ahead_counts_as_the_time_of_the_arrival() -> None:
    ordered = Ordered()
    ordered.send(("ahead", MINUTE))
    ordered.driver.pass_time(10)
    ordered.send(("after", 10), ("ahead again", 2 * MINUTE))

    ordered.driver.pass_time(WINDOW_MS)

    assert ordered.received() == ["ahead", "after", "ahead again"]
    assert ordered.late_and_ahead == (0, 2)


def test_clocks_ahead_are_counted_by_sender() -> None:
    ordered = Ordered()
    for number in [*range(30), 1]:
        caller = msgspec.structs.replace(prepared.CALLER, user=str(number))
        request = prepared.send(ordered.queue, "x", sent_at_ms=START_MS + MINUTE)
        ordered.driver.submit(msgspec.structs.replace(request, caller=caller))

    counted = ordered.driver.state.queue(ordered.queue.queue_id).counts.clocks_ahead

    assert counted.pop("(others)") == 10
    arns = {f"arn:aws:iam::{prepared.ACCOUNT}:user/{number}": 1 for number in range(20)}
    assert counted == arns | {f"arn:aws:iam::{prepared.ACCOUNT}:user/1": 2}


def test_the_time_to_live_begins_with_the_end_of_the_wait() -> None:
    ordered = Ordered(tags={"holdfast:ttl": "1"})
    ordered.send(("a", 0))

    ordered.driver.pass_time(WINDOW_MS + 999)
    assert ordered.counts() == QueueCounters(1, 0, 0)
    ordered.driver.pass_time(1)
    assert ordered.counts() == QueueCounters(0, 0, 0)


def test_many_messages_whose_time_is_over_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "STEP_MESSAGES", 7)
    ordered = Ordered()
    for number in range(40):
        ordered.send((f"{39 - number:02}", -number))
    ordered.driver.now_ms += WINDOW_MS  # all of them in one pulse
    ordered.driver.turn([])

    found = [body for _ in range(4) for body in ordered.received()]

    assert found == sorted(found)
    assert len(found) == 40
    check_rows(ordered.driver.store, ordered.driver.state)


# -- late messages ---------------------------------------------------------------------------------


def passed(ordered: Ordered) -> None:
    """Let a message of the start end its wait."""
    ordered.send(("on time", 0))
    ordered.driver.pass_time(WINDOW_MS)


def test_what_comes_after_a_later_one_joined_goes_to_the_late_queue() -> None:
    ordered = Ordered()
    passed(ordered)
    ordered.send(("late", -1), ("as old", 0), ("next", 5))

    assert ordered.received() == ["on time", "as old"]
    found = ordered.driver.submit(prepared.receive(ordered.late)).deliveries.messages
    assert [(each.data, each.death) for each in found] == [
        (b"late", Death(LATE, START_MS + WINDOW_MS, 1))
    ]
    ordered.driver.pass_time(5)
    assert ordered.received() == ["next"]
    assert ordered.late_and_ahead == (1, 0)
    check_rows(ordered.driver.store, ordered.driver.state)


def test_many_late_messages_leave_step_by_step() -> None:
    ordered = Ordered()
    passed(ordered)
    sends = [
        prepared.send(ordered.queue, str(number), sent_at_ms=START_MS - 300 + number)
        for number in range(250)
    ]
    ordered.driver.turn(sends)

    assert ordered.counts() == QueueCounters(1, 0, 0)
    assert ordered.counts(ordered.late) == QueueCounters(250, 0, 0)
    assert ordered.late_and_ahead == (250, 0)


def test_the_order_survives_a_restart_and_a_purge() -> None:
    ordered = Ordered()
    passed(ordered)
    ordered.send(("later", 300), ("earlier", 200))
    ordered.restart()
    ordered.send(("late", -1))

    assert ordered.received(ordered.late) == ["late"]
    ordered.driver.pass_time(300)
    assert ordered.received() == ["on time", "earlier", "later"]
    ordered.queue = ordered.driver.purge(ordered.queue)
    ordered.restart()
    ordered.send(("late again", 299), ("in time", 300))
    assert ordered.received() == ["in time"]
    assert ordered.received(ordered.late) == ["late again"]


class KeyIsNotThere(Keys):
    """The key of no queue is there yet."""

    def check(self, queue: QueueDefinition) -> None:
        raise ServiceUnavailable


@pytest.mark.parametrize(
    "what", ["none", "gone", "fifo", "ordered", "itself", "full", "key", "no key yet"]
)
def test_what_no_late_queue_takes_joins_at_the_end_and_is_counted(what: str) -> None:
    tags = {"full": {"holdfast:max-messages": "1"}, "ordered": ORDER}.get(what)
    suffix = ".fifo" if what == "fifo" else ""
    ordered = Ordered(prepared.queue_named("late" + suffix, 2, tags=tags))
    if what == "none":
        ordered.retag(ORDER)
    elif what == "itself":
        ordered.retag(ORDER | {"holdfast:late-queue": ordered.queue.arn})
    elif what == "gone":
        ordered.driver.queues.hidden.add(ordered.late.arn)
    elif what == "full":
        ordered.driver.submit(prepared.send(ordered.late, "there"))
    elif "key" in what:
        ordered.driver.state.sealing = Keys("all") if what == "key" else KeyIsNotThere()
    passed(ordered)
    ordered.send(("late", -5), ("later still", -9), ("in time", 0))

    assert ordered.received() == ["on time", "late", "later still", "in time"]
    assert ordered.late_and_ahead == (2, 0)
    check_rows(ordered.driver.store, ordered.driver.state)


def test_returned_messages_and_those_of_another_queue_are_never_late() -> None:
    ordered = Ordered()
    ordered.send(("a", 0), ("b", 10))
    ordered.driver.pass_time(WINDOW_MS + 10)
    taken = ordered.taken()
    assert list(taken) == ["a", "b"]

    ordered.driver.submit(prepared.change(ordered.queue, taken["a"], 0))

    assert ordered.received() == ["a"]
    assert ordered.counts(ordered.late) == QueueCounters(0, 0, 0)


def test_a_restored_queue_has_its_messages_again_none_of_them_late() -> None:
    ordered = Ordered()
    ordered.send(("c", -100), ("b", -200))
    old = ordered.queue
    ordered.queue = ordered.driver.purge(old)
    ordered.send(("new", 0))
    ordered.driver.pass_time(WINDOW_MS)

    ordered.driver.restore(old, ordered.queue)

    assert ordered.received() == ["new", "b", "c"]
    assert ordered.late_and_ahead == (0, 0)
    check_rows(ordered.driver.store, ordered.driver.state)


def test_a_message_that_an_operator_reschedules_has_no_place_in_the_order() -> None:
    ordered = Ordered()
    ordered.send(("a", 0), ("b", 0))
    moved = ChangeSchedule([(START_MS + WINDOW_MS, 1)], START_MS + MINUTE)
    ordered.driver.submit(prepared.prepared(ordered.queue, moved))

    ordered.driver.pass_time(MINUTE)

    assert ordered.received() == ["b", "a"]
    assert ordered.late_and_ahead == (0, 0)


# -- tags that change, and a clock that is not trusted ---------------------------------------------


def test_without_the_tags_what_waits_comes_in_its_order_and_the_rest_at_once() -> None:
    ordered = Ordered()
    ordered.send(("b", 0), ("a", -100))
    ordered.retag({})
    ordered.send(("at once", None))

    assert ordered.received() == ["at once"]
    ordered.driver.pass_time(WINDOW_MS)
    assert ordered.received() == ["a", "b"]


def test_without_its_window_the_order_has_no_effect() -> None:
    ordered = Ordered()
    ordered.retag({"holdfast:order": "sender-clock"})

    ordered.send(("b", 0), ("a", -100))

    assert ordered.received() == ["b", "a"]


def test_a_leap_of_the_clock_ends_no_wait_until_it_is_trusted() -> None:
    ordered = Ordered()
    driver = ordered.driver
    ordered.send(("before", 0))
    driver.trusted_ms = START_MS + 10
    driver.now_ms = START_MS + 60 * MINUTE
    ordered.send(("in the leap", None), ("old", 5))

    driver.pass_time(5 * MINUTE)
    assert ordered.received() == []
    driver.trusted_ms = 0
    driver.pass_time(MINUTE)

    assert ordered.received() == ["before", "old", "in the leap"]
    assert ordered.late_and_ahead == (0, 0)


# -- a late queue in another shard -----------------------------------------------------------------


class OrderedPair(ShardPair):
    """`source` is in the order of its senders' clocks; its late queue is in shard 1."""

    def __init__(self, late_tags: dict[str, str] | None = None) -> None:
        super().__init__()
        self.letters = in_shard(1, prepared.queue_named("letters", 2, tags=late_tags))
        tags = ORDER | {"holdfast:late-queue": self.letters.arn}
        self.source = prepared.queue_named("source", 1, tags=tags)
        self.queues.define(self.letters)
        self.queues.define(self.source)

    def sends(self, body: str, at_ms: int) -> Reply:
        request = prepared.send(self.source, body, sent_at_ms=START_MS + at_ms)
        return self.shards[0].submit(request)


def test_a_late_message_departs_and_arrives_once_across_restarts() -> None:
    pair = OrderedPair()
    pair.sends("on time", 0)
    pair.pass_time(WINDOW_MS)
    pair.sends("late", -1)
    pair.shards[0].turn([])
    assert pair.counters(pair.source) == QueueCounters(1, 0, 0)
    pair.restart(0)

    pair.deliver()
    pair.check()

    assert pair.receive(pair.letters) == ["late"]
    assert pair.receive(pair.source) == ["on time"]


def test_a_late_message_that_its_queue_refuses_joins_at_the_end() -> None:
    pair = OrderedPair(late_tags={"holdfast:max-messages": "1"})
    pair.send("there", to=pair.letters)
    pair.sends("on time", 0)
    pair.pass_time(WINDOW_MS)
    pair.sends("late", -1)
    pair.shards[0].turn([])

    pair.deliver()
    pair.shards[0].turn([])
    pair.check()

    assert pair.receive(pair.source) == ["on time", "late"]
    pair.sends("late again", -1)
    assert pair.receive(pair.source) == ["late again"]
