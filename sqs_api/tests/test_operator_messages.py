"""The operators' API: browse, search, send, resend and delete messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.operators import browsing
from sqs_api.tests.operator_client import Operators, make_dead_letters
from sqs_api.tests.served import Served, serving

XSS = '<img src=x onerror="alert(1)">'


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await node.call("CreateQueue", QueueName="q")
        yield node


async def browse(operators: Operators, **parameters: object) -> list[Any]:
    """All messages that match, over all pages."""
    found: list[Any] = []
    token: str | None = ""
    while token is not None:
        page = await operators.seen("queues/q/messages", token=token, **parameters)
        found += page["messages"]
        token = page["next"]
    return found


async def bodies(operators: Operators, **parameters: object) -> list[str]:
    return [message["body"] for message in await browse(operators, **parameters)]


# -- browse ----------------------------------------------------------------------------------------


async def test_messages_in_every_state_are_seen_and_none_is_received(operators: Operators) -> None:
    served = operators.served
    await served.send("in flight")
    await served.receive()
    await served.send("visible")
    await served.call("SendMessage", QueueUrl="q", MessageBody="delayed", DelaySeconds=900)

    for _ in range(2):
        found = await browse(operators)
        assert [(each["body"], each["state"]) for each in found] == [
            (state, state) for state in ("in flight", "visible", "delayed")
        ]
        assert [each["receive_count"] for each in found] == [1, 0, 0]
    for state in ("visible", "in flight", "delayed"):
        assert await bodies(operators, state=state) == [state]


async def test_pages_hold_while_messages_come_and_go(operators: Operators) -> None:
    await operators.served.send(*"abcdef")
    first = await operators.seen("queues/q/messages", limit=2)
    await operators.done("queues/q/messages/delete", {"sequences": [1, 3]})
    await operators.served.send("g")

    rest = await operators.seen("queues/q/messages", limit=9, token=first["next"])

    assert [each["body"] for each in first["messages"]] == ["a", "b"]
    assert [each["body"] for each in rest["messages"]] == ["d", "e", "f", "g"]
    assert rest["next"] is None


async def test_pages_of_delayed_messages_hold(operators: Operators) -> None:
    for delay_s in (300, 100, 200):
        await operators.served.call(
            "SendMessage", QueueUrl="q", MessageBody=f"{delay_s}", DelaySeconds=delay_s
        )

    assert await bodies(operators, limit=1) == ["100", "200", "300"]


async def test_a_long_body_is_cut_in_pages_and_whole_alone(operators: Operators) -> None:
    body = XSS * 1000
    await operators.served.send(body)

    (cut,) = await browse(operators)
    whole = await operators.seen(f"queues/q/messages/{cut['sequence']}")

    assert cut["is_cut"]
    assert body.startswith(cut["body"])
    assert len(cut["body"]) == 2000
    assert (whole["body"], whole["is_cut"]) == (body, False)


async def test_a_delayed_message_is_found_by_its_time(operators: Operators) -> None:
    await operators.served.call("SendMessage", QueueUrl="q", MessageBody="x", DelaySeconds=900)
    (found,) = await browse(operators)

    path = f"queues/q/messages/{found['sequence']}"
    assert (await operators.seen(path, due_ms=found["due_ms"]))["body"] == "x"
    assert (await operators.get(path)).status == 404


async def test_a_message_shows_everything_but_its_handle(operators: Operators) -> None:
    attributes = {
        "kind": {"DataType": "String", "StringValue": XSS},
        "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    await operators.served.call(
        "SendMessage", QueueUrl="q", MessageBody=XSS, MessageAttributes=attributes
    )

    (found,) = await browse(operators)

    assert found["attributes"] == {
        "kind": {"type": "String", "value": XSS},
        "raw": {"type": "Binary", "binary": "AAE="},
    }
    assert found["expires_at_ms"] - found["sent_at_ms"] == 345_600_000
    assert not [name for name in found if "handle" in name]


async def test_a_message_shows_its_priority(operators: Operators) -> None:
    await operators.served.send("without")
    tags = {"holdfast:priority": "weighted"}
    await operators.served.call("TagQueue", QueueUrl="q", Tags=tags)
    lowest = {"holdfast.priority": {"DataType": "Number", "StringValue": "0"}}
    sent = {"MessageBody": "lowest", "MessageAttributes": lowest}
    await operators.served.call("SendMessage", QueueUrl="q", **sent)
    await operators.served.send("default")

    assert [found["priority"] for found in await browse(operators)] == [None, 0, 4]


async def test_sealed_messages_are_opened(operators: Operators) -> None:
    sealed = {"KmsMasterKeyId": "orders"}
    await operators.served.call("SetQueueAttributes", QueueUrl="q", Attributes=sealed)
    await operators.served.send("secret")

    assert await bodies(operators) == ["secret"]


# -- search ----------------------------------------------------------------------------------------


_FOUND: list[tuple[dict[str, object], list[int]]] = [
    ({"text": "ANVIL"}, [1]),
    ({"json": "items[1].sku=rocket"}, [1]),
    ({"json": "$.items[0]"}, [0, 1]),
    ({"json": "total=7"}, [0]),
    ({"json": "missing"}, []),
    ({"json": "items[0].sku^=an"}, [1]),
    ({"json": "items[0].sku^=nvil"}, []),
    ({"json": "total^=7\nitems[0].sku=tar"}, [0]),
    ({"json": "total=7\nitems[0].sku=anvil"}, []),
    ({"attribute": "kind^=b"}, [2]),
    ({"attribute": "kind\nkind=a"}, [0]),
    ({"attribute": "kind"}, [0, 2]),
    ({"attribute": "kind=b"}, [2]),
    ({"group": "g1"}, [1]),
    ({"text": "a", "attribute": "kind=a"}, [0]),
    ({"received_min": 1}, []),
    ({}, [0, 1, 2]),
]


async def test_messages_are_found(operators: Operators) -> None:
    orders: list[dict[str, Any]] = [
        {"total": 7, "items": [{"sku": "tar"}]},
        {"items": [{"sku": "anvil"}, {"sku": "rocket"}]},
    ]
    sent = [*map(json.dumps, orders), "no JSON a"]
    for number, body in enumerate(sent):
        more: dict[str, Any] = {"MessageGroupId": "g1"} if number == 1 else {}
        kind = {0: "a", 2: "b"}.get(number)
        if kind:
            more["MessageAttributes"] = {"kind": {"DataType": "String", "StringValue": kind}}
        await operators.served.call("SendMessage", QueueUrl="q", MessageBody=body, **more)
    for search, expected in _FOUND:
        assert await bodies(operators, **search) == [sent[number] for number in expected], search


async def test_a_message_is_found_by_its_id_and_its_source(operators: Operators) -> None:
    await make_dead_letters(operators.served, "x", "y")
    page = await operators.seen("queues/dead/messages", source="source")
    message_id = page["messages"][1]["message_id"]

    found = await operators.seen("queues/dead/messages", id=message_id)

    assert [each["body"] for each in page["messages"]] == ["x", "y"]
    assert [each["body"] for each in found["messages"]] == ["y"]


async def test_a_scan_is_bounded_tells_how_far_it_got_and_goes_on(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "SCAN_S", 0.0)
    monkeypatch.setattr(browsing, "STEP_MESSAGES", 4)
    await operators.served.send(*"aaaaaaaab")

    first = await operators.seen("queues/q/messages", text="b")

    assert (first["messages"], first["scanned"]) == ([], 4)
    assert first["next"]
    assert await bodies(operators, text="b") == ["b"]


_UNREADABLE = [{"json": "a[x]"}, {"json": "$"}, {"token": "x"}, {"state": "gone"}]


async def test_a_search_that_cannot_be_read_is_refused(operators: Operators) -> None:
    for parameters in _UNREADABLE:
        assert (await operators.get("queues/q/messages", **parameters)).status == 400, parameters


# -- send, resend, delete --------------------------------------------------------------------------


async def test_a_message_is_sent_as_a_client_would(operators: Operators) -> None:
    message = {
        "body": "é",
        "attributes": {
            "n": {"type": "Number", "value": "1"},
            "b": {"type": "Binary", "binary": ""},
        },
    }
    refused = await operators.post("queues/q/messages", message)
    message["attributes"]["b"]["binary"] = "AAE="  # type: ignore[index]
    await operators.done("queues/q/messages", message)

    answer = await operators.served.call(
        "ReceiveMessage", QueueUrl="q", MessageAttributeNames=["All"]
    )

    assert refused.status == 400
    (received,) = answer["Messages"]
    assert received["Body"] == "é"
    assert received["MessageAttributes"]["b"]["BinaryValue"] == "AAE="


async def test_fifo_messages_keep_their_rules(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    message = {"body": "x", "group_id": "g", "deduplication_id": "d"}

    lacking = await operators.post("queues/q.fifo/messages", {"body": "x"})
    first = await operators.done("queues/q.fifo/messages", message)
    again = await operators.done("queues/q.fifo/messages", message)

    assert lacking.status == 400
    assert (first["is_duplicate"], again["is_duplicate"]) == (False, True)
    (found,) = (await operators.seen("queues/q.fifo/messages"))["messages"]
    assert (found["group_id"], found["deduplication_id"]) == ("g", "d")


async def test_a_message_says_behind_which_one_of_its_group_it_waits(operators: Operators) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    await operators.served.call("CreateQueue", QueueName="q.fifo", Attributes=attributes)
    for body, group in ("a", "g"), ("b", "g"), ("c", "other"), ("d", "g"):
        await operators.done("queues/q.fifo/messages", {"body": body, "group_id": group})
    await operators.served.call("ReceiveMessage", QueueUrl="q.fifo")

    found = (await operators.seen("queues/q.fifo/messages"))["messages"]
    assert [(each["body"], each["state"], each["waits_behind"]) for each in found] == [
        ("a", "in flight", None),
        ("b", "visible", 1),
        ("c", "visible", None),
        ("d", "visible", 1),
    ]
    assert (await operators.seen("queues/q.fifo/messages/4"))["waits_behind"] == 1
    searched = await operators.seen("queues/q.fifo/messages", id=found[1]["message_id"])
    assert [each["waits_behind"] for each in searched["messages"]] == [1]


async def test_an_edited_copy_is_sent_beside_or_instead(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="to")
    await operators.served.send("a", "b")

    await operators.done("queues/q/messages/1/resend", {"body": "a2", "to": "to"})
    await operators.done("queues/q/messages/2/resend", {"body": "b2", "to": "to", "replace": True})

    assert await bodies(operators) == ["a"]
    assert set(await operators.served.receive("to")) == {"a2", "b2"}


async def test_nothing_is_sent_while_the_disk_is_short(operators: Operators) -> None:
    await operators.served.send("a")
    disk = operators.served.node.shards.disk
    disk.reserve_bytes = 1 << 62
    disk.look()

    for path in ("", "/1/resend"):
        told = await operators.post(f"queues/q/messages{path}", {"body": "x"})

        assert told.status == 503
        assert "no space for more messages" in told.json["error"]
    assert await bodies(operators) == ["a"]


async def test_a_message_in_flight_is_not_replaced(operators: Operators) -> None:
    await operators.served.send("a")
    await operators.served.receive()

    told = await operators.post("queues/q/messages/1/resend", {"body": "x", "replace": True})

    assert told.status == 400
    assert await bodies(operators) == ["a"]


async def test_a_message_of_one_part_is_replaced_without_looking_for_it(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operators.served.send("a")
    router = operators.served.node.shards.router
    ask, asked = router.ask, list[str]()

    async def ask_noted(request: Any, age_ms: int = 0) -> Any:
        asked.append(type(request.operation).__name__)
        return await ask(request, age_ms)

    monkeypatch.setattr(router, "ask", ask_noted)
    await operators.done("queues/q/messages/1/resend", {"body": "b", "replace": True})
    monkeypatch.undo()

    assert asked == ["ResendMessage"]
    assert await bodies(operators) == ["b"]


async def test_selected_messages_are_deleted(operators: Operators) -> None:
    await operators.served.send(*"abc")

    answer = await operators.done("queues/q/messages/delete", {"sequences": [1, 3, 99]})

    assert answer == {"deleted": 2, "kept": 1}
    assert await bodies(operators) == ["b"]
