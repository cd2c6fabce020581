"""`holdfast queues`, `messages` and `redrive`: tables, JSON, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.commands.operators import OperatorClient
from sqs_api.commands.terminal_tables import plain, span
from sqs_api.operators import scan_turns
from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import Operators, latest_redrive, make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import settled
from visibility.contract.tags import OWN_TAGS


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a", "\x9b31mred", "c")
        yield node


async def say(served: Served, *arguments: object) -> Said:
    data = served.data
    return await asyncio.to_thread(run, *arguments, "--data", data, "--region", "us-east-1")


async def told(served: Served, *arguments: object) -> Any:
    said = await say(served, *arguments, "--json")
    assert said.status == 0, said
    return json.loads(said.out)


async def test_dead_letter_queues_are_grouped_by_a_tag(served: Served) -> None:
    await served.call("TagQueue", QueueUrl="dead", Tags={"team": "shop"})
    by_team = ("queues", "list", "--dead-letters", "--by-tag", "team")
    grouped = await say(served, *by_team, "--sort", "arrived", "--reverse")
    refused = [
        await say(served, "queues", "list", "--by-tag", "team"),
        await say(served, "queues", "list", "--sort", "severity"),
        await say(served, "queues", "list", "--dead-letters", "--sort", "delayed"),
        await say(served, "queues", "list", "--dead-letters", "--tag", "team"),
    ]
    tagged = await say(served, "queues", "list", "--tag", "team^=sh", "--tag", "team")

    assert grouped.out.splitlines()[0].endswith("severity  team  in last hour")
    assert grouped.out.splitlines()[1].split()[-3:] == ["low", "shop", "3"]
    assert [said.status for said in refused] == [2, 2, 2, 2]
    assert [line.split()[0] for line in tagged.out.splitlines()] == ["queue", "dead"]


async def test_queues_are_listed_and_shown(served: Served) -> None:
    listed = await say(served, "queues", "list")
    worst = await say(served, "queues", "list", "--dead-letters")
    shown = await say(served, "queues", "show", "dead")

    head, dead, source = listed.out.splitlines()
    assert head.split()[:2] == ["queue", "visible"]
    assert dead.split()[:4] == ["dead", "3", "0", "0"]
    assert dead.endswith("of source")
    assert source.endswith("to dead")
    assert worst.out.splitlines()[1].startswith("dead ")
    assert worst.out.splitlines()[1].split()[-2:] == ["low", "3"]
    assert "VisibilityTimeout" in shown.out
    assert (await told(served, "queues", "show", "dead"))["visible"] == 3


async def test_failures_are_counted_and_their_messages_exported(served: Served) -> None:
    found = await told(served, "queues", "failures", "dead")
    shown = await say(served, "queues", "failures", "dead", "--sort", "last")
    wanted = next(each["id"] for each in found["failures"] if each["signs"][0]["value"] == "a")
    exported = await say(served, "messages", "export", "dead", "--failure", wanted)
    everything = await say(served, "messages", "export", "dead")

    assert (found["messages"], found["is_exact"]) == (3, True)
    assert [line.split()[1] for line in shown.out.splitlines()] == ["messages", "1", "1", "1"]
    assert "\x9b" not in shown.out
    assert [json.loads(line)["body"] for line in exported.out.splitlines()] == ["a"]
    assert len(everything.out.splitlines()) == 3


async def test_a_search_that_finds_no_room_is_tried_again_and_then_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            monkeypatch.setattr(scan_turns, "AT_ONCE", 1)

    monkeypatch.setattr("sqs_api.commands.page_client.time.sleep", pause)
    monkeypatch.setattr(scan_turns, "WAIT_S", 0.0)
    monkeypatch.setattr(scan_turns, "AT_ONCE", 0)
    found = await say(served, "messages", "browse", "dead", "--text", "a")
    assert (found.status, pauses) == (0, [1, 1])

    pauses += [0, 0]
    monkeypatch.setattr(scan_turns, "AT_ONCE", 0)
    refused = await say(served, "messages", "browse", "dead", "--text", "a")
    assert refused.status == 2
    assert pauses == [1, 1, 0, 0, 1, 1, 1]
    assert "Close tabs of yours" in refused.err
    assert refused.err.strip().endswith("It was tried 4 times.")


async def test_tags_with_a_meaning_are_shown_with_it(served: Served) -> None:
    tags = {"holdfast:protect": "on", "team": "a"}
    await served.call("TagQueue", QueueUrl="dead", Tags=tags)

    shown = await say(served, "queues", "show", "dead")
    own = (await told(served, "queues", "show", "dead"))["own_tags"]

    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "holdfast:protect on The queue is protected from being deleted or purged." in lines
    assert "team a" in lines
    assert [row["key"] for row in own] == list(OWN_TAGS)


async def test_a_tag_without_effect_is_warned_of(served: Served) -> None:
    await served.call("TagQueue", QueueUrl="dead", Tags={"holdfast:overflow": "drop-oldest"})

    shown = await say(served, "queues", "show", "dead")

    assert (
        "warning: tag holdfast:overflow has no effect, since the queue has no tag "
        "holdfast:max-messages or holdfast:max-bytes" in shown.out
    )


async def test_a_policy_about_another_queue_is_warned_of(served: Served) -> None:
    grant = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "'$queue_arn'"}
    given = {"Policy": json.dumps({"Statement": {**grant, "Sid": "\x9b31mred"}})}
    before = await say(served, "queues", "show", "dead")
    await served.call("SetQueueAttributes", QueueUrl="dead", Attributes=given)

    shown = await say(served, "queues", "show", "dead")

    assert "warning" not in before.out
    assert (
        r"warning: these statements of the policy have no effect, since their Resource is not "
        r"this queue: \x9b31mred" in shown.out
    )


async def test_messages_are_browsed_and_shown_without_control_characters(served: Served) -> None:
    page = await say(served, "messages", "browse", "dead", "--limit", "2")
    found = await told(served, "messages", "browse", "dead", "--text", "RED")
    shown = await say(served, "messages", "show", "dead", "2")

    assert "\x9b" not in page.out + shown.out
    assert r"\x9b31mred" in page.out
    assert "go on with --token" in page.out
    assert [each["sequence"] for each in found["messages"]] == [2]
    assert "source_arn" in shown.out


async def test_a_message_is_found_in_whatever_queue_it_is(served: Served) -> None:
    (second,) = (await told(served, "messages", "browse", "dead", "--text", "RED"))["messages"]
    found = await say(served, "messages", "find", second["message_id"])
    as_json = await told(served, "messages", "find", second["message_id"])
    nowhere = await say(served, "messages", "find", "00000000-0")

    assert found.out.splitlines()[1].split()[:3] == ["dead", "2", second["message_id"]]
    assert as_json["messages"] == [second | {"queue": "dead"}]
    assert (nowhere.status, nowhere.out) == (1, "")
    assert nowhere.err == "none of 3 messages has the id 00000000-0"


async def test_json_has_nothing_that_a_terminal_acts_on(served: Served) -> None:
    body = "\x9b31m\x7f\u202e\u2028é"
    await served.call("SendMessage", QueueUrl="dead", MessageBody=body)

    pages = [
        await say(served, "messages", "browse", "dead", "--json"),
        await say(served, "messages", "export", "dead"),
        await say(served, "messages", "tail", "dead", "--once", "--json"),
    ]
    for said in pages:
        assert said.status == 0, said
        assert (said.out.isascii(), "\x7f" in said.out) == (True, False)
        assert json.dumps(body)[1:-1].replace("\x7f", r"\u007f") in said.out
    assert body in [message["body"] for message in json.loads(pages[0].out)["messages"]]


async def test_messages_are_sent_deleted_and_resent(served: Served) -> None:
    sent = await say(served, "messages", "send", "dead", "--body", "new")
    deleted = await say(served, "messages", "delete", "dead", "1", "99")
    resent = await say(
        served, "messages", "resend", "dead", "2", "--to", "source", "--body", "x", "--replace"
    )

    assert sent.out.startswith("sent ")
    assert deleted.out == "deleted 1, kept 1\n"
    assert resent.status == 0
    left = await told(served, "messages", "browse", "dead")
    assert [each["body"] for each in left["messages"]] == ["c", "new"]
    there = await told(served, "messages", "browse", "source")
    assert [each["body"] for each in there["messages"]] == ["x"]


async def test_a_copy_keeps_its_attributes_and_group_or_gets_others(served: Served) -> None:
    attribute = {"n": {"DataType": "Number", "StringValue": "7"}}
    binary = {"b": {"DataType": "Binary", "BinaryValue": "AAE="}}
    send = ("messages", "send", "source", "--body", "x", "--group", "g", "--message-attributes")
    await say(served, *send, json.dumps(attribute))
    (sent,) = (await told(served, "messages", "browse", "source"))["messages"]
    copy = ("messages", "resend", "source", sent["sequence"], "--to", "dead")
    await say(served, *copy, "--body", "kept")
    other = ("--body", "other", "--message-attributes", json.dumps(binary), "--group", "")
    said = await say(served, *copy, *other)
    wrong = await say(served, *copy, "--message-attributes", '{"n": {"Type": "Number"}}')
    found = (await told(served, "messages", "browse", "dead"))["messages"]
    kept, changed = [
        await told(served, "messages", "show", "dead", each["sequence"])
        for each in found
        if each["body"] in ("kept", "other")
    ]

    assert said.status == 0
    assert (kept["attributes"]["n"]["value"], kept["group_id"]) == ("7", "g")
    assert {name: each["binary"] for name, each in changed["attributes"].items()} == {"b": "AAE="}
    assert changed["group_id"] is None
    assert wrong.status == 2
    assert "DataType" in wrong.err


async def test_a_redrive_is_planned_started_listed_and_cancelled(served: Served) -> None:
    plan = await say(served, "redrive", "plan", "dead")
    unclear = await say(served, "redrive", "start", "dead")
    waited = await say(served, "redrive", "start", "dead", "1", "--wait")
    await say(served, "redrive", "start", "dead", "--all", "--rate", "1")
    cancelled = await say(served, "redrive", "cancel", "dead")
    listed = await say(served, "redrive", "list", "dead")

    assert plan.out.splitlines()[1].split()[:2] == ["source", "3"]
    assert (unclear.status, unclear.out) == (2, "")
    assert unclear.err == "name messages by their sequences or a filter, or all of them with --all"
    assert waited.out.endswith("COMPLETED: moved 1 of 1\n")
    assert "cancelled after " in cancelled.out
    assert [line.split()[3] for line in listed.out.splitlines()[-2:]] == ["CANCELLED", "COMPLETED"]


async def test_a_filtered_redrive_is_planned_watched_resumed_and_undone(served: Served) -> None:
    plan = await say(served, "redrive", "plan", "dead", "--text", "RED", "--to", "source")
    both = await say(served, "redrive", "start", "dead", "1", "--text", "a")
    care = ("--canary", "1", "--stop-after", "1", "--reason", "fixed", "--wait")
    paused = await say(served, "redrive", "start", "dead", "--received-min", "1", *care)
    listed = await say(served, "redrive", "list", "dead")
    resumed = await say(served, "redrive", "resume", "dead")
    (task,) = await told(served, "redrive", "list", "dead")
    undone = await say(served, "redrive", "undo", "dead", "--redrive", task["id"][:8])
    idle = await say(served, "redrive", "pause", "dead")
    unknown = await say(served, "redrive", "undo", "dead", "--redrive", "zz")

    assert plan.out.splitlines()[1].split() == ["source", "1", "8"]
    assert plan.out.endswith("2 do not match and stay\n")
    assert both.err == "choose messages by their sequences or with a filter, not both"
    assert paused.out.endswith(
        "paused (canary): moved 1, came back 0; go on with: holdfast redrive resume dead\n"
    )
    assert "PAUSED (canary)" in listed.out
    assert "fixed, received_min=1" in listed.out
    assert " 1 of 3 " in listed.out
    assert resumed.out.endswith("resumed after 1 messages\n")
    assert (task["filter"], task["stop_after"]) == ({"received_min": 1}, 1)
    assert undone.out.endswith("undo begun in source\n")
    assert (idle.err, unknown.err) == ("no redrive of dead is running", "no redrive zz of dead")
    while (await told(served, "redrive", "list", "source"))[0]["is_active"]:
        await settled()
    assert await served.count("dead") == 3


async def test_redrives_and_undos_that_fail_end_with_status_1(served: Served) -> None:
    forms: list[tuple[str, ...]] = [(), ("--json",)]
    await served.call("CreateQueue", QueueName="gone")
    tight = {"MaximumMessageSize": "1024"}
    await served.call("CreateQueue", QueueName="small", Attributes=tight)
    await served.send(json.dumps({"x": "y" * 2000}), queue="source")
    while await served.count("source"):
        await served.call("ReceiveMessage", QueueUrl="source")
    moved = await say(served, "redrive", "start", "dead", "1", "--to", "gone", "--wait")
    await served.call("DeleteQueue", QueueUrl="gone")
    undone = [await say(served, "redrive", "undo", "dead", *form) for form in forms]
    start = ("redrive", "start", "dead", "--all", "--to", "small", "--set", "z=1", "--wait")
    failed = [await say(served, *start, *form) for form in forms]

    assert moved.status == 0
    assert [said.status for said in undone] == [1, 1]
    assert undone[0].out == "undo begun in no queue\n"
    assert "FAILED: moved 0 of " in failed[0].out
    assert json.loads(failed[1].out)["status"] == "FAILED"
    assert [said.status for said in failed] == [1, 1]


async def test_a_redrive_is_watched_while_a_later_one_begins(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one's outcome is not that of the watched one."""
    ask = OperatorClient.post
    begun: list[str] = []

    def post(service: OperatorClient, path: str, content: Any) -> Any:
        answer = ask(service, path, content)
        if path.endswith("/redrives") and not begun:
            begun.append(answer["handle"])
            while service.get(path, limit=1)["redrives"][0]["is_active"]:
                pass
            ask(service, path, {"destination": "source", "sequences": [2, 3]})
        return answer

    monkeypatch.setattr(OperatorClient, "post", post)
    watched = await say(served, "redrive", "start", "dead", "1", "--wait", "--json")

    shown = json.loads(watched.out)
    assert [shown["handle"], shown["moved"], shown["paused"]] == [*begun, 1, None]


