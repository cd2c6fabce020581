"""What a turn writes before its commit holds whole decisions: a crash after any write leaves rows that agree.

A decision that reads what the turn changed has it written first. The operating system may bring such a write to the disk
and then stop. Source: DESIGN.md 4, `cluster/shards/turn.py`.
"""

from __future__ import annotations

from random import Random

import pytest

from cluster.shards.loading import load_engine
from cluster.tests.consistency import check_rows
from cluster.tests.driver import Driver
from storage.engines.memory import MemoryStore
from storage.rows.stored_rows import StoredRows
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.state.invariants import check_shard
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class SnapshotStore(MemoryStore):
    """Keeps what the rows were after every write."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[dict[bytes, bytes]] = []

    def write(self) -> None:
        has_changes = bool(self.batch.changes)
        super().write()
        if has_changes:
            self.snapshots.append(dict(self.rows))


def some_request(
    random: Random, queue: QueueDefinition, dead: QueueDefinition, receipts: list[Receipt]
) -> Request:
    choice = random.random()
    fifo = queue.settings.fifo
    if choice < 0.45:
        count = random.randint(1, 3)
        bodies = [f"m{random.random()}" for _ in range(count)]
        groups = [random.choice("gh") if fifo or random.random() < 0.5 else None for _ in bodies]
        return prepared.send_batch(queue, bodies, groups=groups)
    if choice < 0.8 or not receipts:
        timeout_s = random.choice((0, 0, 1, 30))
        most = random.randint(1, 4)
        return prepared.receive(queue, most, timeout_s=timeout_s, dead_letter_queue=dead)
    if choice < 0.9:
        return prepared.delete(queue, random.choice(receipts))
    return prepared.change(queue, random.choice(receipts), random.choice((0, 5)))


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_agree_after_every_write(suffix: str, seed: int) -> None:
    random = Random(seed)
    dead = prepared.queue_named("dead" + suffix, 2)
    most = random.choice((1, 2, 4))
    queue = prepared.queue_named("queue" + suffix, 1, dead_letters_to=dead, max_receive_count=most)
    known = KnownQueues(queue, dead)
    store = SnapshotStore()
    driver = Driver(known, store=store)
    receipts: list[Receipt] = []
    within_turns = 0
    for _ in range(25):
        store.snapshots.clear()
        count = random.randint(1, 8)
        replies = driver.turn([some_request(random, queue, dead, receipts) for _ in range(count)])
        driver.pass_time(random.choice((0, 500, 1000)))
        for reply in replies:
            answer = reply.answers[0]
            leases = getattr(answer, "leases", ())
            receipts += [Receipt(lease.sequence, lease.receive_count) for lease in leases]
        within_turns += len(store.snapshots) > 1
        for rows in store.snapshots:
            there = MemoryStore()
            there.rows = dict(rows)
            engine, _ = load_engine(StoredRows(there), known)
            check_shard(engine.state)
            check_rows(there, engine.state)
    assert within_turns > 5, "the test is about writes before the commit"
