"""The manager's answers: the plan with its reasons, one step of it, and who may."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.caller import Caller
from cluster.fleet.fleet_status import ClusterOfFleet, FleetStatus, HostOfFleet, ShardOfFleet
from cluster.fleet.plan_records import Mode
from cluster.peers.questions import Question, Said
from cluster.tests.fleet.planned_fleet import Process, World
from sqs_api.admin.plan_metrics import PlanMetrics
from sqs_api.admin.routes import API, Refused
from sqs_api.operators.plan_answers import (
    AskedChange,
    AskedMode,
    AskedUndo,
    PlanPages,
    apply_change,
    set_manager_mode,
    show_plan,
    undo_change,
)
from sqs_api.settings.config import AuthMode
from sqs_api.tests.documented import check_answer
from sqs_api.tests.operator_client import Operators, User, add_users
from sqs_api.tests.served import serving

PLAN = API + "fleet/plan"


class Peers:
    """Questions that reach the other host."""

    def __init__(self, host: str, others: dict[str, Peers]) -> None:
        self.host, self.others = host, others
        self.others[host] = self
        self.answers: dict[str, Any] = {}
        self.is_away = False

    def serve(self, action: str, answer: Any) -> None:
        self.answers[action] = answer

    async def ask(self, host: str, question: Question, wait_s: float) -> Said | None:
        other = self.others[host]
        return None if other.is_away else await other.answers[question.action](question)


def pages_of(process: Process, others: dict[str, Peers]) -> PlanPages:
    status = FleetStatus(
        "f",
        process.name,
        [
            ClusterOfFleet(1, "one", "open", [HostOfFleet("a", True)], [ShardOfFleet(0, "a", 1)]),
            ClusterOfFleet(
                2, "two", "draining", [HostOfFleet("b", False)], [ShardOfFleet(3, None, 0)]
            ),
        ],
        [],
        [],
    )
    peers: Any = Peers(process.name, others)
    pages = PlanPages(process.manager, peers, process.catalog, lambda: status)
    pages.serve()
    return pages


class Request:
    """As much of a request as the answers need."""

    def __init__(self) -> None:
        self.caller = Caller("1", "us-east-1", "ann")
        self.noted: dict[str, Any] = {}


class Fleet:
    """Both hosts' pages; the first host plans."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peers: dict[str, Peers] = {}
        self.a, self.b = (pages_of(each, self.peers) for each in (world.a, world.b))
        asked: Any = Request()
        self.asked = asked


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    world = await World().begin()
    yield Fleet(world)
    await world.hosts.close()


def as_documented(method: str, path: str, answer: object) -> Any:
    shown = json.loads(msgspec.json.encode(answer))
    check_answer(method, path, 200, shown)
    return shown


async def test_any_host_shows_the_plan_of_the_one_that_plans(fleet: Fleet) -> None:
    await fleet.world.hot_queue()
    await fleet.world.ticks(5)

    shown = as_documented("GET", PLAN, await show_plan(fleet.b, fleet.asked))

    assert (shown["mode"], shown["holder"]) == ("shadow", "a")
    assert [each["load"] for each in shown["clusters"]] == [0.3, 0.3]
    assert shown["clusters"][0]["shards"] == [
        {"shard": 0, "leader": "a", "asked": 0.1, "queues": 1}
    ]
    assert (shown["clusters"][1]["away"], shown["clusters"][1]["hosts"]) == (["b"], ["b"])
    (change,) = shown["changes"]
    assert (change["kind"], change["queue"]["name"], change["unavailable"]) == ("split", "hot", "")
    assert change["reason"]["why"] == "hot-queue"
    assert [each["what"] for each in shown["history"]][-1] == "shadow"


async def test_a_planner_that_does_not_answer_is_named(fleet: Fleet) -> None:
    await fleet.world.ticks(2)
    fleet.peers["a"].is_away = True
    shown = as_documented("GET", PLAN, await show_plan(fleet.b, fleet.asked))
    assert (shown["holder"], shown["at_ms"], shown["changes"]) == ("a", None, [])


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (b'"asked":', b'"of_tomorrow":', 1),
        (b'"why":"hot-queue"', b'"why":"of-tomorrow"', 1),
        (b'"kind":"split"', b'"kind":"of-tomorrow"', 0),
    ],
)
async def test_a_planner_of_another_release_is_understood_as_far_as_can_be(
    fleet: Fleet, before: bytes, after: bytes, changes: int
) -> None:
    """So it is while a fleet is updated."""
    await fleet.world.hot_queue()
    await fleet.world.ticks(5)
    answer = fleet.peers["a"].answers["holdfast:ShowPlan"]

    async def other_release(question: Question) -> Said:
        said = await answer(question)
        assert before in said.body
        return Said(said.status, said.body.replace(before, after))

    fleet.peers["a"].answers["holdfast:ShowPlan"] = other_release
    shown = as_documented("GET", PLAN, await show_plan(fleet.b, fleet.asked))
    assert (shown["holder"], len(shown["changes"])) == ("a", changes)
    assert all(each["reason"]["text"] for each in shown["changes"])


