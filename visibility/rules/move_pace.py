"""The pace of a move task: rate, ramp and canary, and the watch for messages that come back.

    messages moved at t seconds   rate * t * t / (2 * ramp) within the ramp, then rate more a second

A pause stops this clock, and the ramp begins anew after it.

The ids of moved messages begin as the id of their task does, and number their source:

    task     1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed
    message  1b9d6bcd-bbfd-4002-8c1e-5a0f0c6e7d21      of the third source in `MoveTask.sources`

So a message tells which redrive it belongs to, without a field or a row of its own: the task finds
those that come back, and an undo those that were not received, with their sources.
"""

from __future__ import annotations

from itertools import zip_longest
from math import isqrt

import msgspec

from visibility.contract.move_task import CAME_BACK, CANARY, MoveTask, whole
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

WATCH_MS = 1_000
"""Interval at which a paused task looks for messages that came back."""
_LOOKED_AT_MAX = 200
_LOOKED_AT_BYTES = 1 << 20


def allowed_now(task: MoveTask, now_ms: int, most: int) -> int:
    """The number of messages that may move now, at most `most`."""
    if task.rate:
        moved = task.charged - task.paced_moved
        most = min(most, _due(task, now_ms - _since_ms(task)) + 1 - moved)
    if task.pace.canary:
        most = min(most, task.pace.canary - task.charged)
    return most


def next_move_ms(task: MoveTask) -> int:
    """The instant at which the next message may move; 0 without a rate, and for a task that moves
    what it was granted."""
    if not task.rate or task.is_granted:
        return 0
    moved, ramp_ms = task.moved - task.paced_moved, task.pace.ramp_s * 1000
    if moved <= 0:
        return _since_ms(task)
    if 2000 * moved >= task.rate * ramp_ms:
        wait_ms = -(-(2000 * moved + task.rate * ramp_ms) // (2 * task.rate))
    else:
        wait_ms = isqrt(-(-2000 * ramp_ms * moved // task.rate) - 1) + 1
    return _since_ms(task) + wait_ms


def _since_ms(task: MoveTask) -> int:
    return task.paced_from_ms or task.started_at_ms


def _due(task: MoveTask, passed_ms: int) -> int:
    """Messages that may have moved after this time, without the first."""
    ramp_ms = task.pace.ramp_s * 1000
    if passed_ms < ramp_ms:
        return task.rate * passed_ms * passed_ms // (2000 * ramp_ms)
    return task.rate * (2 * passed_ms - ramp_ms) // 2000


def after_canary(task: MoveTask) -> MoveTask:
    """The task, paused if it has moved its canary."""
    canary = task.pace.canary
    if not canary or whole(task).moved < canary:
        return task
    return msgspec.structs.replace(without_canary(task), paused=CANARY)


def without_canary(task: MoveTask) -> MoveTask:
    """The task, which moves on by itself."""
    return msgspec.structs.replace(task, pace=msgspec.structs.replace(task.pace, canary=0))


def watched(shard: ShardState, queue: QueueState, task: MoveTask) -> MoveTask:
    """The task after a look at what has arrived in its queue since it began.

    It pauses if as many of its messages came back as it may lose. Raises DamagedRecord.
    """
    first, until = max(task.watched, queue.floor), queue.next_sequence
    if first >= until or not task.moved or task.undoes:
        return task
    page = shard.rows.line(
        queue.queue_id,
        first,
        until,
        messages=_LOOKED_AT_MAX,
        size=_LOOKED_AT_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    prefix = prefix_of(task.task_id)
    came_back = task.came_back + sum(
        message.message_id.startswith(prefix) for _, message in page.messages
    )
    seen = msgspec.structs.replace(task, came_back=came_back, watched=page.next_sequence or until)
    return stopped(task, seen)


def stopped(before: MoveTask, after: MoveTask) -> MoveTask:
    """The task, paused if the messages that came back reached its limit once more."""
    limit = after.pace.stop_after
    if limit and after.returned // limit > before.returned // limit:
        return msgspec.structs.replace(after, paused=CAME_BACK)
    return after


SOURCES_MAX = 100
"""Sources that one part's row of a task names; those at each place have numbers of their own."""
_PREFIX = 13
_SOURCE = slice(15, 18)
_RANDOM = 18
_UNKNOWN = 0xFFF


def moved_id(task: MoveTask, source_arn: str | None, stamp: Stamp) -> str:
    """A new id for a message that came from this source as a dead letter."""
    sources = task.sources
    number = sources.index(source_arn) if source_arn in sources else _UNKNOWN
    return f"{prefix_of(task.task_id)}-4{number:03x}{stamp.message_id()[_RANDOM:]}"


def with_source(task: MoveTask, source_arn: str | None) -> MoveTask:
    """The task, which names this source if it has room for it."""
    sources, first = list(task.sources), task.place * SOURCES_MAX
    if source_arn is None or source_arn in sources:
        return task
    sources += [""] * (first + SOURCES_MAX - len(sources))
    own = sources[first : first + SOURCES_MAX]
    if "" not in own:
        return task
    sources[first + own.index("")] = source_arn
    return msgspec.structs.replace(task, sources=_trimmed(sources))


def merged_sources(one: list[str], other: list[str]) -> list[str]:
    """The sources of two places of a task; each has its numbers."""
    pairs = zip_longest(one, other, fillvalue="")
    return [mine or theirs for mine, theirs in pairs]


def _trimmed(sources: list[str]) -> list[str]:
    while sources and not sources[-1]:
        sources.pop()
    return sources


def prefix_of(task_id: str) -> str:
    """The beginning of the ids of all messages that a task moved."""
    return task_id[:_PREFIX]


def source_of(message_id: str, sources: list[str]) -> str | None:
    """The source of a moved message; None if it is not known."""
    number = int(message_id[_SOURCE], 16)
    return sources[number] or None if number < len(sources) else None
