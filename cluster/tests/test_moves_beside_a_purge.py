"""Messages that move to a queue which was just purged are found there.

The definitions know of a purge before the shard does.
"""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver, Reply
from cluster.tests.row_consistency import check_rows
from visibility.contract.model import QueueDefinition, Receipt
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


def received(driver: Driver, queue: QueueDefinition, most: int = 10) -> list[bytes]:
    check_rows(driver.store, driver.state)
    deliveries = driver.submit(prepared.receive(queue, most)).deliveries
    for lease in deliveries.leases:
        receipt = Receipt(lease.sequence, lease.receive_count)
        driver.submit(prepared.delete(queue, receipt))
    return [message.data for message in deliveries.messages]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize("is_used", [False, True])
def test_move_task_waits_for_a_purge_of_its_destination(suffix: str, is_used: bool) -> None:
    dead = prepared.queue_named("dead" + suffix, 1)
    other = prepared.queue_named("other" + suffix, 2)
    known = KnownQueues(dead, other)
    driver = Driver(known)
    driver.submit(prepared.send_batch(dead, ["a", "b"], groups=["g", "h"]))
    if is_used:
        driver.submit(prepared.send_batch(other, ["x", "y"], groups=["g", "h"]))
    driver.one_turn([], [Reply(prepared.start_move_task(dead, other)).ticket])

    successor = known.purge(other)
    driver.one_turn([], [Reply(prepared.purge(other, successor)).ticket])
    driver.pass_time(10)

    state = driver.state
    assert [state.queue(q.queue_id).stored for q in (dead, other)] == [0, 2 * is_used]
    assert received(driver, successor) == [b"a", b"b"]
    assert state.queue(successor.queue_id).stored == 0
    assert state.queue(successor.queue_id).fifo is bool(suffix)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_dead_letters_wait_for_a_purge_of_their_queue(suffix: str) -> None:
    dead = prepared.queue_named("dead" + suffix, 1)
    source = prepared.queue_named("source" + suffix, 2, dead_letters_to=dead)
    known = KnownQueues(dead, source)
    driver = Driver(known)
    for number in range(21):
        bodies = [str(number * 10 + digit) for digit in range(10)]
        driver.submit(prepared.send_batch(source, bodies, groups=bodies))
    for _ in range(21):
        driver.submit(prepared.receive(source, 10, timeout_s=1))
    driver.pass_time(1000)
    receive = Reply(prepared.receive(source, 10, dead_letter_queue=dead))
    deferred, _ = driver.one_turn([], [receive.ticket])
    assert deferred

    successor = known.purge(dead)
    driver.one_turn(deferred, [Reply(prepared.purge(dead, successor)).ticket])
    driver.pass_time(30_000)
    driver.submit(prepared.receive(source, 10, dead_letter_queue=successor))

    there = driver.state.queue(successor.queue_id).stored
    assert there == 210 - driver.state.queue(dead.queue_id).stored
    found = 0
    while some := received(driver, successor):
        found += len(some)
    assert found == there
