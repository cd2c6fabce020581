"""Random histories with damage: sent messages are served or counted as quarantined, and tables
agree."""

from __future__ import annotations

from random import Random

import pytest

from cluster.tests.histories import seeds
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, World, pass_time, state_of
from visibility.contract.errors import InternalError
from visibility.contract.model import QueueDefinition, Receipt
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import DELAYED, GROUP, MESSAGE
from visibility.tests import prepared
from visibility.tests.invariants import check_shard

STANDARD = prepared.queue_named("q", 1, VisibilityTimeout="5")
FIFO = prepared.queue_named("q.fifo", 1, VisibilityTimeout="5")


class History:
    """One queue and its history."""

    def __init__(self, queue: QueueDefinition, chance: Random) -> None:
        self.queue = queue
        self.chance = chance
        self.world = World()
        self.sent = 0
        self.served: set[str] = set()
        self.order: dict[str, list[int]] = {}
        """First deliveries by group."""

    async def run(self) -> None:
        await self.world.start()
        for _ in range(25):
            await self.chance.choice(
                (self.send, self.send, self.receive, self.wait, self.restart)
            )()
            if not self.chance.randrange(4):
                self.damage()
            self.check()
        self.world.store.unreadable.clear()
        await pass_time(20)
        for _ in range(40):
            await self.receive(deletes=True)
            await pass_time(6)
        await self.restart()
        self.check()

    async def ask(self, *requests: object) -> list[AskedShard]:
        asked = await self.world.asked(*requests)  # type: ignore[arg-type]
        assert InternalError not in [each.refusal for each in asked]
        return asked

    async def send(self) -> None:
        fifo = self.queue.settings.fifo
        for _ in range(self.chance.randrange(1, 12)):
            group = self.chance.choice("abc") if fifo or self.chance.random() < 0.3 else ""
            delay_s = 0 if fifo or self.chance.random() < 0.7 else 7
            body = f"{group} {self.sent}"
            await self.ask(prepared.send(self.queue, body, group=group, delay_s=delay_s))
            self.sent += 1

    async def receive(self, *, deletes: bool = False) -> None:
        (asked,) = await self.ask(prepared.receive(self.queue, 10))
        (answer,) = asked.answers
        assert isinstance(answer, Deliveries)
        for body in asked.bodies:
            if body not in self.served:
                group, number = body.split(" ")
                self.order.setdefault(group, []).append(int(number))
            self.served.add(body)
        receipts = [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]
        if receipts and (deletes or self.chance.random() < 0.5):
            await self.ask(prepared.delete_batch(self.queue, receipts))

    async def wait(self) -> None:
        await pass_time(self.chance.choice((1, 6, 8)))

    async def restart(self) -> None:
        await self.world.shard.stop()
        store, queues = self.world.store, self.world.queues
        self.world = World(store=store, definitions=queues)
        self.world.queues = queues
        await self.world.start()

    def damage(self) -> None:
        """Damage or remove some rows, or make them a gap."""
        rows = sorted(key for key in self.world.store.durable if key[8:9] in (MESSAGE, DELAYED))
        index = sorted(key for key in self.world.store.durable if key[8:9] == GROUP)
        how = self.chance.randrange(4)
        if how == 3 and index:
            self.world.store.damage(self.chance.choice(index))
        elif rows:
            at = self.chance.randrange(len(rows))
            chosen = rows[at : at + self.chance.randrange(1, 4)]
            if how == 0:
                self.world.store.damage(*chosen)
            elif how == 1:
                self.world.store.unreadable |= set(chosen)
            else:
                removed = Changes()
                for key in chosen:
                    removed.delete(key)
                self.world.store.apply(removed)

    def check(self) -> None:
        check_shard(state_of(self.world.shard))


@seeds
@pytest.mark.parametrize("queue", [STANDARD, FIFO], ids=["standard", "fifo"])
@virtual
async def test_what_was_sent_is_served_or_quarantined(queue: QueueDefinition, seed: int) -> None:
    history = History(queue, Random(seed))

    await history.run()

    state = state_of(history.world.shard).queues.get(1)
    quarantined = state.quarantined.messages if state is not None else 0
    lost = history.sent - len(history.served)
    assert lost <= quarantined, "nothing is missing in silence"
    assert (
        state is None
        or state.stored == state.quarantined.blocked + state.quarantined.blocked_delayed
    )
    if queue.settings.fifo:
        assert all(order == sorted(order) for order in history.order.values())
