"""The plan as a whole: it stops where it must, and holds its budgets over any history."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.fleet.draft import BUDGET_LEAST
from cluster.fleet.plan import Plan, clean, harm_of, plan
from cluster.fleet.plan_table import Change, Fleet, Kind, PartState
from cluster.fleet.reasons import SENTENCES, Reason, Why, reason
from cluster.fleet.thresholds import CALM_MS, UNDO_MS
from cluster.tests.fleet.fleet_judge import Judge
from cluster.tests.fleet.fleets import SmallFleet, refusals, warnings


def hot(clusters: int = 12, queues: int = 4) -> SmallFleet:
    """A fleet with hot queues, which a plan splits."""
    fleet = SmallFleet(clusters)
    for number in range(queues):
        fleet.queue(f"q{number}", 3 * number)
        fleet.ask(f"q{number}", 0, 0.6)
    return fleet


# -- what stops a plan ---------------------------------------------------------------------------


def test_more_than_a_tenth_of_the_clusters_ill_at_once_stops_all() -> None:
    """More likely the planner is cut off than that two clusters failed at once."""
    fleet = hot()
    fleet.report(30)
    assert fleet.plan().changes
    fleet.silent = {"k", "l"}
    fleet.report(40)
    made = fleet.plan()
    assert not made.changes
    assert refusals(made) == {("plan", "fleet", Why.MANY_ILL)}
    fleet.silent = {"k"}
    fleet.report(40)
    assert fleet.plan().changes


def test_a_silent_cluster_is_left_alone_and_named_after_fifteen_minutes() -> None:
    """Unreachable is not dead: it heals itself. What has no quorum could not be drained."""
    fleet = hot()
    fleet.report(30)
    fleet.silent = {"a"}
    fleet.report(40)
    for seconds, is_named in ((0, False), (870, True)):
        fleet.report(seconds)
        made = fleet.plan()
        touched = {s for change in made.changes for s in (*change.leaves, *change.opens)}
        assert not touched & {0, 1, 2}
        assert (("a", Why.SILENT_LONG) in warnings(made)) == is_named
        fleet.apply(made)


def test_records_that_are_gone_stop_all() -> None:
    """A plan that is made from empty records would put everything in their place."""
    fleet = hot(queues=12)
    for number in range(12, 100):
        fleet.queue(f"q{number}", number % 36)
    fleet.report(30)
    before = fleet.records.parts
    for queue_id in [f"q{n}" for n in range(20, 100)]:
        del fleet.records.queues[queue_id]
        fleet.records.parts -= 1
    made = plan(fleet.records.fleet(), fleet.history, fleet.now_ms, before)
    assert refusals(made) == {("plan", "fleet", Why.RECORDS_LOST)}
    assert plan(fleet.records.fleet(), fleet.history, fleet.now_ms, before - 80).changes


def drains(fleet: Fleet, count: int, opens: tuple[int, ...] = ()) -> list[Change]:
    """Changes that drain this many queues."""
    return [
        Change(
            kind=Kind.MOVE,
            reason=reason(Why.UNEVEN, cluster="a", load=1.0, mean=0.5),
            account="account",
            queue=queue.queue_id,
            version=queue.version,
            drains=(0,),
            opens=opens,
        )
        for queue in list(fleet.queues.values())[:count]
    ]


def test_a_plan_that_takes_away_a_tenth_of_all_parts_is_refused() -> None:
    fleet = SmallFleet()
    for number in range(200):
        fleet.queue(f"q{number}", number % 12)
    records = fleet.records.fleet()
    assert harm_of(records, drains(records, 20, (1,))) is None
    harm = harm_of(records, drains(records, 21, (1,)))
    assert harm is not None
    assert harm.why is Why.TAKES_TOO_MUCH


def test_a_plan_that_leaves_a_queue_without_an_open_part_is_refused() -> None:
    fleet = SmallFleet()
    fleet.queue("q", 0)
    records = fleet.records.fleet()
    harm = harm_of(records, drains(records, 1))
    assert harm is not None
    assert harm.why is Why.TOO_FEW


def test_a_fleet_that_fills_up_asks_for_capacity() -> None:
    """Less is left than one cluster up to 80 %."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.55
    fleet.report(10)
    assert ("fleet", Why.CAPACITY) not in warnings(fleet.plan())
    for shard in range(12):
        fleet.other[shard] = 0.65
    fleet.report(10)
    assert ("fleet", Why.CAPACITY) in warnings(fleet.plan())


def test_the_growth_of_a_week_counts_as_wanted_capacity() -> None:
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.3
    fleet.report(10)
    fleet.now_ms += 7 * 86_400_000
    for shard in range(12):
        fleet.other[shard] = 0.55
    fleet.report(10)
    assert fleet.history.growth(fleet.now_ms) == pytest.approx(1.0)
    assert ("fleet", Why.CAPACITY) in warnings(fleet.plan())


# -- budgets -------------------------------------------------------------------------------------


