"""The planner: one at a time by its key, shadow mode, conditions of its changes, what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    Outcome,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.fleet.load_records import LOADS, RECORD_MAX, LoadBoard, encode_load, reported_parts
from cluster.fleet.loads import HostLoad, PartLoad, ShardLoad
from cluster.fleet.plan_records import Mode
from cluster.fleet.plan_table import Change, Fleet
from cluster.fleet.planner import NotNow, Planner, ShownPlan, Sources
from cluster.fleet.planner_key import LONE_LOOKS, YIELDED_LOOKS, PlannerHolder, PlannerKey
from cluster.fleet.thresholds import DEAF_WINDOWS
from cluster.members.host_lease import HostLease
from cluster.tests.coordinations import Hosts, simulated_hosts
from cluster.tests.fleet.fleets import SmallFleet


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    made = simulated_hosts()
    yield made
    await made.close()


class Process:
    """A host with a planner, on the records of a small fleet."""

    def __init__(self, hosts: Hosts, name: str, fleet: SmallFleet) -> None:
        self.coordination = hosts.host()
        self.lease = HostLease(self.coordination)
        self.key = PlannerKey(self.coordination, self.lease, PlannerHolder(name, f"id-{name}"))
        self.fleet = fleet
        self.sources = Sources(self.read_fleet, self.read_loads, self.apply)
        self.planner = Planner(self.key, self.sources, lambda: fleet.now_ms)
        self.away = False
        self.applied: list[Change] = []

    async def read_fleet(self) -> Fleet | Unavailable:
        return Unavailable("away") if self.away else self.fleet.records.fleet()

    async def read_loads(self) -> list[HostLoad] | Unavailable:
        return self.fleet.reports()

    async def apply(self, change: Change, conditions: Mapping[str, int]) -> Outcome:
        """As a transaction on the queue's record would be."""
        outcome = await self.coordination.commit(
            Transaction(conditions, {f"changes/{change.queue}": b"made"})
        )
        if isinstance(outcome, Done):
            assert self.fleet.records.apply(change, self.fleet.now_ms)
            self.applied.append(change)
        return outcome

    async def ticks(self, count: int) -> None:
        for _ in range(count):
            self.fleet.report(10)
            await self.planner.tick()


def hot_fleet() -> SmallFleet:
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.6)
    return fleet


async def test_shadow_mode_says_what_it_would_do_and_does_nothing(hosts: Hosts) -> None:
    """It is the default: a balancer is trusted once its decisions were read for a while."""
    process = Process(hosts, "a", hot_fleet())
    with capture_logs() as lines:
        await process.ticks(5)
    assert not process.applied
    (line,) = [each for each in lines if each["event"] == "change_planned"]
    assert (line["mode"], line["kind"], line["queue"]) == ("shadow", "split", "q")
    assert line["figures"] == {"asked": 0.5}
    assert process.planner.decided == {("split", "hot-queue", "shadow"): 1}
    shown = process.planner.shown
    assert shown.holder == "a"
    assert shown.plan is not None
    assert [change.queue for change in shown.plan.changes] == ["q"]
    assert msgspec.json.decode(msgspec.json.encode(shown), type=ShownPlan) == shown


async def test_a_planner_that_is_on_makes_its_changes(hosts: Hosts) -> None:
    process = Process(hosts, "a", hot_fleet())
    process.planner.mode = Mode.ON
    with capture_logs() as lines:
        await process.ticks(5)
    assert [change.queue for change in process.applied] == ["q"]
    assert process.planner.decided == {("split", "hot-queue", "done"): 1}
    assert "change_made" in {each["event"] for each in lines}


async def test_a_change_that_its_queue_does_not_allow_holds_up_no_other_one(hosts: Hosts) -> None:
    fleet = hot_fleet()
    fleet.queue("hotter", 3)
    fleet.ask("hotter", 0, 0.7)
    process = Process(hosts, "a", fleet)
    apply = process.apply

    async def refused(change: Change, conditions: Mapping[str, int]) -> Outcome | NotNow:
        return NotNow("busy") if change.queue == "hotter" else await apply(change, conditions)

    process.planner = Planner(
        process.key, process.sources._replace(apply=refused), lambda: fleet.now_ms
    )
    process.planner.mode = Mode.ON
    with capture_logs() as lines:
        await process.ticks(5)
    assert [change.queue for change in process.applied] == ["q"]
    (line,) = [each for each in lines if each["event"] == "change_not_available"]
    assert (line["queue"], line["means"]) == ("hotter", "busy")


async def test_a_paused_planner_goes_on_saying_what_it_would_do(hosts: Hosts) -> None:
    process = Process(hosts, "a", hot_fleet())
    process.planner.mode = Mode.PAUSED
    await process.ticks(5)
    assert not process.applied
    assert process.planner.decided == {("split", "hot-queue", "paused"): 1}


