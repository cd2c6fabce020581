"""Answers that lie on other hosts, over simulated connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.peers.questions import Questions
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.routes import (
    ACKNOWLEDGE_ARCHIVE,
    LIST_DELETED_QUEUES,
    READ_ARCHIVE,
    SEAL_ARCHIVE,
    Refused,
    Route,
)
from sqs_api.admin.shared_routes import SharedRoutes
from sqs_api.admin.usage_page import UsagePage, UsageParameters
from sqs_api.gateway.usage import GatewayRow, UsageRow
from sqs_api.operators.api import ROUTES


class Leaders:
    """The leaders by shard, which all hosts know."""

    def __init__(self) -> None:
        self.of: dict[int, str | None] = {0: "a", 1: "b"}

    def leader_of(self, shard: int) -> str | None:
        return self.of.get(shard)

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """Nothing changes while a page is made."""


class Host:
    """A host whose own answers say who made them."""

    def __init__(self, peer: Peer, leaders: Leaders) -> None:
        self.name = peer.name
        self.others: list[int] = []
        self.acknowledged: list[bytes] = []
        questions = Questions(peer.transport)
        self.shared = SharedRoutes(questions, leaders, (0, 1), lambda: self.others)
        self.shared.serve(ROUTES, self._here)
        self.usage = UsagePage(self._usage, self.name, EveryHost(questions))
        self.usage_error: Exception | None = None

    async def _here(self, route: Route, sent: AdminRequest) -> Any:
        if route.action == LIST_DELETED_QUEUES:
            counts = {"a": (5, 0), "b": (0, 7), "c": (0, 0)}[self.name]
            return [
                {"queue_id": i, "restoring": i == 1, "messages": n, "dead_letters": 2 * n}
                for i, n in enumerate(counts)
            ]
        if route.action == ACKNOWLEDGE_ARCHIVE:
            self.acknowledged.append(sent.body)
            raise Refused(409, "not in the table")
        return {"lake": "l", "shards": [{"shard": shard, "by": self.name} for shard in (0, 1, 2)]}

    async def _usage(
        self, account: str | None, since: str | None
    ) -> tuple[list[UsageRow], list[GatewayRow]]:
        if self.usage_error is not None:
            raise self.usage_error
        return [UsageRow(since or "", account or "", "", 1, 2, 10, 20)], []

    async def ask(self, action: str, body: bytes = b"{}") -> tuple[int, Any]:
        (route,) = [each for each in ROUTES if each.action == action and not each.is_of_console]
        try:
            return 200, await self.shared.ask(route, AdminRequest("", b"x", {}, body, "", True))
        except Refused as refusal:
            return refusal.status, str(refusal)


class World:
    """Three hosts and two shards, which a and b lead."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork()
        self.leaders = Leaders()
        self.peers = [Peer(name, self.network, SETTINGS) for name in "abc"]
        self.hosts = {peer.name: Host(peer, self.leaders) for peer in self.peers}


@asynccontextmanager
async def three_hosts() -> AsyncIterator[World]:
    world = World()
    await start(world.peers)
    try:
        yield world
    finally:
        for peer in world.peers:
            await peer.transport.stop()


@virtual
async def test_each_shard_of_the_archive_is_its_leader_s() -> None:
    async with three_hosts() as world:
        for host in world.hosts.values():
            for action in (READ_ARCHIVE, SEAL_ARCHIVE):
                shards = [{"shard": 0, "by": "a"}, {"shard": 1, "by": "b"}]
                said = {"lake": "l", "shards": shards, "left_out": []}
                assert await host.ask(action) == (200, said)


@virtual
async def test_an_acknowledgement_goes_to_the_leader_and_its_refusal_comes_back() -> None:
    async with three_hosts() as world:
        said = json.dumps({"shard": 1, "batch": 3}).encode()

        answer = await world.hosts["c"].ask(ACKNOWLEDGE_ARCHIVE, said)

        assert answer == (409, "not in the table")
        assert [host.acknowledged for host in world.hosts.values()] == [[], [said], []]
        for wrong in (b"{", b'{"shard": 9}'):
            await world.hosts["c"].ask(ACKNOWLEDGE_ARCHIVE, wrong)
        assert world.hosts["c"].acknowledged == [b"{", b'{"shard": 9}']


