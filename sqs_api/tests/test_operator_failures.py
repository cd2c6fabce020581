"""The operators' API: failures of dead-letter queues, counted over all messages as they come and
go."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from sqs_api.failures import failure_index, queue_pass, span_notes
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import (
    Operators,
    User,
    add_user,
    add_users,
    latest_redrive,
    make_dead_letters,
)
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import settled, until
from visibility.content.failures import Failure
from visibility.content.noted_failures import NOTE_VERSION
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import FailureNotesPage
from visibility.rules.failure_notes import ReadFailureNotes
from visibility.tests import prepared

DEAD = "queues/dead/failures"


def failed(kind: str, number: int = 0) -> str:
    return json.dumps({"id": number, "error": {"type": kind}})


def counts(found: Any) -> dict[str, int]:
    """Messages by the first sign."""
    return {each["signs"][0]["value"]: each["messages"] for each in found["failures"]}


async def all_counted(operators: Operators, **listing: object) -> Any:
    """The failures, once all are counted."""
    while not (found := await operators.seen(DEAD, **listing))["is_exact"]:
        await settled()
    assert found["messages"] == found["stored"]
    return found


async def test_all_messages_are_counted_by_what_they_failed_for(operators: Operators) -> None:
    await make_dead_letters(operators.served, *(failed("ABB"[at % 3], at) for at in range(150)))

    found = await all_counted(operators)
    first, second = found["failures"]
    page = await operators.seen("queues/dead/messages", failure=second["id"], limit=100)

    assert counts(found) == {"B": 100, "A": 50}
    assert first["sources"] == {"source": 100}
    assert sum(first["bars"]) == first["last_hour"] == 100
    assert first["first_ms"] <= first["last_ms"] <= found["begin_ms"] + 48 * found["bar_ms"]
    assert first["lost_ms"] > first["last_ms"]
    assert {json.loads(each["body"])["error"]["type"] for each in page["messages"]} == {"A"}
    assert len(page["messages"]) == 50
    assert second["sample"] in [each["sequence"] for each in page["messages"]]
    assert (found["failures_total"], found["others"]) == (2, 0)


async def test_what_comes_and_goes_is_followed(operators: Operators) -> None:
    served = operators.served
    await make_dead_letters(served, *(failed("AB"[at % 2], at) for at in range(6)))
    before = counts(await all_counted(operators))

    received = await served.receive("dead")
    gone = next(handle for body, handle in received.items() if '"A"' in body)
    await served.call("DeleteMessage", QueueUrl="dead", ReceiptHandle=gone)
    await served.send(failed("C"), failed("A"), queue="dead")
    await served.call("SendMessage", QueueUrl="dead", MessageBody=failed("D"), DelaySeconds=900)
    after = counts(await all_counted(operators))

    assert before == {"A": 3, "B": 3}
    assert after == {"A": 3, "B": 3, "C": 1, "D": 1}


async def test_a_redrive_of_a_failure_takes_its_messages_and_no_others(
    operators: Operators,
) -> None:
    await make_dead_letters(operators.served, *(failed("AB"[at % 2], at) for at in range(10)))
    wanted = next(
        each["id"]
        for each in (await all_counted(operators))["failures"]
        if each["signs"][0]["value"] == "A"
    )

    plan = await operators.done("queues/dead/redrives/plan", {"filter": {"failure": wanted}})
    await operators.done("queues/dead/redrives", {"filter": {"failure": wanted}, "reason": "up"})
    redrive = await latest_redrive(operators)
    found = await all_counted(operators)

    assert (plan["messages"], redrive["moved"]) == (5, 5)
    assert counts(found) == {"B": 5}
    assert [(each["kind"], each["text"]) for each in found["marks"]] == [("redrive", "up")]


async def test_held_messages_count_and_a_purge_leaves_none(operators: Operators) -> None:
    await make_dead_letters(operators.served, failed("A"), failed("B"))
    sample = (await all_counted(operators))["failures"][0]["sample"]
    await operators.done("queues/dead/messages/hold", {"sequences": [sample]})
    held = await all_counted(operators)
    await operators.done("queues/dead/purge", {"confirm": "dead"})
    purged = await all_counted(operators)

    assert held["messages"] == 2
    assert (purged["messages"], purged["failures"]) == (0, [])


async def test_counts_are_the_same_after_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *(failed("AB"[at % 2], at) for at in range(60)))
        before = await all_counted(Operators(served))
    async with serving(data) as served:
        after = await all_counted(Operators(served))

    assert counts(before) == counts(after) == {"A": 30, "B": 30}


async def are_noted(served: Served) -> bool:
    """True if the shard has a note of the dead letters, which is true as long as it is there."""
    catalog = served.node.owner.catalog
    (queue,) = [each for each in catalog if each.name == "dead"]
    page = await served.node.shards.router.ask(prepared.prepared(queue, ReadFailureNotes()))
    assert isinstance(page, FailureNotesPage)
    return len(page.notes) == 1


@pytest.mark.parametrize("version", [NOTE_VERSION, NOTE_VERSION + 1])
async def test_after_a_restart_what_was_noted_is_not_read_again(data: Path, version: int) -> None:
    """Unless another version found the failures."""
    with patch.object(span_notes, "QUIET_LOOKS", 1), patch.object(failure_index, "LOOK_S", 0.02):
        async with serving(data) as served:
            await make_dead_letters(served, *(failed("AB"[at % 2], at) for at in range(60)))
            await all_counted(Operators(served))
            await until(partial(are_noted, served))
    again = Failure((("text", "read again"),))
    with (
        patch.object(queue_pass, "failure_of", lambda body, extras: again),
        patch("sqs_api.failures.span_notes.NOTE_VERSION", version),
    ):
        async with serving(data) as served:
            after = await all_counted(Operators(served))

    anew = version != NOTE_VERSION
    assert counts(after) == ({"read again": 60} if anew else {"A": 30, "B": 30})
    assert all(sum(each["bars"]) == each["messages"] for each in after["failures"])
    assert all(each["sources"] == {"source": each["messages"]} for each in after["failures"])


async def test_a_queue_that_is_no_dead_letter_queue_any_more_keeps_no_notes(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_index, "FIND_S", 0.0)
    forgotten: list[str] = []
    forget = span_notes.Notes.forget

    async def see(notes: Any, queue: QueueDefinition) -> None:
        await forget(notes, queue)
        forgotten.append(queue.name)

    monkeypatch.setattr(span_notes.Notes, "forget", see)
    await make_dead_letters(operators.served, failed("A"))
    await all_counted(operators)
    await operators.served.call(
        "SetQueueAttributes", QueueUrl="source", Attributes={"RedrivePolicy": ""}
    )

    await until(lambda: forgotten == ["dead"])


async def test_counts_stay_exact_while_messages_come_and_go_over_restarts(data: Path) -> None:
    random, there = Random(7), Counter[str]()
    with patch.object(span_notes, "QUIET_LOOKS", 1), patch.object(failure_index, "LOOK_S", 0.01):
        async with serving(data) as served:
            await make_dead_letters(served, failed("A"))
        there["A"] += 1
        for _ in range(5):
            async with serving(data) as served:
                assert counts(await all_counted(Operators(served))) == there
                for _ in range(10):
                    kind = random.choice("ABC")
                    if random.random() < 0.6:
                        await served.send(failed(kind), queue="dead")
                        there[kind] += 1
                    elif received := await served.receive("dead"):
                        body, handle = received.popitem()
                        await served.call("DeleteMessage", QueueUrl="dead", ReceiptHandle=handle)
                        there[json.loads(body)["error"]["type"]] -= 1
                    await asyncio.sleep(random.choice((0, 0, 0.03)))
                there = +there


async def test_while_nobody_leads_it_says_so_instead_of_counting_none(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_dead_letters(operators.served, failed("A"))
    await all_counted(operators)

    async def none_led(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(failure_index.FailureIndex, "reports", none_led)
    answer = await operators.get(DEAD)

    assert (answer.status, answer.json["code"]) == (503, "ServiceUnavailable")
    assert answer.json["error"] == "No host that leads dead answers now."


async def test_a_queue_that_denies_its_sources_is_one_whose_failures_nobody_counts(
    operators: Operators,
) -> None:
    await make_dead_letters(operators.served, failed("A"))
    attributes = {"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})}
    await operators.served.call("SetQueueAttributes", QueueUrl="dead", Attributes=attributes)

    assert (await operators.seen(DEAD))["failures"] == []


async def test_until_all_are_counted_it_says_so(operators: Operators) -> None:
    with (
        patch.object(failure_index, "ASKED_MAX_S", -1.0),
        patch.object(failure_index, "MESSAGES_MAX", 0),
    ):
        await make_dead_letters(operators.served, *(failed("A", at) for at in range(200)))
        found = await operators.seen(DEAD)

    assert not found["is_exact"]
    assert found["messages"] < 200
    assert found["stored"] == 200


async def test_who_may_not_read_bodies_sees_counts_and_sources_only(data: Path) -> None:
    key = add_user(data, "viewer", "holdfast:BrowseMessages")
    async with serving(data) as served:
        await make_dead_letters(served, failed("secret"))
    async with serving(data, auth=AuthMode.SIGV4) as served:
        viewer = Operators(served, key)
        (only,) = (await all_counted(viewer))["failures"]
        refused = await viewer.get("queues/dead/messages", failure="0" * 16)

    assert (only["id"], only["signs"], only["messages"]) == (None, None, 1)
    assert only["sources"] == {"source": 1}
    assert refused.status == 403


async def test_failures_of_a_sealed_source_need_its_key_too(data: Path) -> None:
    run("keys", "--data", data, "add", "orders")
    keys = add_users(
        data,
        {"u": User(["holdfast:*"]), "owner": User(["holdfast:*", "kms:Decrypt"])},
    )
    async with serving(data) as served:
        await make_dead_letters(served)
        sealed = {"KmsMasterKeyId": "orders"}
        await served.call("SetQueueAttributes", QueueUrl="source", Attributes=sealed)
        await served.send(failed("secret"), queue="source")
        for _ in range(2):
            await served.call("ReceiveMessage", QueueUrl="source")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told, shown = [
            (await all_counted(Operators(served, keys[name])))["failures"][0]
            for name in ("u", "owner")
        ]

    assert (told["id"], told["signs"], told["messages"]) == (None, None, 1)
    assert shown["signs"][0]["value"] == "secret"


_NO_FAILURES = ["x", "0" * 15, "../etc", "0" * 17, "é" * 16]


async def test_what_is_no_failure_is_refused(operators: Operators) -> None:
    await make_dead_letters(operators.served, failed("A"))
    for wrong in _NO_FAILURES:
        assert (await operators.get("queues/dead/messages", failure=wrong)).status == 400, wrong
        assert (await operators.get("queues/source/failures")).status == 400, wrong
