"""No Turn makes an Entry that is too large for the log, even if large messages are due at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.virtual_time import virtual
from cluster.tests.world import FragileStore, World, pass_time, settled, state_of
from storage.log.entry import ENTRY_BYTES_MAX
from storage.rows.stored_rows import CHANGED_BYTES_MAX
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import BrowsedPage, Deliveries, Progress
from visibility.contract.queue_parts import Part, PartState
from visibility.contract.results import (
    DeleteMessageBatchResult,
    SendMessageResult,
    StartMessageMoveTaskResult,
)
from visibility.contract.tags import ARCHIVE_ALL, ARCHIVE_TAG
from visibility.rows.row_keys import NOTED_PARTS, PART, table_range
from visibility.rows.row_values import THE_SHARD
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.selected import DeleteSelected
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

LARGE = "x" * ((1 << 20) - 10)
MANY = 20
DEAD = prepared.queue_named("dead", 1)
SPENT = prepared.queue_named("spent", 2, dead_letters_to=DEAD, VisibilityTimeout="0")
Q = prepared.queue_named("q", 3, VisibilityTimeout="5")
OTHER = prepared.queue_named("other", 4)
FIFO = prepared.queue_named("f.fifo", 5, DelaySeconds="60")
SELECTING = (MoveSelected, PlanMove, DeleteSelected, HoldMessages, ReleaseMessages)
SUCCESSOR = prepared.queue_named("q", 9)


class MeasuringStore(FragileStore):
    """Refuses an Entry that the log would refuse."""

    def __init__(self) -> None:
        super().__init__(auto_sync=True)
        self.largest = self.most_ids = 0

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        assert len(body) < ENTRY_BYTES_MAX, f"an Entry of {len(body)} bytes"
        self.largest = max(self.largest, len(body))
        self.most_ids = max(self.most_ids, len(queue_ids))
        super().append(body, queue_ids)


async def large(
    queue: QueueDefinition, *, delay_s: int | None = None, archive: ArchiveLimits | None = None
) -> World:
    """A shard with large messages in a queue, each in a separate group if it is FIFO."""
    world = await World(store=MeasuringStore(), archive=archive).start()
    for number in range(MANY):
        group = str(number) if queue.settings.fifo else None
        (sent,) = await world.asked(
            prepared.send(queue, f"{number:02}{LARGE}", delay_s=delay_s, group=group)
        )
        assert sent.refusal is SendMessageResult
    return world


def counted(world: World, queue: QueueDefinition) -> QueueCounters:
    return world.shard.counters()[queue.queue_id]


async def settled_long(world: World) -> None:
    for _ in range(MANY):
        await settled()
    assert world.shard.report().failures == 0


@virtual
async def test_large_sends_that_wait_together_are_all_acknowledged_in_order() -> None:
    world = await World(store=MeasuringStore()).start()

    asked = [world.ask(prepared.send(Q, LARGE)) for _ in range(MANY)]
    await settled_long(world)

    assert [one.refusal for one in asked] == [SendMessageResult] * MANY
    assert world.order == asked
    assert isinstance(world.store, MeasuringStore)
    assert world.store.largest > CHANGED_BYTES_MAX, "the test is about Turns that end early"


@pytest.mark.parametrize(("queue", "delay_s"), [(Q, 60), (FIFO, None)], ids=["standard", "FIFO"])
@virtual
async def test_large_messages_whose_delays_end_together(
    queue: QueueDefinition, delay_s: int | None
) -> None:
    world = await large(queue, delay_s=delay_s)

    await pass_time(61)
    await settled_long(world)

    assert counted(world, queue) == QueueCounters(MANY, 0, 0)


@pytest.mark.slow
@virtual
async def test_large_messages_that_go_to_the_back_together() -> None:
    world = await large(Q)

    for _ in range(3):
        for _ in range(3):
            await world.asked(prepared.receive(Q, 10))
        await pass_time(6)
    await settled_long(world)

    assert counted(world, Q) == QueueCounters(MANY, 0, 0)
    (received,) = await world.asked(prepared.receive(Q, 10))
    assert len(received.bodies) == 10


@pytest.mark.parametrize("polls", [False, True], ids=["receives", "woken polls"])
@virtual
async def test_large_dead_letters_of_several_receives(polls: bool) -> None:
    world = await large(SPENT)
    for _ in range(3):
        await world.asked(
            prepared.receive(SPENT, 10, dead_letter_queue=DEAD, timeout_s=5 if polls else 0)
        )

    wait_s = 20 if polls else None
    for _ in range(10):
        world.ask(prepared.receive(SPENT, dead_letter_queue=DEAD, wait_s=wait_s))
    await pass_time(6)
    await settled_long(world)

    assert counted(world, DEAD).visible == MANY


@virtual
async def test_large_messages_of_a_move_task() -> None:
    world = await large(Q)

    for _ in range(4):
        world.ask(prepared.send(OTHER, LARGE))
    (started,) = await world.asked(prepared.start_move_task(Q, OTHER))
    await pass_time(1)
    await settled_long(world)

    assert started.refusal is StartMessageMoveTaskResult
    assert counted(world, OTHER).visible == MANY + 4


@pytest.mark.slow
@virtual
async def test_large_delayed_messages_of_a_restored_queue() -> None:
    world = await large(Q, delay_s=60)
    await world.asked(prepared.send(Q, LARGE), prepared.purge(Q, SUCCESSOR))

    step = Progress(is_done=False)
    while not step.is_done:
        for _ in range(3):
            world.ask(prepared.send(OTHER, LARGE))
        (asked,) = await world.asked(prepared.restore(Q, SUCCESSOR, step.next_sequence))
        (step,) = asked.answers  # type: ignore[assignment]
        assert isinstance(step, Progress)
    await settled_long(world)

    assert counted(world, SUCCESSOR).visible == MANY + 1


@virtual
async def test_a_purge_that_waits_for_the_next_turn_purges_the_queue() -> None:
    queues = prepared.KnownQueues(Q)
    world = await World(store=MeasuringStore(), definitions=queues).start()
    for _ in range(5):
        world.ask(prepared.send(Q, LARGE))
    successor = queues.purge(Q)

    purged = world.ask(prepared.purge(Q, successor))
    (received,) = await world.asked(prepared.receive(successor))

    assert purged.answers == [None]
    assert received.bodies == []
    state = state_of(world.shard).queues.get(successor.queue_id)
    assert state is not None
    assert state.continues == Q.queue_id


@virtual
async def test_requests_are_decided_beside_large_messages_that_are_due() -> None:
    world = await large(Q, delay_s=60)
    await pass_time(59.9)

    sent = world.ask(prepared.send(OTHER, "a"))
    await pass_time(0.2)

    assert sent.refusal is SendMessageResult
    await settled_long(world)


# -- selected messages ----------------------------------------------------------------------------


def selected(sequences: list[int]) -> Request:
    """A move of these messages of DEAD to OTHER."""
    request = prepared.prepared(DEAD, MoveSelected(sequences=sequences))
    return msgspec.structs.replace(request, destination=OTHER)


@pytest.mark.parametrize("kind", SELECTING)
@virtual
async def test_more_selected_messages_than_a_task_may_name_are_refused(
    kind: type[Any],
) -> None:
    world = await World(store=MeasuringStore()).start()
    sequences = list(range(1, MOVE_SELECTED_MAX + 2))
    operation = kind(sequences=sequences)

    (refused,) = await world.asked(prepared.prepared(DEAD, operation))

    (answer,) = refused.answers
    assert isinstance(answer, InvalidParameterValue)
    assert answer.message == "A move task takes up to 1000 selected messages, not 1001."


@virtual
async def test_a_task_that_names_as_many_messages_as_it_may_makes_small_entries() -> None:
    store = MeasuringStore()
    world = await World(store=store).start()
    far = 1 << 62  # sequences that take the most bytes
    sequences = [*range(1, 11), *range(far, far + MOVE_SELECTED_MAX - 10)]
    world.queues.define(OTHER)
    await world.asked(prepared.send_batch(DEAD, ["x"] * 10))

    (started,) = await world.asked(selected(sequences * 2))
    await pass_time(1)
    await settled_long(world)

    assert started.refusal is StartMessageMoveTaskResult
    assert counted(world, OTHER) == QueueCounters(10, 0, 0)
    assert store.largest < CHANGED_BYTES_MAX // 100


# -- small segments -------------------------------------------------------------------------------


@virtual
async def test_turns_end_earlier_over_small_segments() -> None:
    store = MeasuringStore()
    store.turn_bytes_max = 10_000
    world = await World(store=store).start()

    asked = [world.ask(prepared.send(Q, "x" * 1_000)) for _ in range(100)]
    await settled_long(world)

    assert [one.refusal for one in asked] == [SendMessageResult] * 100
    assert 10_000 < store.largest < 13_000


# -- what a start commits --------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("turn_bytes_max", [10_000, CHANGED_BYTES_MAX])
async def test_a_start_notes_and_closes_many_parts_in_several_entries(turn_bytes_max: int) -> None:
    """As after an upgrade from a version that noted none."""
    known = KnownQueues()
    for number in range(3_000):
        here, there = Part(0, 2 * number + 1, 0, PartState.DRAINING), Part(16, 2 * number + 2, 1)
        whole = prepared.queue_named(f"q{number}", here.queue_id)
        split = msgspec.structs.replace(whole, version=2, parts=(there, here), last_part=16)
        known.define(split.of_part(here))
    store = MeasuringStore()
    store.turn_bytes_max = turn_bytes_max
    world = await World(store=store, definitions=known).start()
    await settled_long(world)

    assert world.shard.ready
    assert store.largest < turn_bytes_max
    assert store.most_ids <= 1_000
    assert len(state_of(world.shard).noted_parts) == 3_000
    assert len(list(store.scan(*table_range(THE_SHARD, NOTED_PARTS)))) == 3_000
    assert len(list(store.scan(*table_range(THE_SHARD, PART)))) == 3_000
    await world.shard.stop()


# -- an archive writes deleted messages again ------------------------------------------------------

KEPT = prepared.queue_named("kept", 6, tags={ARCHIVE_TAG: ARCHIVE_ALL}, VisibilityTimeout="60")
ARCHIVE = ArchiveLimits(1 << 40, retains=False)


@virtual
async def test_large_messages_deleted_in_one_batch_into_the_archive() -> None:
    """The rest of the batch fails, for the client to try again."""
    world = await large(KEPT, archive=ARCHIVE)
    (received,) = await world.asked(prepared.receive(KEPT, 10))
    (deliveries,) = received.answers
    assert isinstance(deliveries, Deliveries)
    receipts = [Receipt(lease.sequence, lease.receive_count) for lease in deliveries.leases]

    deleted, left = 0, receipts
    while left:
        (asked,) = await world.asked(prepared.delete_batch(KEPT, left))
        (result,) = asked.answers
        assert isinstance(result, DeleteMessageBatchResult)
        failed = [int(each.id) for each in result.failed or []]
        assert {each.code for each in result.failed or []} <= {"ServiceUnavailable"}
        assert len(failed) < len(left)
        deleted += len(left) - len(failed)
        left = [left[number] for number in failed]
    await settled_long(world)

    assert deleted == 10
    assert counted(world, KEPT).stored == MANY - 10


@virtual
async def test_large_selected_messages_deleted_into_the_archive() -> None:
    world = await large(KEPT, archive=ARCHIVE)
    everything = list(range(1, MANY + 1))
    steps = 0
    while counted(world, KEPT).stored:
        operation = DeleteSelected(sequences=everything)
        await world.asked(Request(operation, KEPT, prepared.CALLER, f"r{steps}"))
        steps += 1
        assert steps <= MANY
    await settled_long(world)


@virtual
async def test_large_held_messages_deleted_into_the_archive() -> None:
    world = await large(KEPT, archive=ARCHIVE)
    everything = list(range(1, MANY + 1))
    operation = HoldMessages(sequences=everything, delete_after_ms=60_000)
    await world.asked(Request(operation, KEPT, prepared.CALLER, "r"))

    await pass_time(61)
    await settled_long(world)

    assert counted(world, KEPT).stored == 0


@virtual
async def test_a_page_of_large_held_messages_is_small() -> None:
    world = await large(KEPT)
    operation = HoldMessages(sequences=list(range(1, MANY + 1)))
    await world.asked(Request(operation, KEPT, prepared.CALLER, "r"))

    found: list[int] = []
    after: tuple[int, int] | None = None
    while True:
        browse = BrowseMessages(after=after, limit=100, held=True)
        (asked,) = await world.asked(Request(browse, KEPT, prepared.CALLER, "r"))
        (page,) = asked.answers
        assert isinstance(page, BrowsedPage)
        assert len(page.messages) <= 5
        found += [each.sequence for each in page.messages]
        after = page.next_token
        if after is None:
            break
    assert found == list(range(1, MANY + 1))
