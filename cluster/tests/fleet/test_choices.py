"""Hands, two choices, thresholds with distance, loads counted from what was assigned."""

from __future__ import annotations

from collections import Counter

from cluster.fleet.choices import HAND, choose_shard, hand
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import HostLoad, utilisation
from cluster.fleet.plan_table import Cluster, Kind
from cluster.fleet.reasons import Why
from cluster.fleet.thresholds import full_clusters
from cluster.tests.fleet.fleets import START_MS, SmallFleet, of_kind


def clusters(count: int, zones: int = 1) -> list[Cluster]:
    """Clusters of three shards."""
    return [
        Cluster(f"c{n}", tuple(range(3 * n, 3 * n + 3)), 3, f"zone-{n % zones}")
        for n in range(count)
    ]


def watched(loads: dict[str, float], of: list[Cluster]) -> LoadHistory:
    """A history of one report of each cluster with these loads."""
    history = LoadHistory()
    history.observe(
        {cluster.name: cluster for cluster in of},
        [
            HostLoad(host=f"{name}/{n}", cluster=name, at_ms=START_MS, loop=load)
            for name, load in loads.items()
            for n in range(3)
        ],
        START_MS,
    )
    return history


def host(**figures: float | int) -> HostLoad:
    return HostLoad(host="h", cluster="c", at_ms=0, **{"loop": 0.0, **figures})  # type: ignore[arg-type]


# -- loads ---------------------------------------------------------------------------------------


def test_the_load_of_a_cluster_is_the_greatest_of_its_figures() -> None:
    """A cluster with idle loops and a full disk is full."""
    full = host(loop=0.2, disk_used=95 << 30, disk_size=100 << 30)
    assert utilisation([full, host(loop=0.2)]).load == 0.95
    assert utilisation([host(sync=0.6, loop=0.3)]).load == 0.6
    assert utilisation([host(connections=900, connections_max=1000)]).load == 0.9


def test_figures_below_their_floor_count_nothing() -> None:
    """Three connections are not thrice the load of one, nor is a nearly empty small disk full."""
    assert utilisation([host(connections=3, connections_max=4)]).load == 0.0
    assert utilisation([host(disk_used=1 << 29, disk_size=1 << 30)]).load == 0.0
    assert utilisation([host(loop=0.04, sync=0.04)]).load == 0.0


def test_a_cluster_is_full_from_eighty_percent_until_below_seventy() -> None:
    """One threshold would open and close it with each report."""
    full: frozenset[str] = frozenset()
    for load, is_full in ((0.79, False), (0.8, True), (0.71, True), (0.69, False), (0.75, False)):
        full = full_clusters(full, {"c": load})
        assert ("c" in full) == is_full, load


# -- hands ---------------------------------------------------------------------------------------


def test_a_hand_has_four_clusters_over_all_zones() -> None:
    dealt = hand("account", clusters(12, zones=3))
    assert len(dealt) == HAND
    assert {int(name[1:]) % 3 for name in dealt} == {0, 1, 2}


def test_hands_of_accounts_differ() -> None:
    """One account's poison takes a share of the fleet, not all of it."""
    dealt = [frozenset(hand(f"account-{n}", clusters(10))) for n in range(300)]
    assert len(set(dealt)) > 100
    in_hands = Counter(name for each in dealt for name in each)
    assert max(in_hands.values()) < 2 * min(in_hands.values())


def test_a_larger_hand_begins_with_the_smaller_one() -> None:
    of = clusters(10, zones=3)
    assert hand("account", of, 5)[:4] == hand("account", of, 4)


def test_a_new_cluster_changes_few_hands() -> None:
    before, after = clusters(20), clusters(21)
    changed = sum(hand(f"a{n}", before) != hand(f"a{n}", after) for n in range(1000))
    assert changed < 300


def test_an_emptied_cluster_is_in_no_hand() -> None:
    of = [each._replace(is_draining=each.name == "c1") for each in clusters(4)]
    assert "c1" not in hand("account", of)


# -- new queues ----------------------------------------------------------------------------------


class Reported:
    """KnownLoads as the hosts reported them."""

    def __init__(self, history: LoadHistory) -> None:
        self._history = history

    def load(self, cluster: str) -> float:
        return self._history.utilisation[cluster].load

    def shard(self, shard: int) -> float:
        load = self._history.shards.get(shard)
        return load.asked if load is not None else 0.0

    def has_room(self, cluster: str, asked: float) -> bool:
        return cluster not in self._history.full and self.load(cluster) + asked < 1.0