async def test_one_of_two_planners_has_the_key(hosts: Hosts) -> None:
    fleet = hot_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    assert await one.key.hold()
    assert not await other.key.hold()
    assert other.key.holder == PlannerHolder("a", "id-a")
    await other.ticks(5)
    assert other.planner.shown.plan is None
    assert other.planner.shown.holder == "a"


async def test_the_next_one_takes_the_key_when_its_holder_stops(hosts: Hosts) -> None:
    fleet = hot_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    assert await one.key.hold()
    await one.lease.release()
    assert await other.key.hold()
    assert not await one.key.hold()


async def test_a_planner_that_was_stopped_changes_nothing_with_an_old_plan(hosts: Hosts) -> None:
    """Its key is another record by now, even if it took it again."""
    fleet = hot_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    await one.ticks(4)
    made = one.planner.shown.plan
    assert made is not None
    old = one.key.conditions
    await one.lease.release()
    assert await other.key.hold()
    assert isinstance(await one.apply(made.changes[0], old), Conflict)
    await other.lease.release()
    one.lease = HostLease(one.coordination)
    one.key = PlannerKey(one.coordination, one.lease, PlannerHolder("a", "id-a"))
    assert await one.key.hold()
    assert isinstance(await one.apply(made.changes[0], old), Conflict)
    assert isinstance(await one.apply(made.changes[0], one.key.conditions), Done)


def quiet_fleet() -> SmallFleet:
    """Half of its hosts and one more are silent."""
    fleet = hot_fleet()
    fleet.silent = {"a", "b", "c"}
    return fleet


async def test_a_planner_that_hears_few_hosts_lets_another_one_plan(hosts: Hosts) -> None:
    """Its own clock may be wrong, and nobody would plan as long as it has the key."""
    fleet = quiet_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    with capture_logs() as lines:
        await one.ticks(DEAF_WINDOWS - 1)
        assert one.planner.gave_up == 0
        await one.ticks(1)
    assert not one.key.is_held
    assert [each["windows"] for each in lines if each["event"] == "manager_gave_up"] == [6]
    assert one.planner.gave_up == 1
    assert one.planner.shown.plan is None
    fleet.silent = set()  # the other one hears all
    assert not await one.key.hold()  # others go first
    await other.ticks(5)
    assert other.planner.shown.plan is not None
    assert not await one.key.hold()


async def test_windows_of_another_time_do_not_make_a_planner_give_up(hosts: Hosts) -> None:
    """Two planners that took turns would each give up after one bad window, and let the other go
    first: nobody would plan for a minute each time."""
    fleet = quiet_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    await one.ticks(DEAF_WINDOWS - 1)
    await one.lease.release()
    assert await other.key.hold()
    await one.ticks(1)
    await other.lease.release()
    one.lease = HostLease(one.coordination)
    one.key._lease = one.lease

    await one.ticks(DEAF_WINDOWS - 1)
    assert one.planner.gave_up == 0
    await one.ticks(1)
    assert one.planner.gave_up == 1


async def test_a_planner_that_hears_half_of_the_hosts_goes_on(hosts: Hosts) -> None:
    fleet = hot_fleet()
    fleet.silent = {"a", "b"}
    process = Process(hosts, "a", fleet)
    await process.ticks(DEAF_WINDOWS - 1)
    fleet.silent = {"a", "b", "c"}
    await process.ticks(DEAF_WINDOWS - 1)
    fleet.silent = {"a", "b"}
    await process.ticks(DEAF_WINDOWS)
    assert process.key.is_held
    assert process.planner.gave_up == 0


async def test_a_planner_that_cannot_read_the_records_gives_the_key_up(hosts: Hosts) -> None:
    process = Process(hosts, "a", hot_fleet())
    process.away = True
    await process.ticks(DEAF_WINDOWS)
    assert not process.key.is_held


async def test_who_gave_the_key_up_takes_it_again_if_nobody_else_is_left(hosts: Hosts) -> None:
    process = Process(hosts, "a", quiet_fleet())
    await process.ticks(DEAF_WINDOWS)
    held = [await process.key.hold() for _ in range(LONE_LOOKS + 1)]
    assert held == [False] * (LONE_LOOKS - 1) + [True] * 2


async def test_who_gave_the_key_up_takes_it_like_others_after_a_while(hosts: Hosts) -> None:
    fleet = quiet_fleet()
    one, other = Process(hosts, "a", fleet), Process(hosts, "b", fleet)
    await one.ticks(DEAF_WINDOWS)
    assert await other.key.hold()
    for _ in range(YIELDED_LOOKS - 1):
        assert not await one.key.hold()
    await other.lease.release()
    assert await one.key.hold()


