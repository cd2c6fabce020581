"""The pages of the archive: an acknowledgement removes nothing that the table does not have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from sqs_api.archiving import lake_process
from sqs_api.archiving.archived_table import ArchivedTable, TableUnreadable
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import until
from storage.lake.archive_schema import transaction_id
from storage.lake.archived_batch import Claimed

CLAIMED = Claimed("source", 0, 1, "id", 1)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest_asyncio.fixture
async def served(data: Path, lake: Path) -> AsyncIterator[Served]:
    """Two messages were deleted, and are in the lake as batch 1."""
    async with serving(data, lake=str(lake), archive_seal_s=3600, snapshot_every_s=0) as started:
        tags = {"holdfast:archive": "all"}
        await started.call("CreateQueue", QueueName="q", tags=tags)
        await started.send("one", "two")
        for handle in (await started.receive()).values():
            await started.delete(handle)
        sealed = await started.ask_page("POST", "archive/seal", b"{}")
        assert [shard["batch"] for shard in sealed.json["shards"]] == [1]
        yield started


async def _waiting(served: Served) -> dict[str, Any]:
    (shard,) = (await served.ask_page("GET", "archive")).json["shards"]
    return dict(shard)


async def _archive(served: Served, lake: Path, batch: int) -> dict[str, Any]:
    """Commit a batch as the job does; returns the job's message to the service."""
    source = (await _waiting(served))["source"]
    properties = CommitProperties(app_transactions=[Transaction(transaction_id(source, 0), batch)])
    rows = pa.table({"body": ["one", "two"]})
    uri = str(lake / "archive")
    await asyncio.to_thread(write_deltalake, uri, rows, mode="append", commit_properties=properties)
    table = DeltaTable(uri)
    return {
        "source": source,
        "shard": 0,
        "batch": batch,
        "table": uri,
        "table_id": str(table.metadata().id),
        "version": table.version(),
    }


async def _acknowledge(served: Served, said: dict[str, Any]) -> tuple[int, Any]:
    answer = await served.ask_page("POST", "archive/archived", json.dumps(said).encode())
    return answer.status, answer.json


@pytest.mark.slow  # a process reads the table
async def test_what_the_table_has_is_forgotten(served: Served, lake: Path) -> None:
    said = await _archive(served, lake, 1)

    assert await _acknowledge(served, said) == (200, {"removed": 2})
    assert await _acknowledge(served, said) == (200, {"removed": 0})
    assert (await _waiting(served))["messages"] == 0


@pytest.mark.slow  # a process reads the table for each
async def test_an_invented_acknowledgement_loses_nothing(served: Served, lake: Path) -> None:
    said = await _archive(served, lake, 0)
    inventions: list[tuple[dict[str, Any], int]] = [
        ({"batch": 1}, 409),
        ({"batch": 1, "source": "another"}, 409),
        ({"shard": 7}, 409),
        ({"table_id": None}, 400),
    ]

    for invented, status in inventions:
        answered, answer = await _acknowledge(served, said | invented)
        assert (answered, list(answer)) == (status, ["error"]), invented

    said = await _archive(served, lake, 2)
    status, answer = await _acknowledge(served, said)
    assert (status, answer["error"]) == (
        409,
        "there is no batch 2: the last one that was sealed is 1",
    )
    for log in (lake / "archive" / "_delta_log").iterdir():
        log.write_text("{")
    assert (await _acknowledge(served, said | {"batch": 1}))[0] == 503, "it is away"
    assert (await _waiting(served))["messages"] == 2


async def test_the_process_that_reads_ends_with_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def started(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        made.append(await start("sleep", "600", **options))
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    asking = asyncio.create_task(ArchivedTable("/lake").check(CLAIMED))
    await until(lambda: bool(made))

    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking

    assert made[0].returncode == -9


async def test_a_lake_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_process, "_PYTHON", ["sh", "-c", "exec sleep 600"])
    monkeypatch.setattr(lake_process, "_READ_S", 0.05)

    with pytest.raises(TableUnreadable, match="does not answer"):
        await ArchivedTable("/lake").check(CLAIMED)
