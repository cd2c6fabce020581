"""Any host of a fleet answers about each of its clusters; a gateway says that it is of none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.members.status import ClusterStatus
from sqs_api.admin.cluster_pages import (
    ClusterPages,
    Drained,
    OfGateway,
    OneCluster,
    drain_host,
    show_cluster,
)
from sqs_api.admin.routes import Refused
from sqs_api.tests.test_plan_answers import Peers, Request
from visibility.contract.errors import InvalidParameterValue

HOSTS = {1: ["a"], 2: ["d", "e"]}


class Fleet:
    """The pages of three hosts in two clusters, of which some run."""

    def __init__(self) -> None:
        self.peers: dict[str, Peers] = {}
        self.alive = set("ade")
        self.pages = {
            host: self._pages(host, number) for number, hosts in HOSTS.items() for host in hosts
        }
        self.asked: Any = Request()

    def _pages(self, host: str, number: int) -> ClusterPages:
        others = {each: range(1) for each in HOSTS if each != number}
        view: Any = SimpleNamespace(own=number, founded=others)
        view.hosts_of = lambda of: HOSTS[of] if of in others else []
        view.alive_of = lambda of: self.alive & {*HOSTS[of]}

        async def read() -> ClusterStatus:
            return ClusterStatus("f", "id", host, [], [], [], [], number=number)

        peers: Any = Peers(host, self.peers)
        status: Any = SimpleNamespace(read=read)
        unused: Any = None
        pages = ClusterPages(status, unused, unused, view, peers)
        pages.serve()
        return pages

    async def seen(self, host: str, number: int) -> tuple[str, int]:
        shown = await show_cluster(self.pages[host], self.asked, OneCluster(number))
        assert isinstance(shown, ClusterStatus)
        return shown.host, shown.number


async def test_a_host_shows_its_own_cluster_and_any_other() -> None:
    fleet = Fleet()

    assert await fleet.seen("a", 0) == ("a", 1)
    assert await fleet.seen("e", 0) == ("e", 2)
    assert await fleet.seen("a", 2) == ("d", 2)
    assert await fleet.seen("d", 1) == ("a", 1)


async def test_hosts_that_run_are_asked_first_and_the_next_if_one_is_silent() -> None:
    fleet = Fleet()
    fleet.alive = set("ae")
    assert await fleet.seen("a", 2) == ("e", 2)
    fleet.peers["e"].is_away = True
    assert await fleet.seen("a", 2) == ("d", 2)
    fleet.peers["d"].is_away = True
    with pytest.raises(Refused, match="No host of cluster 2 answers now") as refusal:
        await fleet.seen("a", 2)
    assert refusal.value.status == 503


async def test_a_cluster_that_is_not_there_is_told() -> None:
    with pytest.raises(Refused, match="There is no cluster 7") as refusal:
        await Fleet().seen("a", 7)
    assert refusal.value.status == 404


def test_the_cluster_of_a_host_is_found() -> None:
    pages = Fleet().pages["a"]

    assert [pages.cluster_of(host) for host in ("a", "d", "e", "nobody")] == [1, 2, 2, 1]


async def test_a_gateway_says_that_it_is_one() -> None:
    asked: Any = Request()

    shown: Any = await show_cluster(OfGateway(), asked, OneCluster())
    alone: Any = await show_cluster(None, asked, OneCluster())

    assert (shown.cluster, shown.is_gateway) == (None, True)
    assert (alone.cluster, alone.is_gateway) == (None, False)
    with pytest.raises(InvalidParameterValue, match="a gateway is of no cluster"):
        await drain_host(OfGateway(), asked, Drained("a", drained=True))
