"""The operators' API: marks of what happens beside the service, shown beside failures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import patch

import pytest

from cluster.coordination.coordination import Unavailable
from cluster.tests.memory_coordination import MemoryCoordination
from sqs_api.operators.marks import MARKS_MAX, Mark, Marks
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import JSON, Operators, add_user, make_dead_letters
from sqs_api.tests.served import serving
from visibility.contract.errors import ServiceUnavailable


async def test_a_mark_is_shown_beside_failures_also_after_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "a")
        said = await asyncio.to_thread(run, "mark", "deploy 4711", "--data", data)
        listed = await asyncio.to_thread(run, "mark", "--data", data)
    async with serving(data) as served:
        found = await Operators(served).seen("queues/dead/failures")
    audit = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]

    assert (said.status, said.out) == (0, "")
    assert listed.out.splitlines()[1].endswith("root  deploy 4711")
    # It came after the dead letter, in the same minute.
    assert [(each["kind"], each["text"]) for each in found["marks"]] == [("mark", "deploy 4711")]
    assert [each["text"] for each in audit if each["event"] == "holdfast:AddMark"] == [
        "deploy 4711"
    ]


_NO_MARKS = ["", " ", "a\nb", "\x9b31m", "x" * 201]


async def test_a_mark_is_one_printable_line(operators: Operators) -> None:
    for text in _NO_MARKS:
        assert (await operators.post("marks", {"text": text})).status == 400, text
        assert await operators.seen("marks") == [], text


async def test_a_mark_that_is_sent_again_is_one(operators: Operators) -> None:
    for _ in range(2):
        told = await operators.post("marks", {"text": "x"}, {**JSON, "idempotency-key": "k"})
        assert told.status == 200

    assert len(await operators.seen("marks")) == 1


async def test_marking_needs_its_permission(data: Path) -> None:
    keys = [add_user(data, "ci", "holdfast:AddMark"), add_user(data, "viewer", "holdfast:Browse*")]
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told = [await Operators(served, key).post("marks", {"text": "x"}) for key in keys]

    assert [each.status for each in told] == [200, 403]
    assert told[0].json["by"] == "ci"


async def test_the_latest_marks_are_kept() -> None:
    marks = Marks(MemoryCoordination())
    for at in range(MARKS_MAX + 5):
        await marks.add(Mark(at, str(at), "ann", str(at)))

    assert [each.at_ms for each in await marks.latest()] == list(range(5, MARKS_MAX + 5))


async def test_marks_of_several_hosts_at_once_are_all_kept() -> None:
    records = MemoryCoordination()
    hosts = [Marks(records) for _ in range(5)]
    await asyncio.gather(*(host.add(Mark(0, "x", "a", str(at))) for at, host in enumerate(hosts)))

    assert len(await hosts[0].latest()) == 5


async def test_records_that_are_away_are_a_refusal_to_try_again() -> None:
    records = MemoryCoordination()
    marks = Marks(records)
    with (
        patch.object(records, "commit", return_value=Unavailable("away")),
        pytest.raises(ServiceUnavailable),
    ):
        await marks.add(Mark(0, "x", "a", "1"))
