"""The lanes of a traffic: sending, consuming, failing, moving, purging and restoring."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from compat_tests.facade import Credentials
from compat_tests.faults.fault_history import Outcome, Queue, Removal
from compat_tests.faults.retrying_caller import RESTING_S, Caller, Letter, Received, caller
from compat_tests.faults.traffic import Lane, Traffic
from compat_tests.pages import ask

KINDS = ("standard", "fifo", "moves", "removals")
WORKING_S_MAX = 0.3
"""Pause between a receive and its deletes, so that there is a backlog to lose."""

_GROUPS = 3
_SIZES = (10, 10, 200, 200, 4_000, 20_000)
_NOT_NOW = "already a task running|Only active tasks can be cancelled"


def lanes(traffic: Traffic, kinds: tuple[str, ...]) -> Iterator[Lane]:
    """All lanes of these kinds."""
    if "standard" in kinds:
        for queue, batch in (("plain", 1), ("plain", 1), ("plain", 10), ("fair", 1)):
            yield send(traffic, queue, batch=batch)
        for queue in ("plain", "plain", "plain", "fair"):
            yield consume(traffic, queue)
    if "fifo" in kinds:
        for batch in (1, 1, 4):
            yield send_in_order(traffic, "order.fifo", batch=batch)
        for _ in range(3):
            yield consume(traffic, "order.fifo")
    if "moves" in kinds:
        yield send(traffic, "failing", batch=10)
        yield send_in_order(traffic, "failing.fifo", batch=2)
        for queue in ("failing", "failing", "failing.fifo", "letters", "letters.fifo"):
            yield fail_to_consume(traffic, queue)
        yield move(traffic, "letters", "rescued")
        yield move(traffic, "letters.fifo", None)
        yield consume(traffic, "rescued")
    if "removals" in kinds:
        yield remove_and_restore(traffic, "")
        yield remove_and_restore(traffic, ".fifo")


# -- sending ---------------------------------------------------------------------------------------


async def send(traffic: Traffic, queue_name: str, *, batch: int) -> None:
    """Send messages whose names are never used twice."""
    queue, chance, lane = traffic.history.queues[queue_name], traffic.draw(), next(traffic.numbers)
    async with caller(traffic.endpoint, traffic.history) as calls:
        for number in itertools.count(1):
            names = [f"{queue_name}/{lane}/{number}.{part}" for part in range(batch)]
            await calls.send(queue, [_letter(chance, queue, name) for name in names])
            if not traffic.is_sending:
                return
            await asyncio.sleep(chance.uniform(0, traffic.pause_s_max) * batch)


async def send_in_order(traffic: Traffic, queue_name: str, *, batch: int) -> None:
    """Send to the lane's own groups, occasionally twice; repeat after an unknown outcome."""
    queue, chance, lane = traffic.history.queues[queue_name], traffic.draw(), next(traffic.numbers)
    groups = {f"{lane}-{group}": itertools.count(1) for group in range(_GROUPS)}
    async with caller(traffic.endpoint, traffic.history) as calls:
        while traffic.is_sending:
            drawn = [chance.choice(list(groups)) for _ in range(batch)]
            letters = [_in_group(chance, queue, group, next(groups[group])) for group in drawn]
            while not await calls.send(queue, letters) and traffic.is_sending:
                pass
            if chance.random() < 0.05:
                await calls.send(queue, letters)  # the service must drop these
            await asyncio.sleep(chance.uniform(0, traffic.pause_s_max) * batch)


def _letter(chance: random.Random, queue: Queue, name: str) -> Letter:
    body, attributes = _content(chance, name)
    group = chance.choice(("noisy", "noisy", "noisy", "quiet")) if queue.name == "fair" else ""
    return Letter(name, body, attributes, group, delay_s=int(chance.random() < 0.1))


def _in_group(chance: random.Random, queue: Queue, group: str, place: int) -> Letter:
    name = f"{queue.name}/{group}/{place}"
    body, attributes = _content(chance, name)
    return Letter(name, body, attributes, group, place, deduplication_id=name)


def _content(chance: random.Random, name: str) -> tuple[str, dict[str, Any]]:
    """A body that begins with the message's name, and message attributes for some."""
    noise = chance.randbytes(chance.randrange(1, chance.choice(_SIZES)))
    body = f"{name}|{base64.b85encode(noise).decode()}"
    if chance.random() < 0.7:
        return body, {}
    number = str(chance.randrange(10**9))
    data = base64.b64encode(chance.randbytes(50)).decode()
    return body, {
        "Text": {"DataType": "String", "StringValue": body[:200][::-1]},
        "Number": {"DataType": "Number.int", "StringValue": number},
        "Bytes": {"DataType": "Binary", "BinaryValue": data},
    }


# -- receiving -------------------------------------------------------------------------------------


async def consume(traffic: Traffic, queue_name: str) -> None:
    """Receive by long polls, and delete most of it."""
    queue, chance = traffic.history.queues[queue_name], traffic.draw()
    async with caller(traffic.endpoint, traffic.history) as calls:
        while traffic.is_sending:
            received = await calls.receive(queue, traffic.visibility_s, wait_s=1)
            if received:
                await asyncio.sleep(chance.uniform(0, WORKING_S_MAX))
                await _settle(calls, queue, received, chance)


