"""The manager of a host: its report, one plan in the fleet, and steps that are made whole or not at
all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.coordination.coordination import Done, Outcome, Transaction, Unavailable, Unknown
from cluster.fleet.loads import PartLoad
from cluster.fleet.peaks import KnownPeaks
from cluster.fleet.plan_records import MANAGER, MODE, PEAKS, Mode, PlanRecords, Seen
from cluster.fleet.plan_table import Change, Kind
from cluster.fleet.planner import NotNow
from cluster.fleet.reasons import Why, reason
from cluster.fleet.steps import StepRefused, not_available
from cluster.tests.catalog_file import owner
from cluster.tests.fleet.fleets import START_MS
from cluster.tests.fleet.planned_fleet import CLUSTERS, Process, World, only_change
from visibility.contract.errors import UnsupportedOperation
from visibility.contract.model import QueueDefinition


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World().begin()
    yield made
    await made.hosts.close()


async def test_a_fleet_of_one_cluster_writes_and_reads_nothing(world: World) -> None:
    await world.hot_queue()
    world.clusters = CLUSTERS[:1]
    await world.ticks(5)
    found = await world.a.root.below(MANAGER).read_all()
    assert not isinstance(found, Unavailable)
    assert found.records == []
    assert world.a.manager.shown.plan is None


async def test_in_shadow_mode_one_host_plans_and_changes_nothing(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    assert (world.a.manager.has_key, world.b.manager.has_key) == (True, False)
    change = await only_change(world.a)
    assert (change.kind, change.queue) == (Kind.SPLIT, str(queue.queue_id))
    assert set(change.opens) & {1, 2, 3, 4, 5}
    assert (await world.now(queue)).parts == ()
    (noted,) = [each for each in world.a.manager.shown.history if each.of == str(queue.queue_id)]
    assert (noted.what, noted.wanted, noted.reason.why) == ("shadow", "split", Why.HOT_QUEUE)
    assert world.b.manager.shown.holder == "a"


async def test_the_history_is_bounded(world: World) -> None:
    await world.ticks(1)
    for number in range(700):
        world.a.manager.planner._note("shadow", a_change(number), number)
    history = world.a.manager.shown.history
    assert len(history) == 500
    assert history[-1].at_ms == 699


def a_change(number: int) -> Change:
    why = reason(Why.HOT_QUEUE, asked=0.5)
    return Change(kind=Kind.SPLIT, reason=why, account="1", queue=str(number), version=1)


async def test_an_operator_makes_one_change_of_the_plan_through_any_host(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    change = await only_change(world.a)
    seen = await world.b.manager.read()

    made = await world.b.manager.apply(change, "arn:aws:iam::1:user/ann", seen)

    after = await world.now(queue)
    assert tuple(part.shard for part in after.parts) == (queue.shard, *change.opens)
    assert made.added == tuple(part.number for part in after.parts[1:])
    seen = await world.a.manager.read()
    assert seen.made == (made,)
    assert made.by == "arn:aws:iam::1:user/ann"
    with pytest.raises(StepRefused, match="changed since this plan"):
        await world.a.manager.apply(change, "me", seen)


async def test_a_split_counts_for_the_plans_after_it(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    await world.now(queue)
    await world.ticks(1)
    plan = world.a.manager.shown.plan
    assert plan is not None
    assert plan.changes == ()
    assert [each.reason.why for each in plan.refusals] == [Why.CALM]


async def test_a_paused_manager_lets_nobody_make_a_change_of_its_plan(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    change, seen = await only_change(world.a), await world.a.manager.read()
    await world.b.manager.set_mode(Mode.PAUSED)

    with pytest.raises(StepRefused, match="changed meanwhile"):  # it was read before the pause
        await world.a.manager.apply(change, "me", seen)
    with pytest.raises(StepRefused, match="paused"):
        await world.a.manager.apply(change, "me", await world.a.manager.read())
    await world.ticks(2)
    assert world.a.manager.shown.mode is Mode.PAUSED
    assert (await world.now(queue)).parts == ()


@pytest.mark.parametrize("before", [Mode.SHADOW, Mode.ON])
async def test_the_end_of_a_pause_brings_back_the_mode_before_it(
    world: World, before: Mode
) -> None:
    async def mode_after(mode: Mode | None) -> Mode:
        await world.a.manager.set_mode(mode)
        return (await world.b.manager.read()).mode

    assert await mode_after(before) is before
    assert await mode_after(None) is before, "nothing was paused"
    assert await mode_after(Mode.PAUSED) is Mode.PAUSED
    assert await mode_after(Mode.PAUSED) is Mode.PAUSED, "by a second operator"
    assert (await world.a.manager.read()).unpaused is before
    assert await mode_after(None) is before


async def test_a_pause_by_an_older_host_does_not_bring_back_the_mode_of_another_one(
    world: World,
) -> None:
    """It does not note the mode before the pause, so the safe one comes back: shadow."""
    for mode in (Mode.ON, Mode.PAUSED):
        await world.a.manager.set_mode(mode)
    records = world.a.root.below(MANAGER)
    for value in (b'"shadow"', b'"paused"'):
        assert isinstance(await records.commit(Transaction({}, {MODE: value})), Done)

    await world.b.manager.set_mode(None)

    assert (await world.b.manager.read()).mode is Mode.SHADOW


async def test_of_two_changes_of_the_mode_at_once_one_is_refused(world: World) -> None:
    seen = await world.a.manager.read()
    await world.a.manager.set_mode(Mode.PAUSED)
    records = PlanRecords(world.a.root.below(MANAGER))
    assert not isinstance(await records.set_mode(Mode.ON, seen), Done)
    assert (await world.a.manager.read()).mode is Mode.PAUSED


async def test_a_manager_that_is_on_makes_its_changes_itself(world: World) -> None:
    queue = await world.hot_queue()
    await world.a.manager.set_mode(Mode.ON)
    await world.ticks(5)
    after = await world.now(queue)
    assert len(after.parts) > 1
    (made,) = (await world.b.manager.read()).made
    assert made.by == "manager"
    assert world.a.manager.planner.decided["split", "hot-queue", "done"] == 1


async def test_another_host_plans_when_the_one_that_did_is_gone(world: World) -> None:
    await world.hot_queue()
    await world.ticks(5)
    await world.a.lease.release()
    await world.ticks(4, world.b)
    assert world.b.manager.has_key
    assert world.b.manager.shown.holder == "b"


def ask_of_parts(world: World, queue: QueueDefinition, asked: float) -> None:
    """From now on so much is asked of each open part."""
    world.loads = {
        PartLoad(str(queue.queue_id), part.number, asked): part.shard
        for part in queue.parts
        if part.is_open
    }


def reasons_of(process: Process) -> list[Why]:
    plan = process.manager.shown.plan
    assert plan is not None
    return [each.reason.why for each in plan.refusals]


async def test_the_next_manager_knows_the_peaks_of_a_week(world: World) -> None:
    """It never saw the queue busy. In shadow mode it says why it would not shrink it."""
    queue = await world.hot_queue()
    await world.ticks(5)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    after = await world.now(queue)
    ask_of_parts(world, after, 0.45)
    await world.ticks(9)  # three windows, and written within a minute
    ask_of_parts(world, after, 0.02)
    kept = (await world.b.manager.read()).peaks
    assert kept is not None
    (asked,) = kept.by_queue[queue.arn].values()
    assert asked == pytest.approx(0.9)
    await world.a.lease.release()
    await world.ticks(4, world.b)
    assert reasons_of(world.b) == [Why.BUSY_LATELY]
    world.now_ms += 8 * 86_400_000
    await world.ticks(4, world.b)
    assert reasons_of(world.b) == [Why.PEAKS_UNKNOWN]


async def test_a_manager_without_the_key_writes_no_peaks(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    old = world.a.manager
    await world.a.lease.release()
    await world.ticks(8, world.b)
    kept = (await world.b.manager.read()).peaks
    await old._parts.records.keep_peaks(KnownPeaks(1, 2), old._parts.key.conditions)
    assert (await world.b.manager.read()).peaks == kept
    assert kept is not None
    assert (await world.now(queue)).arn not in kept.by_queue  # it is whole


async def test_a_manager_that_loses_the_key_amid_a_tick_writes_nothing(world: World) -> None:
    """Nobody has the key then, which is no reason to write without it."""
    queue = await world.hot_queue()
    await world.ticks(5)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    await world.now(queue)
    await world.ticks(1)
    before = await world.b.manager.read()
    assert len(before.made) == 1
    world.now_ms += 3_600_000  # its record, and the peaks, are due
    losing: Any = Losing(world.a.manager._parts.records, world.a)
    world.a.manager._parts = world.a.manager._parts._replace(records=losing)

    await world.ticks(1, world.a)

    after = await world.b.manager.read()
    assert after.holder is None
    assert (after.made, after.peaks) == (before.made, before.peaks)
    assert not world.a.manager.has_key


class Losing:
    """The records, to a host whose lease ends when it has read them."""

    def __init__(self, records: PlanRecords, process: Process) -> None:
        self._records, self._process = records, process
        self.forget, self.keep_peaks = records.forget, records.keep_peaks

    async def read(self) -> Seen | Unavailable:
        found = await self._records.read()
        await self._process.lease.release()
        return found


async def test_a_host_that_hears_nobody_lets_another_one_plan(world: World) -> None:
    """Its clock is ahead, so that all reports, and its own with them, are old."""
    await world.ticks(2)
    assert (world.a.manager.has_key, world.b.manager.has_key) == (True, False)
    read = world.a.manager._parts.records.read

    async def old() -> Seen | Unavailable:
        found = await read()
        return found if isinstance(found, Unavailable) else found._replace(loads=())

    reading: Any = world.a.manager._parts.records
    reading.read = old
    await world.ticks(6)
    assert world.a.manager.planner.gave_up == 1
    await world.ticks(6)
    assert (world.a.manager.has_key, world.b.manager.has_key) == (False, True)


async def test_peaks_that_cannot_be_read_are_named_and_known_anew(world: World) -> None:
    await world.hot_queue()
    await world.a.root.commit(Transaction({}, {MANAGER + PEAKS: b"{"}))
    await world.ticks(8)
    assert world.a.manager.unreadable_reads
    kept = (await world.a.manager.read()).peaks
    assert kept is not None
    assert kept.since_ms > START_MS


async def test_a_manager_whose_clock_was_ahead_writes_its_peaks_again(world: World) -> None:
    await world.hot_queue()
    year_ms = 365 * 86_400_000
    world.now_ms += year_ms
    await world.ticks(2)
    ahead = (await world.a.manager.read()).peaks
    assert ahead is not None
    assert ahead.since_ms > START_MS + year_ms
    world.now_ms -= year_ms
    await world.ticks(2)
    kept = (await world.a.manager.read()).peaks
    assert kept is not None
    assert START_MS < kept.since_ms < START_MS + year_ms


async def test_a_queue_with_another_id_keeps_its_peaks(world: World) -> None:
    """A FIFO queue has one after each split, and any queue whose home moved."""
    queue = await world.hot_queue("q.fifo")
    await world.ticks(7)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    after = await world.home_of(queue)
    assert after.queue_id != queue.queue_id
    ask_of_parts(world, after, 0.02)
    await world.ticks(7)
    kept = (await world.b.manager.read()).peaks
    assert kept is not None
    assert list(kept.by_queue[after.arn].values()) == [0.7]


class Killed:
    """The records, to a process that is killed as its transaction with the change is sent: that
    never arrives, or its answer does not."""

    def __init__(self, root: Any, *, arrives: bool) -> None:
        self._root, self._arrives = root, arrives

    async def commit(self, transaction: Transaction) -> Outcome:
        if self._arrives:
            await self._root.commit(transaction)
        raise KeyboardInterrupt


@pytest.mark.parametrize("arrives", [False, True])
async def test_a_manager_that_is_killed_while_it_applies_leaves_nothing_half_done(
    world: World, arrives: bool
) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    change = await only_change(world.a)
    killed: Any = Killed(world.a.root, arrives=arrives)
    world.a.steps._root = killed

    with pytest.raises(KeyboardInterrupt):
        await world.a.manager.apply(change, "me", await world.a.manager.read())

    after, seen = await world.now(queue), await world.b.manager.read()
    assert (len(after.parts) > 1) is arrives
    assert len(seen.made) == arrives
    if arrives:
        assert seen.made[0].added == tuple(part.number for part in after.parts[1:])
    else:
        await world.b.manager.apply(change, "me", seen)
        assert len((await world.now(queue)).parts) > 1


async def test_a_change_whose_outcome_is_unknown_is_looked_up(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)

    class Unsure:
        async def commit(self, transaction: Transaction) -> Outcome:
            await world.a.root.commit(transaction)
            return Unknown("no answer")

    unsure: Any = Unsure()
    world.b.steps._root = unsure
    made = await world.b.manager.apply(
        await only_change(world.a), "me", await world.b.manager.read()
    )
    assert (await world.now(queue)).parts
    assert (await world.a.manager.read()).made == (made,)


async def test_an_old_planner_changes_nothing(world: World) -> None:
    """It was stopped with a plan in hand, and another one took the key meanwhile."""
    queue = await world.hot_queue()
    await world.ticks(5)
    change, old = await only_change(world.a), world.a.manager._parts.key.conditions
    await world.a.lease.release()
    await world.ticks(1, world.b)
    with pytest.raises(StepRefused, match="changed meanwhile"):
        await world.a.steps.make(change, "manager", old)
    assert (await world.now(queue)).parts == ()


async def test_undo_is_a_new_change_that_never_opens_what_closed(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    split = await world.b.manager.apply(
        await only_change(world.a), "me", await world.b.manager.read()
    )

    undone = await world.b.manager.undo("", "me", await world.b.manager.read())
    assert undone.change.kind is Kind.SHRINK
    assert undone.change.drains == split.added
    after = await world.now(queue)
    assert [part.is_open for part in after.parts] == [True, *(False for _ in split.added)]

    again = await world.b.manager.undo(undone.change_id, "me", await world.b.manager.read())
    assert again.change.opens == split.change.opens
    after = await world.now(queue)
    assert len(after.parts) == 1 + 2 * len(split.added)
    assert not set(again.added) & set(split.added)
    with pytest.raises(StepRefused, match="drain, or are gone"):
        await world.b.manager.undo(split.change_id, "me", await world.b.manager.read())
    with pytest.raises(StepRefused, match=r"no change 9\.9"):
        await world.b.manager.undo("9.9", "me", await world.b.manager.read())


async def test_a_split_of_a_queue_with_much_in_flight_is_refused(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    world.b.router.in_flight = 119_000
    with pytest.raises(StepRefused, match="in flight"):
        await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    assert (await world.now(queue)).parts == ()


async def test_records_of_changes_go_after_an_hour(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    await world.now(queue)
    await world.ticks(1)
    assert len((await world.b.manager.read()).made) == 1
    world.now_ms += 3_600_000
    await world.ticks(1)
    assert (await world.b.manager.read()).made == ()


async def test_what_this_release_cannot_do_is_said(world: World) -> None:
    queue = await world.hot_queue()

    def missing(kind: Kind, why: Why, drains: tuple[int, ...], opens: tuple[int, ...]) -> str:
        change = Change(kind=kind, reason=reason(why), account="1", drains=drains, opens=opens)
        return not_available(world.a.catalog, change, queue)

    assert missing(Kind.MOVE, Why.UNEVEN, (0,), (3,)) == ""
    assert "no part 7" in missing(Kind.MOVE, Why.UNEVEN, (7,), (3,))
    assert "home" in missing(Kind.SHRINK, Why.IDLE_PARTS, (0,), ())
    queue = await world.hot_queue("q.fifo")
    assert missing(Kind.MOVE, Why.UNEVEN, (0,), (3,)) == ""
    assert missing(Kind.SPLIT, Why.HOT_QUEUE, (0,), (3, 4)) == ""
    queue = await world.a.catalog.create_queue(owner("whole.fifo"), {"FifoQueue": "true"}, {})
    assert "whole queue" in missing(Kind.SPLIT, Why.HOT_QUEUE, (0,), (3, 4))
    queue = await world.hot_queue()
    assert "more than" in missing(Kind.SPLIT, Why.HOT_QUEUE, (), tuple(range(100, 200)))


def a_move(queue: QueueDefinition, part: QueueDefinition, shard: int) -> Change:
    return Change(
        kind=Kind.MOVE,
        reason=reason(Why.CLUSTER_DRAINS, cluster="1"),
        account=queue.account,
        queue=str(queue.queue_id),
        version=queue.version,
        drains=(part.part_number,),
        leaves=(part.shard,),
        opens=(shard,),
        taken=(0.1,),
        given=(0.1,),
    )


async def test_a_move_of_a_whole_queue_is_one_transaction_and_is_undone_by_another(
    world: World,
) -> None:
    """The home moves, so the queue has another id afterwards; its changes stay its changes."""
    queue = await world.hot_queue()
    await world.ticks(1)
    seen = await world.b.manager.read()
    made = await world.b.manager.apply(a_move(queue, queue, 3), "me", seen)

    home, old = (await world.home_of(queue)).all_parts()
    assert (home.shard, home.part.is_open, home.is_home) == (3, True, True)
    assert (old.shard, old.part.is_open, old.queue_id) == (queue.shard, False, queue.queue_id)
    assert made.added == (home.part.number,)
    with pytest.raises(StepRefused, match="changed since this plan"):
        await world.b.manager.apply(a_move(queue, queue, 4), "me", seen)

    await world.ticks(1)
    plan = world.a.manager.shown.plan
    assert plan is not None
    table = world.a.manager._table
    assert table is not None
    assert [each.change.leaves for each in table.last_changes[str(home.queue_id)]] == [(0,)]

    undone = await world.b.manager.undo("", "me", await world.b.manager.read())
    assert (undone.change.kind, undone.change.opens) == (Kind.MOVE, (queue.shard,))
    parts = (await world.home_of(queue)).all_parts()
    assert [(each.shard, each.part.is_open) for each in parts] == [
        (0, True),
        (3, False),
        (0, False),
    ]
    assert len((await world.a.manager.read()).made) == 2


async def test_a_fifo_queue_moves_again_when_the_part_that_it_left_is_empty(world: World) -> None:
    queue = await world.hot_queue("q.fifo")
    await world.ticks(1)
    await world.b.manager.apply(a_move(queue, queue, 3), "me", await world.b.manager.read())
    moved = await world.home_of(queue)
    assert [(part.shard, part.is_open) for part in moved.parts] == [(3, True), (0, False)]

    again = a_move(moved, moved, 4)
    outcome = await world.a.manager._apply(again, {})
    assert isinstance(outcome, NotNow)
    assert "still given the messages of part 0" in outcome.means
    with pytest.raises(UnsupportedOperation):
        await world.b.manager.undo("", "me", await world.b.manager.read())
    world.b.router.messages = 0
    await world.b.manager.apply(again, "me", await world.b.manager.read())
    assert (await world.home_of(queue)).shard == 4


async def test_a_fifo_queue_is_split_by_the_manager_and_the_split_is_undone(world: World) -> None:
    """Both replace all parts; a part that is given messages keeps it from being undone at once."""
    queue = await world.hot_queue("q.fifo")
    await world.ticks(7)
    change = await only_change(world.a)
    assert (change.kind, change.drains, len(change.opens)) == (Kind.SPLIT, (0,), 2)
    await world.a.manager.set_mode(Mode.ON)
    await world.ticks(1)
    split = await world.home_of(queue)
    opened = [part for part in split.all_parts() if part.part.is_open]
    assert [part.shard for part in opened] == list(change.opens)
    assert split.queue_id == opened[0].queue_id != queue.queue_id
    (made,) = (await world.b.manager.read()).made
    assert (made.by, made.home) == ("manager", str(split.queue_id))

    await world.a.manager.set_mode(Mode.SHADOW)
    with pytest.raises(UnsupportedOperation, match="given the messages of part 0"):
        await world.b.manager.undo("", "me", await world.b.manager.read())
    world.b.router.messages = 0
    undone = await world.b.manager.undo("", "me", await world.b.manager.read())
    assert (undone.change.kind, undone.change.opens) == (Kind.SHRINK, (queue.shard,))
    after = await world.home_of(queue)
    assert [part.shard for part in after.all_parts() if part.part.is_open] == [queue.shard]
    again = await world.b.manager.undo("", "me", await world.b.manager.read())
    assert (again.change.kind, again.change.opens) == (Kind.SPLIT, change.opens)


async def test_a_fifo_queue_of_queue_wide_deduplication_is_not_split(world: World) -> None:
    queue = await world.a.catalog.create_queue(owner("whole.fifo"), {"FifoQueue": "true"}, {})
    await world.b.catalog.shown(world.a.catalog.revision)
    world.loads[PartLoad(str(queue.queue_id), 0, 0.7)] = queue.shard
    await world.ticks(7)
    plan = world.a.manager.shown.plan
    assert plan is not None
    assert plan.changes == ()
    assert [each.reason.why for each in plan.refusals] == [Why.QUEUE_SCOPE]


async def test_a_part_that_is_not_the_home_moves_alone(world: World) -> None:
    queue = await world.hot_queue()
    await world.ticks(5)
    await world.b.manager.apply(await only_change(world.a), "me", await world.b.manager.read())
    split = await world.now(queue)
    other = split.all_parts()[1]
    await world.b.steps.make(a_move(split, other, 5), "me", {})
    after = await world.now(queue)
    assert after.queue_id == queue.queue_id
    assert [part.shard for part in after.parts if part.is_open] == [
        queue.shard,
        *(part.shard for part in split.parts[2:]),
        5,
    ]


async def test_a_manager_that_is_on_moves_queues_off_a_cluster_that_is_emptied(
    world: World,
) -> None:
    queues = [await world.hot_queue(name) for name in ("q", "r")]
    world.loads.clear()
    world.clusters = [CLUSTERS[0]._replace(is_draining=True), CLUSTERS[1]]
    await world.a.manager.set_mode(Mode.ON)
    await world.ticks(5)
    for queue in queues:
        home = await world.home_of(queue)
        assert home.shard in CLUSTERS[1].shards
        assert [part.is_open for part in home.parts] == [True, False]
    assert world.a.manager.planner.decided["move", "cluster-drains", "done"] == 2


async def test_the_record_of_a_move_stays_while_one_before_it_does(world: World) -> None:
    """It says under which id the queue is found, also to records that are older."""
    queue = await world.hot_queue()
    await world.ticks(1)
    await world.b.steps.make(a_move(queue, queue, 3), "me", {})
    home = await world.home_of(queue)
    await world.b.steps.make(a_move(home, home, 1), "me", {})
    middle = home
    home = await world.home_of(queue)
    await world.b.catalog.remove_part(middle.queue_id, home.version)  # the first one still drains
    await world.home_of(queue)
    await world.ticks(1)
    world.now_ms += 3_700_000
    await world.ticks(2)
    made = (await world.b.manager.read()).made
    assert [each.change.queue for each in made] == [str(home.queue_id)] * 2


async def test_no_part_comes_to_a_cluster_that_is_emptied(world: World) -> None:
    queue = await world.hot_queue()
    world.b.catalog.draining_shards = lambda: {3, 4, 5}
    move = a_move(queue, queue, 4)
    assert "Shard 4 is of a cluster" in not_available(world.b.catalog, move, queue)
    with pytest.raises(StepRefused, match="being emptied"):
        await world.b.steps.make(move, "me", {})
    await world.b.steps.make(a_move(queue, queue, 2), "me", {})
