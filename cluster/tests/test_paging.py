"""A backlog that does not fit into memory is read page by page, in order and completely."""

from __future__ import annotations

from storage.memory import MemoryStore
from storage.tests.store_disk import StoreDisk, engine_from
from visibility.apply import WINDOW_BYTES_MAX
from visibility.engine import PAGE_BYTES, PAGE_MESSAGES, Engine, PageWanted
from visibility.model import QueueCounters
from visibility.tests import prepared
from visibility.tests.driver import Driver

Q = prepared.queue_named("q", 1)
MIB = 1 << 20


def restarted(driver: Driver, store: MemoryStore) -> Driver:
    again = Driver(StoreDisk(store), engine=engine_from(store), now_ms=driver.now_ms)
    again.pass_time(0)
    return again


def received(driver: Driver, most: int = 10) -> list[bytes]:
    deliveries = driver.submit(prepared.receive(Q, most)).deliveries
    return [message.data[:4] for message in deliveries.messages if message is not None]


def drained(driver: Driver) -> list[bytes]:
    bodies: list[bytes] = []
    while got := received(driver):
        bodies += got
    return bodies


def test_a_backlog_larger_than_the_window_is_received_whole_and_in_order() -> None:
    store = MemoryStore()
    driver = Driver(StoreDisk(store))
    count = 2 * WINDOW_BYTES_MAX // MIB
    bodies = [b"%04d" % number for number in range(count)]

    for body in bodies:
        driver.submit(prepared.send(Q, body.ljust(MIB)))
        assert driver.engine.state.window_bytes <= WINDOW_BYTES_MAX

    assert driver.submit(prepared.counters(Q)).answer == QueueCounters(count, 0, 0)
    assert drained(restarted(driver, store)) == bodies
    assert drained(driver) == bodies


def test_a_page_holds_few_large_messages_and_many_small_ones() -> None:
    store = MemoryStore()
    driver = Driver(StoreDisk(store))
    for _ in range(2 * PAGE_BYTES // MIB):
        driver.submit(prepared.send(Q, b"large".ljust(MIB)))
    for _ in range(PAGE_MESSAGES // 10 + 1):
        driver.submit(prepared.send_batch(Q, ["small"] * 10))

    driver = restarted(driver, store)
    received(driver, 1)
    assert driver.engine.state.window_bytes <= PAGE_BYTES

    assert len(drained(driver)) == 2 * PAGE_BYTES // MIB - 1 + (PAGE_MESSAGES // 10 + 1) * 10


def test_a_page_of_delayed_messages_neither_ends_the_queue_nor_its_order() -> None:
    store = MemoryStore()
    driver = Driver(StoreDisk(store))
    for _ in range(PAGE_MESSAGES // 10 + 1):
        driver.submit(prepared.send_batch(Q, ["late"] * 10, delay_s=900))
    driver.submit(prepared.send(Q, "1st "))
    driver.submit(prepared.send(Q, "2nd ", delay_s=1))

    driver = restarted(driver, store)
    driver.pass_time(2_000)

    assert received(driver, 1) == [b"1st "]
    assert received(driver, 1) == [b"2nd "]


def test_messages_that_the_disk_lost_are_reported_and_never_written_off() -> None:
    engine = Engine()
    engine.restore_queue(1, next_sequence=5, low_water=1, waiting=4, purged_at_ms=0)
    page = engine.wants(1, 10)
    assert page == PageWanted(1, 1, 5, PAGE_MESSAGES)
    sent = MemoryStore()
    Driver(StoreDisk(sent)).submit(prepared.send(Q, "a"))

    missing = engine.load(page, [(3, sent.read_page(1, 1, 2, messages=1, size=1)[0][0][1])], 5)

    assert missing == 3
    assert engine.state.queue(1).counters() == QueueCounters(4, 0, 0)
