"""Administrative pages, commands and declarations are in the audit log, with their caller."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from auth.signing import SigningKey
from sqs_api.node import start_node
from sqs_api.settings.config import AuthMode, Settings, load
from sqs_api.settings.service_note import login_name, read_note
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import run
from sqs_api.tests.served import filled, serving

ACCOUNT = "000000000000"
FILE = """
[[queues]]
name = "orders"
tags = { team = "shop" }

[[users]]
name = "ann"
access_keys = [{ access_key_id = "AKIAANN", secret_access_key_env = "ANNS" }]
policies = { p = { Statement = [{ Effect = "Deny", Action = "*", Resource = "*" }] } }
"""


def _lines(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]


def _of(data: Path, *events: str) -> list[dict[str, Any]]:
    """The lines about these, without their times."""
    found = [line for line in _lines(data) if line["event"] in events]
    return [{name: line[name] for name in line if name != "time"} for line in found]


async def test_what_is_asked_of_the_pages_is_noted_with_who_asked(
    data: Path, tmp_path: Path
) -> None:
    target = tmp_path / "b"
    async with serving(data, auth=AuthMode.SIGV4, restore_deleted_s=1000) as served:
        queue = await served.node.owner.catalog.create_queue((ACCOUNT, "us-east-1", "q"), {}, {})
        await served.node.owner.catalog.delete_queue(queue)
        note = read_note(data)
        assert note is not None
        for command in (("backup", target), ("backup", target), ("restore-queue", "q")):
            await asyncio.to_thread(run, *command, "--data", data)

    caller = {"account": ACCOUNT, "access_key_id": note.access_key_id, "login": login_name()}
    caller["source_ip"] = "127.0.0.1"
    asked = {"target": str(target), "with_master_key": False}
    backup = {"event": "holdfast:Backup", "path": "/_holdfast/backups", **caller, "asked": asked}
    made, refused, restored = _of(data, "holdfast:Backup", "holdfast:RestoreQueue")
    assert made.pop("answer").keys() == {"queues", "deleted_queues", "files", "bytes"}
    assert made == {**backup, "outcome": "ok"}
    assert refused == {**backup, "outcome": f"{target} is not empty"}
    assert restored == {
        "event": "holdfast:RestoreQueue",
        "path": "/_holdfast/deleted-queues/1/restore",
        **caller,
        "outcome": "ok",
        "answer": {"queue_id": 1, "account": ACCOUNT, "region": "us-east-1", "name": "q"},
    }
    assert "holdfast:ListDeletedQueues" not in {line["event"] for line in _lines(data)}


@pytest.mark.slow  # a process exports to the lake
async def test_what_jobs_ask_for_is_noted(data: Path, tmp_path: Path) -> None:
    async with serving(data, lake=str(tmp_path / "lake"), snapshot_every_s=0) as served:
        await served.ask_page("POST", "archive/seal", b"{}")
        await served.ask_page("POST", "archive/archived", b'{"source": "x"}')

    sealed, acknowledged = _of(data, "holdfast:SealArchive", "holdfast:AcknowledgeArchive")
    assert (sealed["outcome"], len(sealed["answer"]["shards"])) == ("ok", 1)
    assert acknowledged["outcome"].startswith("The request cannot be read: ")
    assert acknowledged["asked"] == {"source": "x"}


async def test_commands_that_purge_and_delete_are_found_by_their_queue(data: Path) -> None:
    async with serving(data, restore_deleted_s=1000) as served:
        await served.call("CreateQueue", QueueName="q")
        for command in (("purge-queue", "q"), ("delete-queue", "q"), ("delete-queue", "none")):
            await asyncio.to_thread(run, *command, "--data", data, "--region", "us-east-1")
        found = await asyncio.to_thread(run, "audit", "--data", data, "--queue", "q", "--json")

    entries = [each for each in json.loads(found.out) if each["action"].startswith("holdfast:")]
    assert [(each["action"], each["queue"]) for each in entries] == [
        ("holdfast:DeleteQueue", "arn:aws:sqs:us-east-1:000000000000:q"),
        ("holdfast:PurgeQueue", "arn:aws:sqs:us-east-1:000000000000:q"),
    ]


async def test_who_was_denied_a_page_is_noted(data: Path) -> None:
    tenant = run("credentials", "--data", data, "add", "--account", "2" * 12).out
    async with serving(data, auth=AuthMode.SIGV4) as served:
        key = served.node.owner.identities.credentials().find(tenant.split("=")[1].split()[0])
        assert key is not None
        await served.ask_page("POST", "backups", b"{}")
        tenants = SigningKey(key.access_key_id, key.secret_access_key, "us-east-1")
        await served.ask_page("POST", "backups", b"{}", key=tenants)

    unknown, known = _of(data, "denied")
    assert (unknown["action"], unknown["outcome"], "account" in unknown) == (
        "holdfast:Backup",
        "MissingAuthenticationToken",
        False,
    )
    assert (known["account"], known["outcome"]) == ("2" * 12, "AccessDenied")


async def test_a_page_that_asks_whether_somebody_is_signed_in_was_not_denied(data: Path) -> None:
    """Each start of the console asks."""
    async with serving(data, auth=AuthMode.SIGV4) as served:
        answer = await served.ask_page("GET", "api/caller")
        changed = await served.ask_page(
            "POST", "api/sessions/end", b"{}", more={"content-type": "application/json"}
        )

    assert (answer.status, changed.status) == (403, 403)
    (denied,) = _of(data, "denied")
    assert denied["action"] == "holdfast:EndSessions"


async def test_what_is_declared_is_noted_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ANNS", "a-secret-of-ann-0123456789")
    data, file = tmp_path / "data", tmp_path / "holdfast.toml"

    async def start(text: str) -> None:
        file.write_text(text)
        node = await start_node(load({"data": data, "port": 0}, file))
        await node.stop()

    await start(FILE)
    await start(FILE)
    await start(FILE.replace("shop", "office"))

    events = (
        "user_declared",
        "user_changed_as_declared",
        "access_key_declared",
        "queue_declared",
        "queue_changed_as_declared",
    )
    user = {"account": ACCOUNT, "user": "ann", "uid": os.getuid()}
    queue = {"account": ACCOUNT, "region": "us-east-1", "queue": "orders", "uid": os.getuid()}
    assert _of(data, *events) == [
        {"event": "user_declared", **user, "tags": {}},
        {
            "event": "user_changed_as_declared",
            **user,
            "policy": "p",
            "document": '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]}',
        },
        {"event": "access_key_declared", **user, "access_key_id": "AKIAANN"},
        {"event": "queue_declared", **queue, "attributes": {}, "tags": {"team": "shop"}},
        {"event": "queue_changed_as_declared", **queue, "tags": {"team": "office"}},
    ]
    assert "a-secret-of-ann" not in (data / "audit.log").read_text()


def test_a_backup_without_the_service_is_noted(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")

    run("backup", tmp_path / "b", "--data", data)

    (line,) = _of(data, "backup")
    assert line == {
        "event": "backup",
        "uid": os.getuid(),
        "login": login_name(),
        "target": str(tmp_path / "b"),
        "with_master_key": False,
    }


def test_a_service_without_its_audit_log_does_not_start(tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    (data / "audit.log").unlink()
    (data / "audit.log").mkdir()

    with pytest.raises(NodeRefused, match="cannot open the audit log: Is a directory"):
        asyncio.run(start_node(Settings(port=0, data=data)))
