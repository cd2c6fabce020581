"""`holdfast backup`, `restore` and `verify`, with a service and without one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.clock import SystemEntropy
from sqs_api.node import start_node
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.settings.service_note import make_local_key, remove_note, write_note
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import Served, filled, names, serving
from sqs_api.tests.serving import until
from storage.copies.manifest import read_manifest
from storage.engines.durable import DurableStore
from storage.files.copying import files_below


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def closed(data: Path) -> Path:
    return filled(data)


def put_far(patch: pytest.MonkeyPatch) -> None:
    """From now on targets are on another file system: no hard link reaches them."""

    def refuse(source: Path, link: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    patch.setattr(os, "link", refuse)


# -- content of a backup ---------------------------------------------------------------------------


async def test_restored_queues_are_as_they_were_when_the_backup_was_made(
    data: Path, target: Path, tmp_path: Path
) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q", Attributes={"VisibilityTimeout": "600"})
        await served.send("kept", "deleted later")
        said = await served.backup(target, "--with-master-key")
        handles = await served.receive()
        await served.delete(handles["deleted later"])
        await served.send("sent later")
        await served.call("CreateQueue", QueueName="made-later")
    assert said.status == 0, said

    restored = run("restore", target, "--data", tmp_path / "new")

    assert restored.status == 0, restored
    async with serving(tmp_path / "new") as served:
        (url,) = (await served.call("ListQueues"))["QueueUrls"]
        attributes = await served.call("GetQueueAttributes", QueueUrl="q", AttributeNames=["All"])
        received = await served.receive()
    assert url.endswith("/q")
    assert attributes["Attributes"]["VisibilityTimeout"] == "600"
    assert received.keys() == {"kept", "deleted later"}


async def test_handles_name_the_same_messages_after_a_restore_or_none(
    data: Path, target: Path, tmp_path: Path
) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q", Attributes={"VisibilityTimeout": "600"})
        await served.call("CreateQueue", QueueName="unused")
        await served.send("before")
        before = await served.receive()
        assert (await served.backup(target, "--with-master-key")).status == 0
        await served.send("after")
        await served.send("after", queue="unused")
        after, unused = await served.receive(), await served.receive("unused")
    run("restore", target, "--data", tmp_path / "new")

    async with serving(tmp_path / "new") as served:
        await served.send("new")
        await served.send("new", queue="unused")
        assert (await served.receive()).keys() == {"new"}
        assert (await served.receive("unused")).keys() == {"new"}
        await served.delete(after["after"])
        await served.delete(unused["after"], queue="unused")
        assert [await served.count(queue) for queue in ("q", "unused")] == [2, 1]
        await served.delete(before["before"])
        assert await served.count() == 1


async def test_sequence_numbers_go_on_above_those_given_after_the_backup(
    data: Path, target: Path, tmp_path: Path
) -> None:
    async def sent(served: Served, body: str) -> str:
        members = {"MessageGroupId": "g", "MessageDeduplicationId": body}
        said = await served.call("SendMessage", QueueUrl="q.fifo", MessageBody=body, **members)
        return str(said["SequenceNumber"])

    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
        await sent(served, "a")
        await served.backup(target, "--with-master-key")
        last = await sent(served, "b")
    run("restore", target, "--data", tmp_path / "new")

    async with serving(tmp_path / "new") as served:
        assert await sent(served, "c") > last
        assert list(await served.receive("q.fifo")) == ["a", "c"]


async def test_all_commands_count_the_same_queues(data: Path, target: Path, tmp_path: Path) -> None:
    """Those without rows too, and those that can be restored apart."""
    at_rest, new = tmp_path / "at-rest", tmp_path / "new"
    async with serving(data, restore_deleted_s=1000) as served:
        for name in ("used", "never-used", "used-and-deleted", "deleted"):
            await served.call("CreateQueue", QueueName=name)
        for name in ("used", "used-and-deleted"):
            await served.send("a", queue=name)
        for name in ("used-and-deleted", "deleted"):
            await served.call("DeleteQueue", QueueUrl=name)
        listed = len((await served.call("ListQueues"))["QueueUrls"])
        said = [await served.backup(target)]
        said.append(await asyncio.to_thread(run, "verify", data))
    said.append(run("backup", at_rest, "--data", data))
    said += [run("verify", folder) for folder in (data, target, at_rest)]
    said.append(run("restore", target, "--data", new))
    said.append(run("verify", new))

    assert listed == 2
    for each in said:
        assert each.status == 0
        assert " 2 queues and 2 deleted ones, " in each.out, each.out


def test_a_backup_of_the_version_before_is_read(closed: Path, target: Path) -> None:
    run("backup", target, "--data", closed)

    assert b"deleted_queues" not in (target / "backup.json").read_bytes()
    assert read_manifest(target).deleted_queues == 0


def test_restored_folder_can_be_restored_from_again(
    closed: Path, target: Path, tmp_path: Path
) -> None:
    for number in range(3):
        folder = tmp_path / str(number)
        assert run("backup", target / str(number), "--data", closed).status == 2, "no parent yet"
        target.mkdir(exist_ok=True)
        assert run("backup", target / str(number), "--data", closed).status == 0
        assert run("restore", target / str(number), "--data", folder).status == 0
        shutil.rmtree(target)
        closed = folder

    assert run("verify", closed) == Said(
        0, f"{closed}: 1 shards, 2 queues, 7 rows; nothing found\n", ""
    )


@pytest.mark.parametrize("place", ["near", "far"])
async def test_backup_is_complete_on_any_file_system_and_leaves_nothing_in_the_data_folder(
    data: Path, target: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("a")
        before = names(data)
        if place == "far":
            put_far(monkeypatch)
        said = await served.backup(target)
        assert said.status == 0, said
        assert names(data) == before

    linked = [name for name in files_below(target) if (target / name).stat().st_nlink > 1]
    assert bool(linked) == (place == "near")
    assert run("verify", target).status == 0
    made = f"{target}: 1 queues, {len(read_manifest(target).files)} files, "
    assert said.out.splitlines()[-1].startswith(made)


async def test_backup_leaves_out_the_charts_that_the_service_keeps_locked(
    data: Path, target: Path
) -> None:
    async with serving(data) as served:
        charts = sqlite3.connect(data / "history.sqlite")
        charts.execute("PRAGMA locking_mode = EXCLUSIVE")
        charts.execute("CREATE TABLE minutes (minute INTEGER)")
        said = await served.backup(target)
        charts.close()

    assert said.status == 0, said
    assert "history.sqlite" not in names(target)


def test_backup_and_restored_folder_are_their_owners_alone(
    closed: Path, target: Path, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        run("backup", target, "--data", closed, "--with-master-key")
        run("restore", target, "--data", tmp_path / "new")
    finally:
        os.umask(before)

    for top in (target, tmp_path / "new"):
        folders = [top, top / "shard-0"]
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert stat.S_IMODE((tmp_path / "new" / "master.key").stat().st_mode) == 0o600
    assert (tmp_path / "new" / "master.key").read_bytes() == (closed / "master.key").read_bytes()


async def test_backup_without_the_master_key_is_unreadable_until_it_is_put_back(
    data: Path, target: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("a body to look for")
        await served.backup(target)

    restored = run("restore", target, "--data", new)

    assert restored.out.endswith(
        "The backup has no master.key: the service needs the one it was made with.\n"
    )
    secret = (data / "master.key").read_bytes()
    contents = [(target / name).read_bytes() for name in files_below(target)]
    assert not any(secret in content or b"look for" in content for content in contents)
    with pytest.raises(NodeRefused, match="master key"):
        await start_node(Settings(port=0, data=new, auth=AuthMode.OPEN))
    shutil.copy(data / "master.key", new)
    async with serving(new) as served:
        assert list(await served.receive()) == ["a body to look for"]


# -- while the service runs ------------------------------------------------------------------------


class Gate:
    """Holds a backup's thread where a method of the store is called, until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        original: Callable[..., None] = getattr(DurableStore, method)

        def held(store: DurableStore, *arguments: object) -> None:
            self.reached.set()
            assert self.opened.wait(60)
            original(store, *arguments)

        patch.setattr(DurableStore, method, held)


