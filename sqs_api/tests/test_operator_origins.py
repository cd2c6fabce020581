"""The operators' API: origins and timelines of messages that were redriven, undone or edited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import (
    Operators,
    User,
    add_users,
    latest_redrive,
    make_dead_letters,
)
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import until


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a")
        yield node


async def only(operators: Operators, queue: str, **search: object) -> Any:
    """The only message of a queue that matches."""
    page = await operators.seen(f"queues/{queue}/messages", **search)
    (message,) = page["messages"]
    return message


async def redrive(operators: Operators, **given: object) -> Any:
    await operators.done("queues/dead/redrives", given)
    return await latest_redrive(operators)


async def timeline(operators: Operators, queue: str, sequence: int) -> list[dict[str, Any]]:
    """The entries without what is not known of them."""
    path = f"queues/{queue}/messages/{sequence}/timeline"
    entries = (await operators.seen(path))["entries"]
    return [{name: value for name, value in each.items() if value} for each in entries]


async def test_a_redriven_message_shows_its_origin_and_is_found_by_its_first_id(
    operators: Operators,
) -> None:
    dead = await only(operators, "dead")
    assert dead["origin"] is None

    await redrive(operators)

    message = await only(operators, "source")
    assert message["message_id"] != dead["message_id"]
    assert message["origin"] == {
        "message_id": dead["message_id"],
        "sent_at_ms": dead["sent_at_ms"],
        "receive_count": 1,
        "redrives": 1,
        "edits": 0,
        "edited_at_ms": 0,
        "undone_at_ms": 0,
        "earlier_ids": [dead["message_id"]],
    }
    assert await only(operators, "source", id=dead["message_id"]) == message
    part = await operators.seen("queues/source/messages", id=dead["message_id"][:-1])
    assert part["messages"] == []


async def test_clients_see_a_redriven_message_as_aws_shows_it(
    served: Served, operators: Operators
) -> None:
    dead = await only(operators, "dead")
    await redrive(operators)

    answer = await served.call(
        "ReceiveMessage", QueueUrl="source", MessageSystemAttributeNames=["All"]
    )

    (message,) = answer["Messages"]
    assert message["MessageId"] != dead["message_id"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert int(message["Attributes"]["SentTimestamp"]) > dead["sent_at_ms"]
    assert "Origin" not in str(message)


async def test_an_undo_gives_back_id_times_receives_and_cause(operators: Operators) -> None:
    dead = await only(operators, "dead")
    begun = await redrive(operators)
    redriven = await only(operators, "source")

    await operators.done("queues/dead/redrives/undo", {"handle": begun["handle"]})
    await latest_redrive(operators, "source")

    again = await only(operators, "dead")
    same = ["message_id", "sent_at_ms", "receive_count", "first_received_at_ms"]
    same += ["cause", "died_at_ms", "hops", "source_arn", "body"]
    assert {name: again[name] for name in same} == {name: dead[name] for name in same}
    assert again["origin"]["earlier_ids"] == [redriven["message_id"]]
    found = await only(operators, "dead", id=redriven["message_id"])
    assert found["sequence"] == again["sequence"]

    entries = await timeline(operators, "dead", again["sequence"])
    assert [each["what"] for each in entries] == [
        "sent",
        "received",
        "died",
        "redriven",
        "undone",
        "lost",
    ]
    assert entries[3]["redrive"] == begun["id"]
    assert entries[4]["at_ms"] == again["origin"]["undone_at_ms"]


async def test_a_timeline_tells_receives_death_and_redrive(
    served: Served, operators: Operators
) -> None:
    dead = await only(operators, "dead")
    begun = await redrive(operators, reason="fixed")
    await served.call("ReceiveMessage", QueueUrl="source", VisibilityTimeout=60)
    message = await only(operators, "source")

    entries = await timeline(operators, "source", message["sequence"])

    assert entries == [
        {"what": "sent", "at_ms": dead["sent_at_ms"], "message_id": dead["message_id"]},
        {"what": "received", "count": 1, "first_ms": dead["first_received_at_ms"]},
        {"what": "died", "at_ms": dead["died_at_ms"], "text": "max-receives"},
        {
            "what": "redriven",
            "at_ms": message["sent_at_ms"],
            "by": begun["started_by"].rpartition(":")[2],
            "text": "fixed",
            "queue": "dead",
            "message_id": message["message_id"],
            "redrive": begun["id"],
        },
        {
            "what": "received",
            "count": 1,
            "at_ms": message["last_received_at_ms"],
            "first_ms": message["first_received_at_ms"],
            "until_ms": message["due_ms"],
        },
        {"what": "lost", "at_ms": message["expires_at_ms"]},
    ]


async def test_a_dead_letter_tells_its_source(operators: Operators) -> None:
    dead = await only(operators, "dead")

    entries = await timeline(operators, "dead", dead["sequence"])

    assert [each["what"] for each in entries] == ["sent", "received", "died", "lost"]
    assert entries[2]["queue"] == "source"


# -- the audit log ---------------------------------------------------------------------------------

USERS = {
    "ann": User(["holdfast:*", "sqs:*"]),
    "viewer": User(["holdfast:BrowseMessages", "holdfast:GetQueue"]),
    "blind": User(["holdfast:BrowseMessages"], but="holdfast:GetQueue"),
}


@pytest_asyncio.fixture
async def signed(data: Path) -> AsyncIterator[dict[str, Operators]]:
    async with serving(data) as node:
        await make_dead_letters(node, "a")
    keys = add_users(data, USERS)
    async with serving(data, auth=AuthMode.SIGV4) as node:
        yield {name: Operators(node, key) for name, key in keys.items()}


async def noted(data: Path, action: str, times: int = 1) -> None:
    """Wait for the lines of the audit log, which another thread writes."""
    await until(lambda: (data / "audit.log").read_text().count(f"holdfast:{action}") == times)


async def test_holds_and_edits_tell_who_made_them(data: Path, signed: dict[str, Operators]) -> None:
    ann = signed["ann"]
    dead = await only(ann, "dead")
    sequences = {"sequences": [dead["sequence"]]}
    await ann.done("queues/dead/messages/hold", {**sequences, "reference": "T-1"})
    await noted(data, "HoldMessages")

    held = await timeline(ann, "dead", dead["sequence"])
    assert [(each["what"], each.get("by"), each.get("text")) for each in held[3:]] == [
        ("held", "ann", "T-1"),
        ("lost", None, None),
    ]

    await ann.done("queues/dead/messages/release", sequences)
    path = f"queues/dead/messages/{dead['sequence']}/resend"
    await ann.done(path, {"body": "c", "to": "source"})
    await ann.done("queues/dead/messages/delete", {**sequences, "undo_s": 60})
    await ann.done("queues/dead/messages/undelete", sequences)
    await noted(data, "UndeleteMessages")
    entries = await timeline(ann, "dead", dead["sequence"])
    assert [(each["what"], each.get("by"), each.get("text")) for each in entries[3:-1]] == [
        ("held", "ann", "T-1"),
        ("released", "ann", None),
        ("copied", "ann", None),
        ("deleting", "ann", None),
        ("undeleted", "ann", None),
    ]
    await ann.done(path, {"body": "b", "to": "source", "replace": True})
    copy = await only(ann, "source", text="b")
    await noted(data, "ResendMessage", 2)

    entries = await timeline(ann, "source", copy["sequence"])
    assert copy["origin"]["edits"] == 1
    (edited,) = [each for each in entries if each["what"] == "edited"]
    assert (edited["by"], edited["queue"]) == ("ann", "dead")
    assert edited["at_ms"] == copy["origin"]["edited_at_ms"]


async def test_a_viewer_sees_the_timeline_without_bodies_and_without_the_audit_log(
    signed: dict[str, Operators],
) -> None:
    dead = await only(signed["ann"], "dead")
    await redrive(signed["ann"])
    message = await only(signed["viewer"], "source")
    path = f"queues/source/messages/{message['sequence']}/timeline"

    seen = await signed["viewer"].seen(path)

    assert message["is_masked"]
    assert seen["without_audit"]
    assert [each["what"] for each in seen["entries"]] == [
        "sent",
        "received",
        "died",
        "redriven",
        "lost",
    ]
    assert seen["entries"][0]["message_id"] == dead["message_id"]
    assert seen["entries"][3]["by"] == "ann"

    blind = await signed["blind"].seen(path)
    assert blind["entries"][3]["by"] is None
