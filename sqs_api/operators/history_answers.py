"""Answers about the past of a queue: its depth, age and rates, as CloudWatch has them."""

from __future__ import annotations

from typing import Annotated, TypedDict, cast

import msgspec
from msgspec import Meta

from sqs_api.cloudwatch.actions import Wanted
from sqs_api.cloudwatch.metric_table import GAUGES
from sqs_api.cloudwatch.series import HOURS_KEPT, MINUTES_KEPT
from sqs_api.cloudwatch.statistics import HOUR_S, Window
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk

_MINUTE_S = 60
_METRICS = {
    "visible": "ApproximateNumberOfMessagesVisible",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
    "oldest_age_s": "ApproximateAgeOfOldestMessage",
    "sent": "NumberOfMessagesSent",
    "received": "NumberOfMessagesReceived",
    "deleted": "NumberOfMessagesDeleted",
}


class Past(msgspec.Struct):
    """A length of time up to now."""

    hours: Annotated[int, Meta(ge=1, le=HOURS_KEPT)] = 1


class Series(TypedDict):
    """States are the greatest of each period, counts are per second."""

    visible: list[float | None]
    in_flight: list[float | None]
    delayed: list[float | None]
    oldest_age_s: list[float | None]
    sent: list[float | None]
    received: list[float | None]
    deleted: list[float | None]


class History(TypedDict):
    """The series of a queue; each point is of `period_s` seconds from `begin_s` on."""

    begin_s: int
    period_s: int
    series: Series
    is_complete: bool


async def show_history(desk: Desk, asked: Asked, past: Past) -> History:
    """Series of a queue for some hours up to now; a point is null where the queue was idle or the
    service did not run."""
    queue = asked.queue(asked.parts[0])
    window = _window(desk, past.hours)
    wanted = {name: Wanted(queue.name, metric, window) for name, metric in _METRICS.items()}
    reader = desk.history(queue.account, queue.region)
    found = await reader.datapoints(wanted.values())
    begins = range(window.begin_s, window.end_s, window.period_s)
    series: dict[str, list[float | None]] = {}
    for name, each in wanted.items():
        points = found.datapoints[each]
        is_state = each.metric in GAUGES
        values = {
            at_s: point.greatest if is_state else point.total / window.period_s
            for at_s, point in points.items()
        }
        series[name] = [values.get(at_s) for at_s in begins]
    return {
        "begin_s": window.begin_s,
        "period_s": window.period_s,
        "series": cast(Series, series),
        "is_complete": found.is_complete,
    }


def _window(desk: Desk, hours: int) -> Window:
    """Whole periods, the one under way as the last. Points by the minute are kept for hours
    only."""
    period_s = _MINUTE_S if hours * 60 <= MINUTES_KEPT else HOUR_S
    end_s = (int(desk.wall_s()) // period_s + 1) * period_s
    return Window(end_s - hours * HOUR_S, end_s, period_s)