async def test_messages_flow_while_queues_wait_for_the_copy(
    data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "checkpoint")
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        backup = asyncio.create_task(served.backup(target))
        await until(gate.reached.is_set)
        await served.send("a")
        assert list(await served.receive()) == ["a"]
        creation = asyncio.create_task(served.call("CreateQueue", QueueName="later"))
        second = await served.backup(tmp_path / "second")
        assert not creation.done()
        gate.opened.set()
        assert (await backup).status == 0
        await creation

    assert second == Said(2, "", "another backup is being made, or the service stops")
    assert read_manifest(target).queues == 1


async def test_stop_gives_up_the_backup_and_leaves_nothing(
    data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "flush")
    async with serving(data) as served:
        backup = asyncio.create_task(served.backup(target))
        await until(gate.reached.is_set)
        stop = asyncio.create_task(served.node.stop())
        await asyncio.sleep(0)
        gate.opened.set()
        await stop
        assert (await backup).status == 2

    assert not names(target)


async def test_start_removes_what_a_killed_backup_left(data: Path) -> None:
    async with serving(data):
        pass
    (data / "backup-draft" / "shard-0").mkdir(parents=True)

    async with serving(data):
        assert not (data / "backup-draft").exists()


@pytest.mark.parametrize("target", ["", "there", "data/there", "data", "file", "full", "no/parent"])
async def test_target_that_cannot_be_is_refused(data: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    async with serving(data) as served:
        there = target if target in ("", "there") else str(tmp_path / target)
        answer = await served.ask_page("POST", "backups", json.dumps({"target": there}).encode())

    assert answer.status == (409 if target else 400)
    assert answer.json["error"]
    assert files_below(tmp_path / "full") == ["x"]
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"target": 1}', b'{"target": "/x", "a": 1}'])
async def test_page_refuses_what_is_no_request_for_a_backup(data: Path, body: bytes) -> None:
    async with serving(data) as served:
        answer = await served.ask_page("POST", "backups", body)

    assert answer.status == 400
    assert answer.json["error"].startswith("The request cannot be read: ")