async def test_one_change_is_made_and_undone_and_noted(fleet: Fleet) -> None:
    queue = await fleet.world.hot_queue()
    await fleet.world.ticks(5)
    change = (await show_plan(fleet.b, fleet.asked)).changes[0]

    made = await apply_change(fleet.b, fleet.asked, AskedChange(change.id))

    as_documented("POST", PLAN + "/apply", made)
    assert (made.by, made.opens) == (fleet.asked.caller.arn, change.opens)
    assert fleet.asked.noted == {"change": made.id, "kind": "split", "of": "hot"}
    assert len((await fleet.world.now(queue)).parts) > 1
    shown = await show_plan(fleet.b, fleet.asked)
    assert shown.changes == [], "it is made, and the next plan is not there yet"
    undone = await undo_change(fleet.a, fleet.asked, AskedUndo())
    as_documented("POST", PLAN + "/undo", undone)
    assert undone.kind == "shrink"
    assert [each.id for each in (await show_plan(fleet.b, fleet.asked)).made] == [
        made.id,
        undone.id,
    ]
    with pytest.raises(Refused, match="Not done: the queue has changed") as refusal:
        await apply_change(fleet.b, fleet.asked, AskedChange(change.id))
    assert refusal.value.status == 409


async def test_a_change_that_is_not_in_the_plan_is_refused(fleet: Fleet) -> None:
    await fleet.world.ticks(1)
    with pytest.raises(Refused, match=r"no change 7\.1 now"):
        await apply_change(fleet.b, fleet.asked, AskedChange("7.1"))


async def test_the_mode_is_that_of_the_fleet(fleet: Fleet) -> None:
    await fleet.world.ticks(1)
    await set_manager_mode(fleet.b, fleet.asked, AskedMode(Mode.ON))
    shown = await set_manager_mode(fleet.b, fleet.asked, AskedMode(Mode.PAUSED))
    assert as_documented("POST", PLAN + "/mode", shown)["mode"] == "paused"
    assert fleet.asked.noted == {"mode": "paused"}
    assert (await show_plan(fleet.a, fleet.asked)).mode == "paused"
    shown = await set_manager_mode(fleet.a, fleet.asked, AskedMode(None))
    assert (shown.mode, shown.unpaused, fleet.asked.noted) == ("on", "on", {"mode": "on"})


async def test_a_fleet_of_one_cluster_has_no_manager(fleet: Fleet) -> None:
    fleet.world.clusters = fleet.world.clusters[:1]
    with pytest.raises(Refused, match="one cluster needs no manager"):
        await show_plan(fleet.a, fleet.asked)
    with pytest.raises(Refused, match="Only the hosts of a fleet"):
        await show_plan(None, fleet.asked)
    assert list(PlanMetrics(fleet.world.a.manager).collect()) == []


async def test_the_host_that_plans_has_the_metrics(fleet: Fleet) -> None:
    await fleet.world.hot_queue()
    await fleet.world.ticks(5)

    def values(process: Process) -> dict[str, float]:
        return {
            sample.name + "".join(f" {each}" for each in sample.labels.values()): sample.value
            for family in PlanMetrics(process.manager).collect()
            for sample in family.samples
        }

    found = values(fleet.world.a)
    assert found["holdfast_manager_plans"] == 1
    assert found["holdfast_manager_mode shadow"] == 1
    assert found["holdfast_manager_planned_changes"] == 1
    assert found["holdfast_cluster_load 1"] == 0.3
    assert found["holdfast_cluster_silent 2"] == 0
    assert found["holdfast_manager_decisions_total split hot-queue shadow"] == 1
    assert values(fleet.world.b) == {
        "holdfast_manager_plans": 0,
        "holdfast_manager_records_unreadable_total": 0,
        "holdfast_manager_gave_up_total": 0,
    }


async def test_looking_and_changing_are_rights_of_their_own(data: Path) -> None:
    """A single host says that it has no manager only to those who may ask."""
    may = add_users(
        data, {"looks": User(["holdfast:ReadFleet"]), "changes": User(["holdfast:ChangeFleet"])}
    )
    async with serving(data, auth=AuthMode.SIGV4) as served:
        looks, changes = (Operators(served, may[name]) for name in ("looks", "changes"))
        assert (await looks.get("fleet/plan")).status == 404
        assert (await changes.get("fleet/plan")).status == 403
        for path, content in (("apply", {"id": "1.1"}), ("undo", {}), ("mode", {"mode": "on"})):
            assert (await looks.post(f"fleet/plan/{path}", content)).status == 403
            assert (await changes.post(f"fleet/plan/{path}", content)).status == 404
        assert (await changes.post("fleet/plan/mode", {"mode": "off"})).status == 400
