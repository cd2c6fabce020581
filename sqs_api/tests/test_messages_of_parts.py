"""The operators' API: the single messages of a queue of several parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.operators.browsing import Position, write_token
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served, serving
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.contract.queue_parts import PART_STEP, first_sequence

MESSAGES = "queues/q/messages"
BODIES = [str(number) for number in range(12)]


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await node.call("CreateQueue", QueueName="q")
        yield node


@pytest_asyncio.fixture
async def operators(served: Served) -> Operators:
    """Queue `q` in three parts, with messages in each."""
    made = Operators(served)
    await made.done("queues/q/parts/split", {"parts": 3})
    await served.send(*BODIES)
    parts = (await made.seen("queues/q/parts"))["parts"]
    assert sum(bool(part["visible"]) for part in parts) > 1
    return made


async def browse(operators: Operators, **parameters: object) -> list[Any]:
    """All messages that match, over all pages."""
    found: list[Any] = []
    token: str | None = ""
    while token is not None:
        page = await operators.seen(MESSAGES, token=token, **parameters)
        assert len(page["messages"]) <= int(str(parameters.get("limit", 50)))
        found += page["messages"]
        token = page["next"]
    return found


@pytest.mark.parametrize("limit", [1, 5, 50])
async def test_pages_have_the_messages_of_all_parts(operators: Operators, limit: int) -> None:
    found = await browse(operators, limit=limit)

    assert sorted(each["body"] for each in found) == sorted(BODIES)
    sequences = [each["sequence"] for each in found]
    assert sequences == sorted(sequences)


async def test_delayed_and_searched_messages_of_all_parts_are_found(operators: Operators) -> None:
    for number in range(6):
        call = {"QueueUrl": "q", "MessageBody": f"delayed-{number}", "DelaySeconds": 900}
        await operators.served.call("SendMessage", **call)

    found = await browse(operators, state="delayed", limit=2)
    assert sorted(each["body"] for each in found) == [f"delayed-{n}" for n in range(6)]
    for each in found:
        shown = await operators.seen(f"{MESSAGES}/{each['sequence']}", due_ms=each["due_ms"])
        assert shown["body"] == each["body"]
    assert len(await browse(operators, limit=4)) == len(BODIES) + 6
    (one,) = await browse(operators, text="11")
    assert one["body"] == "11"


async def test_pages_go_on_when_a_part_went_meanwhile(operators: Operators) -> None:
    token = write_token(Position(sequence=5, part=PART_STEP - 1))

    rest = await operators.seen(MESSAGES, token=token)

    found = [each["sequence"] for each in await browse(operators)]
    assert [each["sequence"] for each in rest["messages"]] == [
        each for each in found if each >= first_sequence(PART_STEP)
    ]


async def test_a_message_is_shown_whole_from_its_part(operators: Operators) -> None:
    for each in await browse(operators):
        shown = await operators.seen(f"{MESSAGES}/{each['sequence']}")
        assert shown["body"] == each["body"]


async def test_selected_messages_are_held_and_released_and_deleted_in_their_parts(
    operators: Operators,
) -> None:
    sequences = [each["sequence"] for each in await browse(operators)]
    unknown = (1 << 60) + 1

    held = await operators.done(f"{MESSAGES}/hold", {"sequences": [*sequences[::2], unknown]})
    assert held == {"held": 6, "kept": 1}
    found = await browse(operators, state="held", limit=2)
    assert [each["sequence"] for each in found] == sequences[::2]
    released = await operators.done(f"{MESSAGES}/release", {"sequences": sequences})
    assert released == {"released": 6, "kept": 6}

    undoable = {"sequences": sequences, "undo_s": 600}
    assert await operators.done(f"{MESSAGES}/delete", undoable) == {"deleted": 12, "kept": 0}
    back = await operators.done(f"{MESSAGES}/undelete", {"sequences": sequences})
    assert back == {"undeleted": 12, "gone": 0}

    gone = await operators.done(f"{MESSAGES}/delete", {"sequences": [*sequences, unknown]})
    assert gone == {"deleted": 12, "kept": 1}
    assert await browse(operators) == []


async def test_the_limit_of_a_selection_is_that_of_the_queue(operators: Operators) -> None:
    many = [(part << 48) + number for part in range(2) for number in range(MOVE_SELECTED_MAX)]

    for action in ("hold", "release", "delete", "undelete"):
        told = await operators.post(f"{MESSAGES}/{action}", {"sequences": many})
        assert told.status == 400, action


async def test_a_message_is_replaced_by_an_edited_copy(operators: Operators) -> None:
    for each in await browse(operators):
        copy = {"body": f"edited {each['body']}", "replace": True}
        await operators.done(f"{MESSAGES}/{each['sequence']}/resend", copy)

    assert sorted(await operators.served.receive()) == sorted(f"edited {body}" for body in BODIES)


async def test_an_operator_sends_to_the_queue(operators: Operators) -> None:
    await operators.done(MESSAGES, {"body": "by hand"})

    (found,) = await browse(operators, text="by hand")
    assert found["state"] == "visible"
