"""`holdfast restore-queue` and the service it asks, over restarts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqs_api.node import start_node
from sqs_api.settings.config import AuthMode, Settings, Switch
from sqs_api.tests.commands import Said, run
from sqs_api.tests.serving import Client, Service, json_request
from storage.files.folder import open_folder
from storage.rows.stored_rows import StoredRows
from storage.tests.on_disk import rows_of


@asynccontextmanager
async def _serving(
    data: Path, *, window_s: int, aws_waits: Switch = Switch.ON
) -> AsyncIterator[str]:
    """The address of a node on this folder, in open mode."""
    settings = Settings(
        port=0, data=data, auth=AuthMode.OPEN, restore_deleted_s=window_s, aws_waits=aws_waits
    )
    node = await start_node(settings)
    try:
        yield node.address
    finally:
        await node.stop()


async def _call(address: str, action: str, **members: Any) -> Any:
    """The answer to one action, which must succeed."""
    host, port = address.removeprefix("http://").split(":")
    client = Client(*await asyncio.open_connection(host, int(port)))
    answer = await client.ask(json_request(action, **members))
    await client.close()
    assert answer.status == 200, answer
    return answer.json


async def _restore(address: str, name: str) -> Said:
    return await asyncio.to_thread(run, "restore-queue", name, "--url", address)


async def test_latest_deleted_queue_of_a_name_is_restored_with_its_messages(
    tmp_path: Path,
) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        for name in ("q", "r"):
            await _call(address, "CreateQueue", QueueName=name)
            await _call(address, "SendMessage", QueueUrl=name, MessageBody=f"in {name}")
            await _call(address, "DeleteQueue", QueueUrl=name)

    async with _serving(tmp_path / "data", window_s=1000) as address:
        said = await _restore(address, "q")
        received = await _call(address, "ReceiveMessage", QueueUrl="q")
        again = await _restore(address, "q")

    assert said == Said(0, "restored q of account 000000000000 in us-east-1\n", "")
    assert [message["Body"] for message in received["Messages"]] == ["in q"]
    assert again == Said(2, "", "no deleted queue q can be restored")


async def test_messages_of_deleted_queues_go_when_the_window_is_taken_away(
    tmp_path: Path,
) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        await _call(address, "CreateQueue", QueueName="q")
        await _call(address, "SendMessage", QueueUrl="q", MessageBody="x")
        await _call(address, "DeleteQueue", QueueUrl="q")

    async with _serving(tmp_path / "data", window_s=0) as address:
        assert (await _restore(address, "q")).err == "no deleted queue q can be restored"

    (shard,) = open_folder(tmp_path / "data").values()
    with rows_of(shard) as rows:
        assert list(StoredRows(rows).queues()) == []


async def test_queue_whose_name_was_taken_is_not_restored(tmp_path: Path) -> None:
    async with _serving(tmp_path / "data", window_s=1000, aws_waits=Switch.OFF) as address:
        for action in ("CreateQueue", "DeleteQueue", "CreateQueue"):
            await _call(address, action, QueueName="q", QueueUrl="q")
        said = await _restore(address, "q")

    assert said == Said(2, "", "There is a new queue with the name q.")


async def test_service_that_does_not_know_the_page_is_named(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}"

    assert await _restore(url, "q") == Said(2, "", f"{url}: 404 not found")


# -- purges and protected queues -------------------------------------------------------------------


async def _filled(address: str, name: str, **members: Any) -> None:
    await _call(address, "CreateQueue", QueueName=name, **members)
    await _call(address, "SendMessage", QueueUrl=name, MessageBody=f"in {name}")


async def _run(*arguments: str) -> Said:
    return await asyncio.to_thread(run, *arguments)


async def test_a_purge_is_undone_by_the_name_of_its_queue(tmp_path: Path) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        await _filled(address, "q")
        await _call(address, "PurgeQueue", QueueUrl="q")
        listed = await _run("restore-queue", "--list", "--url", address)
        said = await _restore(address, "q")
        received = await _call(address, "ReceiveMessage", QueueUrl="q")

    assert re.fullmatch(
        r"q  purged \S+Z, 1 messages, until \S+Z, account 000000000000 in us-east-1\n", listed.out
    )
    assert said == Said(0, "restored 1 messages of q of account 000000000000 in us-east-1\n", "")
    assert [message["Body"] for message in received["Messages"]] == ["in q"]


async def test_a_protected_queue_is_removed_by_force_only(tmp_path: Path) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        await _filled(address, "q", tags={"holdfast:protect": "on"})
        for command in ("purge-queue", "delete-queue"):
            refused = await _run(command, "q", "--url", address)
            assert refused.status == 2
            assert "holdfast:protect protects queue q from being deleted or purged" in refused.err
        purged = await _run("purge-queue", "q", "--force", "--url", address)
        deleted = await _run("delete-queue", "q", "--force", "--url", address)
        listed = await _run("restore-queue", "--list", "--url", address)

    assert (purged.out, deleted.out) == ("purged q\n", "deleted q\n")
    assert [line.split()[1] for line in listed.out.splitlines()] == ["deleted", "purged"]


async def test_a_purge_waits_for_its_queue_to_be_restored(tmp_path: Path) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        await _filled(address, "q")
        await _call(address, "PurgeQueue", QueueUrl="q")
        await _call(address, "DeleteQueue", QueueUrl="q")
        first = await _restore(address, "q")
        second = await _restore(address, "q")
        received = await _call(address, "ReceiveMessage", QueueUrl="q")

    assert first.out == "restored q of account 000000000000 in us-east-1\n"
    assert second.out == "restored 1 messages of q of account 000000000000 in us-east-1\n"
    assert [message["Body"] for message in received["Messages"]] == ["in q"]


async def test_removing_an_unknown_queue_is_refused(tmp_path: Path) -> None:
    async with _serving(tmp_path / "data", window_s=1000) as address:
        for command in ("delete-queue", "purge-queue"):
            said = await _run(command, "q", "--url", address)
            assert (said.status, said.out) == (2, "")
            assert said.err.endswith("404 There is no queue q.")
