"""However much is lost at once, an Entry stays bounded, and the shard goes on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, state_of
from storage.checks.consistency import check_queue
from visibility.contract.model import QueueDefinition
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import DELAYED, GROUP, MESSAGE, SPAN_BITS, queue_key
from visibility.rows.row_values import QueueRow
from visibility.rules import quarantine
from visibility.tests import prepared

SLOW = prepared.queue_named("q.fifo", 1, DelaySeconds="5")
Q, FIFO = prepared.queue_named("q", 1), prepared.queue_named("q.fifo", 1)
SPANS = 6
BODIES = [str(number) for number in range(10)]


@virtual
@pytest.mark.parametrize("table", [MESSAGE, DELAYED, GROUP], ids=["message", "delayed", "group"])
async def test_a_fifo_queue_too_long_to_be_read_by_a_turn_is_rebuilt(
    table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = SLOW if table == DELAYED else FIFO
    world = await World().start()
    await world.asked(prepared.send_batch(queue, BODIES, groups=[*BODIES[:5]] * 2))
    world = await world.restarted()
    world.store.damage(min(key for key in world.store.durable if key[8:9] == table))
    monkeypatch.setattr(quarantine, "ROWS_MAX", len(BODIES) - 1)

    await pass_time(6)
    await world.asked(prepared.receive(queue, 10))
    await pass_time(2)
    await world.asked(*[prepared.receive(queue, 10) for _ in range(2)])

    state = state_of(world.shard).queues.get(1)
    assert state is not None
    lost = {MESSAGE: 2, DELAYED: 1, GROUP: 0}[table]
    assert world.store.abandoned == 1
    assert (state.in_flight, state.quarantined.messages) == (len(BODIES) - lost, lost)
    assert [*check_queue(world.store, 1)] == []


def begin_span(world: World, span: int) -> None:
    """Let the queue of a closed store go on in this span."""
    for rows in (world.store.rows, world.store.durable):
        row = decode_row(QueueRow, queue_key(1), rows[queue_key(1)])
        next_sequence = max(row.next_sequence, span << SPAN_BITS)
        rows[queue_key(1)] = encode_row(msgspec.structs.replace(row, next_sequence=next_sequence))


@virtual
@pytest.mark.parametrize("queue", [Q, FIFO], ids=["standard", "fifo"])
async def test_spans_that_are_lost_together_are_quarantined_in_several_entries(
    queue: QueueDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "NAMED_MAX", len(BODIES))
    world = await World().start()
    for span in range(1, SPANS + 1):
        fifo = queue.settings.fifo
        bodies = [f"{span} {body}" for body in BODIES]
        await world.asked(prepared.send_batch(queue, bodies, groups=bodies if fifo else ()))
        await world.shard.stop()
        begin_span(world, span)
        world = await World(store=world.store, definitions=world.queues).start()
    await world.shard.stop()
    for key in [key for key in world.store.durable if key[8:9] == MESSAGE]:
        world.store.durable[key] = world.store.rows[key] = b"\x01rubbish"
    world.store.turn_bytes_max = 100
    sizes: list[int] = []
    append = world.store.append

    def noting(body: bytes, queue_ids: Sequence[int]) -> None:
        sizes.append(len(body))
        append(body, queue_ids)

    world.store.append = noting  # type: ignore[method-assign]

    world = await World(store=world.store, definitions=world.queues).start()
    (received,) = await world.asked(prepared.receive(queue, 10))
    await pass_time(1)

    state = state_of(world.shard).queues.get(1)
    assert state is not None
    assert received.bodies == []
    assert (state.quarantined.messages, state.stored) == (SPANS * len(BODIES), 0)
    assert len(sizes) >= SPANS // 2
