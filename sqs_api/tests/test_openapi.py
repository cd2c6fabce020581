"""The OpenAPI document: each route is in it, and the real requests and answers are as it says.

`Operators` checks the answers of all tests of the API; here each route answers at least once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import pytest_asyncio
from jsonschema import ValidationError

from cluster.coordination.etcd_client import EtcdStatus
from cluster.members.status import ClusterStatus, HostStatus, ReplicaStatus, ShardStatus
from sqs_api.admin.cluster_pages import Nothing
from sqs_api.admin.routes import API, QUEUE_ACTIONS, RESERVED, SERVICE_ACTIONS, Route
from sqs_api.commands.command_line import cli
from sqs_api.operators.api import ROUTES
from sqs_api.operators.openapi import DOCUMENT
from sqs_api.tests.archived import archived, search_here, write_table
from sqs_api.tests.documented import check_answer, check_request, operation_of, operations
from sqs_api.tests.operator_client import JSON, Operators, Told, make_dead_letters
from sqs_api.tests.served import Served, serving
from storage.lake.table import Lake


class Recording(Operators):
    """Checks requests, too, and remembers what was answered with 200."""

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self.answered: set[str] = set()

    async def ask(self, method: str, path: str, body: bytes, more: Any) -> Told:
        target = API + path
        told = await super().ask(method, path, body, more)
        if told.status == 200:
            check_request(method, target, json.loads(body) if body else None)
            self.answered.add(operation_of(method, target).name)
        return told


@pytest.fixture
def _searched_here(monkeypatch: pytest.MonkeyPatch) -> None:
    search_here(monkeypatch)


@pytest_asyncio.fixture
async def operators(_searched_here: None, data: Path) -> AsyncIterator[Recording]:
    lake = Lake(str(data.parent / "lake"))
    write_table(lake, [archived(position, queue="dead") for position in (1, 2, 3)])
    async with serving(data, lake=lake.url) as served:
        await make_dead_letters(served, "a", '{"error": "tax"}', "c")
        yield Recording(served)


# -- the table -------------------------------------------------------------------------------------


def test_routes_and_documented_operations_are_the_same() -> None:
    documented = {
        (each.method, each.path)
        for each in operations()
        if each.path != DOCUMENT and each.described["tags"] != ["service"]
    }

    assert documented == {(route.method, RESERVED + route.path) for route in ROUTES}
    assert len({each.name for each in operations()}) == len(operations())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name.replace(" ", "-"))
def test_each_route_has_types_with_fields_and_an_action_that_policies_know(route: Route) -> None:
    for each in route.given:
        of = get_args(each)[0] if get_origin(each) is list else each
        assert of.__annotations__ or of is Nothing, f"{each} has no fields"
    if route.is_of_console and not route.only_reads:
        assert route.taken is not None, "it takes a body of no type"
        assert route.taken.__struct_config__.forbid_unknown_fields
    assert (
        route.action is None
        or route.action.startswith("sqs:")
        or route.action in QUEUE_ACTIONS | SERVICE_ACTIONS
    )


@pytest.mark.parametrize("route", [each for each in ROUTES if each.command], ids=lambda e: e.name)
def test_the_command_of_a_route_exists(route: Route) -> None:
    command: Any = cli
    for word in route.command.split():
        command = command.commands[word]


async def test_everyone_reads_the_document(operators: Recording) -> None:
    answer = await operators.served.ask_page("GET", "api/openapi.json")
    strangers = await operators.served.ask_page("GET", "api/openapi.json", host="evil.example")
    posted = await operators.served.ask_page("POST", "api/openapi.json")

    assert (answer.status, answer.json["openapi"]) == (200, "3.1.0")
    assert (strangers.status, posted.status) == (403, 405)


async def test_each_documented_page_is_served(operators: Recording) -> None:
    for each in operations():
        if each.path.startswith(API) or each.described["tags"] == ["commands"]:
            continue
        answer = await operators.served.ask(
            f"GET {each.path} HTTP/1.1\r\nhost: localhost:9324\r\n\r\n".encode()
        )
        assert answer.status == 200, each.path


# -- the checks ------------------------------------------------------------------------------------


def test_an_answer_with_a_field_too_many_or_too_few_is_found() -> None:
    purged = "POST", f"{API}queues/q/purge", 200
    check_answer(*purged, {"purged": "q"})
    for wrong in ({}, {"purged": 1}, {"purged": "q", "more": 1}):
        with pytest.raises(ValidationError):
            check_answer(*purged, wrong)


def test_a_request_with_a_parameter_too_many_is_found() -> None:
    check_request("GET", f"{API}queues?limit=3&account=1", None)
    with pytest.raises(AssertionError, match="not described"):
        check_request("GET", f"{API}queues?limits=3", None)
    with pytest.raises(ValidationError):
        check_request("POST", f"{API}queues/q/purge", {"confirm": "q", "force": True})


# -- real answers ----------------------------------------------------------------------------------


async def test_real_answers_of_all_routes_are_as_documented(operators: Recording) -> None:
    await _queues(operators)
    await _messages(operators)
    await _redrives(operators)
    await _archive(operators)
    await _holds(operators)
    await _users(operators)
    for path in ("caller", "audit?limit=3&denied=false", "cluster"):
        await operators.seen(path)

    of_manager = {"showPlan", "applyChange", "undoChange", "setManagerMode"}
    of_fleet = {"drainCluster", "removeCluster", "abandonCluster", "showEmptiedClusters"}
    in_cluster = {"drainHost", "showDocument"} | of_manager | of_fleet  # see test_plan_answers.py
    of_sessions = {"showChallenge", "signIn", "listSessions", "endSessions"}  # test_sessions.py
    documented = {each.name for each in operations() if each.path.startswith(API)}
    assert operators.answered == documented - in_cluster - of_sessions


async def _queues(operators: Recording) -> None:
    await operators.seen("queues", sort="oldest", limit=1)
    assert "dead" in (await operators.seen("depths"))["queues"]
    await operators.seen("dead-letters", by_tag="team")
    assert "dead" in (await operators.seen("dead-letters/depths", hours=2))["queues"]
    await operators.done("queues/dead/attributes", {"attributes": {"DelaySeconds": "0"}})
    await operators.done("queues/dead/tags", {"tags": {"team": "shop"}})
    assert (await operators.seen("queues/dead"))["tags"] == {"team": "shop"}
    await operators.seen("queues", tags="team=shop", columns="team")
    assert await operators.seen("queue-tags") == {"tags": [{"key": "team", "values": {"shop": 1}}]}
    await operators.done("queues/dead/tags/remove", {"keys": ["team"]})
    await operators.seen("queues/dead/history", hours=2)
    (newest, *_) = (await operators.seen("queues/dead/tail"))["messages"]
    assert (await operators.seen("messages", id=newest["message_id"]))["messages"]
    assert len((await operators.seen("queues/dead/parts"))["parts"]) == 1
    for change in ("split", "shrink"):
        await operators.done(f"queues/dead/parts/{change}", {"parts": 1})
    await operators.done("queues/dead/parts/move", {"shard": 0})
    await operators.done("queues", {"name": "made", "dead_letter_queue": {"name": "made-dead"}})
    await operators.done("queues/made/delete", {"confirm": "made"})
    assert [each["name"] for each in await operators.seen("deleted-queues")] == ["made"]


async def _messages(operators: Recording) -> None:
    attributes = {
        "tenant": {"type": "String", "value": "x"},
        "raw": {"type": "Binary", "binary": "AP8="},
    }
    await operators.done("queues/dead/messages", {"body": "m", "attributes": attributes})
    await operators.done("queues/source/messages", {"body": "m", "delay_s": 900})
    found = (await operators.seen("queues/dead/messages", state="visible"))["messages"]
    assert (len(found), found[-1]["attributes"]) == (4, attributes)
    delayed = (await operators.seen("queues/source/messages"))["messages"][0]
    at, due_ms = delayed["sequence"], delayed["due_ms"]
    await operators.seen(f"queues/source/messages/{at}", due_ms=due_ms)
    await operators.seen(f"queues/source/messages/{at}/timeline", due_ms=due_ms)
    later_ms = due_ms + 1_000
    places = [{"sequence": at, "due_ms": due_ms}]
    moved = {"messages": places, "at_ms": later_ms}
    await operators.done("queues/source/messages/reschedule", moved)
    places = [{"sequence": at, "due_ms": later_ms}]
    canceled = await operators.done("queues/source/messages/cancel", {"messages": places})
    assert canceled == {"canceled": 1, "kept": 0}
    failures = await operators.seen("queues/dead/failures", sort="last")
    assert (failures["messages"], failures["is_exact"]) == (4, True)
    mark = await operators.done("marks", {"text": "deploy 4711"})
    assert await operators.seen("marks") == [mark]
    none = {"filter": {"text": "of no message"}}
    for what in ("count", "hold", "delete", "export"):
        step = await operators.done(f"queues/dead/messages/matching/{what}", none)
        assert (step["scanned"], step["next"]) == (4, None)
    last = found[-1]["sequence"]
    await operators.done(f"queues/dead/messages/{last}/resend", {"body": "n", "replace": True})
    deleted = await operators.done("queues/dead/messages/delete", {"sequences": [last]})
    assert deleted == {"deleted": 0, "kept": 1}


async def _redrives(operators: Recording) -> None:
    await operators.seen("redrives")
    wanted = {"filter": {"text": "a"}, "destination": "source", "canary": 1}  # of two: it waits
    assert (await operators.done("queues/dead/redrives/plan", wanted))["targets"]
    undone = await operators.done("queues/dead/redrives", {**wanted, "reason": "r"})
    for change in ("pause", "resume", "undo"):
        await operators.done(f"queues/dead/redrives/{change}", undone)
    (shown,) = (await operators.seen("queues/dead/redrives"))["redrives"]
    assert (shown["filter"], shown["undone"] is None) == ({"text": "a"}, False)
    await make_dead_letters(operators.served, "a", "b", suffix="-2")
    cancelled = await operators.done("queues/dead-2/redrives", {"canary": 1})
    assert (await operators.seen("queues/dead-2"))["task"] is not None
    await operators.done("queues/dead-2/redrives/pace", {**cancelled, "rate": 1})
    await operators.done("queues/dead-2/redrives/cancel", cancelled)
    await operators.done("queues/source/purge", {"confirm": "source"})
    (purge,) = (await operators.seen("queues/source"))["purges"]
    await operators.done("deleted-queues/restore", {"queue_id": purge["queue_id"]})


async def _archive(operators: Recording) -> None:
    (found,) = (await operators.seen("archive/dead/messages", limit=1))["messages"]
    await operators.seen(f"archive/dead/messages/{found['place']}")
    await operators.done("archive/dead/replays/plan", {"filter": {"reason": "expired"}})
    replayed = await operators.done("archive/dead/replays", {"places": [found["place"]]})
    assert len(replayed["copies"]) == 1


async def _holds(operators: Recording) -> None:
    await make_dead_letters(operators.served, "a", "b", suffix="-3")
    found = (await operators.seen("queues/dead-3/messages"))["messages"]
    first, second = ({"sequences": [each["sequence"]]} for each in found)
    path = "queues/dead-3/messages"
    await operators.done(f"{path}/hold", {**first, "owner": "ann", "reference": "T-1"})
    (held,) = (await operators.seen(path, state="held"))["messages"]
    assert held["hold"]["owner"] == "ann"
    assert await operators.done(f"{path}/release", first) == {"released": 1, "kept": 0}
    assert await operators.done(f"{path}/quarantine", first) == {"quarantined": 1, "kept": 0}
    await operators.done(f"{path}/delete", {**second, "undo_s": 60})
    (held,) = (await operators.seen(path, state="deleting"))["messages"]
    assert held["hold"]["deleted_at_ms"] is not None
    assert await operators.done(f"{path}/undelete", second) == {"undeleted": 1, "gone": 0}


async def _users(operators: Recording) -> None:
    ann = {"name": "ann"}
    roles = [each["name"] for each in await operators.seen("roles")]
    await operators.done("users", {"name": "role", "role": roles[0], "with_key": True})
    assert await operators.done("users/role", {"name": "role", "role": roles[1]}) == {
        "role": roles[1]
    }
    await operators.done("users/remove", {"name": "role"})
    await operators.done("users", {**ann, "tags": {"team": "shop"}})
    policy = {**ann, "policy": "all"}
    statement = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    await operators.done("users/policies", {**policy, "document": document})
    key = await operators.done("access-keys", {"user": "ann", "expires_in_s": 60})
    one = {"access_key_id": key["access_key_id"]}
    await operators.done("access-keys/enable", {**one, "enabled": False})
    assert (await operators.seen("users"))["users"][0]["keys"][0]["is_enabled"] is False
    assert (await operators.seen("users/show", user="ann"))["policies"] == {"all": document}
    wanted = {"user": "ann", "action": "sqs:SendMessage", "queue": "source"}
    assert (await operators.seen("users/check", **wanted))["allowed"] is True
    await operators.done("access-keys/rotate", {**one, "overlap_s": 60})
    await operators.done("access-keys/remove", one)
    await operators.done("users/policies/remove", policy)
    await operators.done("users/remove", ann)


def test_the_status_of_a_cluster_is_as_documented() -> None:
    status = ClusterStatus(
        "holdfast",
        "id",
        "a",
        [HostStatus("a", "localhost:1", "1", True, True, False)],
        [ShardStatus(0, None, 1, ["a"], [ReplicaStatus("a", "leader", True, 0, False, "")])],
        [EtcdStatus("localhost:2", True, "3", 1, 0, True, True, ("NOSPACE",))],
        ["a problem"],
    )

    check_answer("GET", f"{API}cluster", 200, json.loads(msgspec.json.encode(status)))
    check_answer("POST", f"{API}cluster/drain", 200, {"host": "a", "drained": True})


async def test_refusals_are_as_documented(operators: Recording) -> None:
    wrong = await operators.post("queues/dead/purge", {"confirm": "x"})
    missing = await operators.get("queues/none")
    plain = await operators.post("queues/dead/purge", {}, {"content-type": "text/plain"})
    long = await operators.ask("POST", "queues/dead/purge", b" " * (70 << 10), JSON)

    statuses = [told.status for told in (wrong, missing, plain, long)]
    assert statuses == [400, 404, 415, 413]
