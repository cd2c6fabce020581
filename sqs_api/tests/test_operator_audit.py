"""The audit log by the operators' API and by `holdfast audit`: filters, pages, hosts, access."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sqs_api.operators.audit_answers import merged
from sqs_api.operators.audit_lines import AboutMessage, AuditFilter, AuditPage, read_lines
from sqs_api.settings.config import AuthMode
from sqs_api.settings.service_note import login_name
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators, add_user, keys_of
from sqs_api.tests.served import serving

LINES = (
    {"event": "started"},
    {"event": "CreateQueue", "user": "ann", "queue": "orders", "outcome": "ok"},
    {"event": "PurgeQueue", "user": "bob", "queue": "http://h/0/orders", "outcome": "ok"},
    {"event": "denied", "action": "SendMessage", "access_key_id": "AKIAX", "outcome": "No"},
    {"event": "holdfast:PurgeQueue", "account": "1", "queue": "arn:aws:sqs:r:1:other"},
    {"event": "CreateQueue", "account": "1", "access_key_id": "AKIAROOT", "queue": "third"},
    {"event": "CreateQueue", "account": "1", "access_key_id": "AKIA", "user": "eve", "queue": "q"},
)


def at(number: int) -> str:
    return f"2026-11-23T04:00:{number:02}.000+00:00"


def write(file: Path, *lines: dict[str, Any]) -> None:
    with file.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "audit.log"
    lines = [{"time": at(number), **line} for number, line in enumerate(LINES)]
    write(file.with_name("audit.log.1"), *lines[:2])
    write(file, *lines[2:])
    with file.open("a") as stream:
        stream.write('{"time": "cut o')
    return file


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({}, [6, 5, 4, 3, 2, 1, 0]),
        ({"since": at(1), "until": at(3)}, [3, 2, 1]),
        ({"user": "bob"}, [2]),
        ({"user": "AKIAX"}, [3]),
        ({"user": "1"}, [6, 5, 4]),
        ({"user": "root"}, [5]),
        ({"action": "purge"}, [4, 2]),
        ({"action": "Send"}, [3]),
        ({"queue": "orders"}, [2, 1]),
        ({"queue": "other"}, [4]),
        ({"queue": "order"}, []),
        ({"denied": True}, [3]),
    ],
)
def test_lines_are_filtered(log: Path, conditions: dict[str, Any], numbers: list[int]) -> None:
    page = read_lines(log, AuditFilter(**conditions))

    assert [line["time"] for line in page.lines] == [at(number) for number in numbers]
    assert page.is_complete


def test_lines_about_a_message_are_changes_that_were_made_at_its_place_or_of_its_ids(
    tmp_path: Path,
) -> None:
    file, queue = tmp_path / "audit.log", "arn:aws:sqs:r:1:orders"
    here = {"event": "holdfast:HoldMessages", "queue": queue, "outcome": "ok"}
    lines: list[dict[str, Any]] = [
        {**here, "sequences": [7]},  # another message had its place then
        {**here, "sequences": [6, 7]},
        {**here, "sequences": [8]},
        {**here, "sequences": [7], "queue": "arn:aws:sqs:r:2:orders"},
        {**here, "sequences": [7], "outcome": "ServiceUnavailable"},
        {**here, "sequence": 3, "queue": "arn:aws:sqs:r:1:other", "sent": "first"},
        {**here, "messages_read": ["first"]},
    ]
    write(file, *({"time": at(number), **line} for number, line in enumerate(lines)))

    page = read_lines(file, AuditFilter(about=AboutMessage(["first", "now"], queue, 7, at(1))))

    assert [line["time"] for line in page.lines] == [at(5), at(1)]


def test_a_file_that_is_rotated_meanwhile_is_read_once(log: Path) -> None:
    log.with_name("audit.log.2").hardlink_to(log.with_name("audit.log.1"))

    assert len(read_lines(log, AuditFilter()).lines) == len(LINES)


def test_pages_of_several_hosts_have_every_line_once() -> None:
    known = {
        host: [{"time": at(number // 3), "event": f"{host}{number}"} for number in range(7, -1, -1)]
        for host in "ab"
    }
    seen: list[str] = []
    wanted = AuditFilter(limit=3)
    while True:
        pages = []
        for host, lines in known.items():
            left = [{**line, "host": host} for line in lines if wanted.matches(line)]
            shown = wanted.skip + (1 if host == "a" else 3)  # one host's page ends early
            pages.append(AuditPage(left[:shown], len(left) <= shown))
        found, more = merged(pages, wanted)
        seen += [line["event"] for line in found]
        if not more:
            break
        last = found[-1]["time"]
        skip = wanted.skip if last == wanted.until else 0
        same = skip + sum(line["time"] == last for line in found)
        wanted = AuditFilter(until=last, skip=same, limit=3)

    assert sorted(seen) == sorted(line["event"] for lines in known.values() for line in lines)
    assert [event[1:] for event in seen if event[0] == "a"] == list("76543210")


@pytest.fixture
def logged(data: Path, log: Path) -> Path:
    """A folder at rest with these lines."""
    (data / "audit.log").write_bytes(log.read_bytes().replace(b'{"time": "cut o', b""))
    return data


async def test_the_log_is_paged_by_the_api_and_shown_by_the_command(logged: Path) -> None:
    data = logged
    async with serving(data) as served:
        operators = Operators(served)
        both = await operators.seen("audit", action="purge", limit=1)
        rest = await operators.seen("audit", action="purge", limit=1, before=both["next"])
        wrong = await operators.get("audit", before="x")
        arguments = ("audit", "--data", data, "--since", "2026-11-23", "--queue", "orders")
        shown = await asyncio.to_thread(run, *arguments)
        as_json = await asyncio.to_thread(run, *arguments, "--limit", "1", "--json")

    assert [each["action"] for each in both["entries"]] == ["holdfast:PurgeQueue"]
    assert [each["action"] for each in rest["entries"]] == ["PurgeQueue"]
    assert (rest["next"], both["missing"]) == (None, [])
    assert wrong.status == 400
    head, line = shown.out.splitlines()
    assert head.split() == ["time", "who", "action", "queue", "outcome", "from", "details"]
    assert line.split() == ["2026-11-23", "04:00:02", "bob", "PurgeQueue", "orders", "ok"]
    assert json.loads(as_json.out)[0]["user"] == "bob"


@pytest.mark.parametrize("auth", list(AuthMode))
async def test_callers_of_commands_are_named(data: Path, auth: AuthMode) -> None:
    run("users", "--data", data, "add", "ann")
    me, key = login_name(), add_user(data, "bob", "holdfast:*")
    async with serving(data, auth=auth) as served:
        for command in (("messages", "send", "q", "--body", "x"), ("purge-queue", "q")):
            await asyncio.to_thread(run, *command, "--data", data)
        stranger = {"x-holdfast-login": "somebody"}
        await Operators(served, key).post("queues/q/purge", {"confirm": "q"}, stranger)
        shown = await asyncio.to_thread(run, "audit", "--data", data)
        mine = await asyncio.to_thread(run, "audit", "--data", data, "--user", me, "--json")

    assert {entry["action"] for entry in json.loads(mine.out)} >= {
        "users add",
        "holdfast:SendMessage",
        "holdfast:PurgeQueue",
    }
    assert f"{me} (local)" in shown.out
    assert "LOCAL" not in shown.out
    assert "somebody" not in shown.out


async def test_only_the_services_account_reads_it(logged: Path) -> None:
    data = logged
    allowed = add_user(data, "auditor", "holdfast:ReadAudit")
    viewer = add_user(data, "viewer", "holdfast:ListQueues")
    tenant = keys_of(run("credentials", "--data", data, "add", "--account", "2" * 12))
    check = ("policy", "check", "--data", data, "--user", "auditor")
    assert run(*check, "--action", "holdfast:ReadAudit").out.startswith("allowed: ")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told = [await Operators(served, key).get("audit") for key in (allowed, viewer, tenant)]
        as_own = await Operators(served, tenant).get("audit", account="2" * 12)

    assert [each.status for each in (*told, as_own)] == [200, 403, 403, 403]
    assert any(each["action"] == "started" for each in told[0].json["entries"])
