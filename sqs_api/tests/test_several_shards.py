"""A data folder with several shards: messages cross them, and its copies hold them all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.shards.delivery import Deliveries
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served, serving
from storage.engines.store_options import Durability
from storage.tests.on_disk import changing, rows_of
from visibility.contract.errors import Departing
from visibility.contract.model import Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Prepared
from visibility.rows.row_keys import DEPARTURE, table_range
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.prepared_deletes import AskPrepared
from visibility.rules.transactions import PrepareDeletes, TransactedEntry
from visibility.tests.prepared import CALLER

_ARN = "arn:aws:sqs:us-east-1:000000000000:letters"
_PATIENCE_S = 60.0


async def _eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another task of the node does soon."""
    async with asyncio.timeout(_PATIENCE_S):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _make_queues(served: Served) -> None:
    """`letters` in one shard, `q` in another; each message is received once."""
    await served.call("CreateQueue", QueueName="letters")
    policy = {"deadLetterTargetArn": _ARN, "maxReceiveCount": 1}
    attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
    await served.call("CreateQueue", QueueName="q", Attributes=attributes)
    view = served.node.owner.catalog
    assert {queue.name: queue.shard for queue in view.all_queues()} == {"letters": 0, "q": 1}


async def _task(served: Served) -> dict[str, Any]:
    answer = await served.call("ListMessageMoveTasks", SourceArn=_ARN)
    result: dict[str, Any] = answer["Results"][0]
    return result