def test_a_thousand_creates_on_old_loads_do_not_all_go_to_the_emptiest_cluster() -> None:
    """All decide on the same reports: two choices send a part of them elsewhere."""
    of = clusters(4)
    by_name = {cluster.name: cluster for cluster in of}
    loads = Reported(watched({"c0": 0.1, "c1": 0.3, "c2": 0.3, "c3": 0.3}, of))
    chosen = Counter(
        found // 3
        for n in range(1000)
        if (found := choose_shard(f"q{n}", "account", by_name, loads, lambda _: True)) is not None
    )
    assert chosen[0] < 650
    assert len(chosen) >= 3


def test_a_create_waits_for_nobody_and_skips_what_it_may_not_use() -> None:
    of = clusters(4)
    by_name = {cluster.name: cluster for cluster in of}
    loads = Reported(watched({cluster.name: 0.1 for cluster in of}, of))
    for number in range(50):
        found = choose_shard(f"q{number}", "account", by_name, loads, lambda name: name == "c2")
        assert found is not None
        assert found in by_name["c2"].shards
    assert choose_shard("q", "account", by_name, loads, lambda _: False) is None


def test_a_full_hand_takes_the_next_cluster() -> None:
    of = clusters(6)
    by_name = {cluster.name: cluster for cluster in of}
    dealt = hand("account", of, 6)
    loads = Reported(watched(dict.fromkeys(dealt[:4], 0.9) | {dealt[4]: 0.1}, of))
    found = choose_shard("q", "account", by_name, loads, lambda _: True)
    assert found is not None
    assert found in by_name[dealt[4]].shards


def test_a_create_is_not_refused_for_load() -> None:
    of = clusters(4)
    by_name = {cluster.name: cluster for cluster in of}
    loads = Reported(watched({cluster.name: 0.95 for cluster in of}, of))
    assert choose_shard("q", "account", by_name, loads, lambda _: True) is not None


# -- changes -------------------------------------------------------------------------------------


def test_a_plan_counts_what_it_gave_away_before_it_is_reported() -> None:
    """Reports are late: each plan until the next one would choose the same empty cluster."""
    fleet = SmallFleet(clusters=3)
    for number in range(6):
        fleet.queue(f"q{number}", number)
        fleet.ask(f"q{number}", 0, 0.7)
    fleet.report(30)
    given: Counter[int] = Counter()
    for _ in range(3):
        made = fleet.plan()
        for change in made.changes:
            given.update(dict.fromkeys(change.opens, 35))
        fleet.apply(made)
    assert sum(given[shard] for shard in (6, 7, 8)) > 100
    assert max(given.values()) < 80, given


def test_a_split_goes_beyond_a_full_hand_and_says_so() -> None:
    fleet = SmallFleet(clusters=6)
    dealt = hand("account", fleet.records.clusters.values(), 6)
    first = fleet.records.clusters[dealt[0]].shards[0]
    fleet.queue("q", first)
    fleet.ask("q", 0, 0.6)
    for name in dealt[:4]:
        for shard in fleet.records.clusters[name].shards:
            fleet.other[shard] = 0.3 if shard == first else 0.82
    fleet.report(30)
    made = fleet.plan()
    (split,) = of_kind(made, Kind.SPLIT)
    assert fleet.records.fleet().cluster_of[split.opens[0]] == dealt[4], "the next one of its order"
    (warning,) = [each for each in made.warnings if each.reason.why is Why.BEYOND_HAND]
    assert warning.of == "account"
    assert str(warning.reason).endswith(f"parts of queue q, so some go to {dealt[4]}")


def test_a_hand_that_can_take_a_part_is_not_left() -> None:
    fleet = SmallFleet(clusters=12)
    dealt = hand("account", fleet.records.clusters.values())
    fleet.queue("q", fleet.records.clusters[dealt[0]].shards[0])
    fleet.ask("q", 0, 0.9)
    fleet.report(30)
    made = fleet.plan()
    (split,) = of_kind(made, Kind.SPLIT)
    assert {fleet.records.fleet().cluster_of[shard] for shard in split.opens} <= {*dealt}
    assert Why.BEYOND_HAND not in {each.reason.why for each in made.warnings}