@virtual
async def test_other_clusters_are_asked_too_and_left_out_while_they_are_away() -> None:
    async with three_hosts() as world:
        own = [{"shard": 0, "by": "a"}, {"shard": 1, "by": "b"}]
        asked, other = world.hosts["a"], world.hosts["c"]
        asked.others = [2]
        world.leaders.of[2] = "c"
        for action in (READ_ARCHIVE, SEAL_ARCHIVE):
            shards = [*own, {"shard": 2, "by": "c"}]
            whole = {"lake": "l", "shards": shards, "left_out": []}
            assert await asked.ask(action) == (200, whole)
        said = json.dumps({"shard": 2, "batch": 3}).encode()
        assert await asked.ask(ACKNOWLEDGE_ARCHIVE, said) == (409, "not in the table")
        assert other.acknowledged == [said]

        for away in (None, "nobody"):
            world.leaders.of[2] = away
            with capture_logs() as logs:
                part = {"lake": "l", "shards": own, "left_out": [2]}
                assert await asked.ask(READ_ARCHIVE) == (200, part)
            assert [(each["event"], each["shards"]) for each in logs] == [("shards_left_out", [2])]
            assert (await asked.ask(ACKNOWLEDGE_ARCHIVE, said))[0] == 503


@virtual
async def test_messages_of_deleted_queues_are_counted_by_the_leaders() -> None:
    async with three_hosts() as world:
        found = [
            {"queue_id": 0, "restoring": False, "messages": 5, "dead_letters": 10},
            {"queue_id": 1, "restoring": True, "messages": 7, "dead_letters": 14},
        ]
        for host in world.hosts.values():
            assert await host.ask(LIST_DELETED_QUEUES) == (200, found)


@virtual
async def test_without_a_leader_nothing_is_answered_that_may_be_wrong() -> None:
    async with three_hosts() as world:
        world.leaders.of[1] = None

        for action in (READ_ARCHIVE, SEAL_ARCHIVE, LIST_DELETED_QUEUES):
            status, said = await world.hosts["a"].ask(action)
            assert (status, said) == (503, "no host leads shard 1 now; try again")
        assert (await world.hosts["a"].ask(ACKNOWLEDGE_ARCHIVE, b'{"shard": 1}'))[0] == 503


@virtual
async def test_a_leader_that_cannot_be_reached_is_named() -> None:
    async with three_hosts() as world:
        world.network.crash("b")
        await asyncio.sleep(10)

        status, said = await world.hosts["a"].ask(READ_ARCHIVE)

        assert (status, said) == (503, "host b does not answer; try again")


@virtual
async def test_a_page_is_held_until_another_host_leads() -> None:
    async with three_hosts() as world:
        world.network.crash("b")
        await asyncio.sleep(10)
        loop = asyncio.get_running_loop()
        loop.call_later(1, world.leaders.of.update, {1: None})
        loop.call_later(2, world.leaders.of.update, {1: "c"})

        asked = [world.hosts["a"].ask(action) for action in (READ_ARCHIVE, SEAL_ARCHIVE)]
        answers = await asyncio.gather(*asked)

        shards = [{"shard": 0, "by": "a"}, {"shard": 1, "by": "c"}]
        assert answers == [(200, {"lake": "l", "shards": shards, "left_out": []})] * 2


@virtual
async def test_an_answer_of_a_host_that_no_longer_leads_is_not_shown() -> None:
    async with three_hosts() as world:
        asyncio.get_running_loop().call_soon(world.leaders.of.update, {1: "c"})

        status, said = await world.hosts["a"].ask(READ_ARCHIVE)

        assert status == 200
        assert said["shards"] == [{"shard": 0, "by": "a"}, {"shard": 1, "by": "c"}]


USAGE = UsageParameters("1", "2026-11-01")


@virtual
async def test_usage_is_added_up_and_hosts_that_are_missing_are_named() -> None:
    async with three_hosts() as world:
        key = {"day": "2026-11-01", "account": "1", "queue": ""}
        counts = {"requests": 1, "billed_requests": 2, "bytes_in": 10, "bytes_out": 20}
        said = await world.hosts["c"].usage.show(USAGE)
        assert (said["hosts"], said["missing"]) == (["a", "b", "c"], [])
        assert said["rows"] == [key | {name: 3 * count for name, count in counts.items()}]

        world.network.crash("a")
        await asyncio.sleep(10)
        said = await world.hosts["c"].usage.show(USAGE)

        assert (said["hosts"], said["missing"]) == (["b", "c"], ["a"])
        assert said["rows"] == [key | {name: 2 * count for name, count in counts.items()}]


@virtual
async def test_a_host_that_cannot_read_its_usage_is_missing_and_says_so_itself() -> None:
    async with three_hosts() as world:
        world.hosts["a"].usage_error = OSError("the disk is gone")

        said = await world.hosts["c"].usage.show(USAGE)
        assert (said["hosts"], said["missing"]) == (["b", "c"], ["a"])

        with pytest.raises(Refused, match="cannot read the usage: the disk is gone") as refused:
            await world.hosts["a"].usage.show(USAGE)
        assert refused.value.status == 503
