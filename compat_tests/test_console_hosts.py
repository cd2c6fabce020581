"""The hosts of a cluster in a real browser: who leads, who lags, who is away, drawn.

The answer of a cluster is made up here: `test_cluster.py` has real ones, and asks for the screen.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


def host(name: str, **more: Any) -> dict[str, Any]:
    known = {"name": name, "is_alive": True, "is_reached": True, "is_drained": False, "zone": name}
    return known | {"peer_address": "127.0.0.1:1", "version": "0.2"} | more


def copy(name: str, behind: int = 0, role: str = "follower", **more: Any) -> dict[str, Any]:
    known = {"host": name, "role": role, "behind": behind, "is_voter": True, "damage": None}
    return known | {"needs_checkpoint": False} | more


CLUSTER = {
    "cluster": "shop",
    "cluster_id": "1",
    "host": "a",
    "hosts": [host("a"), host("b", is_drained=True), host("c", is_alive=False, is_reached=False)],
    "shards": [
        {
            "shard": number,
            "leader": leader,
            "term": 7,
            "voters": ["a", "b", "c"],
            "replicas": [
                copy("a", role="leader" if leader == "a" else "follower"),
                copy("b", behind, "leader" if leader == "b" else "follower"),
            ],
        }
        for number, leader, behind in ((0, "a", 0), (1, "a", 1200), (2, "b", 0))
    ],
    "etcd": [],
    "problems": ["Host c is away."],
    "formats": 4,
    "number": 2,
}
API = re.compile("/api/cluster([?].*)?$")


def test_who_leads_and_who_lags_is_drawn(browser: Any, opened: NodeProcess) -> None:
    tab = tab_of(browser, opened, "/queues")
    tab.page.route(API, lambda route: route.fulfill(json=CLUSTER))
    tab.go("/hosts")
    drawn = tab.page.get_by_role("region", name="Who leads and who follows")
    rows = drawn.locator("tbody tr")
    expect(rows).to_have_count(3)
    for at, cells in enumerate(
        (
            ["0", "leads", "follows", "not reached"],
            ["1", "leads", "1,200 behind", "not reached"],
            ["2", "follows", "leads", "not reached"],
        )
    ):
        expect(rows.nth(at).locator("th, td")).to_have_text(cells)
    expect(drawn.get_by_role("columnheader")).to_have_text(["Shard", "a", "b, drained", "c"])
    tab.check_looks()
    assert tab.faults == []


def test_the_screen_stays_with_the_cluster_that_it_shows(browser: Any, opened: NodeProcess) -> None:
    """A balancer sends each question to another host, of another cluster, too."""
    tab = tab_of(browser, opened, "/queues")
    tab.page.route(API, lambda route: route.fulfill(json=CLUSTER))
    tab.go("/hosts")
    tab.see("shop, number 2")
    tab.page.wait_for_function("location.hash === '#/hosts?cluster=2'")
    with tab.page.expect_request(lambda each: each.url.endswith("/api/cluster?cluster=2")):
        tab.page.reload()
    tab.see("shop, number 2")
    assert tab.faults == []


@pytest.mark.parametrize("place", ["/hosts", "/fleet"])
def test_a_gateway_is_not_taken_for_a_single_host(
    browser: Any, opened: NodeProcess, place: str
) -> None:
    tab = tab_of(browser, opened, "/queues")
    tab.page.route(API, lambda route: route.fulfill(json={"cluster": None, "is_gateway": True}))
    tab.go(place)
    tab.see("This is a gateway")
    expect(tab.page.get_by_text("single host")).to_have_count(0)
    assert tab.faults == []
