"""A power loss at every single commit of a move task: no message is lost or doubled."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from storage.tests.memory_store import MemoryStore
from visibility.contract.move_task import MessageFilter
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import MESSAGE
from visibility.rules import move_steps
from visibility.rules.move_tasks import MoveSelected
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


def bodies_in(store: MemoryStore) -> list[str]:
    """The bodies of all messages, sorted."""
    return sorted(
        decode_row(StoredMessage, key, value).data.decode()
        for key, value in store.rows.items()
        if key[8:9] == MESSAGE
    )


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
        assert bodies_in(store) == bodies + ["without a source"] * stays
        queue = driver.state.queue(1)
        if syncs > 3:
            (task,) = queue.tasks.values()
            assert task.status == ("FAILED" if stays else "COMPLETED")
            assert (task.moved, task.stayed, queue.visible) == (10, stays, stays)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_power_loss_at_every_commit_of_a_filtered_task_and_its_undo(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_steps, "CHUNK_MESSAGES", 3)
    monkeypatch.setattr(move_steps, "FILTERED_MESSAGES", 4)
    dead = prepared.queue_named("dead" + suffix, 1)
    one = prepared.queue_named("one" + suffix, 2, dead_letters_to=dead)
    known = KnownQueues(dead, one)
    bodies = [f"{number:02}" for number in range(10)]
    wanted = MessageFilter(source="one" + suffix)
    for syncs in range(14):
        store = Halting(1 << 31)
        driver = Driver(known, store=store)
        driver.submit(prepared.send(dead, "stays", group="g"))
        driver.submit(prepared.send_batch(one, bodies, groups=["g", "h"] * 5))
        for _ in range(4):
            driver.submit(prepared.receive(one, 10, timeout_s=0, dead_letter_queue=dead))
        store.syncs = syncs
        driver.submit(prepared.prepared(dead, MoveSelected(filter=wanted)))
        driver = _after_power_loss(known, store, bodies)
        if not driver.state.queue(1).tasks:
            continue
        (task,) = driver.state.queue(1).tasks.values()
        assert (task.status, task.moved, task.looked_at) == ("COMPLETED", 10, 11)

        store.syncs = syncs
        back = MessageFilter(message_id=task.task_id[:13], received_max=0)
        undoing = MoveSelected(filter=back, undoes=task.task_id, sources=task.sources)
        request = prepared.prepared(one, undoing)
        driver.submit(msgspec.structs.replace(request, destination=dead))
        driver = _after_power_loss(known, store, bodies)
        (undo,) = driver.state.queue(2).tasks.values()
        assert (undo.status, undo.moved, undo.sources) == ("COMPLETED", 10, [one.arn])
        assert driver.state.queue(1).visible == 11


def _after_power_loss(known: KnownQueues, store: Halting, bodies: list[str]) -> Driver:
    """The shard after it, with all messages at one place each."""
    store.crash()
    store.syncs = 1 << 31
    driver = Driver(known, store=store, seed=1 << 70)
    check_rows(store, driver.state)
    assert bodies_in(store) == [*bodies, "stays"]
    return driver
