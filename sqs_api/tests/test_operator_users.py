"""The operators' API: users, access keys, policies, and "may this user do that?"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from auth.signing import SigningKey
from sqs_api.admin.routes import MANAGE_USERS
from sqs_api.operators.api import ROUTES
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators, add_user, keys_of
from sqs_api.tests.served import Served, serving

ACCOUNT, OTHER = "0" * 12, "2" * 12
MAY_SEND = json.dumps(
    {"Statement": {"Sid": "sends", "Effect": "Allow", "Action": "sqs:Send*", "Resource": "*"}}
)
XSS = "<img src=x onerror=alert(1)>"


@pytest_asyncio.fixture
async def served(data: Path, root: SigningKey) -> AsyncIterator[Served]:
    async with serving(data, auth=AuthMode.SIGV4) as node:
        yield node


@pytest.fixture
def operators(served: Served, root: SigningKey) -> Operators:
    return Operators(served, root)


async def user(operators: Operators, name: str, account: str = ACCOUNT) -> Any:
    return await operators.seen("users/show", user=name, account=account)


async def new_key(operators: Operators, name: str | None) -> SigningKey:
    made = await operators.done("access-keys", {"user": name})
    return SigningKey(made["access_key_id"], made["secret_access_key"], "us-east-1")


async def status(served: Served, key: SigningKey) -> int:
    """Of a request that every signer may make."""
    return (await Operators(served, key).get("caller")).status


# -- users and policies ----------------------------------------------------------------------------


async def test_a_user_is_made_gets_a_policy_and_goes_with_its_keys(operators: Operators) -> None:
    await operators.done("users", {"name": "ann", "tags": {"team": XSS}})
    await operators.done("users/policies", {"name": "ann", "policy": "p", "document": MAY_SEND})
    key = await new_key(operators, "ann")
    shown = await user(operators, "ann")
    as_ann = await status(operators.served, key)
    (listed,) = (await operators.seen("users"))["users"]
    await operators.done("users/remove", {"name": "ann"})

    assert shown["policies"] == {"p": MAY_SEND}
    assert (shown["arn"], shown["tags"]) == (f"arn:aws:iam::{ACCOUNT}:user/ann", {"team": XSS})
    assert shown["created_at_ms"] > 0
    assert (listed["name"], listed["policies"]) == ("ann", ["p"])
    assert [each["access_key_id"] for each in listed["keys"]] == [key.access_key_id]
    assert (await operators.seen("users"))["users"] == []
    assert (as_ann, await status(operators.served, key)) == (200, 403)


async def test_the_rules_are_those_of_the_commands(operators: Operators) -> None:
    await operators.done("users", {"name": "ann"})
    refused = [
        ("users", {"name": "ann"}, "there is a user ann already"),
        ("users", {"name": XSS}, "must be 1 to 64 letters"),
        ("users", {"name": "ann", "account": "1"}, "account must be 12 digits"),
        ("users/remove", {"name": "bob"}, "no user bob"),
        ("users/policies", {"name": "ann", "policy": "p", "document": "{"}, "it is not JSON"),
        ("users/policies", {"name": "ann", "policy": "", "document": MAY_SEND}, "name the policy"),
        ("users/policies/remove", {"name": "ann", "policy": "p"}, "has no policy p"),
        ("access-keys", {"user": "bob"}, "no user bob"),
        ("access-keys", {"expires_in_s": 0}, "`int` >= 1"),
        ("access-keys", {"expires_in_s": 10**17}, "`int` <= "),
        ("access-keys/enable", {"access_key_id": "AKIAX", "enabled": False}, "no access key"),
        ("access-keys/remove", {"access_key_id": "AKIAX"}, "no access key"),
    ]

    for path, content, reason in refused:
        told = await operators.post(path, content)
        assert told.status in (400, 404), path
        assert reason in told.json["error"]
    assert (await user(operators, "ann"))["policies"] == {}


async def test_commands_and_the_api_see_each_others_changes(
    operators: Operators, data: Path
) -> None:
    await operators.done("users", {"name": "ann"})
    key = await new_key(operators, "ann")
    listed = await asyncio.to_thread(run, "credentials", "--data", data, "list")
    await asyncio.to_thread(run, "users", "--data", data, "add", "bob")

    assert f"{key.access_key_id}  {ACCOUNT}  user/ann  enabled" in listed.out
    assert "user/ann" in (await asyncio.to_thread(run, "users", "--data", data, "list")).out
    assert (await user(operators, "bob"))["keys"] == []


async def test_users_of_other_accounts_are_apart(operators: Operators) -> None:
    await operators.done("users", {"name": "ann", "account": OTHER})
    told = await operators.get("users/show", user="ann")

    assert told.status == 404
    assert (await user(operators, "ann", OTHER))["account"] == OTHER


# -- access keys -----------------------------------------------------------------------------------


async def test_a_key_is_disabled_enabled_and_removed_at_once(operators: Operators) -> None:
    served = operators.served
    key = await new_key(operators, None)
    seen = [await status(served, key)]
    for enabled in (False, True):
        content = {"access_key_id": key.access_key_id, "enabled": enabled}
        await operators.done("access-keys/enable", content)
        seen.append(await status(served, key))
    await operators.done("access-keys/remove", {"access_key_id": key.access_key_id})

    assert [*seen, await status(served, key)] == [200, 403, 200, 403]


async def test_a_key_may_end(operators: Operators) -> None:
    made = await operators.done("access-keys", {"expires_in_s": 36_000})
    keys = (await operators.seen("users"))["account_keys"]

    (key,) = [each for each in keys if each["access_key_id"] == made["access_key_id"]]
    assert key["created_at_ms"] < key["expires_at_ms"] <= key["created_at_ms"] + 36_000_000
    assert (key["is_enabled"], key["has_expired"], key["account"]) == (True, False, ACCOUNT)


async def test_a_key_is_replaced_and_stays_valid_for_a_while(
    operators: Operators, data: Path
) -> None:
    await operators.done("users", {"name": "ann"})
    old = await new_key(operators, "ann")
    made = await operators.done(
        "access-keys/rotate", {"access_key_id": old.access_key_id, "overlap_s": 3600}
    )
    new = SigningKey(made["access_key_id"], made["secret_access_key"], "us-east-1")
    keys = {each["access_key_id"]: each for each in (await user(operators, "ann"))["keys"]}
    first, second = keys[old.access_key_id], keys[new.access_key_id]
    seen = [await status(operators.served, key) for key in (old, new)]
    await operators.done("access-keys/rotate", {"access_key_id": new.access_key_id, "overlap_s": 0})

    assert first["expires_at_ms"] > first["created_at_ms"]
    assert (second["expires_at_ms"], seen) == (None, [200, 200])
    assert await status(operators.served, new) == 403
    await operators.served.node.stop()
    audit = (data / "audit.log").read_text()
    assert "holdfast:RotateKey" in audit
    assert new.access_key_id in audit
    assert new.secret_access_key not in audit


async def test_a_key_that_cannot_be_replaced_is_refused(operators: Operators, data: Path) -> None:
    assert operators.key is not None
    session = (
        (await asyncio.to_thread(run, "credentials", "--data", data, "session"))
        .out.partition("=")[2]
        .split()[0]
    )
    refused = [
        ({"access_key_id": "AKIAX"}, 404, "no access key AKIAX"),
        ({"access_key_id": session}, 400, "is temporary"),
        ({"access_key_id": "AKIAX", "overlap_s": -1}, 400, ">= 0"),
        ({"access_key_id": operators.key.access_key_id, "overlap_s": 0}, 400, "This key signed"),
    ]
    for content, code, reason in refused:
        told = await operators.post("access-keys/rotate", content)
        assert told.status == code, content
        assert reason in told.json["error"]
    own = {"access_key_id": operators.key.access_key_id, "overlap_s": 60}
    assert (await operators.post("access-keys/rotate", own)).status == 200


async def test_the_key_that_signs_cannot_lock_its_owner_out(operators: Operators) -> None:
    assert operators.key is not None
    own = {"access_key_id": operators.key.access_key_id}
    told = [
        await operators.post("access-keys/enable", {**own, "enabled": False}),
        await operators.post("access-keys/remove", own),
    ]

    assert [each.status for each in told] == [400, 400]
    assert await status(operators.served, operators.key) == 200


async def test_a_secret_is_in_one_answer_only(operators: Operators, data: Path) -> None:
    key = await new_key(operators, None)
    lists = json.dumps(await operators.seen("users"))
    await operators.served.node.stop()

    assert key.access_key_id in lists
    assert key.secret_access_key not in lists
    audit = (data / "audit.log").read_text()
    assert key.access_key_id in audit
    assert key.secret_access_key not in audit


# -- who may ---------------------------------------------------------------------------------------


async def test_only_the_root_of_the_services_account_changes_users(data: Path) -> None:
    changing = [route for route in ROUTES if route.action == MANAGE_USERS]
    everything = add_user(data, "everything", "*")
    tenant = keys_of(
        await asyncio.to_thread(run, "credentials", "--data", data, "add", "--account", OTHER)
    )
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for route in changing:
            for key in (everything, tenant):
                told = await Operators(served, key).post(route.path.removeprefix("api/"), {})
                assert told.status == 403, route.name
        listed = await Operators(served, tenant).get("users")

    assert len(changing) == 9
    assert listed.status == 403


async def test_a_user_reads_with_its_policy_only(data: Path) -> None:
    reader = add_user(data, "reader", "holdfast:ReadUsers")
    other = add_user(data, "other", "holdfast:ListQueues")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told = [await Operators(served, key).get("users") for key in (reader, other)]

    assert [each.status for each in told] == [200, 403]


async def test_each_change_is_audited(operators: Operators, data: Path) -> None:
    key = await new_key(operators, None)
    await operators.done("users", {"name": "ann"})
    await operators.done("users/policies", {"name": "ann", "policy": "p", "document": MAY_SEND})
    await operators.done("users/policies/remove", {"name": "ann", "policy": "p"})
    content = {"access_key_id": key.access_key_id}
    await operators.done("access-keys/enable", {**content, "enabled": False})
    await operators.done("access-keys/remove", content)
    await operators.done("users/remove", {"name": "ann"})
    await operators.post("users/remove", {"name": "ann"})
    await operators.served.node.stop()

    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    ours = [line for line in lines if line["event"].startswith("holdfast:")]
    assert [(line["event"], line["outcome"]) for line in ours] == [
        ("holdfast:AddKey", "ok"),
        ("holdfast:AddUser", "ok"),
        ("holdfast:PutPolicy", "ok"),
        ("holdfast:RemovePolicy", "ok"),
        ("holdfast:EnableKey", "ok"),
        ("holdfast:RemoveKey", "ok"),
        ("holdfast:RemoveUser", "ok"),
        ("holdfast:RemoveUser", "ResourceNotFoundException"),
    ]
    assert ours[0]["made"] == key.access_key_id
    assert (ours[2]["of_user"], ours[2]["policy"]) == ("ann", "p")


# -- may this user? --------------------------------------------------------------------------------


async def asked(operators: Operators, **parameters: object) -> tuple[bool, str]:
    found = await operators.seen("users/check", **parameters)
    return found["allowed"], found["decided_by"]


async def test_the_answer_names_the_statement_that_decided(operators: Operators) -> None:
    policy = {
        "Statement": {
            "Sid": "everyone",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:PurgeQueue",
            "Resource": "*",
        }
    }
    await operators.done("users", {"name": "ann"})
    await operators.done("users/policies", {"name": "ann", "policy": "p", "document": MAY_SEND})
    await operators.served.node.owner.catalog.create_queue(
        (ACCOUNT, "us-east-1", "q"), {"Policy": json.dumps(policy)}, {}
    )

    assert await asked(operators, user="ann", action="SendMessage", queue="q") == (True, "p, sends")
    assert await asked(operators, user="ann", action="ReceiveMessage", queue="q") == (False, "")
    purge = {"action": "sqs:PurgeQueue", "queue": "q"}
    denied = (False, "queue policy, everyone")
    assert await asked(operators, user="ann", **purge) == denied
    assert await asked(operators, who="root", **purge) == denied
    assert await asked(operators, who="anonymous", **purge) == denied
    assert (await asked(operators, who="root", action="SendMessage", queue="q"))[0]
    told = await operators.get("users/check", user="ann", action="Nothing", queue="q")
    assert (told.status, told.json["error"]) == (400, "action: there is no action Nothing")


async def test_conditions_of_the_request_are_given(operators: Operators) -> None:
    document = json.loads(MAY_SEND)
    document["Statement"]["Condition"] = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    await operators.done("users", {"name": "ann"})
    content = {"name": "ann", "policy": "p", "document": json.dumps(document)}
    await operators.done("users/policies", content)
    await operators.served.node.owner.catalog.create_queue((ACCOUNT, "us-east-1", "q"), {}, {})
    question = {"user": "ann", "action": "SendMessage", "queue": "q"}

    inside = await asked(operators, **question, conditions="aws:SourceIp=10.1.2.3")
    outside = await asked(operators, **question, conditions="aws:SourceIp=11.1.2.3")
    assert (inside, outside) == ((True, "p, sends"), (False, ""))


async def test_the_service_and_requests_agree(operators: Operators) -> None:
    """The question decides as a request of that user does."""
    await operators.done("users", {"name": "ann"})
    key = await new_key(operators, "ann")
    document = MAY_SEND.replace("sqs:Send*", "holdfast:ReadAudit")
    before = await asked(operators, user="ann", action="holdfast:ReadAudit")
    refused = await Operators(operators.served, key).get("audit")
    await operators.done("users/policies", {"name": "ann", "policy": "p", "document": document})
    after = await asked(operators, user="ann", action="holdfast:ReadAudit")
    answered = await Operators(operators.served, key).get("audit")

    assert (before, refused.status) == ((False, ""), 403)
    assert (after, answered.status) == ((True, "p, sends"), 200)


async def test_the_day_of_a_keys_last_use_is_shown_and_survives_a_restart(
    data: Path, root: SigningKey
) -> None:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, root)
        await operators.done("users", {"name": "ann"})
        key = await new_key(operators, "ann")
        (unused,) = (await user(operators, "ann"))["keys"]
        assert await status(served, key) == 200
        (used,) = (await user(operators, "ann"))["keys"]
    async with serving(data, auth=AuthMode.SIGV4) as served:
        (shown,) = (await user(Operators(served, root), "ann"))["keys"]
        (listed,) = (await Operators(served, root).seen("users"))["users"]
    said = (await asyncio.to_thread(run, "credentials", "--data", data, "list")).out

    assert unused["last_used_on"] is None
    used_on = date.fromisoformat(shown["last_used_on"])
    assert abs((datetime.now(UTC).date() - used_on).days) <= 1
    assert listed["keys"] == [used] == [shown]
    (line,) = [each for each in said.splitlines() if key.access_key_id in each]
    assert line.endswith(f"  enabled  used {used_on}")


async def test_a_user_with_a_role_gets_its_policy_and_a_key(
    operators: Operators, served: Served
) -> None:
    roles = {each["name"]: each for each in await operators.seen("roles")}
    made = await operators.done("users", {"name": "eve", "role": "watcher", "with_key": True})
    wrong = await operators.post("users", {"name": "mallory", "role": "king"})

    assert [*roles] == ["watcher", "viewer", "operator", "admin"]
    assert (await user(operators, "eve"))["policies"] == {"watcher": roles["watcher"]["document"]}
    key = made["key"]
    eve = Operators(served, SigningKey(key["access_key_id"], key["secret_access_key"], "us-east-1"))
    assert (await eve.get("queues")).status == 200
    assert (await eve.get("users")).status == 403
    assert (wrong.status, wrong.json["error"]) == (
        400,
        "There is no role king: the roles are watcher, viewer, operator, admin.",
    )
    assert (await operators.get("users/show", user="mallory")).status == 404


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("watcher", "holdfast:BrowseMessages", "holdfast:ReadMessageBodies"),
        ("viewer", "holdfast:ReadMessageBodies", "holdfast:RedriveMessages"),
        ("operator", "holdfast:RedriveMessages", "sqs:DeleteQueue"),
        ("admin", "sqs:DeleteQueue", "holdfast:BrowseMessages"),
    ],
)
async def test_a_role_may_what_it_says_and_no_more(
    operators: Operators, role: str, may: str, may_not: str
) -> None:
    await operators.done("queues", {"name": "jobs"})
    await operators.done("users", {"name": role, "role": role})
    allowed = [
        (await operators.seen("users/check", user=role, action=action, queue="jobs"))["allowed"]
        for action in (may, may_not)
    ]

    assert allowed[0]
    assert allowed[1] is (role == "admin")


async def test_a_role_takes_the_place_of_another_one(operators: Operators) -> None:
    roles = {each["name"]: each["document"] for each in await operators.seen("roles")}
    ann = {"name": "ann"}
    await operators.done("users", {**ann, "role": "viewer"})
    await operators.done("users/policies", {**ann, "policy": "own", "document": roles["watcher"]})
    await operators.done("users/role", {**ann, "role": "operator"})
    changed = (await user(operators, "ann"))["policies"]
    await operators.done("users/role", {**ann, "role": None})
    wrong = await operators.post("users/role", {**ann, "role": "king"})
    unknown = await operators.post("users/role", {"name": "bob", "role": "viewer"})

    assert changed == {"own": roles["watcher"], "operator": roles["operator"]}
    assert (await user(operators, "ann"))["policies"].keys() == {"own"}
    assert (wrong.status, unknown.status) == (400, 404)
