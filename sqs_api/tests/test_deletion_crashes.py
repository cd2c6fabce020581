"""Queues that are purged, deleted and restored at random while the process crashes and the store
fails.

More runs: DELETION_SEEDS=300 python -m pytest sqs_api/tests/test_deletion_crashes.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.catalog.catalog_records import KeptState
from cluster.tests.archive_rules import TAGS, waiting
from cluster.tests.row_consistency import check_rows
from cluster.tests.virtual_time import SteppedLoop
from cluster.tests.world import state_of
from sqs_api.tests.crashing import Process, rounds
from visibility.contract.errors import (
    InvalidParameterValue,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

_SEEDS = int(os.environ.get("DELETION_SEEDS", "8"))
_STEPS = 90
_LONGEST_S = 30
"""The longest visibility timeout here."""


@dataclass
class Message:
    """An acknowledged message, with its receivers' knowledge of it."""

    body: str
    group: str | None
    queue_id: int
    """The queue to which it was sent."""
    receipt: Receipt | None = None
    receipt_key: bytes = b""
    hidden_until_ms: int = 0
    is_deleted: bool = False

    @property
    def number(self) -> int:
        """Its place in the order of all messages."""
        return int(self.body[1:])


class Traffic:
    """One queue name with senders, receivers and operators, and the expected end of each
    message."""

    def __init__(self, process: Process, random: Random, *, fifo: bool, archives: bool) -> None:
        self.process = process
        self.random = random
        self.fifo = fifo
        self.tags = TAGS if archives else {}
        self.name = "q.fifo" if fifo else "q"
        self.sent = 0
        self.messages: dict[str, Message] = {}
        self.log: list[str] = []

    @property
    def living(self) -> list[Message]:
        return [message for message in self.messages.values() if not message.is_deleted]

    def queue(self) -> QueueDefinition | None:
        try:
            return self.process.catalog.queue(ACCOUNT, REGION, self.name)
        except QueueDoesNotExist:
            return None

    # -- steps -------------------------------------------------------------------------------------

    async def step(self) -> None:
        queue = self.queue()
        if queue is None:
            await self.random.choice((self.create, self.restore))()
            return
        actions = (
            (40, self.send),
            (22, self.receive_some),
            (12, self.delete_some),
            (8, self.wait),
            (6, self.purge),
            (2, self.delete_queue),
        )
        others = ((6, self.restore), (2, self.crash), (1, self.fail_to_commit), (1, self.look))
        weights = [weight for weight, _ in (*actions, *others)]
        chosen = self.random.choices(range(len(weights)), weights)[0]
        if chosen < len(actions):
            await actions[chosen][1](queue)
        else:
            await others[chosen - len(actions)][1]()

    async def create(self) -> None:
        attributes = {"FifoQueue": "true"} if self.fifo else {}
        if self.fifo and self.random.random() < 0.4:
            attributes["DelaySeconds"] = "3"
        owner = (ACCOUNT, REGION, self.name)
        queue = await self.process.catalog.create_queue(owner, attributes, self.tags)
        self.log.append(f"create {queue.queue_id} {attributes}")

    async def send(self, queue: QueueDefinition) -> None:
        body = f"m{self.sent}"
        self.sent += 1
        group = self.random.choice("gh") if self.fifo or self.random.random() < 0.3 else None
        delay_s = None if self.fifo else self.random.choice((None, None, 3))
        request = prepared.send(queue, body, group=group, delay_s=delay_s)
        if await self.answer(request) is not None:
            self.messages[body] = Message(body, group, queue.queue_id)
            self.log.append(f"sent {body} {group} to {queue.queue_id}")

    async def answer(self, request: Request) -> Answer:
        """None if the shard does not serve."""
        try:
            return await self.process.router.ask(request)
        except ServiceUnavailable:
            return None

    async def wait(self, queue: QueueDefinition) -> None:
        await self.pass_time(self.random.choice((100, 1000, 5000)))

    async def pass_time(self, ms: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        loop.now_s += ms / 1000
        self.log.append(f"{ms} ms pass")
        await rounds(20)

    async def fail_to_commit(self) -> None:
        self.process.store.fails = True
        self.log.append("the next commit fails")

    async def look(self) -> None:
        await self.process.deletions.look(self.process.clock.now_ms())

    # -- receive and delete ------------------------------------------------------------------------

    async def receive_some(self, queue: QueueDefinition) -> None:
        await self.receive(queue, self.random.choice((0, 2, 5, _LONGEST_S)))

    async def receive(self, queue: QueueDefinition, timeout_s: int) -> list[Message]:
        request = prepared.receive(queue, self.random.randint(1, 4), timeout_s=timeout_s)
        answer = await self.answer(request)
        if answer is None:
            return []
        assert isinstance(answer, Deliveries)
        now_ms = self.process.clock.now_ms()
        received: list[Message] = []
        for lease, found in zip(answer.leases, answer.messages, strict=True):
            assert found is not None
            message = self.messages[found.data.decode()]
            self.check_received(message, received, now_ms)
            message.receipt = Receipt(
                found.original_sequence or lease.sequence, lease.receive_count
            )
            message.receipt_key = queue.receipt_key
            received.append(message)
        for message in received:
            message.hidden_until_ms = now_ms + timeout_s * 1000
        bodies = " ".join(message.body for message in received)
        self.log.append(f"received {bodies} from {queue.queue_id} for {timeout_s} s")
        return received

    def check_received(self, message: Message, before: list[Message], now_ms: int) -> None:
        assert not message.is_deleted, f"{message.body} came back"
        assert message.hidden_until_ms <= now_ms, f"{message.body} came while it was in flight"
        if not self.fifo:
            return
        for other in self.living:
            if is_earlier(other, message) and other not in before:
                assert other.hidden_until_ms <= now_ms, f"{message.body} passed {other.body}"

    async def delete_some(self, queue: QueueDefinition) -> None:
        known = [m for m in self.living if m.receipt and m.receipt_key == queue.receipt_key]
        if known:
            await self.delete(queue, self.random.choice(known))

    async def delete(self, queue: QueueDefinition, message: Message) -> None:
        assert message.receipt is not None
        try:
            await self.process.router.ask(prepared.delete(queue, message.receipt))
        except (InvalidParameterValue, ServiceUnavailable):
            return
        message.is_deleted = True
        self.log.append(f"deleted {message.body}")

    # -- purge, delete, restore and crash ----------------------------------------------------------

    async def purge(self, queue: QueueDefinition) -> None:
        await self.perhaps_stopped(self.process.deletions.purge(queue), f"purge {queue.queue_id}")

    async def delete_queue(self, queue: QueueDefinition) -> None:
        work = self.process.deletions.delete(queue)
        await self.perhaps_stopped(work, f"delete queue {queue.queue_id}")

    async def restore(self) -> None:
        kept = self.process.deletions.all()
        if kept:
            queue_id = self.random.choice(kept).queue.queue_id
            work = self.process.deletions.restore(queue_id)
            await self.perhaps_stopped(work, f"restore {queue_id}")

    async def crash(self) -> None:
        self.log.append("crash")
        await self.process.crash()

    async def perhaps_stopped(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Do an operator's work; the process may crash at one of its requests to the shard, or soon
        after it."""
        self.log.append(name)
        crashes = self.random.random() < 0.5
        if crashes:
            self.process.stopping.stop_after(
                self.random.randint(0, 2), decides_last=self.random.random() < 0.5
            )
        stopped = asyncio.create_task(self.process.stopping.stopped.wait())
        task = asyncio.create_task(self.done(work))
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if crashes:
            await rounds(30)
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
        if crashes:
            await self.crash()

    async def done(self, work: Awaitable[object]) -> None:
        try:
            await work
        except QueueError as error:
            self.log.append(f"refused: {error.message}")

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """The shard holds every message that is not deleted, once, in rows that agree."""
        if self.process.shard.ready:
            check_rows(self.process.store, state_of(self.process.shard))
            stored = sum(queue.stored for queue in self.process.shard.counters().values())
            assert stored == len(self.living)

    async def restore_all(self) -> None:
        """Restore all deleted queues; takes time for all visibility timeouts and the store's
        recovery."""
        for _ in range(2 * _LONGEST_S):
            await self.pass_time(1000)
            await self.look()
            await rounds(20)
            async with self.process.catalog.unchanging():
                pass  # SQLite's thread knows no virtual time: a commit under way ends first
            for kept in self.process.deletions.all():
                await self.done(self.process.deletions.restore(kept.queue.queue_id))
        await self.pass_time(1000)
        await self.process.deletions.settle()
        assert not self.process.catalog.kept.in_state(KeptState.RESTORING)

    def out_of_reach(self) -> int:
        """Messages of deleted queues whose name has a new queue, and of purged queues before
        those."""
        kept = [kept.queue.queue_id for kept in self.process.catalog.kept]
        return sum(queue.stored for queue in self.process.shard.queues(kept))

    async def drain(self) -> list[Message]:
        """Receive and delete everything."""
        drained: list[Message] = []
        queue = self.queue()
        idle = 0
        while queue is not None and idle < 3:
            received = await self.receive(queue, _LONGEST_S)
            for message in received:
                await self.delete(queue, message)
            drained += received
            if not received:
                idle += 1
                await self.pass_time(_LONGEST_S * 1000 + 1000)
        return drained

    async def check_all_comes_back(self) -> None:
        await self.restore_all()
        self.check()

        drained = await self.drain()

        self.check()
        assert len(self.living) == self.out_of_reach()
        if self.fifo:
            for index, later in enumerate(drained):
                assert not any(is_earlier(later, before) for before in drained[:index])

    def check_archive(self) -> None:
        archived = sorted(row.message.data.decode() for row in waiting(self.process.store))
        assert archived == sorted(m.body for m in self.messages.values() if m.is_deleted)


def is_earlier(one: Message, other: Message) -> bool:
    """True if `one` precedes `other` in a FIFO group."""
    same = (one.group, one.queue_id) == (other.group, other.queue_id)
    return same and one.number < other.number


async def run(traffic: Traffic, *, archives: bool) -> None:
    await traffic.process.start()
    try:
        for _ in range(_STEPS):
            await traffic.step()
            await rounds(traffic.random.choice((0, 3, 20)))
            traffic.check()
        await traffic.check_all_comes_back()
        if archives:
            traffic.check_archive()
    except AssertionError as error:
        error.add_note("\n".join(traffic.log))
        raise
    finally:
        await traffic.process.stop()


@pytest.mark.parametrize("archives", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", range(_SEEDS))
def test_no_message_is_lost_or_comes_back_whatever_interrupts_it(
    tmp_path: Path, seed: int, fifo: bool, archives: bool
) -> None:
    process = Process(tmp_path / "catalog.sqlite", archives=archives)
    traffic = Traffic(process, Random(seed), fifo=fifo, archives=archives)
    loop = SteppedLoop()
    try:
        loop.run_until_complete(run(traffic, archives=archives))
    finally:
        loop.close()
