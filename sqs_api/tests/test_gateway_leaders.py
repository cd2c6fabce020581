"""A gateway knows that nobody leads a shard, also while a host that may lead it is reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.shards.router import Router
from cluster.tests.virtual_time import CountingEntropy, LoopClock, virtual
from sqs_api.gateway_host import GatewayHost

SHARD = 7


class _Gateway:
    """One of the three hosts of the shard's cluster is up, a majority is not."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.reached = {"c3-a"}
        fleet = SimpleNamespace(
            leader_of=lambda shard: self.leader,
            hosts_that_may_lead=lambda shard: ["c3-a", "c3-b", "c3-c"],
            subscribe=lambda on_change: None,
        )
        transport = SimpleNamespace(
            host="gateway",
            link=lambda host, channel: host if host in self.reached else None,
            on_open=[],
        )
        host = SimpleNamespace(
            transport=transport,
            fleet=fleet,
            process=SimpleNamespace(clock=LoopClock(), entropy=CountingEntropy()),
            others=SimpleNamespace(routed=lambda router, catalog: None),
        )
        self.router: Router = GatewayHost.route(
            cast(Any, host), cast(Any, SimpleNamespace(times_restored=0)), []
        )


@pytest.mark.parametrize("reached", [{"c3-a"}, set()], ids=["one host", "no host"])
@virtual
async def test_a_host_that_is_reached_is_no_leader(reached: set[str]) -> None:
    gateway = _Gateway()
    gateway.reached = reached
    assert not gateway.router.has_leader(SHARD)


@pytest.mark.parametrize("leader", ["c3-a", "c3-b"], ids=["reached", "not reached"])
@virtual
async def test_a_leader_that_the_fleet_shows_is_one(leader: str) -> None:
    """Also one that is not reached now: it may go on with others."""
    gateway = _Gateway()
    gateway.leader = leader
    assert gateway.router.has_leader(SHARD)


@virtual
async def test_requests_still_go_to_a_host_that_may_know_better() -> None:
    assert _Gateway().router.is_led_elsewhere(SHARD)
