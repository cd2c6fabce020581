"""Paced and undone move tasks between queues of different shards."""

from __future__ import annotations

import pytest

from cluster.tests.shard_pair import ShardPair
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter, MoveTask, Pace, encode_handle
from visibility.contract.operations import Operation
from visibility.rules.move_pace import prefix_of
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected
from visibility.tests import prepared


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def pair(request: pytest.FixtureRequest) -> ShardPair:
    """Three dead letters of the source, in the other shard."""
    pair = ShardPair(request.param)
    for body in "abc":
        pair.send(body, group=body if request.param else "")
    pair.receive(pair.source)
    pair.pass_time(6_000)
    pair.receive(pair.source)
    pair.deliver()
    return pair


def ask(
    pair: ShardPair, queue: QueueDefinition, operation: Operation, to: QueueDefinition | None = None
) -> object:
    request = Request(operation, queue, prepared.CALLER, "r", destination=to)
    answer = pair.shards[queue.shard].submit(request).answer
    pair.check()
    return answer


def task_of(pair: ShardPair, queue: QueueDefinition) -> MoveTask:
    return list(pair.shards[queue.shard].state.queue(queue.queue_id).tasks.values())[-1]


def test_a_canary_counts_what_departed_and_sees_it_come_back(pair: ShardPair) -> None:
    ask(pair, pair.letters, MoveSelected(pace=Pace(canary=2)))
    pair.deliver(1)
    assert (task_of(pair, pair.letters).paused, task_of(pair, pair.letters).moved) == ("canary", 2)
    assert pair.receive(pair.source) == ["a", "b"]

    pair.pass_time(6_000)
    assert pair.receive(pair.source) == []
    pair.deliver()
    pair.restart(1)
    pair.pass_time(2_000)

    assert task_of(pair, pair.letters).came_back == 2


@pytest.mark.parametrize("rate", [0, 500])
def test_a_canary_of_all_messages_ends_when_they_have_arrived(pair: ShardPair, rate: int) -> None:
    ask(pair, pair.letters, MoveSelected(rate=rate, pace=Pace(canary=3)))
    pair.deliver(1)
    pair.pass_time(1_000)
    pair.deliver(1)

    task = task_of(pair, pair.letters)
    assert (task.status, task.moved, task.paused) == ("COMPLETED", 3, "")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_cancelled_task_ends_when_what_departed_has_arrived(
    pair: ShardPair, *, restarts: bool
) -> None:
    ask(pair, pair.letters, MoveSelected())
    task = task_of(pair, pair.letters)
    assert (task.status, task.moved) == ("RUNNING", 3)

    ask(pair, pair.letters, ChangeMoveTask(encode_handle(task), "undo"))
    pair.pass_time(1_000)
    assert task_of(pair, pair.letters).status == "CANCELLING"
    if restarts:
        pair.restart(1)
    pair.deliver(1)

    assert task_of(pair, pair.letters).status == "CANCELLED"


def test_an_undo_crosses_back(pair: ShardPair) -> None:
    ask(pair, pair.letters, MoveSelected())
    pair.deliver(1)
    task = task_of(pair, pair.letters)
    assert (task.status, task.moved) == ("COMPLETED", 3)
    assert pair.receive(pair.source, 1) == ["a"]

    assert ask(pair, pair.letters, ChangeMoveTask(encode_handle(task), "undo")) is None
    wanted = MessageFilter(message_id=prefix_of(task.task_id), received_max=0)
    undoing = MoveSelected(filter=wanted, undoes=task.task_id, sources=task.sources)
    ask(pair, pair.source, undoing, to=pair.letters)
    pair.deliver()

    undone = task_of(pair, pair.source)
    assert (undone.status, undone.moved, undone.undoes) == ("COMPLETED", 2, task.task_id)
    ask(pair, pair.letters, MoveSelected())
    pair.deliver(1)
    assert (task_of(pair, pair.letters).moved, task_of(pair, pair.letters).stayed) == (2, 0)
    assert sorted(pair.receive(pair.source)) == ["b", "c"]
