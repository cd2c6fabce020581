"""A backlog that does not fit into memory is read page by page, in order and completely."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, state_of
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import QueueCounters
from visibility.rows.row_keys import message_key
from visibility.state import window
from visibility.state.window import PAGE_BYTES, PAGE_MESSAGES, WINDOW_BYTES_MAX
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

Q = prepared.queue_named("q", 1)
MIB = 1 << 20
PAGE_OVERHEAD_BYTES = MIB
"""Memory that a page may take besides its content."""


def new() -> tuple[Driver, MemoryStore]:
    store = MemoryStore()
    return Driver(KnownQueues(Q), store=store), store


def restarted(driver: Driver) -> Driver:
    return driver.restarted()


def received(driver: Driver, most: int = 10) -> list[bytes]:
    deliveries = driver.submit(prepared.receive(Q, most)).deliveries
    return [message.data[:4] for message in deliveries.messages if message is not None]


def drained(driver: Driver) -> list[bytes]:
    bodies: list[bytes] = []
    while got := received(driver):
        bodies += got
        assert driver.state.window_bytes <= WINDOW_BYTES_MAX + PAGE_OVERHEAD_BYTES
    return bodies


def counted(driver: Driver) -> object:
    return driver.submit(prepared.counters(Q)).answer


def test_a_backlog_larger_than_the_window_is_received_whole_and_in_order() -> None:
    driver, store = new()
    count = 2 * WINDOW_BYTES_MAX // MIB
    bodies = [b"%04d" % number for number in range(count)]

    for body in bodies:
        driver.submit(prepared.send(Q, body.ljust(MIB)))
        assert driver.state.window_bytes <= WINDOW_BYTES_MAX

    assert counted(driver) == QueueCounters(count, 0, 0)
    copy = MemoryStore()
    copy.rows, copy.durable = dict(store.durable), dict(store.durable)
    assert drained(driver.restarted(store=copy)) == bodies
    assert drained(driver) == bodies


def test_a_window_holds_so_many_messages_and_the_others_wait_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 2 * PAGE_MESSAGES
    monkeypatch.setattr(window, "WINDOW_MESSAGES_MAX", most)
    driver, _ = new()
    count = most + 3 * PAGE_MESSAGES
    bodies = [b"%04d" % number for number in range(count)]
    for at in range(0, count, 10):
        driver.submit(prepared.send_batch(Q, [body.decode() for body in bodies[at : at + 10]]))
        assert len(driver.state.queue(1).window) == min(most, at + 10, count)

    assert counted(driver) == QueueCounters(count, 0, 0)
    assert drained(driver) == bodies


def test_what_is_sent_while_the_backlog_is_on_disk_comes_behind_it() -> None:
    driver, _ = new()
    for number in range(PAGE_MESSAGES + 1):
        driver.submit(prepared.send(Q, f"{number:04}"))

    driver = restarted(driver)
    driver.submit(prepared.send(Q, "late"))
    first = received(driver)
    driver.submit(prepared.send(Q, "last"))

    expected = [b"%04d" % number for number in range(PAGE_MESSAGES + 1)]
    assert first + drained(driver) == [*expected, b"late", b"last"]


def test_a_page_holds_few_large_messages_and_many_small_ones() -> None:
    driver, _ = new()
    for _ in range(2 * PAGE_BYTES // MIB):
        driver.submit(prepared.send(Q, b"large".ljust(MIB)))
    for _ in range(PAGE_MESSAGES // 10 + 1):
        driver.submit(prepared.send_batch(Q, ["small"] * 10))

    driver = restarted(driver)
    received(driver, 1)
    assert driver.state.window_bytes <= PAGE_BYTES

    assert len(drained(driver)) == 2 * PAGE_BYTES // MIB - 1 + (PAGE_MESSAGES // 10 + 1) * 10


def test_a_page_of_delayed_messages_neither_ends_the_queue_nor_its_order() -> None:
    driver, _ = new()
    for _ in range(PAGE_MESSAGES // 10 + 1):
        driver.submit(prepared.send_batch(Q, ["late"] * 10, delay_s=900))
    driver.submit(prepared.send(Q, "1st "))
    driver.submit(prepared.send(Q, "2nd ", delay_s=1))

    driver = restarted(driver)
    driver.pass_time(2_000)

    assert received(driver, 1) == [b"1st "]
    assert received(driver, 1) == [b"2nd "]


@virtual
async def test_messages_that_the_disk_lost_are_quarantined_and_never_written_off() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(Q, ["1st", "2nd", "3rd", "4th"]))
    for sequence in (1, 2, 4):
        del world.store.rows[message_key(1, sequence)]
        del world.store.durable[message_key(1, sequence)]

    world = await World(store=world.store).start()
    there, missing, counted, _, new = await world.asked(
        prepared.receive(Q, 10),
        prepared.receive(Q, 10),
        prepared.counters(Q),
        prepared.send(Q, "new"),
        prepared.receive(Q, 1),
    )
    assert there.bodies == ["3rd"], "what is there can still be had"
    assert missing.bodies == []
    assert counted.answers == [QueueCounters(0, 1, 0)]
    assert new.bodies == ["new"]

    world = await World(store=world.store).start()
    (counted,) = await world.asked(prepared.counters(Q))
    assert counted.answers == [QueueCounters(0, 2, 0)]
    queue = state_of(world.shard).queues.get(1)
    assert queue is not None
    assert queue.quarantined.messages == 3
