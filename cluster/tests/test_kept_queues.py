"""Purged queues of all kinds, dropped, restored or deleted meanwhile; rows agree throughout."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from typing_extensions import override

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.archive_rules import TAGS, waiting
from cluster.tests.driver import Driver
from cluster.tests.histories import seeds
from cluster.tests.row_consistency import check_rows
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.operations import StartMessageMoveTask
from visibility.contract.outcomes import Deliveries, Progress
from visibility.rows.row_keys import REMEMBERED, message_key, queue_of, table_range
from visibility.state.queue_state import QueueState
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

LIMITS = ArchiveLimits(1 << 40, retains=False)
PERIOD_S = 40
"""Longer than any lease and delay here."""


class Traffic:
    """One queue with messages in every state, and their expected ends."""

    def __init__(self, suffix: str, seed: int) -> None:
        self.random = Random(seed)
        self.fifo = bool(suffix)
        self.queue = prepared.queue_named("queue" + suffix, 1, tags=TAGS)
        self.store = MemoryStore()
        self.known = KnownQueues(self.queue)
        self.driver = Driver(self.known, store=self.store, archive=LIMITS)
        self.sent = 0
        self.living: dict[str, str] = {}
        """Groups by body."""
        self.received: dict[str, tuple[Receipt, int]] = {}
        """The latest receipt of each body and its receive count."""

    def some(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            check_rows(self.store, self.driver.state)

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            self.send()
        elif choice < 0.8:
            self.receive(self.random.choice((0, 1, 5, 30)))
        elif choice < 0.9 and self.received:
            self.delete(self.random.choice(sorted(self.received)))
        else:
            self.driver.pass_time(self.random.choice((0, 500, 2000)))

    def send(self) -> None:
        body = f"m{self.sent}"
        self.sent += 1
        group = self.random.choice("ghi") if self.fifo or self.random.random() < 0.5 else None
        delay_s = None if self.fifo else self.random.choice((None, None, None, 5, 30))
        self.driver.submit(prepared.send(self.queue, body, group=group, delay_s=delay_s))
        self.living[body] = group or ""

    def receive(self, timeout_s: int) -> list[str]:
        reply = self.driver.submit(
            prepared.receive(self.queue, self.random.randint(1, 4), timeout_s=timeout_s)
        )
        bodies = []
        for lease, message in zip(reply.deliveries.leases, reply.deliveries.messages, strict=True):
            body = message.data.decode()
            assert body in self.living, "what was deleted came back"
            _, count = self.received.get(body, (None, 0))
            assert lease.receive_count == count + 1, "its history was forgotten"
            named = message.original_sequence or lease.sequence
            self.received[body] = Receipt(named, lease.receive_count), lease.receive_count
            bodies.append(body)
        return bodies

    def delete(self, body: str) -> None:
        """Delete by the latest handle; the message is gone then if the queue is standard or the
        lease lasts."""
        before = self.stored()
        self.driver.submit(prepared.delete(self.queue, self.received[body][0]))
        if self.stored() < before:
            del self.living[body], self.received[body]

    def stored(self) -> int:
        return sum(queue.stored for queue in self.driver.state.queues.values())

    def purge(self) -> QueueDefinition:
        purged = self.queue
        self.queue = self.driver.purge(purged)
        assert self.driver.submit(prepared.counters(self.queue)).answer == QueueCounters(0, 0, 0)
        return purged

    def restart(self) -> None:
        now_ms = self.driver.now_ms
        self.driver = Driver(self.known, store=self.store, now_ms=now_ms, archive=LIMITS)

    def restore(self, purged: QueueDefinition) -> None:
        while not (step := self.driver.restore(purged, self.queue)).is_done:
            check_rows(self.store, self.driver.state)
            assert step.again_in_ms
            self.driver.pass_time(step.again_in_ms)
        assert not step.left
        assert self.driver.state.queue(purged.queue_id).stored == 0

    def drained(self) -> list[str]:
        """Every message in the order of receipt, each deleted at once."""
        self.driver.pass_time(PERIOD_S * 1000)
        bodies: list[str] = []
        while found := self.receive(30):
            for body in found:
                self.driver.submit(prepared.delete(self.queue, self.received[body][0]))
            bodies += found
        return bodies


suffixes = pytest.mark.parametrize("suffix", ["", ".fifo"])


@suffixes
@seeds
def test_a_restored_queue_has_every_message_that_was_not_deleted_once(
    suffix: str, seed: int
) -> None:
    traffic = Traffic(suffix, seed)
    traffic.some(40)
    purged = traffic.purge()
    before = set(traffic.living)
    if seed % 2:
        traffic.restart()
    traffic.some(10)

    traffic.restore(purged)
    check_rows(traffic.store, traffic.driver.state)
    traffic.restart()
    bodies = traffic.drained()

    assert sorted(bodies) == sorted(traffic.living)
    if suffix:
        for group in "ghi":
            old = [b for b in bodies if traffic.living[b] == group and b in before]
            assert old == sorted(old, key=lambda body: int(body[1:])), "a group kept its order"


@suffixes
@seeds
def test_dropping_a_purged_queue_hands_every_message_to_the_archive_once(
    suffix: str, seed: int
) -> None:
    traffic = Traffic(suffix, seed)
    traffic.some(40)
    before = len(waiting(traffic.store))
    purged = traffic.purge()

    traffic.driver.drop(purged)

    archived = [row.message.data.decode() for row in waiting(traffic.store)][before:]
    assert sorted(archived) == sorted(traffic.living)
    assert {row.reason for row in waiting(traffic.store)} <= {"deleted"}
    assert purged.queue_id not in traffic.driver.state.queues
    assert not [key for key in traffic.store.rows if key[:8] == purged.queue_id.to_bytes(8, "big")]


def test_what_was_received_before_a_purge_is_deleted_by_its_handle() -> None:
    traffic = Traffic("", 1)
    for _ in range(3):
        traffic.send()
    traffic.driver.pass_time(PERIOD_S * 1000)
    bodies = [body for _ in range(3) for body in traffic.receive(30)]
    first = traffic.purge()
    traffic.purge()

    parts = [traffic.received[body][0] for body in bodies[:2]]
    traffic.driver.submit(prepared.delete_batch(traffic.queue, parts))

    assert traffic.driver.state.queue(first.queue_id).stored == 1
    assert len(waiting(traffic.store)) == 2, "the archive takes over what was deleted"


def test_a_move_task_goes_on_with_nothing_left_to_move() -> None:
    dead = prepared.queue_named("dead", 2)
    source = prepared.queue_named("source", 1, dead_letters_to=dead)
    known = KnownQueues(dead, source)
    driver = Driver(known)
    driver.submit(prepared.send_batch(dead, [str(number) for number in range(5)]))
    start = StartMessageMoveTask(dead.arn, source.arn, 1)
    driver.submit(prepared.prepared(dead, start)).answer  # noqa: B018 - it must not be refused
    successor = driver.purge(dead)

    driver.pass_time(10_000)

    (task,) = driver.state.queue(successor.queue_id).tasks.values()
    assert task.status == "COMPLETED"
    assert driver.state.queue(dead.queue_id).tasks == {}


def test_a_damaged_message_does_not_keep_the_others_from_being_restored() -> None:
    queue = prepared.queue_named("q", 1)
    driver = Driver(KnownQueues(queue))
    driver.submit(prepared.send_batch(queue, ["a", "b", "c"]))
    successor = driver.purge(queue)
    driver.store.rows[message_key(1, 2)] = b"\x01rubbish"

    step = driver.restore(queue, successor)

    assert (step.is_done, step.left) == (True, 1)
    reply = driver.submit(prepared.receive(successor, 10))
    assert isinstance(reply.answer, Deliveries)
    assert [message.data for message in reply.deliveries.messages] == [b"a", b"c"]


def test_an_archive_without_room_keeps_what_it_is_to_retain() -> None:
    queue = prepared.queue_named("q", 1, tags=TAGS)
    driver = Driver(KnownQueues(queue), archive=ArchiveLimits(1, retains=True))
    driver.submit(prepared.send(queue, "a"))

    reply = driver.submit(prepared.drop(queue))

    assert getattr(reply.answer, "again_in_ms", 0) > 0
    assert driver.state.queue(1).stored == 1


# -- receipts, delays and groups across purges and restores ----------------------------------------


def driver_of(queue: QueueDefinition) -> tuple[KnownQueues, Driver]:
    known = KnownQueues(queue)
    return known, Driver(known)


def take(driver: Driver, queue: QueueDefinition, timeout_s: int) -> dict[str, Receipt]:
    """Receive up to ten messages: their receipts by body."""
    found = driver.submit(prepared.receive(queue, 10, timeout_s=timeout_s)).deliveries
    check_rows(driver.store, driver.state)
    return {
        message.data.decode(): Receipt(
            message.original_sequence or lease.sequence, lease.receive_count
        )
        for lease, message in zip(found.leases, found.messages, strict=True)
    }


def drain(driver: Driver, queue: QueueDefinition) -> list[str]:
    """Receive and delete all that is visible: the bodies."""
    bodies: list[str] = []
    while found := take(driver, queue, 30):
        for receipt in found.values():
            assert driver.submit(prepared.delete(queue, receipt)).refusal is None
        bodies += found
    return bodies


def purged_half_delayed(
    driver: Driver, queue: QueueDefinition, *, receives: bool
) -> QueueDefinition:
    """Purge and restore a group with a first message that is visible or in flight and a second that
    is delayed."""
    driver.submit(prepared.send(queue, "first", group="g"))
    driver.pass_time(8_000)
    driver.submit(prepared.send(queue, "second", group="g"))
    driver.pass_time(4_000)
    assert len(take(driver, queue, 30) if receives else ["first"]) == 1
    successor = driver.purge(queue)
    driver.restore(queue, successor)
    return successor


def test_a_restored_group_keeps_its_order_though_one_of_it_is_delayed() -> None:
    queue = prepared.queue_named("q.fifo", 1, DelaySeconds="10")
    _, driver = driver_of(queue)

    successor = purged_half_delayed(driver, queue, receives=False)

    driver.pass_time(PERIOD_S * 1000)
    assert drain(driver, successor) == ["first", "second"]


def test_a_restored_message_does_not_pass_one_of_its_group_in_flight() -> None:
    queue = prepared.queue_named("q.fifo", 1, DelaySeconds="10")
    _, driver = driver_of(queue)

    successor = purged_half_delayed(driver, queue, receives=True)

    assert take(driver, successor, 30) == {}


def test_a_message_in_flight_is_waited_for_behind_the_steps_that_follow() -> None:
    queue = prepared.queue_named("q", 1)
    driver = Driver(KnownQueues(queue))
    for number in range(300):
        driver.submit(prepared.send(queue, str(number)))
    driver.submit(prepared.receive(queue, 1))
    successor = driver.purge(queue)

    step = driver.restore(queue, successor)
    assert (step.is_done, step.again_in_ms) == (False, 30_000)
    driver.now_ms += 30_000

    assert driver.restore(queue, successor).is_done
    assert driver.state.queue(successor.queue_id).stored == 300


def test_a_group_is_restored_whole_while_another_is_in_flight() -> None:
    queue = prepared.queue_named("q.fifo", 1, DelaySeconds="10")
    _, driver = driver_of(queue)
    driver.submit(prepared.send(queue, "other", group="h"))
    driver.pass_time(10_000)
    assert list(take(driver, queue, PERIOD_S)) == ["other"]

    successor = purged_half_delayed(driver, queue, receives=False)

    assert list(take(driver, successor, 0)) == ["first", "second"]


def test_what_was_sent_before_a_restore_may_go_when_its_delay_is_over() -> None:
    queue = prepared.queue_named("q.fifo", 1, DelaySeconds="10")
    _, driver = driver_of(queue)
    driver.submit(prepared.send(queue, "old", group="g"))
    successor = driver.purge(queue)
    driver.submit(prepared.send(successor, "new", group="g"))
    driver.restore(queue, successor)
    assert list(take(driver, successor, PERIOD_S)) == ["old"]

    driver.pass_time(10_000)

    assert list(take(driver, successor, 0)) == ["new"], "its place is before the one in flight"


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_group_that_is_free_again_between_two_steps_keeps_its_order(is_deleted: bool) -> None:
    queue = prepared.queue_named("q.fifo", 1)
    _, driver = driver_of(queue)
    for number in range(300):
        driver.submit(prepared.send(queue, f"m{number}", group="g"))
    first = driver.submit(prepared.receive(queue, 1, timeout_s=30)).deliveries.leases[0]
    successor = driver.purge(queue)
    step = driver.submit(prepared.restore(queue, successor)).answer
    assert isinstance(step, Progress)
    assert step.next_sequence

    if is_deleted:
        receipt = Receipt(first.sequence, first.receive_count)
        assert driver.submit(prepared.delete(successor, receipt)).refusal is None
    else:
        driver.pass_time(31_000)
    driver.submit(prepared.restore(queue, successor, step.next_sequence, step.blocked))
    while not (step := driver.restore(queue, successor)).is_done:
        driver.pass_time(step.again_in_ms)

    assert drain(driver, successor) == [f"m{number}" for number in range(is_deleted, 300)]


@suffixes
def test_a_receipt_names_its_message_two_purges_back(suffix: str) -> None:
    first = prepared.queue_named("q" + suffix, 1)
    known, driver = driver_of(first)
    group = "g" if suffix else None
    driver.submit(prepared.send(first, "a", group=group))
    receipt = take(driver, first, 3000)["a"]
    second = driver.purge(first)
    driver.submit(prepared.send(second, "b", group=group))
    third = driver.purge(second)
    assert driver.restore(second, third).is_done
    driver.drop(second)
    known.purged = {first.queue_id: third.queue_id}

    assert driver.submit(prepared.delete(third, receipt)).refusal is None

    assert drain(driver, third) == ["b"]
    driver.pass_time(4_000_000)
    assert driver.restore(first, third).is_done
    assert drain(driver, third) == [], "an acknowledged delete came back"


def test_an_undone_purge_knows_the_ids_again_that_it_forgot() -> None:
    queue = prepared.queue_named("q.fifo", 1)
    store, known = MemoryStore(), KnownQueues(queue)
    driver = Driver(known, store=store)
    sent = driver.submit(sending(queue, "before")).answer
    successor = driver.purge(queue)
    fresh = driver.submit(sending(successor, "after")).answer
    assert driver.restore(queue, successor).is_done

    for _ in range(2):
        assert driver.submit(sending(successor, "before")).answer == sent
        assert driver.submit(sending(successor, "after")).answer == fresh
        driver = Driver(known, store=store, now_ms=driver.now_ms)

    driver.drop(queue)
    assert driver.submit(sending(successor, "before")).answer != sent, "five minutes are over"
    check_rows(store, driver.state)


def test_a_purge_forgets_ids_and_one_that_is_undone_later_does_not_bring_back_old_ones() -> None:
    queue = prepared.queue_named("q.fifo", 1)
    _, driver = driver_of(queue)
    sent = driver.submit(sending(queue, "a")).answer
    successor = driver.purge(queue)
    again = driver.submit(sending(successor, "a")).answer
    assert again != sent

    assert driver.restore(queue, successor).is_done

    assert driver.submit(sending(successor, "a")).answer == again, "the later one counts"
    assert driver.state.queue(successor.queue_id).stored == 2


def test_the_first_of_two_purges_undone_knows_its_ids_where_its_messages_are() -> None:
    first = prepared.queue_named("q.fifo", 1)
    known, driver = driver_of(first)
    sent = driver.submit(sending(first, "a")).answer
    second = driver.purge(first)
    driver.submit(sending(second, "b"))
    third = driver.purge(second)
    known.purged = {first.queue_id: third.queue_id, second.queue_id: third.queue_id}

    assert driver.restore(first, third).is_done

    assert driver.submit(sending(third, "a")).answer == sent
    driver.submit(sending(third, "b"))
    assert driver.state.queue(third.queue_id).stored == 2, "that purge is not undone"


def test_what_an_undone_purge_knew_is_forgotten_by_the_next_one() -> None:
    first = prepared.queue_named("q.fifo", 1)
    _, driver = driver_of(first)
    sent = driver.submit(sending(first, "a")).answer
    second = driver.purge(first)
    assert driver.restore(first, second).is_done
    third = driver.purge(second)

    again = driver.submit(sending(third, "a")).answer

    assert again != sent
    assert driver.restore(second, third).is_done
    assert driver.submit(sending(third, "a")).answer == again


class Watched(dict[int, QueueState]):
    """The queues of a shard, and the ids of those that were looked at."""

    def __init__(self, queues: dict[int, QueueState]) -> None:
        super().__init__(queues)
        self.seen: set[int] = set()

    @override
    def get(self, queue_id: int, default: Any = None) -> Any:
        self.seen.add(queue_id)
        return super().get(queue_id, default)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_send_looks_at_those_purged_queues_only_whose_purge_was_undone(is_loaded: bool) -> None:
    first = prepared.queue_named("q.fifo", 1)
    store, known = MemoryStore(), KnownQueues(first)
    driver = Driver(known, store=store)
    sent = driver.submit(sending(first, "first")).answer
    second = driver.purge(first)
    driver.submit(sending(second, "second"))
    assert driver.restore(first, second).is_done
    latest = second
    purged = [second]
    for _ in range(5):
        latest = driver.purge(latest)
        purged.append(latest)
    purged.remove(latest)
    assert driver.restore(second, latest).is_done
    if is_loaded:
        driver = Driver(known, store=store, now_ms=driver.now_ms)
    queues = driver.state.queues = Watched(driver.state.queues)

    assert driver.submit(sending(latest, "first")).answer == sent

    undone = {first.queue_id, second.queue_id}
    assert queues.seen & {each.queue_id for each in (first, *purged)} == undone


class WatchedStore(MemoryStore):
    """A store that notes the queues whose deduplication ids are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[int] = set()

    @override
    def get(self, key: bytes) -> bytes | None:
        begin, end = table_range(queue_of(key), REMEMBERED)
        if begin <= key < end:
            self.asked.add(queue_of(key))
        return super().get(key)

    @override
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]


