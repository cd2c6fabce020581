"""The answer about the redrives of all queues: what runs, what waits, and who moved how much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import GET_QUEUE, LIST_QUEUES, REDRIVE_MESSAGES, Route
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.redrive_answers import may_read_all, tasks_of
from sqs_api.operators.shown_queues import EMPTY
from sqs_api.operators.shown_redrives import ShownRedrive, shown_redrive
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MoveTask
from visibility.rules.move_tasks import READ_MAX

_QUEUES_MAX = 200
_PAGES_MAX = 10
_SHOWN_MAX = 200
_DAY_MS = 86_400_000
_MINUTE_MS = 60_000
_OFFSET_MAX_MIN = 18 * 60
_Ms = Annotated[int, Meta(ge=0, le=1 << 52)]


class RedriveWindow(msgspec.Struct):
    """A time in which redrives began."""

    since_ms: _Ms = 0
    until_ms: _Ms = 1 << 52
    utc_offset_min: Annotated[
        int,
        Meta(
            ge=-_OFFSET_MAX_MIN,
            le=_OFFSET_MAX_MIN,
            description="The days of `by_day` are those of a clock so far ahead of UTC.",
        ),
    ] = 0

    def includes(self, task: MoveTask) -> bool:
        """True if the task began in it."""
        return self.since_ms <= task.started_at_ms < self.until_ms


class QueueRedrive(ShownRedrive):
    """A redrive with the name of its queue. `may_redrive`: the caller may control it."""

    queue: str
    may_redrive: bool


class Redriver(TypedDict):
    """The redrives that one caller began in the time; undos are not counted."""

    who: str
    redrives: int
    moved: int


class DayOfRedriver(Redriver):
    """The same of one day, which begins at `day_ms`."""

    day_ms: int


class AllRedrives(TypedDict):
    """Redrives of all queues that the caller may see: those that are not over, whenever they began,
    and those that began in the time, the newest first, with sums by who began them. `left_out` of
    them are not shown; without `is_complete` some queues were not read: choose a shorter time."""

    redrives: list[QueueRedrive]
    by: list[Redriver]
    by_day: list[DayOfRedriver]
    left_out: int
    is_complete: bool


async def list_all_redrives(
    context: OperatorContext, asked: Asked, window: RedriveWindow
) -> AllRedrives:
    """The redrives of all queues that began in a time or are not over, with sums by who began
    them."""
    queues, is_complete = await _redriven(context, asked, window)
    found: list[tuple[QueueDefinition, MoveTask]] = []
    reads: dict[int, bool] = {}
    for queue in queues:
        tasks, is_whole = await _tasks(context, asked, queue, window)
        found += ((queue, task) for task in tasks)
        reads[queue.queue_id] = may_read_all(context, asked, queue, tasks)
        is_complete = is_complete and is_whole
    found.sort(key=lambda each: (not each[1].is_active, -each[1].started_at_ms))
    return {
        "redrives": [
            {
                **shown_redrive(task, None, reads=reads[queue.queue_id]),
                "queue": queue.name,
                "may_redrive": asked.may(REDRIVE_MESSAGES, queue.name),
            }
            for queue, task in found[:_SHOWN_MAX]
        ],
        "by": _sums(task for _, task in found if window.includes(task)),
        "by_day": by_day(
            (task for _, task in found if window.includes(task)),
            window.utc_offset_min * _MINUTE_MS,
        ),
        "left_out": max(0, len(found) - _SHOWN_MAX),
        "is_complete": is_complete,
    }


async def _redriven(
    context: OperatorContext, asked: Asked, window: RedriveWindow
) -> tuple[list[QueueDefinition], bool]:
    """The queues with a redrive that is not over or not before the time, and true if none was left
    out."""
    readings = await context.readings.all()
    latest: list[tuple[int, QueueDefinition]] = []
    is_complete = True
    for queue in context.catalog:
        if (queue.account, queue.region) != (asked.account, asked.caller.region):
            continue
        reading = readings.get(queue.queue_id, EMPTY)
        if reading is None:
            is_complete = False  # no host leads its shard
            continue
        task = reading.task
        if task is None or not asked.may(GET_QUEUE, queue.name):
            continue
        is_over = task.status not in ("RUNNING", "CANCELLING")
        if is_over and (task.started_timestamp or 0) < window.since_ms:
            continue
        latest.append((task.started_timestamp or 0, queue))
    latest.sort(key=lambda each: -each[0])
    return [queue for _, queue in latest[:_QUEUES_MAX]], is_complete and len(latest) <= _QUEUES_MAX


async def _tasks(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, window: RedriveWindow
) -> tuple[list[MoveTask], bool]:
    """The tasks of a queue that are not over or began in the time, and true if all were read."""
    found: list[MoveTask] = []
    before = 0
    for _ in range(_PAGES_MAX):
        tasks = await tasks_of(context, asked, queue, before)
        found += (task for task in tasks if task.is_active or window.includes(task))
        is_end = len(tasks) < READ_MAX or tasks[-1].number <= 1
        if is_end or tasks[-1].started_at_ms < window.since_ms:
            return found, True
        before = tasks[-1].number
    return found, False


def _sums(tasks: Iterable[MoveTask]) -> list[Redriver]:
    sums: dict[str, Redriver] = {}
    for task in tasks:
        if task.undoes:
            continue
        of_one = sums.setdefault(
            task.started_by, {"who": task.started_by, "redrives": 0, "moved": 0}
        )
        of_one["redrives"] += 1
        of_one["moved"] += task.moved
    return sorted(sums.values(), key=lambda each: -each["moved"])


def by_day(tasks: Iterable[MoveTask], offset_ms: int) -> list[DayOfRedriver]:
    """The sums of each day of a clock that is so far ahead of UTC, the latest first."""
    days: dict[int, list[MoveTask]] = {}
    for task in tasks:
        told_ms = task.started_at_ms + offset_ms
        days.setdefault(told_ms - told_ms % _DAY_MS - offset_ms, []).append(task)
    return [
        {**each, "day_ms": day_ms}
        for day_ms in sorted(days, reverse=True)
        for each in _sums(days[day_ms])
    ]


ROUTES = (Route("GET", "api/redrives", LIST_QUEUES, list_all_redrives),)
