"""The operators' API: redrives that edit what they move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import Operators, add_user, latest_redrive, make_dead_letters
from sqs_api.tests.sealed_world import BILLS, MANAGED, ORDERS, PLAIN, World, now, queue_of
from sqs_api.tests.served import Served, serving
from visibility.content.content import with_body
from visibility.content.edits import edit_of
from visibility.contract.move_task import Pace
from visibility.contract.outcomes import MovePlan
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared

BODIES = ('{"n": 1.10, "kind": "a"}', '{"n": 2, "kind": "b"}', '{"n": 3, "kind": "b"}', "no JSON")
EDIT = {"kind": "c", "retry": {"at": "once"}}


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, *BODIES)
        yield node


async def say(served: Served, *arguments: object) -> Said:
    return await asyncio.to_thread(run, *arguments, "--data", served.data, "--region", "us-east-1")


async def test_a_group_is_edited_as_its_plan_showed(operators: Operators) -> None:
    wanted = {"filter": {"json": "kind=b"}, "edit": EDIT}

    plan = await operators.done("queues/dead/redrives/plan", wanted)
    await operators.done("queues/dead/redrives", {**wanted, "planned": plan["messages"]})

    ended = await latest_redrive(operators)
    assert (ended["status"], ended["moved"], ended["edit"]) == ("COMPLETED", 2, EDIT)
    assert await operators.served.count("dead") == 2
    moved = await operators.served.receive("source")
    assert sorted(moved) == [
        '{"n":2,"kind":"c","retry":{"at":"once"}}',
        '{"n":3,"kind":"c","retry":{"at":"once"}}',
    ]
    shown = [(each["before"], each["after"]) for each in plan["samples"]]
    assert shown == list(zip(BODIES[1:3], sorted(moved), strict=True))


async def test_a_body_that_is_no_object_stays(operators: Operators) -> None:
    plan = await operators.done("queues/dead/redrives/plan", {"edit": EDIT})
    await operators.done("queues/dead/redrives", {"edit": EDIT})

    ended = await latest_redrive(operators)
    assert (plan["messages"], plan["refused"]) == (3, {"BodyIsNoObject": 1})
    assert (ended["status"], ended["moved"], ended["stayed"]) == ("FAILED", 3, 1)
    assert ended["failure"] == "BodyIsNoObject"
    found = (await operators.seen("queues/dead/messages"))["messages"]
    assert [each["body"] for each in found] == ["no JSON"]


async def test_ten_samples_at_most_are_shown_over_all_steps(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *(f'{{"n":{n}}}' for n in range(25)))
        operators = Operators(served)

        plan = await operators.done("queues/dead/redrives/plan", {"edit": {"n": 0}})

    assert [each["before"] for each in plan["samples"]] == [f'{{"n":{n}}}' for n in range(10)]


async def test_what_is_no_edit_is_refused(operators: Operators) -> None:
    edits: list[object] = [{}, {"a": "x" * 5_000}, [], "text", {"a": "\ufffe"}]
    for edit in edits:
        refused = {"filter": {"json": "kind=b"}, "edit": edit}
        assert (await operators.post("queues/dead/redrives", refused)).status == 400, edit
    named = {"sequences": [1], "edit": EDIT}
    assert (await operators.post("queues/dead/redrives", named)).status == 400
    assert (await operators.seen("queues/dead/redrives"))["redrives"] == []


async def test_an_edit_needs_the_right_to_read_bodies(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *BODIES)
    moves = ("holdfast:RedriveMessages", "sqs:*")
    blind = add_user(data, "blind", *moves)
    sees = add_user(data, "sees", *moves, "holdfast:ReadMessageBodies")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for path in ("queues/dead/redrives/plan", "queues/dead/redrives"):
            for wanted in ({"edit": EDIT}, {"edit": EDIT, "filter": {"source": "source"}}):
                assert (await Operators(served, blind).post(path, wanted)).status == 403
        assert (await Operators(served, sees).post(path, {"edit": EDIT})).status == 200


async def test_the_paced_edit_goes_on_after_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *BODIES)
        wanted = {"edit": {"kind": "c"}, "canary": 1}
        await Operators(served).done("queues/dead/redrives", wanted)
        waits = await latest_redrive(Operators(served))
    async with serving(data) as served:
        operators = Operators(served)
        await operators.done("queues/dead/redrives/resume", {"handle": waits["handle"]})
        ended = await latest_redrive(operators)

        assert (waits["moved"], waits["paused"], ended["moved"]) == (1, "canary", 3)
        bodies = [json.loads(each) for each in await served.receive("source")]
        assert [each["kind"] for each in bodies] == ["c", "c", "c"]


async def test_a_command_edits_a_group(served: Served) -> None:
    options = ("--field", "kind=b", "--set", "retry.at=once", "--set", "n=7")
    planned = await say(served, "redrive", "plan", "dead", *options)
    patch = ("--merge-patch", '{"kind": null}')
    started = await say(served, "redrive", "start", "dead", *options, *patch, "--wait")
    listed = await say(served, "redrive", "list", "dead")

    assert f'- {BODIES[1]}\n+ {{"n":7,"kind":"b","retry":{{"at":"once"}}}}\n' in planned.out
    assert started.out == "COMPLETED: moved 2 of 2\n"
    assert set(await served.receive("source")) == {'{"n":7,"retry":{"at":"once"}}'}
    assert 'edit {"kind": null' in listed.out


async def test_a_command_refuses_what_is_no_edit(served: Served) -> None:
    for options in (
        ("--set", "a"),
        ("--set", "items[0]=1"),
        ("--set", "a..b=1"),
        ("--merge-patch", "[1]"),
        ("--merge-patch", "{"),
        ("--merge-patch", '{"a": 1}', "--set", "a.b=2"),
    ):
        said = await say(served, "redrive", "start", "dead", "--all", *options)
        assert said.status == 2, options


@pytest.mark.parametrize(
    ("source", "dead", "key"),
    [
        (PLAIN, PLAIN, None),
        (PLAIN, ORDERS, "orders"),
        (MANAGED, PLAIN, MANAGED),
        (ORDERS, PLAIN, "orders"),
        (ORDERS, BILLS, "orders"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_an_edited_message_is_sealed_as_its_queue_requires_and_stays_under_a_named_key(
    source: str | None, dead: str | None, key: str | None, suffix: str
) -> None:
    world = World(source, dead, suffix)
    world.let_die(world.source, content_of('{"a": 1}'))
    move = MoveSelected(edit=edit_of({"a": 2}))

    world.driver.submit(prepared.prepared(world.dead, move))

    assert world.task().status == "COMPLETED"
    assert world.stored(world.dead) == []
    (message,) = world.stored(world.source)
    assert world.key_of(message) == key
    assert world.sealer.open(message) == content_of('{"a":2}')


def test_a_sealed_message_is_not_edited_without_the_key_of_its_queue() -> None:
    """Only the keys of the queue and of the message's source were checked."""
    world = World(ORDERS, PLAIN)
    world.let_die(world.source, content_of('{"a": 1}'))
    world.known.define(queue_of("source", 2, BILLS, world.dead))
    now(world.sealer.prepare([world.known.queue_of_id(2) or world.source]))

    plan = world.driver.submit(prepared.prepared(world.dead, PlanMove(edit=edit_of({"a": 2}))))
    world.driver.submit(prepared.prepared(world.dead, MoveSelected(edit=edit_of({"a": 2}))))

    assert isinstance(plan.answer, MovePlan)
    assert (plan.answer.refused, plan.answer.samples) == ({"KMS.AccessDeniedException": 1}, [])
    assert (world.task().status, len(world.stored(world.dead))) == ("FAILED", 1)


def content_of(body: str) -> bytes:
    """Packed content."""
    return with_body(bytes(20) + b"\x91\xa6sender", body)


def test_a_host_of_a_version_before_edits_moves_nothing() -> None:
    world = World(PLAIN, PLAIN)
    world.let_die(world.source, content_of('{"a": 1}'), count=2)
    world.driver.submit(
        prepared.prepared(world.dead, MoveSelected(edit=edit_of({"a": 2}), pace=Pace(canary=1)))
    )
    (task,) = world.driver.state.queue(world.dead.queue_id).tasks.values()

    assert task.selected == []
