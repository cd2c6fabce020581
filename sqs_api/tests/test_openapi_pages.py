"""The OpenAPI document has the pages that commands and jobs ask; their answers are as it says.

`Served` checks the answers of all tests that ask them; here each page answers at least once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.fleet.fleet_records import FIRST, FLEET
from cluster.fleet.fleet_view import FleetView
from cluster.members.status import ClusterStatus
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.virtual_time import virtual
from sqs_api.admin.cluster_pages import ClusterPages
from sqs_api.admin.fleet_pages import FleetPages
from sqs_api.admin.routes import (
    ADD_CLUSTER,
    DRAIN_HOST,
    RAISE_FORMATS,
    READ_CLUSTER,
    READ_FLEET,
    REMOVE_HOST,
    Refused,
)
from sqs_api.archiving.exporter import Exporter, SealedShard
from sqs_api.operators.api import ROUTES
from sqs_api.tests.documented import (
    Operation,
    check_answer,
    check_request,
    operation_of,
    operations,
)
from sqs_api.tests.served import Served, serving

PAGE = "/_holdfast/"
QUEUE = {"account": "000000000000", "region": "us-east-1", "name": "q"}
CLUSTER = {
    "readClusterCommand",
    "drainHostCommand",
    "removeHostCommand",
    "raiseFormatsCommand",
    "readFleetCommand",
    "addClusterCommand",
}


class Noted:
    """The part of an `Asked` that is audited."""

    def __init__(self) -> None:
        self.noted: dict[str, object] = {}


def of_commands() -> list[Operation]:
    return [each for each in operations() if each.described["tags"] == ["commands"]]


class Asking:
    """Asks pages of a service, and remembers those that answered with 200."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.answered: set[str] = set()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        answer = await self.served.ask_page(method, path, content)
        assert answer.status == 200, answer
        check_request(method, PAGE + path, body)
        self.answered.add(operation_of(method, PAGE + path).name)
        return answer.json


@pytest.fixture(autouse=True)
def nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes would write to the lake and read it."""

    async def sealed(exporter: Exporter) -> list[SealedShard]:
        return [SealedShard("source", 0, 1)]

    monkeypatch.setattr(Exporter, "seal", sealed)


async def test_real_answers_of_pages_are_as_documented(data: Path, tmp_path: Path) -> None:
    async with serving(data, lake=str(tmp_path / "lake")) as served:
        pages = Asking(served)
        await served.call("CreateQueue", QueueName="q")
        await served.send("one", "two")
        await pages.ask("POST", "queues/purge", QUEUE)
        await pages.ask("POST", "queues/delete", QUEUE | {"force": True})
        deleted, purged = await pages.ask("GET", "deleted-queues")
        assert (deleted["purged"], purged["purged"], purged["messages"]) == (False, True, 2)
        restore = f"deleted-queues/{deleted['queue_id']}/restore"
        assert (await pages.ask("POST", restore))["name"] == "q"
        made = await pages.ask("POST", "backups", {"target": str(tmp_path / "backup")})
        assert made["queues"] == 1
        assert (await pages.ask("GET", "archive"))["shards"][0]["messages"] == 0
        await pages.ask("POST", "archive/seal")
        await served.node.owner.accounting.write()
        usage = await pages.ask("GET", "usage?account=000000000000&since=2020-01-01")
        assert usage["rows"][0]["requests"]

    asked_elsewhere = {"acknowledgeArchiveCommand"} | CLUSTER
    assert pages.answered == {each.name for each in of_commands()} - asked_elsewhere


@virtual
async def test_real_answers_of_pages_of_a_cluster_are_as_documented() -> None:
    world = SimulatedWorld()
    a, *_ = await world.founded()
    status = ClusterStatus("holdfast", "id", "a", [], [], [], [])

    class Status:
        async def read(self) -> ClusterStatus:
            return status

        hosts = tuple("abc")

        async def reason_to_keep(self, host: str, hosts: Collection[str]) -> str:
            return "without host c shard 0 would have no majority" if host == "c" else ""

    no_queues: Any = ()
    fleet = FleetView({FLEET: a.root.below(FLEET)}, FIRST)
    await fleet.begin()
    status_page: Any = Status()
    pages: Any = ClusterPages(status_page, a.records, a.root, fleet, no_queues)
    no_one: Any = Noted()

    async def ask(action: str, body: dict[str, object]) -> None:
        (route,) = [each for each in ROUTES if each.action == action and not each.is_of_console]
        check_request(route.method, PAGE + route.path, body)
        given = () if route.taken is None else (msgspec.convert(body, route.taken),)
        try:
            status, said = 200, await route.answer(pages, no_one, *given)
        except Refused as refusal:
            status, said = refusal.status, {"error": str(refusal)}
        check_answer(route.method, PAGE + route.path, status, json.loads(msgspec.json.encode(said)))
        is_refused = action == RAISE_FORMATS or body == {"host": "c"}
        assert status == (409 if is_refused else 200)

    await ask(READ_CLUSTER, {})
    await ask(DRAIN_HOST, {"host": "b", "drained": True})
    await ask(DRAIN_HOST, {"host": "c", "drained": True})
    await ask(REMOVE_HOST, {"host": "c"})
    await ask(REMOVE_HOST, {"host": "b"})
    await ask(RAISE_FORMATS, {})
    check_answer("POST", PAGE + "cluster/formats", 200, {"formats": 2})
    pages = FleetPages(
        "holdfast", "a", fleet, a.membership, fleet, no_queues, a.root, unheard=tuple
    )
    await ask(READ_FLEET, {})
    await ask(ADD_CLUSTER, {"hosts": ["d", "e", "f"], "shards": 3})
    await asyncio.sleep(1)
    await ask(READ_FLEET, {})
    check_answer("POST", PAGE + "fleet/clusters", 409, {"error": "no"})
    await world.close()
