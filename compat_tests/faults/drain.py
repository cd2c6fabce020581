"""The end of a run: receive and delete all remaining messages."""

from __future__ import annotations

import asyncio
import time

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.faults.fault_history import History, Outcome, Queue
from compat_tests.faults.retrying_caller import RESTING_S, Caller, caller

PATIENCE_S = 60.0
"""Patience for hidden or delayed messages, since the last one received."""

_AT_ONCE = 16
_TRIES = 8
_HIDDEN_S = 600
_FOLLOWING_S = 5.0
_GONE = "does not exist"
_ENDED = "Only active tasks can be cancelled"
_COUNTERS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


async def drain(endpoint: Endpoint, history: History, *, patience_s: float = PATIENCE_S) -> bool:
    """Empty every queue into the history; False if some call failed in every attempt."""
    async with caller(endpoint, history) as calls:
        for queue in history.queues.values():
            if queue.reach:
                await _stop_moves(calls, history, queue, patience_s)
    history.drain_begun = time.monotonic()
    limit = asyncio.Semaphore(_AT_ONCE)

    async def empty(queue: Queue) -> bool:
        async with limit, caller(endpoint, history) as calls:
            return await _empty(calls, history, queue, patience_s)

    return all(await asyncio.gather(*(empty(queue) for queue in history.queues.values())))


async def _stop_moves(calls: Caller, history: History, queue: Queue, patience_s: float) -> None:
    """Wait until no move task runs, cancel a slow one, and prevent further dead letters."""
    letters = history.queues[queue.name.replace("failing", "letters")]
    for is_last in (False, True):
        running = await _running_tasks(calls, letters, patience_s)
        if running and is_last:
            history.faults.append(f"a move task of {letters.name} does not end")
        for handle in running:
            await calls.call("CancelMessageMoveTask", _ENDED, TaskHandle=handle)
    await calls.call("SetQueueAttributes", QueueUrl=queue.url, Attributes={"RedrivePolicy": ""})


async def _running_tasks(calls: Caller, letters: Queue, patience_s: float) -> list[str]:
    """Handles of the tasks that still run when patience ends."""
    deadline = time.monotonic() + patience_s
    asked = {"QueueUrl": letters.url, "AttributeNames": ["QueueArn"]}
    running: list[str] = []
    while time.monotonic() < deadline:
        reply = await calls.call("GetQueueAttributes", _GONE, **asked)
        if reply.outcome is Outcome.DONE:
            arn = reply.answer["Attributes"]["QueueArn"]
            reply = await calls.call("ListMessageMoveTasks", SourceArn=arn, MaxResults=10)
        if reply.outcome is Outcome.REFUSED:
            return []
        tasks = reply.answer.get("Results", [])
        running = [task["TaskHandle"] for task in tasks if "TaskHandle" in task]
        if reply.outcome is Outcome.DONE and not running:
            return []
        await asyncio.sleep(RESTING_S)
    return running


async def _empty(calls: Caller, history: History, queue: Queue, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    complete_at = _complete_at(history, queue)
    failures = 0
    while failures < _TRIES:
        counters = await _counters(calls, queue, may_be_gone=_may_be_gone(history, queue))
        if counters == (0, 0, 0) and time.monotonic() > complete_at:
            return True
        received = await calls.receive(queue, _HIDDEN_S)
        if received:
            await calls.delete(queue, received)
            deadline = time.monotonic() + patience_s
        elif received is None or counters is None:
            failures += 1
        elif time.monotonic() > max(deadline, complete_at):
            if any(counters):
                history.left[queue.name] = counters
            return True
        else:
            await asyncio.sleep(RESTING_S)
    return False


def _complete_at(history: History, queue: Queue) -> float:
    """Time at which everything is back: messages in flight at a purge are restored once they are
    visible, and by a later start if the service ends before."""
    restored = [
        each.ended
        for each in history.restorations
        if each.queue == queue.name and each.outcome is not Outcome.REFUSED
    ]
    hidden = [each.hidden_s for each in history.deliveries if each.queue == queue.name]
    hidden += [each.timeout_s for each in history.changes if each.delivery.queue == queue.name]
    if not restored:
        return 0.0
    return max(*restored, history.drain_begun) + max(hidden, default=0) + _FOLLOWING_S


def _may_be_gone(history: History, queue: Queue) -> bool:
    """True if the queue was deleted, or perhaps: one that a host denies all the same is there."""
    return any(
        each.queue == queue.name and each.outcome is not Outcome.REFUSED
        for each in history.removals
    )


async def _counters(
    calls: Caller, queue: Queue, *, may_be_gone: bool
) -> tuple[int, int, int] | None:
    """The queue's counters; zeros for one that is gone, None if they are unknown."""
    members = {"QueueUrl": queue.url, "AttributeNames": list(_COUNTERS)}
    reply = await calls.call("GetQueueAttributes", _GONE if may_be_gone else None, **members)
    if reply.outcome is Outcome.REFUSED and may_be_gone:
        return 0, 0, 0
    if reply.outcome is not Outcome.DONE:
        return None
    visible, hidden, delayed = (int(reply.answer["Attributes"][name]) for name in _COUNTERS)
    return visible, hidden, delayed
