"""A count or a search that a page makes in many requests is one line of the audit log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sqs_api.admin.asked import Step
from sqs_api.operators import browsing, step_lines
from sqs_api.operators.step_lines import StepLines
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user
from sqs_api.tests.served import Served, serving

COUNT = "queues/q/messages/matching/count"
EVENTS = ("holdfast:CountMatching", "holdfast:ReadMessageBodies")


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "SCAN_S", 0.0)
    monkeypatch.setattr(browsing, "STEP_MESSAGES", 2)


def lines(data: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    return [line for line in found if line["event"] in EVENTS]


async def filled(node: Served) -> None:
    await node.call("CreateQueue", QueueName="q")
    await node.send(*(json.dumps({"n": at, "kind": "abb"[at % 3]}) for at in range(12)))


async def count(operators: Operators, wanted: dict[str, Any], steps: int | None = None) -> int:
    """Count in steps; returns their number."""
    token, made = None, 0
    while made == 0 or (token and made != steps):
        token = (await operators.done(COUNT, {"filter": wanted, "token": token}))["next"]
        made += 1
    return made


async def test_a_count_is_one_line_with_who_what_and_how_many(data: Path) -> None:
    names = [add_user(data, name, "holdfast:*") for name in ("ann", "bob")]
    async with serving(data) as node:
        await filled(node)
    async with serving(data, auth=AuthMode.SIGV4) as node:
        ann, bob = (Operators(node, keys) for keys in names)
        requests = await count(ann, {"json": "kind=a", "older_s": 0})
        await count(ann, {"json": "kind=b"}, steps=2)  # it is left
        await count(ann, {"json": "kind=b"})
        await count(bob, {"json": "kind=b"}, steps=1)

    first, left, whole, others = lines(data)
    assert requests > 5
    assert first["event"] == "holdfast:CountMatching"
    assert (first["user"], first["queue"].rpartition(":")[2]) == ("ann", "q")
    assert first["filter"]["json"] == "kind=a"
    assert (first["matching"], first["scanned"], first["requests"]) == (4, 12, requests)
    assert first["begun"] <= first["time"]
    assert "is_whole" not in first
    assert (left["matching"], left["scanned"], left["is_whole"]) == (2, 4, False)
    assert (whole["user"], whole["matching"], whole["scanned"]) == ("ann", 8, 12)
    assert (others["user"], others["scanned"], others["is_whole"]) == ("bob", 2, False)


async def test_a_search_is_one_line_up_to_what_it_finds(data: Path) -> None:
    async with serving(data) as node:
        await filled(node)
        operators, token = Operators(node), None
        while True:
            search: dict[str, Any] = {"json": "n=8"} | ({"token": token} if token else {})
            page = await operators.seen("queues/q/messages", **search)
            token = page["next"]
            if page["messages"]:
                break

    (line,) = lines(data)
    assert line["messages_read"] == [page["messages"][0]["message_id"]]
    assert (line["scanned"], line["requests"]) == (10, 5)


class Noted:
    """Lines, as they would be written."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.changed = asyncio.Event()

    def note(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})
        self.changed.set()


async def test_open_ones_are_bounded_and_end_when_nothing_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_lines, "OPEN_MAX", 2)
    noted = Noted()
    kept = StepLines(noted)  # type: ignore[arg-type]

    def step(of: str) -> None:
        first = Step(of, is_first=True, is_last=False, sums={"scanned": 1})
        kept.note("count", first, "now", {"queue": of, "user": "ann"})

    for name in "abc":
        step(name)
    full = [line["queue"] for line in noted.lines]
    kept.close()

    assert full == ["a"]
    assert [(line["queue"], line["is_whole"]) for line in noted.lines] == [
        ("a", False),
        ("b", False),
        ("c", False),
    ]
    monkeypatch.setattr(step_lines, "IDLE_S", 0.0)
    noted.changed.clear()
    step("d")
    await noted.changed.wait()
    assert noted.lines[-1]["queue"] == "d"

    monkeypatch.setattr(step_lines, "IDLE_S", 60.0)
    monkeypatch.setattr(step_lines, "LONGEST_S", 0.0)
    noted.changed.clear()
    step("e")
    await noted.changed.wait()
    assert noted.lines[-1]["queue"] == "e"
