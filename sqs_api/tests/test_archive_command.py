"""`holdfast archive status`: what waits, what was sealed, what was archived."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sqs_api.tests.commands import run
from sqs_api.tests.served import serving


@pytest.mark.slow  # a process exports to the lake
async def test_the_state_of_each_shard_is_shown(data: Path, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    ask = ("archive", "status", "--data", data)
    async with serving(data, lake=lake, archive_seal_s=3600, snapshot_every_s=0) as served:
        await served.call("CreateQueue", QueueName="q", tags={"holdfast:archive": "all"})
        await served.send("one", "two")
        for handle in (await served.receive()).values():
            await served.delete(handle)
        waiting = await asyncio.to_thread(run, *ask)
        sealed = await served.ask_page("POST", "archive/seal", b"{}")
        as_json = await asyncio.to_thread(run, *ask, "--json")

    first, head, line = waiting.out.splitlines()
    assert first == f"lake: {lake}"
    assert head.split()[:5] == ["shard", "source", "sealed", "archived", "waiting"]
    assert line.split()[0] == "0"
    assert line.split()[2:5] == ["0", "0", "2"]
    assert sealed.status == 200
    (shard,) = json.loads(as_json.out)["shards"]
    assert (shard["sealed"], shard["archived"], shard["messages"]) == (1, 0, 2)


async def test_a_service_without_a_lake_says_so(data: Path) -> None:
    async with serving(data):
        said = await asyncio.to_thread(run, "archive", "status", "--data", data)

    assert (said.status, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert "has no lake" in line
    assert "start it with --lake FOLDER" in line
