"""The pages of the archive: an acknowledgement removes nothing that the table does not have."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
from deltalake import write_deltalake

from sqs_api.admin.routes import Refused
from sqs_api.archiving import lake_questions
from sqs_api.archiving.archive_pages import AtHosts, read_archive, seal_archive
from sqs_api.archiving.lake_questions import ArchivedTable, TableUnreadable
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import until
from storage.lake.archive_schema import ARCHIVE, BatchId
from storage.lake.archived_batch import Claimed
from storage.lake.table import Lake
from storage.tests.made_archive import commit, rows_of

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


async def _archive(
    served: Served, folder: Path, batch: int, rows_up_to: int | None = None
) -> dict[str, Any]:
    """Commit batches as the job does; returns the job's message to the service."""
    source = (await _waiting(served))["source"]
    lake = Lake(str(folder))
    last = batch if rows_up_to is None else rows_up_to
    batches = [BatchId(source, 0, number) for number in range(1, last + 1)]
    rows = rows_of(lake, batches) if batches else None
    table = await asyncio.to_thread(commit, lake, rows, BatchId(source, 0, batch))
    return {
        "source": source,
        "shard": 0,
        "batch": batch,
        "table": lake.uri(ARCHIVE),
        "table_id": str(table.metadata().id),
        "version": table.version(),
    }


def _segment(said: dict[str, Any], lake: Path, number: int) -> str:
    return str(lake / BatchId(said["source"], 0, number).path)


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

    said = await _archive(served, lake, 1, rows_up_to=0)
    status, answer = await _acknowledge(served, said)
    assert (status, "the table has 0 rows" in answer["error"]) == (409, True)
    said = await _archive(served, lake, 2, rows_up_to=1)
    status, answer = await _acknowledge(served, said)
    assert (status, _segment(said, lake, 2) in answer["error"]) == (409, True)
    for log in (lake / "archive" / "_delta_log").iterdir():
        log.write_text("{")
    assert (await _acknowledge(served, said | {"batch": 1}))[0] == 503, "it is away"
    assert (await _waiting(served))["messages"] == 2


@pytest.mark.slow  # a process reads the table
async def test_a_foreign_table_loses_nothing(served: Served, lake: Path) -> None:
    said = await _archive(served, lake, 1)
    shutil.rmtree(lake / "archive")
    write_deltalake(str(lake / "archive"), pa.table({"id": [1]}))

    status, answer = await _acknowledge(served, said)

    assert (status, "is not the archive of this lake" in answer["error"]) == (503, True)
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
    monkeypatch.setattr(lake_questions, "PYTHON", ["sh", "-c", "exec sleep 600"])
    monkeypatch.setattr(lake_questions, "CHECK_S", 0.05)

    with pytest.raises(TableUnreadable, match="does not answer"):
        await ArchivedTable("/lake").check(CLAIMED)


async def test_a_gateway_says_where_the_archive_is_answered() -> None:
    """An empty answer would be taken for an empty archive."""
    nobody: Any = None
    for answer in (read_archive(AtHosts(), nobody), seal_archive(AtHosts(), nobody)):
        with pytest.raises(Refused, match=r"This is a gateway, which keeps no messages") as refused:
            await answer
        assert refused.value.status == 409
