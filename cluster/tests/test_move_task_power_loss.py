"""A power loss at every single commit of a move task: no message is lost or doubled."""

from __future__ import annotations

import pytest

from cluster.tests.consistency import check_rows
from cluster.tests.driver import Driver
from storage.engines.memory import MemoryStore
from storage.rows.codec import decode_row
from storage.rows.keys import MESSAGE
from visibility.contract.stored_message import StoredMessage
from visibility.rules import move_steps
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class Halting(MemoryStore):
    """Loses power at the n-th sync."""

    def __init__(self, syncs: int) -> None:
        super().__init__()
        self.syncs = syncs

    def sync_all(self) -> None:
        if self.syncs:
            self.syncs -= 1
            super().sync_all()


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize(("destination", "stays"), [(None, 0), (None, 1), ("other", 0)])
def test_power_loss_at_every_commit_of_a_task_loses_and_doubles_nothing(
    suffix: str, destination: str | None, stays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_steps, "CHUNK_MESSAGES", 3)
    dead = prepared.queue_named("dead" + suffix, 1)
    one = prepared.queue_named("one" + suffix, 2, dead_letters_to=dead)
    other = prepared.queue_named("other" + suffix, 3)
    known = KnownQueues(dead, one, other)
    bodies = [f"{number:02}" for number in range(10)]
    for syncs in range(3, 30):
        store = Halting(1 << 31)
        driver = Driver(known, store=store)
        if stays:
            driver.submit(prepared.send(dead, "without a source", group="g"))
        driver.submit(prepared.send_batch(one, bodies, groups=["g", "h"] * 5))
        for _ in range(4):
            driver.submit(prepared.receive(one, 10, timeout_s=0, dead_letter_queue=dead))
        store.syncs = syncs - 3
        driver.submit(prepared.start_move_task(dead, other if destination else None, 0))
        store.crash()
        store.syncs = 1 << 31
        driver = Driver(known, store=store)
        check_rows(store, driver.state)
        found = [
            decode_row(StoredMessage, key, value).data.decode()
            for key, value in store.rows.items()
            if key[8:9] == MESSAGE
        ]
        assert sorted(found) == bodies + ["without a source"] * stays
        queue = driver.state.queue(1)
        if syncs > 3:
            (task,) = queue.tasks.values()
            assert task.status == ("FAILED" if stays else "COMPLETED")
            assert (task.moved, task.stayed, queue.visible) == (10, stays, stays)
