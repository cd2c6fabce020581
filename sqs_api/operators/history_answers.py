"""Answers about the past of queues: depths, ages, rates and delays, as CloudWatch has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypedDict, cast

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import GET_QUEUE, LIST_QUEUES, QUEUE, Route
from sqs_api.cloudwatch.metric_actions import Wanted
from sqs_api.cloudwatch.metric_statistics import HOUR_S, Datapoint, Window
from sqs_api.cloudwatch.metric_table import FIRST_RECEIVE_MS, FIRST_RECEIVES, GAUGES
from sqs_api.cloudwatch.series import HOURS_KEPT, MINUTES_KEPT
from sqs_api.operators.dead_letter_answers import DeadLetterListing, listed_dead_letters
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.queue_answers import SortedListing, listed_queues
from visibility.contract.model import QueueDefinition

_MINUTE_S = 60
_LINE_PERIOD_S = 120
"""A small line has half as many points as a chart: 20 KB for a hundred queues."""
_DEPTHS = {
    "visible": "ApproximateNumberOfMessagesVisible",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}
_METRICS = {
    **_DEPTHS,
    "oldest_age_s": "ApproximateAgeOfOldestMessage",
    "sent": "NumberOfMessagesSent",
    "received": "NumberOfMessagesReceived",
    "deleted": "NumberOfMessagesDeleted",
}
_Hours = Annotated[int, Meta(ge=1, le=HOURS_KEPT)]
_Points = dict[int, Datapoint]
"""By the second at which their period begins."""


class Past(msgspec.Struct):
    """A length of time up to now."""

    hours: _Hours = 1


class Series(TypedDict):
    """States are the greatest of each period, counts are per second. `send_to_receive_s` is the
    mean time of messages from their send to their first receive, delays included."""

    visible: list[float | None]
    in_flight: list[float | None]
    delayed: list[float | None]
    oldest_age_s: list[float | None]
    sent: list[float | None]
    received: list[float | None]
    deleted: list[float | None]
    send_to_receive_s: list[float | None]


class History(TypedDict):
    """The series of a queue; each point is of `period_s` seconds from `begin_s` on."""

    begin_s: int
    period_s: int
    series: Series
    is_complete: bool


async def show_history(context: OperatorContext, asked: Asked, past: Past) -> History:
    """Series of a queue for some hours up to now; a point is null where the queue was idle or the
    service did not run."""
    queue = asked.queue(asked.parts[0])
    window = _window(context, past.hours)
    metrics = [*_METRICS.values(), FIRST_RECEIVES, FIRST_RECEIVE_MS]
    wanted = {metric: Wanted(queue.name, metric, window) for metric in metrics}
    found = await context.history(queue.account, queue.region).datapoints(wanted.values())
    points = {metric: found.datapoints[each] for metric, each in wanted.items()}
    begins = _begins(window)
    series: dict[str, list[float | None]] = {}
    for name, metric in _METRICS.items():
        values = {
            at_s: point.greatest if metric in GAUGES else point.total / window.period_s
            for at_s, point in points[metric].items()
        }
        series[name] = [values.get(at_s) for at_s in begins]
    delays = _means(points[FIRST_RECEIVE_MS], points[FIRST_RECEIVES])
    series["send_to_receive_s"] = [delays.get(at_s) for at_s in begins]
    return {
        "begin_s": window.begin_s,
        "period_s": window.period_s,
        "series": cast(Series, series),
        "is_complete": found.is_complete,
    }


def _means(times_ms: _Points, messages: _Points) -> dict[int, float]:
    """Seconds for each message, by the second at which the period begins."""
    return {
        at_s: (times_ms[at_s].total if at_s in times_ms else 0.0) / point.total / 1000
        for at_s, point in messages.items()
        if point.total
    }


# -- depths of many queues -------------------------------------------------------------------------


class PastListing(SortedListing):
    """A page of a list of queues, in an order, and a length of time up to now."""

    hours: _Hours = 1


class DeadLetterPast(DeadLetterListing):
    """A page of the list of dead-letter queues, in an order, and a length of time up to now."""

    hours: _Hours = 1


class Depths(TypedDict):
    """Stored messages of queues by name, without queues of which nothing is known; each point is of
    `period_s` seconds from `begin_s` on."""

    begin_s: int
    period_s: int
    queues: dict[str, list[int | None]]
    is_complete: bool


async def list_depths(context: OperatorContext, asked: Asked, listing: PastListing) -> Depths:
    """The numbers of stored messages over time, for the queues of a page of `queues`."""
    page = await listed_queues(context, asked, listing)
    return await _depths(context, asked, page.queues, listing.hours)


async def list_dead_letter_depths(
    context: OperatorContext, asked: Asked, listing: DeadLetterPast
) -> Depths:
    """The numbers of stored messages over time, for the queues of a page of `dead-letters`."""
    listed = await listed_dead_letters(context, asked, listing)
    return await _depths(context, asked, listed.page.queues, listing.hours)


async def _depths(
    context: OperatorContext, asked: Asked, queues: list[QueueDefinition], hours: int
) -> Depths:
    window = _window(context, hours, _LINE_PERIOD_S)
    wanted = [Wanted(queue.name, metric, window) for queue in queues for metric in _DEPTHS.values()]
    found = await context.history(asked.account, asked.caller.region).datapoints(wanted)
    depths: dict[str, dict[int, int]] = {}
    for each in wanted:
        _add(depths.setdefault(each.queue, {}), found.datapoints[each].items())
    return {
        "begin_s": window.begin_s,
        "period_s": window.period_s,
        "queues": {
            name: [values.get(at_s) for at_s in _begins(window)]
            for name, values in depths.items()
            if values
        },
        "is_complete": found.is_complete,
    }


def _add(depths: dict[int, int], points: Iterable[tuple[int, Datapoint]]) -> None:
    for at_s, point in points:
        depths[at_s] = depths.get(at_s, 0) + int(point.greatest)


def _begins(window: Window) -> range:
    return range(window.begin_s, window.end_s, window.period_s)


def _window(context: OperatorContext, hours: int, period_s: int = _MINUTE_S) -> Window:
    """Whole periods, the one under way as the last. Points by the minute are kept for hours
    only."""
    if hours * 60 > MINUTES_KEPT:
        period_s = HOUR_S
    end_s = (int(context.wall_s()) // period_s + 1) * period_s
    return Window(end_s - hours * HOUR_S, end_s, period_s)


ROUTES = (
    Route("GET", "api/depths", LIST_QUEUES, list_depths),
    Route("GET", "api/dead-letters/depths", LIST_QUEUES, list_dead_letter_depths),
    Route("GET", QUEUE + "/history", GET_QUEUE, show_history),
)
