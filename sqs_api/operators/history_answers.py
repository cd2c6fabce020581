"""Answers about the past of queues: depths, ages, rates and delays, as CloudWatch has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, TypedDict, cast

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import GET_QUEUE, LIST_QUEUES, QUEUE, Route
from sqs_api.cloudwatch.metric_actions import Wanted
from sqs_api.cloudwatch.metric_statistics import HOUR_S, Datapoint, Window
from sqs_api.cloudwatch.metric_table import FIRST_RECEIVE_MS, FIRST_RECEIVES, GAUGES, MOVED_IN
from sqs_api.cloudwatch.series import HOURS_KEPT, MINUTES_KEPT
from sqs_api.operators.dead_letter_answers import DeadLetterListing, listed_dead_letters
from sqs_api.operators.mark_answers import ShownMark, events_since
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.queue_answers import SortedListing, listed_queues
from visibility.contract.errors import InvalidParameterValue
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
    "moved_in": MOVED_IN,
}
_POINTS_MAX = 3_000
_Hours = Annotated[int, Meta(ge=1, le=HOURS_KEPT)]
_Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]
_Period = Annotated[int, Meta(ge=_MINUTE_S, le=24 * HOUR_S, multiple_of=_MINUTE_S)]


class Past(msgspec.Struct):
    """A length of time up to now, or to another time."""

    hours: _Hours = 1
    until_s: Annotated[
        _Seconds | None, Meta(description="End of the range, in seconds since 1970; now if null.")
    ] = None
    period_s: Annotated[
        _Period | None,
        Meta(
            description="Seconds of a point, a multiple of 60; by default 60 up to 6 hours, 3600 "
            "above."
        ),
    ] = None


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
    moved_in: list[float | None]
    send_to_receive_s: list[float | None]


class History(TypedDict):
    """The series of a queue; each point is of `period_s` seconds from `begin_s` on. `marks` are
    what happened in this time: marks such as deploys, and begins of the queue's redrives."""

    begin_s: int
    period_s: int
    series: Series
    marks: list[ShownMark]
    is_complete: bool


async def show_history(context: OperatorContext, asked: Asked, past: Past) -> History:
    """Series of a queue for some hours; a point is null where the service did not run, or before
    the queue was made. Raises InvalidParameterValue for more than 3,000 points."""
    queue = asked.queue(asked.parts[0])
    window = _asked_window(context, past)
    found = await context.charts.of((queue.account, queue.region, queue.name), window)
    marks = await events_since(context, asked, queue, window.begin_s * 1000)
    begins = _begins(window)
    made_s = queue.created_at_ms // 1000
    shown = {
        at_s for at_s in found.running if at_s in found.active or at_s + window.period_s > made_s
    }
    series: dict[str, list[float | None]] = {}
    for name, metric in _METRICS.items():
        values = found.series[metric]
        shares = 1 if metric in GAUGES else window.period_s
        series[name] = [
            values.get(at_s, 0.0) / shares if at_s in shown else None for at_s in begins
        ]
    delays = _means(found.series[FIRST_RECEIVE_MS], found.series[FIRST_RECEIVES])
    series["send_to_receive_s"] = [delays.get(at_s) for at_s in begins]
    return {
        "begin_s": window.begin_s,
        "period_s": window.period_s,
        "series": cast(Series, series),
        "marks": [each for each in marks if each["at_ms"] < window.end_s * 1000],
        "is_complete": found.is_complete,
    }


def _asked_window(context: OperatorContext, past: Past) -> Window:
    """Whole periods, the one under way as the last. Raises InvalidParameterValue."""
    period_s = past.period_s or (HOUR_S if past.hours * 60 > MINUTES_KEPT else _MINUTE_S)
    until_s = context.wall_s() if past.until_s is None else past.until_s
    window = _window_until(int(until_s), past.hours, period_s)
    if (window.end_s - window.begin_s) // period_s > _POINTS_MAX:
        raise InvalidParameterValue(f"There are more than {_POINTS_MAX} points.")
    return window


def _means(times_ms: Mapping[int, float], messages: Mapping[int, float]) -> dict[int, float]:
    """Seconds for each message, by the second at which the period begins."""
    return {
        at_s: times_ms.get(at_s, 0.0) / number / 1000 for at_s, number in messages.items() if number
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


def _window(context: OperatorContext, hours: int, period_s: int) -> Window:
    """Whole periods, the one under way as the last. Points by the minute are kept for hours
    only."""
    if hours * 60 > MINUTES_KEPT:
        period_s = HOUR_S
    return _window_until(int(context.wall_s()), hours, period_s)


def _window_until(until_s: int, hours: int, period_s: int) -> Window:
    end_s = (until_s // period_s + 1) * period_s
    return Window(end_s - hours * HOUR_S, end_s, period_s)


ROUTES = (
    Route("GET", "api/depths", LIST_QUEUES, list_depths),
    Route("GET", "api/dead-letters/depths", LIST_QUEUES, list_dead_letter_depths),
    Route("GET", QUEUE + "/history", GET_QUEUE, show_history),
)
