"""Series: the history of one metric, a point a minute for hours and a point an hour for days.

Only points other than zero are stored, so an idle queue takes no memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

MINUTES_KEPT = 6 * 60
HOURS_KEPT = 15 * 24
_HOUR_WIDTH = 5

MinutePoint = tuple[int, float]
"""Minute since 1970, value."""
HourPoint = tuple[int, int, float, float, float]
"""Hour since 1970, number of its minutes with a value, their sum, least and greatest."""


class Points(msgspec.Struct, frozen=True):
    """A part of a series."""

    minutes: list[MinutePoint] = []
    hours: list[HourPoint] = []


class Series:
    """Points in order of time. About 6 KB for 6 hours and 15 KB for 15 days of them."""

    __slots__ = ("_hours", "_minutes")

    def __init__(self) -> None:
        self._minutes = array("d")
        """Minute and value, one after the other."""
        self._hours = array("d")
        """The members of each HourPoint, one after the other."""

    def add(self, minute: int, value: float) -> None:
        """Add the value of a minute; one that is not later than all before is left out."""
        minutes, hours = self._minutes, self._hours
        if minutes and minute <= minutes[-2]:
            return
        minutes.extend((minute, value))
        while minutes[0] <= minute - MINUTES_KEPT:
            del minutes[:2]
        hour = minute // 60
        if hours and hours[-_HOUR_WIDTH] == hour:
            _, count, total, least, greatest = hours[-_HOUR_WIDTH:]
            del hours[-_HOUR_WIDTH:]
            hours.extend((hour, count + 1, total + value, min(least, value), max(greatest, value)))
        else:
            hours.extend((hour, 1, value, value, value))
        while hours[0] <= hour - HOURS_KEPT:
            del hours[:_HOUR_WIDTH]

    def points(self, begin: int, end: int, *, with_hours: bool) -> Points:
        """The points from one minute to before another."""
        return Points(
            [point for point in self._minute_points(begin) if begin <= point[0] < end],
            [point for point in self._hour_points() if begin <= point[0] * 60 < end]
            if with_hours
            else [],
        )

    def _minute_points(self, begin: int) -> Iterator[MinutePoint]:
        """The points from a minute on, and at most some earlier ones: each is of another minute."""
        minutes = self._minutes
        last = int(minutes[-2]) if minutes else begin
        wanted = max(0, last - begin + 1)
        for place in range(max(0, len(minutes) - 2 * wanted), len(minutes), 2):
            yield int(minutes[place]), minutes[place + 1]

    def _hour_points(self) -> Iterator[HourPoint]:
        hours = self._hours
        for place in range(0, len(hours), _HOUR_WIDTH):
            hour, count, *stats = hours[place : place + _HOUR_WIDTH]
            yield int(hour), int(count), stats[0], stats[1], stats[2]
