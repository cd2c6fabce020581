"""`holdfast convert`, and other commands on a folder that needs conversion."""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import storage.tests
from cluster.clock import SystemClock
from sqs_api.node import start_node
from sqs_api.settings.config import Settings
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import Served, filled, serving
from storage.engines.store_options import log_folder
from storage.tests.format_3 import in_use, make_old_folder, note, noted
from storage.tests.on_disk import rows_of
from storage.tests.store_places import everything

RELEASED = Path(storage.tests.__file__).parent / "data" / "version-0.1.tar.gz"
"""A data folder and a backup of version 0.1 (see the README beside it)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of format 3 with two queues and three messages."""
    data = filled(tmp_path_factory.mktemp("made") / "data")
    with rows_of(data / "shard-0") as rows:
        kept = everything(rows)
    shutil.rmtree(data / "shard-0")
    shutil.rmtree(log_folder(data / "shard-0"))
    make_old_folder(data, kept)
    return data


@pytest.fixture
def old(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


# -- before ----------------------------------------------------------------------------------------


def _hint(data: Path) -> str:
    return (
        f"data folder {data} has format 3; this version of holdfast knows 4; "
        f"convert it with holdfast convert {data}"
    )


async def test_serve_says_how_to_convert(old: Path) -> None:
    with pytest.raises(NodeRefused) as refused:
        await start_node(Settings(port=0, data=old))

    assert str(refused.value) == _hint(old)


def test_verify_and_backup_say_how_to_convert(old: Path, tmp_path: Path) -> None:
    assert run("verify", old) == Said(2, "", _hint(old))
    assert run("backup", tmp_path / "backup", "--data", old) == Said(2, "", _hint(old))


def test_check_config_says_how_to_convert(old: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'data = "{old}"\n')

    assert run("check-config", "--config", file) == Said(2, "", _hint(old))

    run("convert", old)
    assert run("check-config", "--config", file).status == 0


# -- the command -----------------------------------------------------------------------------------


async def test_a_converted_folder_is_served(old: Path) -> None:
    said = run("convert", old)

    assert said == Said(
        0,
        f"{old} has format 4 now. What it had before is kept as a backup:\n"
        f"    {old}/shard-0\n    {old}/shard-0.answered\n    {old}/format-3.json\n"
        "Remove these once the service has run on the new files.\n",
        "",
    )
    assert run("verify", old).out.endswith("; nothing found\n")
    async with serving(old) as served:
        assert sorted(await served.receive()) == ["a", "b"]
        await served.send("d")
    async with serving(old) as served:
        assert sorted(await served.receive("other")) == ["c"]
        assert await served.count() == 3
    assert run("verify", old).out.endswith("; nothing found\n")
    shutil.rmtree(old / "shard-0")
    for name in ("shard-0.answered", "format-3.json"):
        (old / name).unlink()
    assert run("verify", old).out.endswith("; nothing found\n")


def test_a_folder_is_converted_once(old: Path) -> None:
    run("convert", old)

    assert run("convert", old) == Said(2, "", f"data folder {old} has format 4 already")


@pytest.mark.slow
def test_a_folder_in_use_is_not_converted(old: Path) -> None:
    with in_use(old) as writer:
        said = run("convert", old)

    assert said == Said(2, "", f"data folder {old} is in use by process {writer.pid}")


def test_loss_must_be_accepted(old: Path) -> None:
    held = noted(old / "shard-0")
    note(old / "shard-0", held + 3)

    said = run("convert", old)

    assert said == Said(
        1,
        "",
        f"nothing was converted: {old}/shard-0 came back shorter: it holds {held} "
        "changes, but answers told "
        f"of {held + 3}. Restore a backup, or convert with --accept-loss to go on without the "
        "rest",
    )
    assert run("convert", old, "--accept-loss").status == 0


# -- of the released version -----------------------------------------------------------------------


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Of version 0.1: `data`, where it was killed, and `data.backup`."""
    with tarfile.open(RELEASED) as archive:
        if hasattr(tarfile, "data_filter"):  # not before 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def facts(released: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Facts about the folder; the service's clock stands at the time of the kill."""
    facts: dict[str, Any] = json.loads((released / "facts.json").read_text())
    clock = partial(SystemClock, wall=lambda: facts["made_at_s"])
    monkeypatch.setattr("sqs_api.node.SystemClock", clock)
    return facts


async def _attribute(served: Served, queue: str, name: str) -> str:
    answer = await served.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=[name])
    value: str = answer["Attributes"][name]
    return value


