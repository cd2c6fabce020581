"""The operators' API: who may do what, what is masked, what other sites' pages may not, and the
audit log."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.signing import SigningKey
from sqs_api.admin.routes import Route
from sqs_api.operators import api
from sqs_api.settings.config import AuthMode
from sqs_api.settings.service_note import read_note
from sqs_api.tests.commands import run
from sqs_api.tests.conftest import Folder
from sqs_api.tests.operator_client import (
    JSON,
    Operators,
    Told,
    User,
    add_user,
    add_users,
    keys_of,
    make_dead_letters,
)
from sqs_api.tests.served import Served, serving

VIEWER = ("holdfast:ListQueues", "holdfast:GetQueue", "holdfast:BrowseMessages")
CONTENTS = {
    "purge queue": {"confirm": "dead"},
    "send message": {"body": "x"},
    "delete messages": {"sequences": [1]},
    "undelete messages": {"sequences": [1]},
    "hold messages": {"sequences": [1]},
    "quarantine messages": {"sequences": [1]},
    "release messages": {"sequences": [1]},
    "resend message": {"body": "x"},
    "cancel redrive": {"handle": "x"},
    "set attributes": {"attributes": {"DelaySeconds": "1"}},
    "tag queue": {"tags": {"team": "shop"}},
    "untag queue": {"keys": ["team"]},
    "plan replay": {"filter": {}},
    "replay archive": {"filter": {}},
    "drain host": {"host": "a", "drained": True},
    "apply change": {"id": "1.1"},
    "set manager mode": {"mode": "paused"},
}
NEED_MORE = (
    "start redrive",
    "plan redrive",
    "delete messages",
    "undelete messages",
    "hold messages",
    "quarantine messages",
    "release messages",
)
"""Routes that need another permission, too."""
ROUTES = [route for route in api.ROUTES if route.is_of_console]
ANSWERED = (200, 400, 404, 409)
"""404: a message that an earlier route of the table took away; 409: there is no cluster."""


def path_of(route: Route) -> str:
    path = route.path.removeprefix("api/").replace("{queue}", "dead").replace("{sequence}", "1")
    return path.replace("{place}", "1.a.0.1")


def name_of(route: Route) -> str:
    """The user who may ask for this only."""
    return route.event.removeprefix("holdfast:")


async def ask(operators: Operators, route: Route, more: dict[str, str] | None = None) -> Any:
    """The answer of a route, with a content that it can read if it is the console's."""
    if not route.is_of_console:
        path = route.path.replace("{queue_id}", "7")
        answer = await operators.served.ask_page(
            route.method, path, b"{}", key=operators.key, more=more or {}
        )
        return Told(answer.status, answer.json)
    content = json.dumps(CONTENTS.get(route.name, {})).encode() if route.method == "POST" else b""
    kind = JSON if route.method == "POST" else {}
    return await operators.ask(route.method, path_of(route), content, {**kind, **(more or {})})


async def _fill(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "secret", "b")


@pytest.fixture(scope="module")
def made(data_to_copy: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made") / "data"
    shutil.copytree(data_to_copy.path, data)
    asyncio.run(_fill(data))
    return data


@pytest.fixture
def dead_letters(made: Path, tmp_path: Path) -> Path:
    """A folder with dead letters, at rest."""
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest_asyncio.fixture
async def open_node(dead_letters: Path) -> AsyncIterator[Served]:
    async with serving(dead_letters) as served:
        yield served


@contextmanager
def audited(data: Path) -> Iterator[list[dict[str, Any]]]:
    """The lines that the audit log gets; complete once the service stopped."""
    lines: list[dict[str, Any]] = []
    yield lines
    lines += map(json.loads, (data / "audit.log").read_text().splitlines())


# -- signatures ------------------------------------------------------------------------------------


async def test_unsigned_requests_and_wrong_signatures_are_refused(dead_letters: Path) -> None:
    key = keys_of(run("credentials", "--data", dead_letters, "add"))
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        signers = (Operators(served), Operators(served, key._replace(secret_access_key="x" * 40)))
        for route in api.ROUTES:
            if route.is_open:
                continue
            unsigned, wrong = [await ask(each, route) for each in signers]
            assert (unsigned.status, wrong.status) == (403, 403), route.name
            assert unsigned.json["error"] == "Request is missing Authentication Token"
            code = unsigned.json.get("code")
            assert code == ("MissingAuthenticationToken" if route.is_of_console else None)


async def test_root_and_local_commands_are_answered(dead_letters: Path) -> None:
    root = keys_of(run("credentials", "--data", dead_letters, "add"))
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        note = read_note(dead_letters)
        assert note is not None
        local = SigningKey(note.access_key_id, note.secret_access_key, "us-east-1")
        for route, key in product(api.ROUTES, (root, local)):
            told = await ask(Operators(served, key), route)
            assert told.status in ANSWERED, (route.name, told)


async def test_a_user_needs_the_action_on_the_queue(dead_letters: Path) -> None:
    arn = "arn:aws:sqs:us-east-1:000000000000:"
    routes = [
        (route, route.action)
        for route in ROUTES
        if route.action is not None and not route.root_only
    ]
    users = {"other": User(["*"], f"{arn}other")}
    for route, action in routes:
        of_queue = arn + ("*" if "{queue}" not in route.path else "dead")
        resource = "*" if route.is_of_service else of_queue
        users[name_of(route)] = User([action, "sqs:SendMessage"], resource)
    may = add_users(dead_letters, users)
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        for route, action in routes:
            allowed = await ask(Operators(served, may[name_of(route)]), route)
            denied = await ask(Operators(served, may["other"]), route)

            if route.name not in NEED_MORE:
                assert allowed.status in ANSWERED, (route.name, allowed)
            assert denied.status == 403
            assert f"not authorized to perform: {action}".lower() in denied.json["error"].lower()


async def test_who_may_not_see_a_queue_does_not_learn_whether_it_exists(
    dead_letters: Path,
) -> None:
    key = add_user(dead_letters, "u", "holdfast:GetQueue", resource="arn:aws:sqs:*:*:mine")
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, key)
        answers = [await operators.get(f"queues/{name}") for name in ("dead", "none", "mine")]

    assert [told.status for told in answers] == [403, 403, 404]