def test_a_send_reads_no_ids_of_an_undone_purge_whose_five_minutes_are_over() -> None:
    queue = prepared.queue_named("q.fifo", 1)
    store = WatchedStore()
    driver = Driver(KnownQueues(queue), store=store)
    driver.submit(sending(queue, "before"))
    successor = driver.purge(queue)
    assert driver.restore(queue, successor).is_done
    driver.submit(sending(successor, "after"))
    assert queue.queue_id in store.asked
    driver.pass_time(299_000)
    driver.submit(sending(successor, "later"))
    driver.pass_time(2_000)
    store.asked.clear()

    driver.submit(sending(successor, "last"))

    assert store.asked == {successor.queue_id}


def sending(queue: QueueDefinition, body: str) -> Request:
    """A send by content, as a client repeats it."""
    return prepared.send(queue, body, group="g", deduplication_id=body)


def test_a_message_that_was_restored_and_purged_again_is_deleted() -> None:
    first = prepared.queue_named("q", 1)
    known, driver = driver_of(first)
    driver.submit(prepared.send(first, "a"))
    take(driver, first, 1)
    driver.pass_time(2_000)
    second = driver.purge(first)
    assert driver.restore(first, second).is_done
    driver.drop(first)
    known.purged = {}
    receipt = take(driver, second, 10)["a"]
    third = driver.purge(second)

    assert driver.submit(prepared.delete(third, receipt)).refusal is None

    driver.pass_time(20_000)
    assert driver.restore(second, third).is_done
    assert drain(driver, third) == []


def test_a_delete_after_the_visibility_timeout_reaches_a_purged_message() -> None:
    queue = prepared.queue_named("q.fifo", 1)
    _, driver = driver_of(queue)
    driver.submit(prepared.send(queue, "a", group="g"))
    receipt = take(driver, queue, 10)["a"]
    successor = driver.purge(queue)
    driver.pass_time(11_000)

    assert driver.submit(prepared.delete(successor, receipt)).refusal is None

    assert driver.restore(queue, successor).is_done
    assert drain(driver, successor) == []