async def test_page_is_for_programs_and_posts_only(data: Path, target: Path) -> None:
    body = json.dumps({"target": str(target)}).encode()
    async with serving(data) as served:
        foreign = {"origin": "http://evil.example"}
        assert (await served.ask_page("POST", "backups", body, more=foreign)).status == 403
        assert (await served.ask_page("GET", "backups")).status == 405

    assert not names(target)


async def test_full_disk_is_named_and_leaves_nothing(
    data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def fill(file: Any, *given: Any, **named: Any) -> int:
        if target in Path(file).parents:
            raise OSError(28, "No space left on device")
        return really_open(file, *given, **named)

    async with serving(data) as served:
        put_far(monkeypatch)
        monkeypatch.setattr(os, "open", fill)
        said = await served.backup(target)
        await served.call("CreateQueue", QueueName="still-works")

    assert said.status == 2
    assert "No space left on device" in said.err
    assert not names(target)
    assert not (data / "backup-draft").exists()


# -- without a service -----------------------------------------------------------------------------


async def test_folder_in_use_is_copied_by_its_service(data: Path, target: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        said = await asyncio.to_thread(run, "backup", target, "--data", data)

    assert (said.status, said.err) == (0, "")
    assert read_manifest(target).queues == 1


@pytest.mark.parametrize("note", ["none", "of another process"])
async def test_folder_in_use_is_not_copied_beside_the_service(
    data: Path, target: Path, note: str
) -> None:
    async with serving(data):
        remove_note(data)
        if note != "none":
            nobody = "http://127.0.0.1:9"
            write_note(data, nobody, nobody, make_local_key("0" * 12, SystemEntropy()))
        said = await asyncio.to_thread(run, "backup", target, "--data", data)

    assert said.status == 2
    assert "lock" in said.err
    assert not names(target)


def test_folder_that_is_none_is_not_copied(tmp_path: Path, target: Path) -> None:
    said = run("backup", target, "--data", tmp_path / "nothing")

    assert said == Said(2, "", f"{tmp_path}/nothing is not a data folder")