async def test_dead_letters_and_moves_cross_shards(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        await served.send("a", "b")
        await served.receive()

        async def have_arrived() -> bool:
            await served.receive()
            return await served.count("letters") == 2

        await _eventually(have_arrived)
        assert await served.count() == 0
        await served.call("StartMessageMoveTask", SourceArn=_ARN)

        async def is_over() -> bool:
            return bool((await _task(served))["Status"] != "RUNNING")

        await _eventually(is_over)
        task = await _task(served)
        assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
        assert await served.count("letters") == 0
        assert await served.count() == 2
        metrics = await served.ask_page("GET", "metrics")
        assert b'holdfast_outbox_messages{shard="1"} 0.0' in metrics.body
        assert b'holdfast_outbox_waiting_messages{shard="1"} 0.0' in metrics.body
        assert b'holdfast_outbox_waiting_share{shard="1"} 0.0' in metrics.body
        assert b'holdfast_prepared_deletes{shard="1"} 0.0' in metrics.body


async def test_a_folder_of_several_shards_is_not_served_without_syncs(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", shards=2):
        pass

    for durability in (Durability.OS, Durability.MEMORY):
        with pytest.raises(NodeRefused) as refused:
            async with serving(tmp_path / "data", durability=durability):
                pass

        assert str(refused.value) == (
            f"{tmp_path / 'data'} has 2 shards, and with durability {durability} a power loss may "
            "cost messages between them: start with --durability fsync"
        )


async def test_messages_wait_at_their_source_while_the_destination_has_no_space(
    tmp_path: Path,
) -> None:
    lake = str(tmp_path / "lake")
    async with serving(tmp_path / "data", shards=2, lake=lake, snapshot_every_s=0) as served:
        await _make_queues(served)
        await served.send("a")
        disk = served.node.shards.disk
        disk.reserve_bytes = 1 << 62
        disk.look()

        async def was_refused_again() -> bool:
            await served.receive()
            return disk.refused > 1

        await _eventually(was_refused_again)
        assert await served.count("letters") == 0
        waiting = (await served.ask_page("GET", "archive")).json["shards"]
        assert [shard["outbox"] for shard in waiting] == [0, 1]
        disk.reserve_bytes = 0
        disk.look()

        async def has_arrived() -> bool:
            return await served.count("letters") == 1

        await _eventually(has_arrived)


async def test_a_copy_takes_the_place_of_a_message_of_another_shard(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        await served.send("a", "b", queue="letters")
        copy = {"body": "edited", "to": "q", "replace": True}

        sent = await Operators(served).done("queues/letters/messages/1/resend", copy)

        async def has_arrived() -> bool:
            return await served.count() == 1

        await _eventually(has_arrived)
        found = await Operators(served).seen("queues/q/messages")
        assert [(each["body"], each["message_id"]) for each in found["messages"]] == [
            ("edited", sent["message_id"])
        ]
        assert list(await served.receive("letters")) == ["b"]


async def test_a_filtered_redrive_crosses_shards_and_is_undone(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        operators = Operators(served)
        await served.send('{"n": 1}', '{"n": 2}', '{"n": 3}')
        await served.receive()

        async def have_arrived() -> bool:
            await served.receive()
            return await served.count("letters") == 3

        await _eventually(have_arrived)
        wanted = {"filter": {"json": "n=2"}, "canary": 1}
        started = await operators.done("queues/letters/redrives", wanted)

        async def has_moved() -> bool:
            return await served.count() == 1

        await _eventually(has_moved)
        assert await served.count("letters") == 2
        undone = await operators.done("queues/letters/redrives/undo", started)
        assert undone == {"begun": ["q"], "refused": {}}

        async def is_back() -> bool:
            return await served.count("letters") == 3

        await _eventually(is_back)
        page = await operators.seen("queues/letters/messages", json="n=2")
        assert [each["source_arn"] for each in page["messages"]] == [_ARN.replace("letters", "q")]
        (redrive,) = (await operators.seen("queues/letters/redrives"))["redrives"]
        assert redrive["undone"]["moved"] == 1


async def test_an_undo_waits_for_messages_that_are_under_way(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("sqs_api.operators.redrive_controls.LOOK_S", 0.0)
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        operators = Operators(served)
        await served.send("a", "b", queue="letters")
        async with served.node.shards.deliveries.paused():
            started = await operators.done("queues/letters/redrives", {"destination": "q"})

            async def has_left() -> bool:
                return await served.count("letters") == 0

            await _eventually(has_left)
            early = await operators.post("queues/letters/redrives/undo", started)
            assert (early.status, await served.count()) == (503, 0)

        async def is_begun() -> bool:
            return (await operators.post("queues/letters/redrives/undo", started)).status == 200

        await _eventually(is_begun)

        async def are_back() -> bool:
            return await served.count("letters") == 2

        await _eventually(are_back)


@pytest.mark.slow
async def test_copies_of_a_folder_hold_what_is_between_shards(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def stays(self: Deliveries, pair: tuple[int, int]) -> bool | None:
        return None

    monkeypatch.setattr(Deliveries, "_deliver", stays)
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        await served.send("a")
        await served.receive()
        assert await served.count() == await served.count("letters") == 0
        backed_up = await served.backup(tmp_path / "backup", "--with-master-key")
        assert backed_up[0] == 0, backed_up
    for folder in ("data", "backup"):
        verified = run("verify", tmp_path / folder)
        assert verified[0] == 0, verified
    restored = run("restore", tmp_path / "backup", "--data", tmp_path / "restored")
    assert restored[0] == 0, restored
    salvaged = run("salvage", tmp_path / "data", "--data", tmp_path / "salvaged")
    assert salvaged[0] == 0, salvaged
    monkeypatch.undo()

    for folder in ("data", "restored", "salvaged"):
        async with serving(tmp_path / folder) as served:

            async def has_arrived(served: Served = served) -> bool:
                return await served.count("letters") == 1

            await _eventually(has_arrived)
            assert list(await served.receive("letters")) == ["a"], folder


async def test_a_lost_message_between_shards_is_counted_and_the_others_arrive(
    tmp_path: Path, monkeypatch: Any
) -> None:
    async def stays(self: Deliveries, pair: tuple[int, int]) -> bool | None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "_deliver", stays)
        async with serving(tmp_path / "data", shards=2) as served:
            await _make_queues(served)
            await served.send("a", "b")
            await served.receive()
            await served.receive()
    with rows_of(tmp_path / "data" / "shard-1") as rows:
        lost, _ = (key for key, _ in rows.scan(*table_range(THE_SHARD, DEPARTURE)))
    with changing(tmp_path / "data" / "shard-1") as changes:
        changes.put(lost, b"\x01rubbish")

    verified = run("verify", tmp_path / "data")
    assert verified.status == 1
    assert (
        "shard 1, queue 2 (q): 0 messages can be read, 1 missing (1 on the way to other shards)"
        in verified.out
    )
    async with serving(tmp_path / "data") as served:

        async def has_arrived() -> bool:
            return await served.count("letters") == 1

        await _eventually(has_arrived)
        metrics = await served.ask_page("GET", "metrics")
        assert [
            line.split()[-1]
            for line in metrics.body.decode().splitlines()
            if line.startswith("holdfast_messages_quarantined") and 'queue="q"' in line
        ] == ["1.0"]
    verified = run("verify", tmp_path / "data")
    assert "shard 1, queue 2 (q): 1 messages are quarantined" in verified.out


async def test_no_delete_of_a_transaction_is_prepared_during_a_backup(tmp_path: Path) -> None:
    """Else the copy could have the transaction, and still the message that it deleted."""
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        await served.send("a", queue="letters")
        await served.receive("letters")
        shards, letters = served.node.shards, served.node.owner.catalog.queue_of_arn(_ARN)
        assert letters is not None
        entries = [TransactedEntry(letters.queue_id, letters.version)]
        operation = PrepareDeletes(entries, bytes(16), bytes(16), 1)
        parts = (Receipt(1, 1),)
        request = Request(operation, the_shard(letters.shard), CALLER, "r", parts)
        async with shards.deliveries.paused():
            with pytest.raises(Departing):
                await shards.router.ask(request)
        answer = await shards.router.ask(request)
        assert isinstance(answer, Prepared)
        assert not answer.reasons
        assert shards.router.shards[letters.shard].report().prepared == 1

        async def is_settled() -> bool:
            return shards.router.shards[letters.shard].report().prepared == 0

        await shards.router.ask(msgspec.structs.replace(request, operation=AskPrepared(bytes(16))))
        await _eventually(is_settled)
        assert await served.count("letters") == 1


async def test_a_backup_waits_for_what_is_between_shards(tmp_path: Path, monkeypatch: Any) -> None:
    """Else a message could be in the copies of both shards, or of neither."""
    asked: list[str] = []
    ask = Deliveries._ask

    async def ask_noted(self: Deliveries, shard: int, operation: Operation) -> Any:
        asked.append(type(operation).__name__)
        return await ask(self, shard, operation)

    monkeypatch.setattr(Deliveries, "_ask", ask_noted)
    async with serving(tmp_path / "data", shards=2) as served:
        await _make_queues(served)
        await served.send("a")
        async with served.node.shards.deliveries.paused():
            del asked[:]
            await served.receive()
            assert await served.count("letters") == 0
            assert asked == []

        async def has_arrived() -> bool:
            return await served.count("letters") == 1

        await _eventually(has_arrived)
    assert "AcceptMessages" in asked
