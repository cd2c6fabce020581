"""Zones of a cluster's hosts in the status of the fleet and in the plan."""

from __future__ import annotations

import pytest

from cluster.fleet.fleet_records import FleetCluster
from cluster.fleet.fleet_status import SeenCluster, status_of
from cluster.fleet.reasons import Why
from cluster.members.removal import crowded_zones
from cluster.tests.fleet.fleets import SmallFleet, warnings


def problems(**zones: str) -> list[str]:
    """Those of a fleet of one cluster whose hosts are in these zones."""
    cluster = FleetCluster(number=2, name="two", first_shard=0, shards=1, founders=tuple(zones))
    seen = SeenCluster(cluster, zones, zones.keys())
    return status_of("f", "a", [seen], {0: "a"}, {}, []).problems


def test_the_status_tells_of_two_voters_in_one_zone() -> None:
    """Its two hosts vote for each shard: with the zone each shard loses its majority."""
    assert problems(a="one", b="two", c="three") == []
    (problem,) = problems(a="one", b="two", c="one")
    assert problem.startswith("cluster 2: zone one has 2 of 3 hosts")


def test_a_zone_that_is_not_set_is_a_problem_only_beside_others() -> None:
    assert problems(a="", b="", c="") == []
    assert problems(a="one", b="", c="two") == [
        "cluster 2: the zone of b is not set, that of others is"
    ]


@pytest.mark.parametrize(
    ("zones", "crowded"),
    [
        (("one", "two", "three"), {}),
        (("one", "one", "two"), {"one": 2}),
        (("one", "one", "two", "two"), {"one": 2, "two": 2}),
        (("one", "one"), {}),
        (("", "", ""), {}),
    ],
)
def test_a_zone_is_crowded_if_no_majority_is_left_without_it(
    zones: tuple[str, ...], crowded: dict[str, int]
) -> None:
    assert crowded_zones(zones) == crowded


def test_the_plan_warns_of_two_voters_in_one_zone() -> None:
    """Whatever its loads are: a lost zone would stop the cluster."""
    fleet = SmallFleet()
    spread, crowded = ("one", "two", "three"), ("one", "two", "two")
    for name, zones in (("a", spread), ("b", crowded)):
        fleet.records.clusters[name] = fleet.records.clusters[name]._replace(zones=zones)
    fleet.report()
    made = fleet.plan()
    assert warnings(made) == {("b", Why.ONE_ZONE)}
    assert "without zone two, which has 2 of 3 voters" in str(made.warnings[0].reason)
