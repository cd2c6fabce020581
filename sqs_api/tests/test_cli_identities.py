"""The effect of `holdfast credentials`, `users` and `keys` on a folder, and their output."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import click
import pytest

from cluster.keys.master_key import decode_master_key, write_master_key
from sqs_api.commands.command_line import cli
from sqs_api.commands.command_options import opened_identities
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.tests.commands import KEY, run
from sqs_api.tests.served import serving


def test_credentials_are_listed_without_secrets(data: Path) -> None:
    added = run("credentials", "--data", data, "add", "--account", "123456789012")
    secret = re.findall(r"SECRET_ACCESS_KEY=(\S+)", added.out)[0]

    listed = run("credentials", "--data", data, "list")

    assert [line.split()[1] for line in listed.out.splitlines()] == ["000000000000", "123456789012"]
    assert KEY.findall(added.out)[0] in listed.out
    assert secret not in listed.out
    in_json = run("credentials", "--data", data, "list", "--json").out
    found = {key["access_key_id"]: key for key in json.loads(in_json)}
    assert list(found) == [line.split()[0] for line in listed.out.splitlines()]
    assert found[KEY.findall(added.out)[0]]["account"] == "123456789012"
    assert secret not in in_json
    files = [file.read_bytes() for file in data.iterdir() if file.is_file()]
    assert not any(secret.encode() in content for content in files)


def test_added_key_is_shown_as_export_lines_and_found_again(data: Path) -> None:
    said = run("credentials", "--data", data, "add")
    key_id, secret = re.findall(r"^export \w+=(\S+)$", said.out, re.MULTILINE)

    async def stored() -> dict[str, str]:
        async with opened_identities(Settings(data=data), may_make=False) as store:
            return {key.access_key_id: key.secret_access_key for key in store.all_keys()}

    kept = asyncio.run(stored())
    assert kept[key_id] == secret


@pytest.mark.parametrize(("overlap", "state"), [("1h", "expires"), ("0s", "disabled")])
def test_rotated_key_ends_after_the_overlap_and_its_successor_has_its_user(
    data: Path, overlap: str, state: str
) -> None:
    (old,) = KEY.findall(run("credentials", "--data", data, "list").out)
    new = KEY.findall(run("credentials", "--data", data, "rotate", old, "--overlap", overlap).out)[
        0
    ]

    lines = [line.split() for line in run("credentials", "--data", data, "list").out.splitlines()]

    states = {line[0]: (line[2], line[3]) for line in lines}
    assert {key: state for key, (_, state) in states.items()} == {old: state, new: "enabled"}
    assert states[old][0] == states[new][0]


def test_users_have_keys_and_policies(data: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}')
    users = ("users", "--data", data)

    assert run(*users, "add", "ann", "--tag", "team=a").out == (
        "added arn:aws:iam::000000000000:user/ann\n"
    )
    nothing = tmp_path / "nothing.json"
    nothing.write_text('{"Version": "2012-10-17"}')
    refused = run(*users, "put-policy", "ann", "all", nothing)
    assert (refused.status, refused.out) == (2, "")
    assert "it has no Statement" in refused.err
    assert run(*users, "put-policy", "ann", "all", policy).status == 0
    key = KEY.findall(run("credentials", "--data", data, "add", "--user", "ann").out)[0]
    assert (
        f"{key}  000000000000  user/ann  enabled" in run("credentials", "--data", data, "list").out
    )
    assert run(*users, "list").out.endswith("  all\n")
    (shown,) = json.loads(run(*users, "list", "--json").out)
    assert (shown["arn"].rpartition("/")[2], shown["policies"]) == ("ann", ["all"])
    shown = run(*users, "show", "ann").out
    assert "tag team = a" in shown
    assert policy.read_text() in shown
    assert run(*users, "remove-policy", "ann", "all").status == 0
    assert run(*users, "remove", "ann").status == 0
    assert run(*users, "list").out == ""
    assert key not in run("credentials", "--data", data, "list").out


def test_what_commands_change_is_in_the_audit_log_without_secrets(data: Path) -> None:
    said = run("credentials", "--data", data, "add", "--expires-in", "1d")
    run("credentials", "--data", data, "list")
    run("credentials", "--data", data, "remove", "AKIANOBODY")
    run("users", "--data", data, "add", "ann")
    run("keys", "--data", data, "add", "orders")

    text = (data / "audit.log").read_text()

    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines[-3:]] == ["credentials add", "users add", "keys add"]
    assert lines[-3]["made"] in said.out
    assert (lines[-2]["name"], lines[-2]["uid"]) == ("ann", os.getuid())
    assert re.findall(r"SECRET_ACCESS_KEY=(\S+)", said.out)[0] not in text


def test_session_is_a_temporary_key_with_a_token(data: Path) -> None:
    said = run("credentials", "--data", data, "session", "--duration", "15m")

    assert re.search(
        r"ACCESS_KEY_ID=ASIA\w{16}\n.*SECRET.*\n.*SESSION_TOKEN=\S{100,}\n# expires", said.out
    )


def test_keys_of_messages_are_added_rotated_and_disabled(data: Path) -> None:
    keys = ("keys", "--data", data)

    assert run(*keys, "add", "orders").status == 0
    assert run(*keys, "rotate", "orders", "--rewrap").status == 0
    assert run(*keys, "disable", "orders").status == 0
    listed = [line.split() for line in run(*keys, "list").out.splitlines()]
    assert [[name, owner, state] for name, _, owner, state, *_ in listed] == [
        ["aws/sqs", "-", "enabled"],
        ["orders", "0" * 12, "disabled"],
    ]
    in_json = json.loads(run(*keys, "list", "--json").out)
    assert [(key["name"], key["is_enabled"], key["grants"]) for key in in_json] == [
        ("aws/sqs", True, {}),
        ("orders", False, {}),
    ]
    assert run(*keys, "enable", "orders").out == "enabled orders\n"


def test_keys_of_accounts_are_apart_and_granted(data: Path) -> None:
    mine, others = ("keys", "--data", data), ("keys", "--data", data, "--account", "2" * 12)
    for keys in (mine, others):
        assert run(*keys, "add", "orders").status == 0
    assert run(*others, "disable", "orders").status == 0
    user = f"arn:aws:iam::{'2' * 12}:user/ann"

    for arguments in (
        ("--to", "2" * 12),
        ("--to", user, "--operation", "Decrypt"),
        ("--to", "3" * 12),
        ("--to", "3" * 12, "--operation", "GenerateDataKey"),
    ):
        assert run(*mine, "grant", "orders", *arguments).status == 0
    listed = [line.split()[:3:2] for line in run(*mine, "list").out.splitlines()]
    assert listed == [
        ["aws/sqs", "-"],
        ["orders", "0" * 12],
        ["granted", "2" * 12 + ":"],
        ["granted", "3" * 12 + ":"],
        ["granted", user + ":"],
        ["orders", "2" * 12],
    ]
    out = run(*mine, "list").out
    assert f"granted to {'2' * 12}: Decrypt, GenerateDataKey\n" in out
    assert f"granted to {'3' * 12}: GenerateDataKey\n" in out
    assert f"granted to {user}: Decrypt\n" in out
    assert ["enabled" in line for line in out.splitlines() if "orders" in line] == [True, False]

    for grantee in ("2" * 12, "3" * 12, user):
        assert run(*mine, "revoke", "orders", "--from", grantee).status == 0
    assert "granted" not in run(*mine, "list").out
    noted = [
        line["event"] for line in map(json.loads, (data / "audit.log").read_text().splitlines())
    ]
    assert (noted.count("keys grant"), noted.count("keys revoke")) == (4, 3)


def test_another_master_key_takes_the_place_of_the_old_one(data: Path) -> None:
    before = (data / "master.key").read_text()
    listed = run("credentials", "--data", data, "list")

    assert run("keys", "--data", data, "change-master").status == 0

    assert (data / "master.key").read_text() != before
    assert run("credentials", "--data", data, "list") == listed
    (data / "master.key").rename(data / "master.key.new")
    write_master_key(data / "master.key", decode_master_key(before))
    assert run("credentials", "--data", data, "list") == listed, "a change that was interrupted"
    assert not (data / "master.key.new").exists()


def test_key_can_be_disabled_more_than_once(data: Path) -> None:
    (key,) = KEY.findall(run("credentials", "--data", data, "list").out)
    for _ in range(2):
        assert run("credentials", "--data", data, "disable", key).status == 0

    assert "disabled" in run("credentials", "--data", data, "list").out


@pytest.mark.parametrize("group", ["keys", "users", "credentials"])
def test_help_and_wrong_uses_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = cli.commands[group]
    assert isinstance(commands, click.Group)

    for name in commands.commands:
        said = run(group, name, "--help")
        assert (said.status, said.err) == (0, ""), name
        assert said.out.startswith("Usage: ")
        assert run(group, name, "--frobnicate").status == 2
    if group != "credentials":
        assert run(group, "--account", "12", "add", "ann").status == 2

    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "nine")

    assert run("keys", "grant", "--help").status == 0


# -- policy check for keys -------------------------------------------------------------------------


async def test_policy_check_says_who_may_use_the_key_of_a_queue(data: Path, tmp_path: Path) -> None:
    run("keys", "--data", data, "add", "orders")
    async with serving(data) as served:
        for name, attributes in (("q", {"KmsMasterKeyId": "alias/orders"}), ("plain", {})):
            await served.call("CreateQueue", QueueName=name, Attributes=attributes)
    (line,) = [
        line for line in run("keys", "--data", data, "list").out.splitlines() if "orders" in line
    ]
    key = f"arn:aws:kms:us-east-1:{'0' * 12}:key/{line.split()[1]}"
    context = {"kms:EncryptionContext:aws:sqs:arn": f"arn:aws:sqs:us-east-1:{'0' * 12}:q"}
    allow = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": key}
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps({"Statement": [{**allow, "Condition": {"StringEquals": context}}]})
    )
    run("users", "--data", data, "add", "ann")
    run("users", "--data", data, "put-policy", "ann", "reads", policy)

    def check(action: str, *who: str) -> str:
        asked = ("policy", "check", "--data", data, "--action", action, "--queue", "q")
        return run(*asked, *who).out

    ann, other = ("--user", "ann"), ("--account", "2" * 12)
    arn = f"arn:aws:iam::{'0' * 12}:user/ann"
    assert check("kms:Decrypt", *ann) == (
        f"allowed: {arn} kms:Decrypt {key}\nan identity-based policy allows it\n"
        "decided by: reads, statement 1\n"
    )
    assert check("kms:GenerateDataKey", *ann) == (
        f"denied: {arn} kms:GenerateDataKey {key}\n"
        "because no identity-based policy allows the kms:GenerateDataKey action\n"
    )
    assert check("kms:Decrypt").startswith(f"allowed: arn:aws:iam::{'0' * 12}:root ")
    assert check("kms:Decrypt", *other).startswith("denied: ")
    run("keys", "--data", data, "grant", "orders", "--to", "2" * 12, "--operation", "Decrypt")
    assert f"decided by: grant to {'2' * 12}\n" in check("kms:Decrypt", *other)
    assert check("kms:GenerateDataKey", *other).startswith("denied: ")


async def test_policy_check_names_what_it_cannot_check(data: Path) -> None:
    unknown = {"KmsMasterKeyId": "alias/nothing"}
    managed = {"KmsMasterKeyId": "alias/aws/sqs"}
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for name, attributes in (("plain", {}), ("unknown", unknown), ("managed", managed)):
            place = ("0" * 12, "us-east-1", name)
            await served.node.owner.catalog.create_queue(place, attributes, {})

    def refusal(action: str, *queue: str) -> str:
        said = run("policy", "check", "--data", data, "--action", action, *queue)
        assert (said.status, said.out) == (2, "")
        return said.err

    for name, reason in (
        ("plain", "names no key"),
        ("unknown", "names the key alias/nothing, which there is not"),
        ("managed", "names the built-in key, which is for every caller of its account"),
    ):
        assert refusal("kms:Decrypt", "--queue", name) == f"--queue: {name} {reason}"
    assert refusal("kms:Decrypt") == "--queue: is needed for this action"
    assert refusal("kms:Encrypt", "--queue", "plain") == "--action: there is no action kms:Encrypt"