async def _settle(
    calls: Caller, queue: Queue, received: list[Received], chance: random.Random
) -> None:
    """Delete, singly or in a batch, put back, extend, or forget the messages."""
    drawn = chance.random()
    if drawn < 0.1:
        await calls.change(queue, received, 0)
    elif drawn < 0.15:
        await calls.change(queue, received, 8)
        await calls.delete(queue, received)
    elif drawn < 0.4:
        for each in received:
            await calls.delete(queue, [each])
    elif drawn < 0.98:
        await calls.delete(queue, received)


async def fail_to_consume(traffic: Traffic, queue_name: str) -> None:
    """Receive without deleting, so that messages become dead letters; delete half of those."""
    queue, chance = traffic.history.queues[queue_name], traffic.draw()
    is_target = queue_name.startswith("letters")
    async with caller(traffic.endpoint, traffic.history) as calls:
        while traffic.is_sending:
            hidden_s = chance.choice((0, 1))
            received = await calls.receive(queue, hidden_s)
            if received and is_target and chance.random() < 0.5:
                await calls.delete(queue, received)
            elif received and hidden_s and chance.random() < 0.5:
                await calls.change(queue, received, 0)
            await asyncio.sleep(chance.uniform(0, 0.1))


# -- moving, purging, deleting, restoring ----------------------------------------------------------


async def move(traffic: Traffic, source: str, other: str | None) -> None:
    """Move dead letters to their sources or to another queue, at different rates, with some
    cancels."""
    queues, chance, history = traffic.history.queues, traffic.draw(), traffic.history
    async with caller(traffic.endpoint, history) as calls:
        source_arn = await traffic.arn(calls, queues[source])
        other_arn = await traffic.arn(calls, queues[other]) if other else ""
        while traffic.is_sending:
            members: dict[str, Any] = {"SourceArn": source_arn}
            if other_arn and chance.random() < 0.5:
                members["DestinationArn"] = other_arn
            if chance.random() < 0.5:
                members["MaxNumberOfMessagesPerSecond"] = chance.choice((5, 100, 500))
            reply = await calls.call("StartMessageMoveTask", _NOT_NOW, **members)
            history.tasks += reply.outcome is Outcome.DONE
            await asyncio.sleep(chance.uniform(0, 1))
            if reply.outcome is Outcome.DONE and chance.random() < 0.5:
                handle = reply.answer["TaskHandle"]
                await calls.call("CancelMessageMoveTask", _NOT_NOW, TaskHandle=handle)


async def remove_and_restore(traffic: Traffic, end: str) -> None:
    """Fill a queue, consume a part, purge or delete it, undo that in half of the cases, and
    repeat."""
    chance = traffic.draw()
    async with caller(traffic.endpoint, traffic.history) as calls:
        while traffic.is_sending:
            name = f"passing-{next(traffic.numbers)}{end}"
            queue = await traffic.make_queue(calls, name, is_ordered=bool(end))
            await _fill(calls, queue, chance)
            received = await calls.receive(queue, traffic.visibility_s)
            if received:
                await _settle(calls, queue, received[: chance.randrange(1, 11)], chance)
            action = chance.choice(("PurgeQueue", "DeleteQueue"))
            reply = await calls.call(action, QueueUrl=queue.url)
            removal = Removal(name, reply.begun, reply.ended, reply.outcome)
            traffic.history.removals.append(removal)
            is_once = removal.outcome is Outcome.DONE and not calls.is_repeated
            if is_once and chance.random() < 0.5:  # of two purges, only the last would be undone
                await _restore(traffic, name)
            await asyncio.sleep(chance.uniform(0, 1))


async def _fill(calls: Caller, queue: Queue, chance: random.Random) -> None:
    for batch in range(chance.randrange(1, 6)):
        if queue.is_ordered:
            places = range(batch * 10 + 1, batch * 10 + 11)
            letters = [_in_group(chance, queue, "g", place) for place in places]
        else:
            names = [f"{queue.name}/{batch}.{part}" for part in range(10)]
            letters = [_letter(chance, queue, name) for name in names]
        if not await calls.send(queue, letters):
            return  # the later places would leave a gap


async def _restore(traffic: Traffic, name: str) -> None:
    history = traffic.history
    begun = time.monotonic()
    outcome = Outcome.UNKNOWN
    while outcome is Outcome.UNKNOWN and traffic.is_sending:
        credentials = traffic.endpoint.credentials
        assert credentials is not None
        asked = partial(_ask_to_restore, traffic.endpoint.url, credentials, name)
        outcome = await asyncio.to_thread(asked)
        history.restorations.append(Removal(name, begun, time.monotonic(), outcome))
        await asyncio.sleep(RESTING_S)


def _ask_to_restore(url: str, credentials: Credentials, name: str) -> Outcome:
    """Undo the latest deletion or purge of the queue, as `holdfast restore-queue` does."""
    try:
        status, found = ask(url, credentials, "deleted-queues")
        if status != 200:
            return Outcome.UNKNOWN
        kept = [each for each in found if each["name"] == name and not each["restoring"]]
        numbers = [each["queue_id"] for each in kept]
        if not numbers:
            return Outcome.REFUSED
        status, _ = ask(url, credentials, f"deleted-queues/{numbers[0]}/restore", {})
    except OSError:
        return Outcome.UNKNOWN
    return Outcome.DONE if status == 200 else Outcome.UNKNOWN