@pytest.mark.slow
async def test_a_redrive_is_named_by_its_id_also_behind_a_hundred_later_ones(
    served: Served,
) -> None:
    operators = Operators(served)
    for _ in range(101):
        await operators.done("queues/dead/redrives")
        await latest_redrive(operators)
    page = await operators.seen("queues/dead/redrives", limit=100)
    (first,) = (await operators.seen("queues/dead/redrives", before=page["next"]))["redrives"]

    undone = await say(served, "redrive", "undo", "dead", "--redrive", first["id"])

    assert first["moved"] == 3
    assert (undone.out, undone.err) == ("undo begun in source\n", "")


async def test_refusals_are_one_line(served: Served) -> None:
    missing = await say(served, "queues", "show", "none")
    idle = await say(served, "redrive", "cancel", "dead")

    assert (missing.status, idle.status) == (2, 2)
    assert "The specified queue does not exist." in missing.err
    assert idle.err == "no redrive of dead is running"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0s"), (59, "59s"), (3_660, "1h 1m"), (90_061, "1d 1h")],
)
def test_spans_have_two_units(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_text_of_users_is_one_plain_line() -> None:
    assert plain("a\nb\x9b é") == r"a\nb\x9b é"
    assert plain("abcdef", 4) == "abc…"


async def test_a_timeline_and_an_origin_are_shown(served: Served) -> None:
    await Operators(served).done("queues/dead/redrives", {"sequences": [2], "reason": "f\x9bixed"})
    await latest_redrive(Operators(served))
    (found,) = (await told(served, "messages", "browse", "source"))["messages"]

    sequence = str(found["sequence"])
    shown = await say(served, "messages", "show", "source", sequence)
    lines = (await say(served, "messages", "timeline", "source", sequence)).out.splitlines()
    entries = (await told(served, "messages", "timeline", "source", sequence))["entries"]

    assert found["origin"]["message_id"] in shown.out
    assert [each["what"] for each in entries] == ["sent", "received", "died", "redriven", "lost"]
    assert lines[2].rstrip().endswith("received 1 time")
    redrive = entries[3]["redrive"]
    assert lines[4].endswith(f"queue dead, id {found['message_id']}, redrive {redrive}")
    assert "\x9b" not in "".join(lines)
