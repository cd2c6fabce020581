"""Statistics of a metric by period, from the points that hosts have of it. Pure.

A state has one value a minute. Of events, each minute's number is one value, as SQS reports them;
SentMessageSize alone has a value for each message, of which the least and the greatest are known as
the averages of a minute. Where only points by the hour are left, its hours are the least period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sqs_api.cloudwatch.metric_table import ACTIVE, KEPT_COUNTS, METRICS, SENT, SIZE, Queues
from sqs_api.cloudwatch.series import MINUTES_KEPT, HourPoint, Points

HOUR_S = 3600
STATISTICS = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")


class Window(msgspec.Struct, frozen=True):
    """A range of time in periods, in seconds since 1970; `end_s` is not part of it."""

    begin_s: int
    end_s: int
    period_s: int

    @property
    def begin(self) -> int:
        """The first minute."""
        return self.begin_s // 60

    @property
    def end(self) -> int:
        """The minute after the last."""
        return -(-self.end_s // 60)

    @property
    def with_hours(self) -> bool:
        """True if points by the hour fit into its periods."""
        return self.period_s % HOUR_S == 0


class Datapoint(msgspec.Struct):
    """The values of a period."""

    count: float
    total: float
    least: float
    greatest: float

    def add(self, count: float, total: float, least: float, greatest: float) -> None:
        """Add other values of the same period."""
        self.count += count
        self.total += total
        self.least = min(self.least, least)
        self.greatest = max(self.greatest, greatest)

    def statistic(self, name: str) -> float:
        """One of STATISTICS."""
        if name == "Average":
            return self.total / self.count
        values = {
            "SampleCount": self.count,
            "Sum": self.total,
            "Minimum": self.least,
            "Maximum": self.greatest,
        }
        return values[name]


_Value = tuple[int, float, float, float, float]
"""Second at which it begins, then the members of a Datapoint."""


def datapoints(
    metric: str, parts: Iterable[Mapping[str, Points]], window: Window, now_minute: int
) -> dict[int, Datapoint]:
    """By the second at which its period begins; `parts` are the hosts' points by metric."""
    by_metric = _merged(parts, {metric, ACTIVE, SENT} if metric == SIZE else {metric, ACTIVE})
    found: dict[int, Datapoint] = {}
    for at_s, *values in _values(metric, by_metric, window, now_minute):
        if window.begin_s <= at_s < window.end_s:
            begins = at_s - (at_s - window.begin_s) % window.period_s
            if begins in found:
                found[begins].add(*values)
            else:
                found[begins] = Datapoint(*values)
    return found


class _Merged(msgspec.Struct):
    """The points of all hosts."""

    minutes: dict[int, float] = {}
    hours: dict[int, HourPoint] = {}


def _merged(parts: Iterable[Mapping[str, Points]], metrics: set[str]) -> dict[str, _Merged]:
    found: dict[str, _Merged] = {}
    for part in parts:
        for metric in metrics & part.keys():
            points = part[metric]
            merged = found.setdefault(metric, _Merged())
            adds_up = metric in KEPT_COUNTS
            for minute, value in dict(points.minutes).items():
                before = merged.minutes.get(minute, 0.0)
                merged.minutes[minute] = before + value if adds_up else max(before, value)
            for point in points.hours:
                other = merged.hours.get(point[0])
                if other is not None:
                    point = _both(point, other, adds_up=adds_up)
                merged.hours[point[0]] = point
    return found


def _both(one: HourPoint, other: HourPoint, *, adds_up: bool) -> HourPoint:
    """An hour of two hosts: each led for a part of it, or both counted events at the same time."""
    count = max(one[1], other[1]) if adds_up else min(60, one[1] + other[1])
    return one[0], count, one[2] + other[2], min(one[3], other[3]), max(one[4], other[4])


def _values(
    metric: str, found: Mapping[str, _Merged], window: Window, now_minute: int
) -> Iterator[_Value]:
    """The values of a metric in order of time: hours before those whose minutes are all kept."""
    own = found.get(metric, _Merged())
    row = METRICS.get(metric)
    if row is not None and row.queues is Queues.FAIR and not (own.minutes or own.hours):
        return
    first_minute = now_minute - MINUTES_KEPT + 1
    if window.with_hours:
        first_minute += -first_minute % 60
        yield from _hours(metric, own, found, first_minute // 60)
    for minute, value, count in _minutes(metric, own, found):
        if minute >= first_minute:
            yield minute * 60, count, value, value / count, value / count


def _minutes(
    metric: str, own: _Merged, found: Mapping[str, _Merged]
) -> Iterator[tuple[int, float, float]]:
    """Minute, sum and number of values."""
    if metric == SIZE:
        sent = found.get(SENT, _Merged()).minutes
        for minute, messages in sorted(sent.items()):
            yield minute, own.minutes.get(minute, 0.0), messages
        return
    active = found.get(ACTIVE, _Merged()).minutes
    for minute in sorted(active.keys() | own.minutes.keys()):
        yield minute, own.minutes.get(minute, 0.0), 1.0


def _hours(
    metric: str, own: _Merged, found: Mapping[str, _Merged], before: int
) -> Iterator[_Value]:
    active = found.get(ACTIVE, _Merged()).hours
    for hour in sorted(active.keys() | own.hours.keys()):
        if hour >= before:
            continue
        _, count, total, least, greatest = own.hours.get(hour, (hour, 0, 0.0, 0.0, 0.0))
        if metric == SIZE:
            sent = found.get(SENT, _Merged()).hours.get(hour)
            if sent is not None and sent[2]:
                mean = total / sent[2]
                yield hour * HOUR_S, sent[2], total, mean, mean
            continue
        minutes = max(count, active[hour][1] if hour in active else 0)
        least = least if count == minutes else 0.0
        yield hour * HOUR_S, minutes, total, least, greatest