async def test_messages_of_a_killed_0_1_survive(released: Path, facts: dict[str, Any]) -> None:
    assert run("convert", released / "data").status == 0
    assert run("verify", released / "data").out.endswith("; nothing found\n")

    async with serving(released / "data") as served:
        assert sorted(await served.receive("std")) == sorted(f"m{n}" for n in range(5, 25))
        assert await _attribute(served, "delayed", "ApproximateNumberOfMessagesDelayed") == "1"
        assert list(await served.receive("sealed")) == ["secret"]
        assert list(await served.receive("purged")) == ["after the purge"]
        assert await served.count("flight") == 2
        await served.delete(facts["handle"], "flight")
        assert list(await served.receive("flight")) == ["free"]
        dead = await served.call(
            "ReceiveMessage", QueueUrl="dead", MaxNumberOfMessages=10, AttributeNames=["All"]
        )
    counts = {m["Body"]: m["Attributes"]["ApproximateReceiveCount"] for m in dead["Messages"]}
    assert counts == {"poison0": "3", "poison1": "3", "poison2": "3"}


async def test_order_and_deduplication_of_0_1_survive(
    released: Path, facts: dict[str, Any]
) -> None:
    run("convert", released / "data")

    async with serving(released / "data") as served:
        again = await served.call(
            "SendMessage",
            QueueUrl="line.fifo",
            MessageBody="once",
            MessageGroupId="g0",
            MessageDeduplicationId="dedup",
        )
        assert (again["MessageId"], again["SequenceNumber"]) == (
            facts["once"],
            facts["once_sequence"],
        )
        bodies = []
        while messages := (
            await served.call("ReceiveMessage", QueueUrl="line.fifo", MaxNumberOfMessages=10)
        ).get("Messages"):
            for message in messages:
                bodies.append(message["Body"])
                await served.delete(message["ReceiptHandle"], "line.fifo")
    groups = [
        [body for body in bodies if body in [f"f{n}" for n in range(first, 12, 3)]]
        for first in range(3)
    ]
    assert groups == [[f"f{n}" for n in range(first, 12, 3)] for first in range(3)]
    assert bodies.index("once") > bodies.index("f9")
    assert len(bodies) == 13


async def test_a_move_task_of_0_1_runs_on(released: Path, facts: dict[str, Any]) -> None:
    run("convert", released / "data")

    async with serving(released / "data") as served:
        (task,) = (await served.call("ListMessageMoveTasks", SourceArn=facts["bigdead_arn"]))[
            "Results"
        ]
        assert (task["Status"], task["TaskHandle"]) == ("RUNNING", facts["task"])
        await served.call("CancelMessageMoveTask", TaskHandle=facts["task"])
        assert await served.count("bigdead") + await served.count("bigsource") == 300
        assert await served.count("bigsource") > 0


async def test_users_keys_and_a_deleted_queue_of_0_1_survive(
    released: Path, facts: dict[str, Any]
) -> None:
    data = released / "data"
    run("convert", data)

    keys = {
        line.split()[0]: line
        for line in run("credentials", "--data", data, "list").out.splitlines()
    }
    assert facts["key"]["AWS_ACCESS_KEY_ID"] in keys
    assert "user/alice  enabled" in keys[facts["alice"]["AWS_ACCESS_KEY_ID"]]
    assert "Allow" in run("users", "--data", data, "show", "alice").out
    assert "orders" in run("keys", "--data", data, "list").out
    async with serving(data, restore_deleted_s=1_209_600) as served:
        restore = ("restore-queue", "gone", "--data", data, "--url", served.address)
        assert (await asyncio.to_thread(run, *restore)).status == 0
        assert list(await served.receive("gone")) == ["restore me"]


async def test_a_backup_of_0_1_is_restored(released: Path, facts: dict[str, Any]) -> None:
    backup, data = released / "data.backup", released / "restored"
    assert run("verify", backup).out.endswith("; nothing found\n")

    assert run("restore", backup, "--data", data).status == 0

    assert run("verify", data).out.endswith("; nothing found\n")
    shutil.copy(released / "data" / "master.key", data)
    async with serving(data) as served:
        assert sorted(await served.receive("std")) == sorted(f"m{n}" for n in range(5, 25))
        await served.delete(facts["handle"], "flight")