async def test_a_tenant_sees_its_own_queues_only(dead_letters: Path) -> None:
    tenant = keys_of(run("credentials", "--data", dead_letters, "add", "--account", "2" * 12))
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, tenant)
        own = await operators.seen("queues")
        others = [
            await operators.get("queues", account="0" * 12),
            await operators.get("queues/dead", account="0" * 12),
            await operators.get("queues/dead/messages", account="0" * 12),
        ]

    assert own["queues"] == []
    assert {told.status for told in others} == {403}


async def test_a_redrive_needs_the_right_to_send_to_its_targets(dead_letters: Path) -> None:
    key = add_user(dead_letters, "u", "holdfast:RedriveMessages")
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, key)
        for content in ({}, {"destination": "source"}, {"sequences": [1]}):
            told = await operators.post("queues/dead/redrives", content)
            assert told.status == 403
            assert "sqs:sendmessage" in told.json["error"]


async def test_a_copy_that_replaces_needs_the_right_to_delete(dead_letters: Path) -> None:
    key = add_user(dead_letters, "u", "holdfast:BrowseMessages", "sqs:SendMessage")
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, key)
        copy = {"body": "x", "to": "source"}
        await operators.done("queues/dead/messages/1/resend", copy)
        told = await operators.post("queues/dead/messages/1/resend", {**copy, "replace": True})

    assert "holdfast:DeleteMessages" in told.json["error"]


async def test_policy_check_knows_these_actions(dead_letters: Path) -> None:
    add_user(dead_letters, "viewer", *VIEWER)
    check = ("policy", "check", "--data", dead_letters, "--user", "viewer", "--queue", "dead")

    assert run(*check, "--action", "holdfast:BrowseMessages").out.startswith("allowed: ")
    assert run(*check, "--action", "holdfast:ReadMessageBodies").out.startswith("denied: ")
    assert " holdfast:HoldMessages " in run(*check, "--action", "holdfast:QuarantineMessages").out


async def test_what_one_may_do_is_told_and_counts_as_no_refusal(dead_letters: Path) -> None:
    key = add_user(dead_letters, "viewer", *VIEWER)
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        shown = await Operators(served, key).seen("queues/dead")
        denied = served.node.worker.access.denied

    assert (shown["may"], denied) == (["holdfast:BrowseMessages"], 0)


# -- bodies ----------------------------------------------------------------------------------------


async def test_a_viewer_sees_no_body_and_cannot_search_them(dead_letters: Path) -> None:
    key = add_user(dead_letters, "viewer", *VIEWER)
    async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, key)
        page = await operators.seen("queues/dead/messages")
        one = await operators.seen("queues/dead/messages/1")
        searches = [
            await operators.get("queues/dead/messages", **{name: "secret"})
            for name in ("text", "attribute", "json")
        ]

    for message in (*page["messages"], one):
        assert (message["body"], message["is_masked"]) == (None, True)
    assert "secret" not in json.dumps([page, one])
    assert {told.status for told in searches} == {403}


