"""A message that moves is sealed as its new queue requires, and stays where it is if it cannot
be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cluster.keys.keyring import KeysAway
from cluster.tests.driver import Driver
from sqs_api.tests.sealed_world import BILLS, BODY, MANAGED, ORDERS, PLAIN, World, now
from sqs_api.tests.served import serving
from sqs_api.tests.serving import json_request
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import Request
from visibility.contract.operations import Operation, StartMessageMoveTask
from visibility.contract.outcomes import MovePlan, Planned
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import message_key
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared

UNSEALED = {"SqsManagedSseEnabled": "false"}
DISABLED, UNKNOWN = "KMS.DisabledException", "KMS.NotFoundException"
MakeWorld = Callable[[str | None, str | None], World]


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_world(suffix: str) -> MakeWorld:
    return lambda source, dead: World(source, dead, suffix)


@pytest.mark.parametrize(
    ("source", "dead", "there", "back"),
    [
        (PLAIN, ORDERS, "orders", "orders"),
        (PLAIN, MANAGED, MANAGED, MANAGED),
        (MANAGED, ORDERS, "orders", "orders"),
        (MANAGED, PLAIN, MANAGED, MANAGED),
        (BILLS, ORDERS, "bills", "bills"),
        (ORDERS, PLAIN, "orders", "orders"),
    ],
)
def test_message_is_sealed_as_its_queue_requires_and_stays_under_a_named_key(
    source: str | None, dead: str | None, there: str, back: str, make_world: MakeWorld
) -> None:
    """As on AWS, where a move does not open a message.

    Otherwise callers who may move messages could read them without the key.
    """
    world = make_world(source, dead)

    world.let_die(world.source)

    assert (world.keys(world.source), world.keys(world.dead)) == ([], [there])
    world.move()
    assert (world.keys(world.source), world.keys(world.dead)) == ([back], [])


@pytest.mark.parametrize("key", [PLAIN, MANAGED, ORDERS])
def test_move_between_queues_with_one_requirement_costs_nothing(
    key: str | None, make_world: MakeWorld
) -> None:
    world = make_world(key, key)
    world.send(world.source)
    (sent,) = world.stored(world.source)

    world.receive(world.source)
    world.receive(world.source)
    world.move()

    (back,) = world.stored(world.source)
    assert (back.data, back.sealed) == (sent.data, sent.sealed)
    moves = [move for event in world.moves for move in event.moves]
    assert [(move.resealed, move.message.data) for move in moves] == [(False, sent.data)] * 2


def test_message_of_before_the_queue_was_sealed_is_sealed_by_its_move(
    make_world: MakeWorld,
) -> None:
    world = make_world(PLAIN, ORDERS)
    world.send(world.source)
    sealed = world.define("source", 2, ORDERS)

    world.receive(sealed)
    world.receive(sealed)

    assert world.keys(world.dead) == ["orders"]


@pytest.mark.parametrize("reason", ["disabled", "unknown"])
def test_dead_letter_whose_target_cannot_be_sealed_for_is_received_again(
    reason: str, make_world: MakeWorld
) -> None:
    world = make_world(PLAIN, ORDERS if reason == "disabled" else "x")
    now(world.keyring.set_enabled("orders", False))
    world.send(world.source)

    assert [world.receive(world.source) for _ in range(3)] == [[BODY]] * 3
    assert (world.keys(world.source), world.stored(world.dead)) == ([None], [])

    now(world.keyring.set_enabled("orders", True))
    if reason == "unknown":
        now(world.keyring.add("x", prepared.ACCOUNT))
        now(world.sealer.prepare([world.dead]))
    assert world.receive(world.source) == []
    assert len(world.keys(world.dead)) == 1
    assert world.receive(world.dead) == [BODY]


@pytest.mark.parametrize("suffix", [""])
def test_dead_letter_that_cannot_leave_goes_to_the_back(make_world: MakeWorld) -> None:
    """As without a target: one that is always received first would keep the others from being
    received."""
    world = make_world(PLAIN, ORDERS)
    now(world.keyring.set_enabled("orders", False))
    world.send(world.source)
    world.send(world.source, b"another")

    assert [world.receive(world.source, 1) for _ in range(4)] == [[BODY]] * 3 + [[b"another"]]


def test_message_whose_own_key_is_disabled_moves_unopened(make_world: MakeWorld) -> None:
    world = make_world(PLAIN, ORDERS)
    world.let_die(world.source, count=2)
    now(world.keyring.set_enabled("orders", False))

    assert world.move().status == "COMPLETED"

    now(world.keyring.set_enabled("orders", True))
    assert (world.keys(world.source), world.keys(world.dead)) == (["orders"] * 2, [])


def test_sources_with_a_disabled_key_stop_no_other(make_world: MakeWorld) -> None:
    world = make_world(ORDERS, PLAIN)
    other = world.define("other", 3, BILLS)
    unknown = world.define("unknown", 4, PLAIN)
    for queue in (world.source, other, unknown):
        world.let_die(queue)
    world.define("unknown", 4, "nowhere")
    now(world.keyring.set_enabled("orders", False))

    task = world.move()

    assert (task.status, task.failure_reason) == ("FAILED", DISABLED)
    assert task.approximate_number_of_messages_moved == 1
    assert world.keys(other) == ["bills"]
    now(world.keyring.set_enabled("orders", True))
    assert world.keys(world.dead) == ["orders", None]
    task = world.move()
    assert (task.failure_reason, task.approximate_number_of_messages_moved) == (UNKNOWN, 1)
    assert world.keys(world.source) == ["orders"]
    assert world.keys(world.dead) == [None]


def test_task_to_a_queue_whose_key_is_disabled_fails_at_once(make_world: MakeWorld) -> None:
    world = make_world(PLAIN, PLAIN)
    sealed = world.define("sealed", 3, ORDERS)
    world.send(world.dead, count=2)
    now(world.keyring.set_enabled("orders", False))

    task = world.move(sealed)

    assert (task.status, task.failure_reason) == ("FAILED", DISABLED)
    assert (world.keys(world.dead), world.stored(sealed)) == ([None, None], [])


def test_selected_messages_are_sealed_and_planned_for(make_world: MakeWorld) -> None:
    world = make_world(ORDERS, PLAIN)
    world.let_die(world.source, count=2)

    def ask(*, dry_run: bool) -> object:
        operation = (PlanMove if dry_run else MoveSelected)(sequences=[1, 2])
        request = Request(operation, world.dead, prepared.CALLER, "request")
        answer = world.driver.submit(request).answer
        return (answer.targets, answer.refused) if isinstance(answer, MovePlan) else None

    now(world.keyring.set_enabled("orders", False))
    assert ask(dry_run=True) == ({}, {DISABLED: 2})
    ask(dry_run=False)
    assert (world.task().status, len(world.stored(world.dead))) == ("FAILED", 2)
    now(world.keyring.set_enabled("orders", True))
    assert ask(dry_run=True) == ({world.source.arn: Planned(2, 2 * len(BODY))}, {})
    ask(dry_run=False)
    assert (world.task().status, world.stored(world.dead)) == ("COMPLETED", [])
    assert world.keys(world.source) == ["orders", "orders"]


def test_damaged_message_moves_as_it_lies(make_world: MakeWorld) -> None:
    world = make_world(ORDERS, MANAGED)
    world.send(world.dead)
    key = message_key(1, 1)
    message = decode_row(StoredMessage, key, world.store.rows[key])
    last = bytes([message.data[-1] ^ 1])
    damaged = msgspec.structs.replace(message, data=message.data[:-1] + last)
    world.store.rows[key] = world.store.durable[key] = encode_row(damaged)

    world.move(world.source)

    (moved,) = world.stored(world.source)
    assert (moved.data, moved.sealed) == (damaged.data, damaged.sealed)


async def test_keys_that_cannot_be_made_now_keep_messages_where_they_are(
    monkeypatch: pytest.MonkeyPatch, make_world: MakeWorld
) -> None:
    world = make_world(PLAIN, ORDERS)
    world.forget_keys()
    world.send(world.source)
    tries: list[object] = []

    async def fail(named: object) -> None:
        tries.append(named)
        raise KeysAway("disk I/O error")

    async def receive() -> list[bytes | None]:
        received = world.receive(world.source, 1)
        await world.sealer.made()
        return received

    with monkeypatch.context() as failing:
        failing.setattr(world.keyring, "new_data_key", fail)
        assert [await receive() for _ in range(4)] == [[BODY], [], [], []]
        assert len(tries) == 1, "each may take long"
    world.clock.at_ms += 1_000
    assert (await receive(), world.keys(world.source)) == ([], [None])
    assert (await receive(), world.keys(world.source)) == ([], [])
    assert world.keys(world.dead) == ["orders"]


async def test_a_task_goes_on_when_its_key_can_be_made(
    monkeypatch: pytest.MonkeyPatch, make_world: MakeWorld
) -> None:
    world = make_world(PLAIN, PLAIN)
    sealed = world.define("sealed", 3, ORDERS)
    world.forget_keys()
    world.send(world.dead, count=2)

    async def fail(named: object) -> None:
        raise KeysAway("database is locked")

    with monkeypatch.context() as failing:
        failing.setattr(world.keyring, "new_data_key", fail)
        task = world.move(sealed)
        await world.sealer.made()
        assert (task.status, task.failure_reason) == ("RUNNING", None)
        assert (world.keys(world.dead), world.keys(sealed)) == ([None] * 2, [])
    world.clock.at_ms += 1_000
    for _ in range(2):
        world.driver.pass_time(100)
        await world.sealer.made()
    assert (world.task().status, world.keys(sealed)) == ("COMPLETED", ["orders"] * 2)


@pytest.mark.parametrize("suffix", [""])
def test_what_is_sealed_already_moves_without_a_data_key(make_world: MakeWorld) -> None:
    world = make_world(ORDERS, ORDERS)
    world.send(world.source)
    world.forget_keys()

    world.receive(world.source)
    world.receive(world.source)
    assert world.move().status == "COMPLETED"

    assert world.keys(world.source) == ["orders"]
    assert not world.sealer.is_making


@pytest.mark.parametrize("way", ["receive", "task", "selected"])
def test_no_turn_moves_more_than_a_few_large_messages(way: str, make_world: MakeWorld) -> None:
    large = bytes(1 << 20)
    world = make_world(PLAIN, MANAGED)
    sealed = world.define("sealed", 3, BILLS)
    if way == "receive":
        world.let_die(world.source, large, count=9)
    else:
        world.send(world.dead, large, count=9)
        operation: Operation = StartMessageMoveTask(destination_arn=sealed.arn)
        if way == "selected":
            operation = MoveSelected(sequences=list(range(1, 10)))
        request = Request(operation, world.dead, prepared.CALLER, "r", destination=sealed)
        world.driver.submit(request)

    sizes = [sum(len(m.message.data) for m in event.moves) for event in world.moves]

    assert sum(len(event.moves) for event in world.moves) == 9
    assert max(sizes) <= (5 << 20)


def test_power_loss_at_every_commit_loses_and_doubles_nothing(make_world: MakeWorld) -> None:
    for syncs in range(12):
        world = make_world(PLAIN, ORDERS)
        sealed = world.define("sealed", 3, BILLS)
        world.send(world.source, count=10)
        world.store.auto_sync = False
        world.store.sync_all()
        left = syncs
        for _ in range(4):
            world.receive(world.source)
            left = sync(world.store, left)
        world.move(sealed)
        sync(world.store, left)
        world.store.crash()
        world.driver = Driver(world.known, store=world.store, sealing=world.sealer)
        keys = [world.keys(queue) for queue in (world.source, world.dead, sealed)]
        assert sum(map(len, keys)) == 10
        for found, key in zip(keys, (None, "orders", "orders"), strict=True):
            assert set(found) <= {key}


def sync(store: MemoryStore, left: int) -> int:
    if left:
        store.sync_all()
    return max(0, left - 1)


async def test_node_seals_what_moves_to_a_sealed_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        attributes = {"KmsMasterKeyId": "alias/orders"}
        await served.call("CreateQueue", QueueName="dead", Attributes=attributes)
        unsealed = UNSEALED | {"RedrivePolicy": redrive("dead")}
        await served.call("CreateQueue", QueueName="source", Attributes=unsealed)
        await served.send("kept", queue="source")
        for _ in range(3):  # the second time its key is made
            await served.call("ReceiveMessage", QueueUrl="source", VisibilityTimeout=0)
            await served.node.shards.sealer.made()

        await served.node.owner.keyring.set_enabled("orders", False)
        refused = await served.ask(json_request("ReceiveMessage", QueueUrl="dead"))
        await served.node.owner.keyring.set_enabled("orders", True)

        assert refused.json["__type"].endswith("KmsDisabled")
        assert list(await served.receive("dead")) == ["kept"]


def redrive(name: str) -> str:
    arn = f"arn:aws:sqs:{prepared.REGION}:{prepared.ACCOUNT}:{name}"
    return f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}'
