"""The operators' API and `holdfast messages`: holds, deletes with an undo, and their ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from structlog.testing import capture_logs

from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import Operators, add_user, make_dead_letters
from sqs_api.tests.served import Served, serving

MESSAGES = "queues/dead/messages"
XSS = "<img src=x onerror=alert(1)>"
MAY = ("holdfast:BrowseMessages", "holdfast:ListQueues", "holdfast:GetQueue")


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a", "b", "c")
        yield node


async def states(operators: Operators, **parameters: object) -> list[tuple[int, str]]:
    page = await operators.seen(MESSAGES, **parameters)
    return [(message["sequence"], message["state"]) for message in page["messages"]]


async def undeleted(operators: Operators, *sequences: int) -> Any:
    return await operators.done(f"{MESSAGES}/undelete", {"sequences": list(sequences)})


async def test_a_held_message_is_listed_with_owner_and_reference(
    operators: Operators,
) -> None:
    content = {"sequences": [2, 9], "owner": "ann", "reference": XSS}

    answer = await operators.done(f"{MESSAGES}/hold", content)

    assert answer == {"held": 1, "kept": 1}
    page = await operators.seen(MESSAGES, state="held")
    (found,) = page["messages"]
    assert (found["sequence"], page["scanned"]) == (2, 1)
    mark = found["hold"]
    assert (mark["owner"], mark["reference"], mark["deleted_at_ms"]) == ("ann", XSS, None)
    assert mark["since_ms"] > 0
    one = await operators.seen(f"{MESSAGES}/2")
    assert (one["state"], one["hold"]) == ("held", mark)
    queue = await operators.seen("queues/dead")
    assert (queue["visible"], queue["in_flight"], queue["held"]) == (2, 1, 1)


async def test_bulk_actions_and_consumers_pass_by(operators: Operators) -> None:
    await operators.done(f"{MESSAGES}/hold", {"sequences": [2]})

    plan = await operators.done("queues/dead/redrives/plan")
    deleted = await operators.done(f"{MESSAGES}/delete", {"sequences": [2]})
    again = await operators.done(f"{MESSAGES}/hold", {"sequences": [2], "owner": "bob"})
    received = await operators.served.receive("dead")
    released = await operators.done(f"{MESSAGES}/release", {"sequences": [2]})

    assert plan["refused"] == {"Held": 1}
    assert deleted == {"deleted": 0, "kept": 1}
    assert again == {"held": 0, "kept": 1}
    assert sorted(received) == ["a", "c"]
    assert released == {"released": 1, "kept": 0}
    assert list(await operators.served.receive("dead")) == ["b"]


async def test_a_delete_is_undone_while_its_window_lasts(operators: Operators) -> None:
    answer = await operators.done(f"{MESSAGES}/delete", {"sequences": [1, 2, 9], "undo_s": 3600})
    seen = await states(operators, state="deleting")
    released = await operators.done(f"{MESSAGES}/release", {"sequences": [1]})
    undone = await undeleted(operators, 1, 3)

    assert answer == {"deleted": 2, "kept": 1}
    assert seen == [(1, "deleting"), (2, "deleting")]
    assert released == {"released": 0, "kept": 1}
    assert undone == {"undeleted": 1, "gone": 1}
    assert await states(operators) == [(1, "visible"), (2, "deleting"), (3, "visible")]


_TOO_MUCH: list[tuple[str, dict[str, object]]] = [
    ("delete", {"sequences": [1], "undo_s": 3601}),
    ("delete", {"sequences": [1], "undo_s": -1}),
    ("hold", {"sequences": [1], "owner": "x" * 101}),
    ("hold", {"sequences": [1], "reference": "x" * 201}),
    ("release", {"sequences": list(range(1001))}),
]


async def test_what_is_too_much_is_refused(operators: Operators) -> None:
    for path, content in _TOO_MUCH:
        assert (await operators.post(f"{MESSAGES}/{path}", content)).status == 400, content
        assert len(await states(operators, state="visible")) == 3, content


async def test_both_survive_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "a", "b", "c")
        operators = Operators(served)
        await operators.done(f"{MESSAGES}/hold", {"sequences": [1], "reference": "T-1"})
        await operators.done(f"{MESSAGES}/delete", {"sequences": [2], "undo_s": 3600})
    async with serving(data) as served:
        operators = Operators(served)
        seen = await states(operators)
        (found,) = (await operators.seen(MESSAGES, state="held"))["messages"]
        undone = await undeleted(operators, 2)

    assert seen == [(1, "held"), (2, "deleting"), (3, "visible")]
    assert (found["hold"]["owner"], found["hold"]["reference"]) == ("root", "T-1")
    assert undone == {"undeleted": 1, "gone": 0}


async def test_each_is_ended_with_the_permission_that_began_it(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, "a", "b")
    deletes = add_user(data, "deletes", *MAY, "holdfast:DeleteMessages")
    parks = add_user(data, "parks", *MAY, "holdfast:HoldMessages")
    blind = add_user(data, "blind", "holdfast:HoldMessages")
    content = {"sequences": [1]}
    async with serving(data, auth=AuthMode.SIGV4) as served:
        deleter, parker = Operators(served, deletes), Operators(served, parks)
        await parker.done(f"{MESSAGES}/hold", content)
        refused = [
            await deleter.post(f"{MESSAGES}/release", content),
            await deleter.post(f"{MESSAGES}/hold", {"sequences": [2]}),
            await parker.post(f"{MESSAGES}/undelete", content),
            await parker.post(f"{MESSAGES}/delete", {"sequences": [2], "undo_s": 60}),
            await Operators(served, blind).post(f"{MESSAGES}/release", content),
        ]
        tried = await deleter.done(f"{MESSAGES}/undelete", content)
        (found,) = (await parker.seen(MESSAGES, state="held"))["messages"]
        may = (await parker.seen("queues/dead"))["may"]

    assert [told.status for told in refused] == [403] * 5
    assert tried == {"undeleted": 0, "gone": 1}
    assert found["hold"]["owner"] == "parks"
    assert "holdfast:HoldMessages" in may
    assert "holdfast:DeleteMessages" not in may


async def test_all_of_it_is_audited(served: Served, data: Path) -> None:
    operators = Operators(served)
    content = {"sequences": [1], "owner": "ann", "reference": "T-1"}
    await operators.done(f"{MESSAGES}/hold", content)
    await operators.done(f"{MESSAGES}/release", {"sequences": [1]})
    await operators.done(f"{MESSAGES}/delete", {"sequences": [1], "undo_s": 60})
    await undeleted(operators, 1)
    await served.node.stop()

    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    first, *others = [line for line in lines if line["event"].startswith("holdfast:")]
    assert first["event"] == "holdfast:HoldMessages"
    assert (first["owner"], first["reference"], first["sequences"]) == ("ann", "T-1", [1])
    assert [line["event"] for line in others] == [
        "holdfast:ReleaseMessages",
        "holdfast:DeleteMessages",
        "holdfast:UndeleteMessages",
    ]


# -- old names, for one release -----------------------------------------------------------------


async def test_the_old_route_and_state_answer_and_say_their_new_names(served: Served) -> None:
    operators = Operators(served)
    with capture_logs() as logged:
        answer = await operators.done(f"{MESSAGES}/quarantine", {"sequences": [2], "owner": "ann"})
        seen = await states(operators, state="quarantined")

    assert answer == {"quarantined": 1, "kept": 0}
    assert seen == [(2, "held")]
    said = [(line["used"], line["name"]) for line in logged if line["event"] == "old_name"]
    assert said == [("quarantine messages", "hold messages"), ("quarantined", "held")]


async def test_a_stranger_is_told_no_new_names(data: Path) -> None:
    async with serving(data, auth=AuthMode.SIGV4) as served:
        with capture_logs() as logged:
            told = await Operators(served, None).post(f"{MESSAGES}/quarantine", {"sequences": [2]})

    assert told.status == 403
    assert [line for line in logged if line["event"] == "old_name"] == []


async def test_the_old_command_and_state_work_and_say_their_new_names(served: Served) -> None:
    held = await say(served, "quarantine", "dead", 1, "--owner", "ann")
    listed = await say(served, "browse", "dead", "--state", "quarantined")

    assert held.out == "held 1\n"
    assert "messages hold" in held.err
    assert listed.out.splitlines()[1].split()[2] == "held"
    assert "--state held" in listed.err


# -- commands --------------------------------------------------------------------------------------


async def say(served: Served, *arguments: object) -> Said:
    data = served.data
    said = await asyncio.to_thread(
        run, "messages", *arguments, "--data", data, "--region", "us-east-1"
    )
    assert said.status == 0, said
    return said


async def test_the_commands_do_the_same(served: Served) -> None:
    options = ("--owner", "ann", "--reference", "T-\x9b1")
    said = [
        await say(served, "hold", "dead", 1, 9, *options),
        await say(served, "browse", "dead", "--state", "held"),
        await say(served, "show", "dead", 1),
        await say(served, "release", "dead", 1),
        await say(served, "delete", "dead", 1, 2, "--undo", "1h"),
        await say(served, "undelete", "dead", 1, 3),
        await say(served, "delete", "dead", 3),
    ]

    assert said[0].out == "held 1, kept 1\n"
    assert said[1].out.splitlines()[1].split()[2] == "held"
    assert "ann" in said[2].out
    assert r"T-\x9b1" in said[2].out
    assert [each.out for each in said[3:]] == [
        "released 1\n",
        "deleted 2\n",
        "undeleted 1, 1 gone\n",
        "deleted 1\n",
    ]
    assert await states(Operators(served)) == [(1, "visible"), (2, "deleting")]