async def test_bodies_need_the_key_of_the_queue_too(data: Path) -> None:
    run("keys", "--data", data, "add", "orders")
    async with serving(data) as served:
        sealed = {"KmsMasterKeyId": "orders"}
        await served.call("CreateQueue", QueueName="q", Attributes=sealed)
        await served.send("secret")
    key = add_user(data, "u", "holdfast:*")
    owner = add_user(data, "owner", "holdfast:*", "kms:Decrypt")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        masked = await Operators(served, key).seen("queues/q/messages")
        shown = await Operators(served, owner).seen("queues/q/messages")

    assert masked["messages"][0]["is_masked"]
    assert shown["messages"][0]["body"] == "secret"


# -- other sites' pages ----------------------------------------------------------------------------


OTHERS = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"origin": "https://localhost:9324", "sec-fetch-site": "same-origin"},
)


async def test_pages_of_other_origins_are_refused(open_node: Served) -> None:
    for route, headers in product(ROUTES, OTHERS):
        told = await ask(Operators(open_node), route, headers)
        assert told.status == 403, (route.name, headers)
        assert "pages are refused" in told.json["error"]


async def test_a_page_under_another_name_is_refused(open_node: Served) -> None:
    answer = await open_node.ask_page("GET", "api/queues", host="rebound.example:9324")

    assert answer.status == 403


async def test_the_consoles_own_pages_are_answered(open_node: Served) -> None:
    own = {"origin": "http://localhost:9324", "sec-fetch-site": "same-origin"}
    agent = {"user-agent": "Mozilla/5.0"}

    for route in ROUTES:
        told = await ask(Operators(open_node), route, own | agent)
        assert told.status in ANSWERED, (route.name, told)


async def test_a_form_cannot_ask_for_changes(open_node: Served) -> None:
    operators = Operators(open_node)

    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        told = await operators.post(
            "queues/dead/purge", {"confirm": "dead"}, {"content-type": kind}
        )
        assert told.status == 415
    assert await open_node.count("dead") == 2


async def test_an_encoded_change_is_refused_by_the_name_of_the_header(open_node: Served) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    told = await Operators(open_node).post("queues/dead/purge", {"confirm": "dead"}, headers)

    assert told.status == 415
    assert told.json == {"error": "Content-Encoding is not supported."}


async def test_open_mode_is_for_this_machine(open_node: Served) -> None:
    told = await Operators(open_node).ask("GET", "queues", b"", {"x-forwarded-for": "203.0.113.7"})

    assert told.status == 403


async def test_the_other_pages_refuse_the_consoles_origin_still(open_node: Served) -> None:
    own = {"origin": "http://localhost:9324", "sec-fetch-site": "same-origin"}

    assert (await open_node.ask_page("GET", "deleted-queues", more=own)).status == 403


# -- limits, replays -------------------------------------------------------------------------------


async def test_unknown_routes_methods_and_sizes(open_node: Served) -> None:
    operators = Operators(open_node)

    assert (await open_node.ask_page("GET", "api/nothing")).status == 404
    assert (await operators.get("queues/dead/purge")).status == 405
    large = {"confirm": "x" * 100_000}
    assert (await operators.post("queues/dead/purge", large)).status == 413


# -- audit -----------------------------------------------------------------------------------------


async def test_changes_and_reads_of_bodies_are_audited_without_bodies(data: Path) -> None:
    with audited(data) as lines:
        async with serving(data) as served:
            await make_dead_letters(served, "secret", "b")
            operators = Operators(served)
            await operators.seen("queues")
            page = await operators.seen("queues/dead/messages", text="secret")
            await operators.done("queues/dead/messages", {"body": "another secret"})
            await operators.post("queues/dead/purge", {"confirm": "x"})
            await operators.done("queues/dead/redrives", {"sequences": [1], "rate": 5})

    ours = [line for line in lines if line["event"].startswith("holdfast:")]
    assert [(line["event"], line["outcome"]) for line in ours] == [
        ("holdfast:ReadMessageBodies", "ok"),
        ("holdfast:SendMessage", "ok"),
        ("holdfast:PurgeQueue", "InvalidParameterValue"),
        ("holdfast:StartRedrive", "ok"),
    ]
    read, _, _, redrive = ours
    assert read["messages_read"] == [page["messages"][0]["message_id"]]
    assert read["queue"].endswith(":dead")
    assert (redrive["messages"], redrive["rate"]) == ([1], 5)
    assert "another secret" not in (data / "audit.log").read_text()


async def test_refusals_are_audited(dead_letters: Path) -> None:
    key = add_user(dead_letters, "viewer", *VIEWER)
    with audited(dead_letters) as lines:
        async with serving(dead_letters, auth=AuthMode.SIGV4) as served:
            await Operators(served, key).post("queues/dead/purge", {"confirm": "dead"})

    (denied,) = [line for line in lines if line["event"] == "denied"]
    assert (denied["action"], denied["user"]) == ("sqs:PurgeQueue", "viewer")