def test_one_percent_of_the_parts_changes_in_ten_minutes() -> None:
    fleet = hot(clusters=24, queues=24)
    for number in range(24, 400):
        fleet.queue(f"q{number}", number % 72)
    fleet.report(30)
    made = fleet.plan()
    assert sum(change.parts for change in made.changes) == BUDGET_LEAST
    assert Why.BUDGET in {each.reason.why for each in made.refusals}
    fleet.apply(made)
    fleet.report(CALM_MS // 1000 - 10)
    assert not fleet.plan().changes
    fleet.report(10)
    assert fleet.plan().changes


def test_a_late_report_and_one_that_comes_twice_change_nothing() -> None:
    fleet = hot()
    fleet.report(20)
    reports = fleet.reports()
    for _ in range(5):
        fleet.history.observe(fleet.records.clusters, reports, fleet.now_ms)
    assert not fleet.plan().changes


# -- records of changes --------------------------------------------------------------------------


def test_a_change_that_is_under_way_keeps_its_record() -> None:
    """A clean-up that only looks at ages removes what is still referred to."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7)
    fleet.report(60)
    fleet.apply(fleet.plan())
    late_ms = fleet.now_ms + 10 * UNDO_MS
    assert len(clean(fleet.records.fleet(), late_ms).kept) == 1
    fleet.records.finish("q.fifo", 0)
    assert len(clean(fleet.records.fleet(), fleet.now_ms + UNDO_MS - 1).kept) == 1
    assert len(clean(fleet.records.fleet(), late_ms).gone) == 1


def test_every_reason_has_a_sentence() -> None:
    assert SENTENCES.keys() == set(Why)


def test_a_reason_of_another_release_is_said_plainly() -> None:
    """Hosts of two releases ask each other while a fleet is updated."""
    fewer = Reason(Why.BUSY_LATELY, {"asked": 2.4})
    assert str(fewer) == "busy-lately (asked 2.4)"
    assert str(Reason(Why.HOT_QUEUE, {"asked": "much"})) == "hot-queue (asked much)"
    later = msgspec.json.decode(b'{"why":"of-tomorrow","figures":{"days":3}}', type=Reason)
    assert later.why is Why.UNKNOWN
    assert "does not know" in str(later)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"why":7}', type=Reason)


# -- any history ---------------------------------------------------------------------------------


def history_of(seed: int, reports: int) -> None:
    """Random loads, failures, drains and plans; the judge looks at each of them."""
    chance = random.Random(seed)
    fleet = SmallFleet(clusters=chance.choice((2, 5, 11)), zones=chance.choice((1, 3)))
    shards = 3 * len(fleet.records.clusters)
    for number in range(chance.randint(1, 60)):
        fleet.queue(
            f"q{number}",
            *chance.sample(range(shards), chance.choice((1, 1, 1, 2, 4))),
            is_fifo=chance.random() < 0.4,
            can_split=chance.random() < 0.9,
        )
    judge = Judge(fleet.records)
    for _ in range(reports):
        disturb(fleet, chance)
        fleet.report(chance.choice((20, 60, 120)))
        made = fleet.plan()
        judge.judge(made, fleet.now_ms)
        fleet.apply(made)
        again = fleet.plan()
        assert not [
            c for c in again.changes if c.queue in {d.queue for d in made.changes if d.queue}
        ]
        for part in fleet.records.draining():
            if chance.random() < 0.3:
                fleet.records.emptied.add(part)
            elif chance.random() < 0.4:
                fleet.records.finish(*part)
        fleet.records.clean(fleet.now_ms)
    assert not judge.findings


def disturb(fleet: SmallFleet, chance: random.Random) -> None:
    """Change loads, silence clusters, begin to empty one."""
    for queue in chance.sample(sorted(fleet.records.queues.values()), k=1):
        for part in queue.open_parts:
            asked = chance.choice((0.0, 0.1, 0.45, 0.7, 0.95))
            group = chance.choice((0.1, 0.7))
            fleet.ask(queue.queue_id, part.number, asked, group, chance.choice((0, 0, 5)))
    shard = chance.choice(sorted(fleet.records.fleet().cluster_of))
    fleet.other[shard] = chance.choice((0.1, 0.5, 0.8))
    slow: dict[str, float | int | bool] = {"latency": 3.0}
    led: dict[str, float | int | bool] = {"led_since_ms": fleet.now_ms}
    fleet.shards[shard] = chance.choice(({}, slow, led))
    names = sorted(fleet.records.clusters)
    fleet.silent = {chance.choice(names)} if chance.random() < 0.1 else set()
    if chance.random() < 0.02:
        name = chance.choice(names)
        cluster = fleet.records.clusters[name]
        fleet.records.clusters[name] = cluster._replace(is_draining=not cluster.is_draining)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(min_value=0))
def test_budgets_hold_and_nothing_is_undone_within_an_hour(seed: int) -> None:
    history_of(seed, reports=40)


@settings(max_examples=20)
@given(st.integers(min_value=0))
def test_a_plan_is_a_function_of_its_inputs(seed: int) -> None:
    """The same records, loads and clock give the same bytes."""
    chance = random.Random(seed)
    fleet = hot(queues=chance.randint(1, 12))
    disturb(fleet, chance)
    fleet.report(600)
    first, second = fleet.plan(), fleet.plan()
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert msgspec.json.decode(msgspec.json.encode(first), type=Plan) == first


def test_the_loads_are_not_changed_by_a_plan() -> None:
    fleet = hot()
    fleet.report(30)
    before = dict(fleet.history.utilisation), dict(fleet.history.shards)
    fleet.plan()
    assert before == (fleet.history.utilisation, fleet.history.shards)


def test_parts_that_drain_are_not_open() -> None:
    fleet = SmallFleet()
    queue = fleet.queue("q", 0, 1)
    closed = queue.parts[0]._replace(state=PartState.DRAINING)
    queue = queue._replace(parts=(closed, queue.parts[1]))
    assert queue.open_parts == (queue.parts[1],)
    assert Counter(part.state for part in queue.parts)[PartState.DRAINING] == 1
