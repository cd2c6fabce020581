"""Limits of a queue's length: what counts, what is refused, and what makes room."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver, Reply
from cluster.tests.one_queue import OneQueue
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import OverLimit, RequestThrottled
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.contract.results import SendMessageBatchResult
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

ONE = QueueCounters(1, 0, 0)
FIFO = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])


class Limited(OneQueue):
    """A queue with these tags, and a dead-letter queue, which may have others."""

    def __init__(
        self,
        tags: dict[str, str],
        suffix: str = "",
        *,
        letters: dict[str, str] | None = None,
    ) -> None:
        self.suffix = suffix
        self.letters = prepared.queue_named("dead" + suffix, 2, tags=letters or {})
        self.queue = self.defined(tags)
        self.driver = Driver(KnownQueues(self.letters, self.queue))

    def defined(self, tags: dict[str, str]) -> QueueDefinition:
        return prepared.queue_named(
            "q" + self.suffix,
            1,
            tags={f"holdfast:{key}": value for key, value in tags.items()},
            dead_letters_to=self.letters,
            max_receive_count=1,
            VisibilityTimeout="30",
        )

    def tried(
        self, body: str, *, group: str = "g", delay_s: int | None = None, tenant: str | None = None
    ) -> Reply:
        """Send a message; `tenant` is its group in a standard queue."""
        request = prepared.send(
            self.queue,
            body,
            delay_s=delay_s,
            group=group if self.suffix else tenant,
            deduplication_id=body if self.suffix else None,
        )
        return self.driver.submit(request)

    def send(self, *bodies: str, group: str = "g", tenant: str | None = None) -> None:
        """Send messages, which fit."""
        for body in bodies:
            assert self.tried(body, group=group, tenant=tenant).refusal is None, body

    def refuses(self, body: str) -> bool:
        """True if the message does not fit."""
        return isinstance(self.tried(body).refusal, OverLimit)

    def taken(self, most: int = 10, *, of: QueueDefinition | None = None) -> dict[str, Receipt]:
        """The bodies that a receive gets, with their receipts."""
        letters = self.letters if of is None else None
        request = prepared.receive(of or self.queue, most, dead_letter_queue=letters)
        return self.driver.submit(request).taken

    def delete(self, receipt: Receipt) -> None:
        self.driver.submit(prepared.delete(self.queue, receipt))

    def give_back(self, receipt: Receipt) -> None:
        self.driver.submit(prepared.change(self.queue, receipt, 0))


# -- what counts -----------------------------------------------------------------------------------


@FIFO
def test_messages_in_flight_count(suffix: str) -> None:
    limited = Limited({"max-messages": "3"}, suffix)
    limited.send("a", "b", "c")
    receipts = limited.taken(2)

    assert limited.refuses("d")
    limited.restart()
    assert limited.refuses("d")
    limited.delete(receipts["a"])
    limited.send("d")
    assert limited.refuses("e")


def test_messages_that_wait_for_their_retry_count() -> None:
    limited = Limited({"max-messages": "2", "retry-min": "600"})
    limited.send("a", "b")
    limited.give_back(limited.taken(1, of=limited.queue)["a"])

    assert limited.counts() == QueueCounters(1, 0, 1)
    assert limited.refuses("c")


def test_delayed_messages_count() -> None:
    limited = Limited({"max-messages": "2"})
    limited.send("a")
    assert limited.tried("b", delay_s=60).refusal is None

    assert limited.refuses("c")
    assert limited.counts() == QueueCounters(1, 0, 1)


@FIFO
def test_bytes_count_and_come_back(suffix: str) -> None:
    limited = Limited({"max-bytes": "1024"}, suffix)
    limited.send("a" * 400, "b" * 400)

    assert limited.refuses("c" * 300)
    limited.send("d" * 224)
    assert limited.refuses("e")
    limited.restart()
    assert limited.refuses("e")
    limited.delete(limited.taken(1)["a" * 400])
    limited.send("f" * 400)
    assert limited.refuses("g")


def test_a_message_above_the_limit_itself_pushes_nothing_out() -> None:
    limited = Limited({"max-bytes": "1024", "overflow": "drop-oldest"})
    limited.send("a", "b")

    assert limited.refuses("c" * 1025)
    assert [*limited.taken()] == ["a", "b"]


# -- refusals --------------------------------------------------------------------------------------


def test_a_batch_fails_entry_by_entry() -> None:
    limited = Limited({"max-messages": "3"})
    answer = limited.driver.submit(prepared.send_batch(limited.queue, [*"abcde"])).answer

    assert isinstance(answer, SendMessageBatchResult)
    assert [entry.id for entry in answer.successful or ()] == ["0", "1", "2"]
    failed = [(entry.id, entry.code, entry.sender_fault) for entry in answer.failed or ()]
    assert failed == [("3", "OverLimit", True), ("4", "OverLimit", True)]


def test_a_duplicate_is_no_message_too_many() -> None:
    limited = Limited({"max-messages": "1"}, ".fifo")
    limited.send("a")

    assert limited.tried("a").refusal is None
    assert limited.refuses("b")


def test_a_send_that_is_also_throttled_is_worth_another_try() -> None:
    limited = Limited({"max-messages": "2", "throttle-depth": "1"})
    for body in "abcdefgh":
        limited.tried(body)

    assert isinstance(limited.tried("z").refusal, RequestThrottled)


def test_lowering_a_limit_drops_nothing() -> None:
    limited = Limited({"max-messages": "100", "overflow": "drop-oldest"})
    limited.send(*[str(n) for n in range(60)])
    limited.queue = limited.driver.queues.define(
        limited.defined({"max-messages": "10", "overflow": "drop-oldest"})
    )
    assert limited.counts() == QueueCounters(60, 0, 0)

    limited.send("next")

    assert limited.counts() == QueueCounters(51, 0, 0), "a send pushes out ten times what it brings"
    limited.send(*"abcdefgh")
    assert limited.counts() == QueueCounters(10, 0, 0)


# -- room ------------------------------------------------------------------------------------------


@FIFO
def test_the_oldest_that_waits_is_dropped(suffix: str) -> None:
    limited = Limited({"max-messages": "10", "overflow": "drop-oldest"}, suffix)
    for n in range(10):
        limited.send(str(n), group=str(n))
    flying = limited.taken(2)

    limited.send("10", "11", group="x")

    assert limited.counts() == QueueCounters(8, 2, 0)
    for receipt in flying.values():
        limited.delete(receipt)
    assert [*limited.taken()] == ["4", "5", "6", "7", "8", "9", "10", "11"]


def test_a_batch_pushes_out_none_of_its_own() -> None:
    limited = Limited({"max-messages": "10", "overflow": "drop-oldest"})
    limited.send("a", "b")
    limited.taken()

    answer = limited.driver.submit(prepared.send_batch(limited.queue, [*"0123456789"])).answer

    assert isinstance(answer, SendMessageBatchResult)
    assert len(answer.successful or ()) == 8
    assert [*limited.taken()] == [*"01234567"]


def test_a_fifo_group_loses_its_beginning_and_gets_no_hole() -> None:
    limited = Limited({"max-messages": "10", "overflow": "drop-oldest"}, ".fifo")
    limited.send(*"abcde", group="g")
    limited.send(*"vwxyz", group="h")
    limited.give_back(limited.taken(1)["a"])
    held = limited.taken(1)  # of the other group: the first one went to the back
    assert [*held] == ["v"]

    limited.send("1", "2", group="h")

    assert limited.counts() == QueueCounters(9, 1, 0)
    limited.delete(held["v"])
    assert [*limited.taken()][:3] == ["c", "d", "e"]


@pytest.mark.parametrize(("blocked", "goes"), [(99, True), (100, False)])
def test_a_hundred_messages_of_a_fifo_queue_are_looked_at(blocked: int, goes: bool) -> None:
    tags = {"max-messages": str(blocked + 1), "overflow": "drop-oldest"}
    limited = Limited(tags, ".fifo")
    limited.send(*map(str, range(blocked)))
    assert [*limited.taken(1)] == ["0"], "no other one of its group may go"
    limited.send("x", group="other")

    assert limited.refuses("y") is not goes


def test_a_tenant_that_fills_the_queue_makes_room_and_quiet_ones_do_not() -> None:
    limited = Limited({"max-messages": "20", "overflow": "drop-oldest"})
    limited.send("nobody's")
    limited.send("quiet 1", tenant="1")
    limited.send(*(f"flood {n}" for n in range(17)), tenant="flood")
    limited.send("quiet 2", tenant="2")

    limited.send("quiet 3", tenant="3")
    limited.send(*(f"flood {n}" for n in range(17, 27)), tenant="flood")

    taken = [name for _ in range(3) for name in limited.taken()]
    assert [name for name in taken if "flood" not in name] == [
        "nobody's",
        "quiet 1",
        "quiet 2",
        "quiet 3",
    ]
    assert [name for name in taken if "flood" in name] == [f"flood {n}" for n in range(11, 27)]


def test_a_noisy_tenant_makes_room_before_quiet_ones() -> None:
    limited = Limited({"max-messages": "200", "overflow": "drop-oldest"})
    limited.send("quiet", tenant="quiet")
    limited.send(*(f"noisy {n}" for n in range(120)), tenant="noisy")
    limited.send(*(f"other {n}" for n in range(79)), tenant="other")
    for _ in range(4):
        limited.taken()
    assert limited.driver.state.queue(1).fairness.noisy

    limited.send("new", tenant="quiet")

    waiting = [name for _ in range(20) for name in limited.taken()]
    assert "noisy 39" not in waiting
    assert {"quiet", "other 0", "noisy 40", "new"} <= {*waiting, "quiet"}


def test_messages_without_a_tenant_make_room_before_quiet_ones() -> None:
    limited = Limited({"max-messages": "20", "overflow": "drop-oldest"})
    limited.send("quiet", tenant="1")
    limited.send(*(f"nobody's {n}" for n in range(19)))

    limited.send("new")

    waiting = [name for _ in range(3) for name in limited.taken()]
    assert waiting == ["quiet", *(f"nobody's {n}" for n in range(1, 19)), "new"]


def test_the_lowest_priority_makes_room() -> None:
    tags = {"max-messages": "10", "overflow": "drop-oldest", "priority": "strict"}
    limited = Limited(tags)
    for n in range(10):
        limited.driver.submit(prepared.send(limited.queue, str(n), level=10 - n))

    limited.driver.submit(prepared.send(limited.queue, "new", level=1))

    assert [*limited.taken()] == [*"012345678", "new"]


@FIFO
def test_the_oldest_becomes_a_dead_letter(suffix: str) -> None:
    limited = Limited({"max-messages": "2", "overflow": "dead-letter"}, suffix)

    limited.send("a", "b", "c")

    assert limited.counts() == QueueCounters(2, 0, 0)
    assert [*limited.taken(of=limited.letters)] == ["a"]
    assert [*limited.taken()] == ["b", "c"]


def test_without_a_place_to_go_the_send_is_refused() -> None:
    limited = Limited(
        {"max-messages": "1", "overflow": "dead-letter"}, letters={"holdfast:max-messages": "1"}
    )
    limited.send("a", "b")

    assert limited.refuses("c")
    assert (limited.counts(), limited.counts(limited.letters)) == (ONE, ONE)


def test_without_an_archive_the_send_is_refused() -> None:
    limited = Limited({"max-messages": "1", "overflow": "archive"})
    limited.send("a")

    assert limited.refuses("b")


def test_what_makes_room_goes_to_the_archive_while_that_has_room() -> None:
    limited = Limited({"max-messages": "1", "overflow": "archive"})
    archive = limited.driver.state.archive
    archive.is_on, archive.source, archive.size_max = True, "source", 1_000
    limited.send("a", "b")
    assert archive.size > 0

    archive.size_max = archive.size
    assert limited.refuses("c")
    assert [*limited.taken()] == ["b"]


# -- other ways in ---------------------------------------------------------------------------------


def test_a_dead_letter_that_does_not_fit_stays_and_is_received() -> None:
    limited = Limited({}, letters={"holdfast:max-messages": "1"})
    limited.send("a", "b")
    for receipt in limited.taken().values():
        limited.give_back(receipt)

    assert [*limited.taken()] == ["b"]
    assert limited.counts(limited.letters) == QueueCounters(1, 0, 0)


def test_a_redrive_waits_for_room() -> None:
    limited = Limited({})
    limited.send("a", "b")
    for receipt in limited.taken().values():
        limited.give_back(receipt)
    limited.taken()
    assert limited.counts(limited.letters) == QueueCounters(2, 0, 0)
    limited.queue = limited.driver.queues.define(limited.defined({"max-messages": "1"}))

    task = prepared.start_move_task(limited.letters, limited.queue)
    limited.driver.submit(task)
    limited.driver.pass_time(5_000)

    assert (limited.counts(), limited.counts(limited.letters)) == (ONE, ONE)
    limited.delete(limited.taken()["a"])
    limited.driver.pass_time(2_000)
    assert [*limited.taken()] == ["b"]


def test_a_restored_queue_waits_for_room() -> None:
    limited = Limited({})
    limited.send("a", "b")
    purged, successor = limited.queue, limited.driver.purge(limited.queue)
    limited.queue = limited.driver.queues.define(
        prepared.queue_named("q", successor.queue_id, tags={"holdfast:max-messages": "1"})
    )

    step = limited.driver.restore(purged, limited.queue)

    assert (step.is_done, step.again_in_ms > 0) == (False, True)
    limited.delete(limited.taken()["a"])
    assert limited.driver.restore(purged, limited.queue).is_done
    assert [*limited.taken()] == ["b"]


# -- destinations in other shards ------------------------------------------------------------------


def limited_pair() -> ShardPair:
    """A dead-letter queue in another shard, which holds one message."""
    pair = ShardPair()
    tags = {"holdfast:max-messages": "1"}
    pair.letters = pair.queues.define(in_shard(1, prepared.queue_named("letters", 2, tags=tags)))
    return pair


def test_a_dead_letter_that_another_shard_refuses_comes_back_and_stays() -> None:
    pair = limited_pair()
    pair.send("a", "b", "c")
    pair.receive(pair.source)
    pair.pass_time(6_000)
    assert pair.receive(pair.source) == [], "all of them depart"

    pair.deliver()

    assert pair.counters(pair.letters).visible == 1
    assert pair.receive(pair.source) == ["b", "c"], "for a while none departs again"
    pair.check()


def test_a_full_queue_of_another_shard_is_tried_ever_more_seldom() -> None:
    pair = limited_pair()
    pair.spend("a", "b")
    waits_ms: list[int] = []
    for _ in range(9):
        assert pair.receive(pair.source) == [], "it departs"
        pair.deliver()
        _, wait_ms = pair.shards[0].state.full_targets[pair.letters.queue_id]
        waits_ms.append(wait_ms)
        pair.pass_time(wait_ms - 1)
        assert pair.receive(pair.source) == ["b"], "until then it is received"
        pair.pass_time(5_000)

    assert waits_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    pair.check()


def test_a_full_queue_of_another_shard_keeps_no_other_waiting() -> None:
    pair = limited_pair()
    roomy = pair.queues.define(in_shard(1, prepared.queue_named("roomy", 3)))
    other = prepared.queue_named(
        "busy", 4, dead_letters_to=roomy, max_receive_count=1, VisibilityTimeout="5"
    )
    pair.queues.define(other)
    pair.send("a", "b", "c")
    pair.send("x", "y", to=other)
    for source in (pair.source, other):
        pair.receive(source)
    pair.pass_time(6_000)
    for source in (pair.source, other):
        pair.receive(source)

    pair.deliver_once()

    assert pair.counters(pair.letters).visible == 1
    assert pair.counters(roomy).visible == 2
    assert not pair.read().arrivals


def test_a_redrive_to_another_shard_waits_for_room() -> None:
    pair = limited_pair()
    pair.send("a", "b", "c")
    pair.shards[0].submit(prepared.start_move_task(pair.source, pair.letters))
    pair.deliver()
    assert pair.counters(pair.letters).visible == 1

    for _ in range(2):
        ((_, receipt),) = pair.received(pair.letters)
        pair.delete(pair.letters, receipt)
        pair.pass_time(130_000)
        pair.deliver()
        assert pair.counters(pair.letters).visible == 1

    (task,) = pair.shards[0].state.queue(pair.source.queue_id).tasks.values()
    assert (task.moved, task.stayed, task.status, task.failure_reason) == (3, 0, "COMPLETED", None)
    pair.check()


# -- room made by dead letters for another shard ---------------------------------------------------


def overflowing_pair(most: int, suffix: str = "") -> ShardPair:
    """A queue that holds so many messages, whose oldest become dead letters in another shard."""
    pair = ShardPair(suffix)
    tags = {"holdfast:max-messages": str(most), "holdfast:overflow": "dead-letter"}
    pair.source = prepared.queue_named(
        "source" + suffix,
        1,
        dead_letters_to=pair.letters,
        max_receive_count=1,
        tags=tags,
        VisibilityTimeout="5",
    )
    pair.queues.define(pair.source)
    return pair


def is_sent(pair: ShardPair, body: str) -> bool:
    """True if a message is accepted; the queue is never above its limit."""
    request = prepared.send(pair.source, body, group=pair.group, deduplication_id=body)
    refusal = pair.shards[0].submit(request).refusal
    assert refusal is None or isinstance(refusal, OverLimit)
    pair.check()
    queue = pair.shards[0].state.queue(pair.source.queue_id)
    most = pair.source.settings.own_tags["holdfast:max-messages"]
    assert queue.stored + queue.departed <= int(most)
    return refusal is None


@FIFO
def test_dead_letters_for_another_shard_leave_before_the_queue_is_full(suffix: str) -> None:
    pair = overflowing_pair(20, suffix)
    for number in range(50):
        assert is_sent(pair, str(number)), number
        pair.deliver()

    counters = pair.counters(pair.source), pair.counters(pair.letters)
    assert [each.visible for each in counters] == [10, 40]
    found = [body for _ in range(4) for body in pair.receive(pair.letters)]
    assert found == [str(number) for number in range(len(found))]


@pytest.mark.parametrize(("suffix", "gone"), [("", 11), (".fifo", 1)], ids=["standard", "fifo"])
def test_what_is_on_its_way_to_another_shard_counts_until_it_is_there(
    suffix: str, gone: int
) -> None:
    pair = overflowing_pair(20, suffix)
    sent = [is_sent(pair, str(number)) for number in range(40)]
    assert sent == [True] * 20 + [False] * 20

    pair.deliver()

    assert pair.counters(pair.letters).visible == gone, "room for a batch, of a group one by one"
    assert is_sent(pair, "next")


def test_a_refused_send_makes_room_for_its_repeat() -> None:
    pair = overflowing_pair(1)
    assert is_sent(pair, "a")
    assert not is_sent(pair, "b")

    pair.deliver()

    assert is_sent(pair, "b")
    assert pair.receive(pair.letters) == ["a"]


def test_a_full_dead_letter_queue_of_another_shard_leaves_the_source_within_its_limit() -> None:
    pair = overflowing_pair(4)
    pair.letters = in_shard(
        1, prepared.queue_named("letters", 2, tags={"holdfast:max-messages": "1"})
    )
    pair.queues.define(pair.letters)
    for number in range(12):
        is_sent(pair, str(number))
        pair.deliver()

    assert pair.counters(pair.letters).visible == 1
    assert pair.counters(pair.source).visible == 4
