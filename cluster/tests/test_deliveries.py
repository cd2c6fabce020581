"""Deliveries between shards of one host: what a start and a bug must not spoil."""

from __future__ import annotations

from cluster.shards.delivery import Deliveries
from cluster.shards.router import Router
from cluster.tests.virtual_time import CountingEntropy, virtual
from cluster.tests.world import FragileStore, World, pass_time
from storage.rows.codec import OutboxRow, encode_row
from storage.rows.outbox_rows import OUTBOX_KEY
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer, OutboxPage


async def test_a_start_with_lost_entries_has_a_new_origin() -> None:
    """Other shards may know their numbers."""
    store = FragileStore(auto_sync=True)
    store.rows[OUTBOX_KEY] = encode_row(OutboxRow(b"of an earlier one", 7))

    store.came_back_shorter = True

    world = await World(store=store).start()

    outbox = world.shard._state.outbox
    assert (outbox.origin, outbox.next_number) == (b"", 7)
    assert outbox.floors(1) == [(b"of an earlier one", 7)], "the other shard is told to forget"


@virtual
async def test_a_delivery_that_fails_by_a_bug_is_made_again() -> None:
    asked: list[Request] = []

    class Failing(Router):
        def leads(self, number: int) -> bool:
            return True

        async def ask_here(self, request: Request) -> Answer:
            asked.append(request)
            if len(asked) == 1:
                raise RuntimeError("a bug")
            return OutboxPage([], [])

    shards = [(await World().start()).shard for _ in range(2)]
    shards[1].number = 1
    deliveries = Deliveries(Failing(shards), CountingEntropy())

    deliveries.wake(0, is_new=True)
    await pass_time(1)

    assert len(asked) == 2
    await deliveries.stop()
