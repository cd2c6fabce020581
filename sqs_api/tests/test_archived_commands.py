"""`holdfast archive search`, `show` and `replay`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.operators import replay_answers
from sqs_api.tests.archived import archived, search_here, write_table
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import Served, serving
from storage.lake.table import Lake


@pytest_asyncio.fixture
async def served(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    """Twelve archived messages of q, one of them sealed."""
    search_here(monkeypatch)
    lake = Lake(str(tmp_path / "lake"))
    sealed = archived(12, body=None, attributes=None, sealed=b"x", data_key=1)
    write_table(lake, [*map(archived, range(1, 12)), sealed])
    async with serving(data, lake=lake.url) as node:
        await node.call("CreateQueue", QueueName="q")
        yield node


async def say(served: Served, *arguments: object) -> Said:
    data = served.data
    return await asyncio.to_thread(
        run, "archive", *arguments, "--data", data, "--region", "us-east-1"
    )


async def told(served: Served, *arguments: object) -> Any:
    said = await say(served, *arguments, "--json")
    assert said.status == 0, said
    return json.loads(said.out)


async def test_messages_are_searched_and_shown(served: Served) -> None:
    page = await say(served, "search", "q", "--limit", "2")
    found = await told(
        served, "search", "q", "--field", "n=7", "--from", "2026-11-20", "--until", "2026-11-22"
    )
    shown = await say(served, "show", "q", found["messages"][0]["place"])

    head, sealed, latest, *rest = page.out.splitlines()
    assert head.split()[0] == "place"
    assert sealed.endswith("(cannot be opened)")
    assert latest.split()[1] == "id-0011"
    assert "go on with --token" in rest[-1]
    assert [each["body"] for each in found["messages"]] == ['{"n": 7}']
    assert '{"n": 7}' in shown.out


async def test_a_replay_is_planned_and_done(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_answers, "STEP", 4)
    monkeypatch.setattr(replay_answers, "PLAN_STEP", 5)
    planned = await say(served, "replay", "q", "--all", "--dry-run")
    nothing_sent = await served.count()
    done = await say(served, "replay", "q", "--all")
    few = await told(served, "replay", "q", "--text", "1", "--reason", "expired", "--to", "q")

    assert planned.out.splitlines() == [
        "11 copies, 110 bytes, would be sent to q",
        "1 sealed: left out",
    ]
    assert nothing_sent == 0
    assert done.out.splitlines()[0] == "11 copies sent"
    assert done.out.splitlines()[1].startswith("1 left out: It is sealed")
    assert (planned.status, done.status) == (0, 1)
    assert [each["original_id"] for each in few["copies"]] == ["id-0001", "id-0010", "id-0011"]
    assert await served.count() == 14


async def test_a_mistyped_queue_is_an_error_and_one_without_archived_messages_is_none(
    served: Served,
) -> None:
    await served.call("CreateQueue", QueueName="new")
    await served.call("DeleteQueue", QueueUrl="q")
    mistyped = await say(served, "replay", "qq", "--all", "--to", "new")
    planned = await say(served, "replay", "qq", "--all", "--to", "new", "--dry-run")
    deleted = await say(served, "replay", "q", "--text", "nowhere", "--to", "new")
    new = await say(served, "replay", "new", "--all")

    assert mistyped.status == planned.status == 2
    assert mistyped.err == planned.err
    assert "Neither the archive nor the service has a queue qq; did you mean q?" in mistyped.err
    assert (deleted.status, deleted.out.splitlines()) == (0, ["0 copies sent"])
    assert (new.status, new.out.splitlines()) == (0, ["0 copies sent"])


async def test_unclear_choices_are_refused(served: Served) -> None:
    for choice in ((), ("--all", "--text", "a"), ("1.a.0.1", "--all")):
        said = await say(served, "replay", "q", *choice)
        assert (said.status, "--all" in said.err) == (2, True)