async def test_a_key_whose_end_was_not_written_is_held_on(hosts: Hosts) -> None:
    process = Process(hosts, "a", quiet_fleet())
    await process.ticks(1)

    class Away:
        async def commit(self, transaction: Transaction) -> Outcome:
            return Unavailable("away")

    away: Any = Away()
    process.key._coordination = away
    await process.key.give_up()
    process.key._coordination = process.coordination
    assert not process.key.is_held
    assert await process.key.hold()


class Unsure:
    """Commits, and does not hear what came of it."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self.read = coordination.read

    async def commit(self, transaction: Transaction) -> Outcome:
        await self._coordination.commit(transaction)
        return Unknown("no answer")


async def test_a_key_that_was_taken_with_an_unknown_outcome_is_held(hosts: Hosts) -> None:
    """Else its own lease would keep the key from it, and from all others, for ever."""
    coordination = hosts.host()
    unsure: Any = Unsure(coordination)
    key = PlannerKey(unsure, HostLease(coordination), PlannerHolder("a", "id-a"))
    assert not await key.hold()
    assert await key.hold()
    found = await coordination.commit(Transaction(key.conditions, {"changes/q": b"made"}))
    assert isinstance(found, Done)


async def test_records_that_cannot_be_read_are_no_plan(hosts: Hosts) -> None:
    process = Process(hosts, "a", hot_fleet())
    process.planner.mode = Mode.ON
    process.away = True
    await process.ticks(5)
    assert not process.applied
    assert process.planner.shown.plan is None


async def test_a_refusal_is_one_line_while_it_stays_the_same(hosts: Hosts) -> None:
    """A plan each ten seconds would else say it 360 times an hour."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7, top_group=0.9)
    process = Process(hosts, "a", fleet)
    with capture_logs() as lines:
        await process.ticks(20)
    events = [each["event"] for each in lines]
    assert events.count("change_refused") == 1
    assert events.count("manager_warns") == 1
    assert process.planner.refused == {("split", "one-group"): 1}


async def test_a_refusal_for_days_is_one_line_a_day(hosts: Hosts) -> None:
    """Each idle queue with several parts has one."""
    fleet = SmallFleet()
    fleet.queue("q", 0, 3)
    process = Process(hosts, "a", fleet)
    with capture_logs() as lines:
        for hours in (0, 2, 23):
            fleet.now_ms += hours * 3_600_000
            await process.ticks(2)
            assert process.planner.shown.plan is not None
            assert process.planner.shown.plan.refusals  # it is always in the plan
    refused = [each["why"] for each in lines if each["event"] == "change_refused"]
    assert refused == ["peaks-unknown"] * 2


# -- loads ---------------------------------------------------------------------------------------


def load(parts: int = 1) -> HostLoad:
    of_shard = tuple(PartLoad(f"queue-{n}", 0, n / 1000) for n in range(parts))
    return HostLoad(
        host="a", cluster="c", at_ms=1, loop=0.5, shards=(ShardLoad(0, 0.5, parts=of_shard),)
    )


async def test_reports_are_read_as_they_were_written(hosts: Hosts) -> None:
    coordination = hosts.host()
    board = LoadBoard(coordination, HostLease(coordination))
    assert await board.publish(load())
    assert await board.read() == [load()]


async def test_the_report_of_a_host_goes_with_its_lease(hosts: Hosts) -> None:
    coordination, other = hosts.host(), hosts.host()
    lease = HostLease(coordination)
    assert await LoadBoard(coordination, lease).publish(load())
    await lease.release()
    assert await LoadBoard(other, HostLease(other)).read() == []
    assert not await LoadBoard(coordination, lease).publish(load())


async def test_a_record_that_cannot_be_read_makes_its_host_silent_only(hosts: Hosts) -> None:
    coordination = hosts.host()
    board = LoadBoard(coordination, HostLease(coordination))
    await board.publish(load())
    await coordination.commit(Transaction({}, {LOADS + "z": b"{"}))
    assert await board.read() == [load()]


def test_a_report_is_bounded_and_keeps_its_busiest_parts() -> None:
    value = encode_load(load(parts=5000))
    assert len(value) <= RECORD_MAX
    kept = msgspec.json.decode(value, type=HostLoad).shards[0].parts
    assert len(kept) > 100
    assert kept[0].queue == "queue-4999"


def test_a_shard_reports_its_busiest_parts_and_all_of_split_queues() -> None:
    parts = load(parts=100).shards[0].parts
    reported = {part.queue for part in reported_parts(parts, frozenset({"queue-3"}))}
    assert reported == {"queue-3", *(f"queue-{n}" for n in range(92, 100))}
