"""Stored hours: the form in which the minutes of one queue and hour are stored. Pure.

    zlib of msgpack: [mask of minutes, minutes a point stands for, {column: differences}]

A column is a metric, by its place in COLUMNS. States and counts change little from one minute to
the next, so differences are small: a quiet queue takes about 40 bytes an hour, a busy one 300.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate

import msgspec

from sqs_api.cloudwatch.metric_table import GAUGES, KEPT_COUNTS

MINUTES = 60
COLUMNS = (
    "ApproximateAgeOfOldestMessage",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfGroupsWithInflightMessages",
    "ApproximateNumberOfNoisyGroups",
    "ApproximateNumberOfMessagesVisibleInQuietGroups",
    "ApproximateNumberOfMessagesNotVisibleInQuietGroups",
    "ApproximateNumberOfMessagesDelayedInQuietGroups",
    "ApproximateAgeOfOldestMessageInQuietGroups",
    "NumberOfMessagesSent",
    "NumberOfMessagesReceived",
    "NumberOfMessagesDeleted",
    "NumberOfEmptyReceives",
    "NumberOfDeduplicatedSentMessages",
    "SentMessageSize",
    "FirstReceives",
    "FirstReceiveMilliseconds",
    "MessagesMovedIn",
)
"""Stored form: only append."""
PLACES = {metric: place for place, metric in enumerate(COLUMNS)}
_ADDS_UP = [metric in KEPT_COUNTS for metric in COLUMNS]

Values = dict[int, float]
"""Of one minute: value by column. Zeros are left out."""
Minutes = dict[int, Values]
"""By the minute of the hour, or since 1970."""


class _Stored(msgspec.Struct, array_like=True):
    mask: int
    step: int
    columns: dict[int, list[int]]


_decode = msgspec.msgpack.Decoder(_Stored).decode


class HourDamaged(Exception):
    """The bytes are not those of an hour."""


def values_of(metrics: Mapping[str, float]) -> Values:
    """The values of a minute that are not zero, rounded."""
    return {PLACES[metric]: whole for metric, value in metrics.items() if (whole := round(value))}


def add(one: Values, later: Mapping[int, float]) -> None:
    """Add what was measured later in the same period, or by another host: counts add up, of a state
    the greatest remains."""
    for column, value in later.items():
        before = one.get(column, 0)
        one[column] = before + value if _ADDS_UP[column] else max(before, value)


def encode_hour(minutes: Mapping[int, Mapping[int, float]], step: int = 1) -> bytes:
    """The stored form of points by the minute of the hour, each of which stands for `step`
    minutes."""
    known = sorted(minutes)
    names = sorted({column for values in minutes.values() for column in values})
    columns: dict[int, list[int]] = {}
    for column in names:
        values = [round(minutes[minute].get(column, 0)) for minute in known]
        columns[column] = [b - a for a, b in zip([0, *values], values, strict=False)]
    stored = _Stored(sum(1 << minute for minute in known), step, columns)
    return zlib.compress(msgspec.msgpack.encode(stored))


def decode_hour(data: bytes) -> Minutes:
    """The values by the minute of the hour. A point that stands for several minutes becomes as
    many: its counts are spread over them. Raises HourDamaged."""
    stored = _stored(data)
    found: Minutes = {}
    for minute, values in _points(stored):
        shared = {
            column: value / stored.step if _ADDS_UP[column] else value
            for column, value in values.items()
        }
        for each in range(minute, min(MINUTES, minute + stored.step)):
            found[each] = dict(shared) if stored.step > 1 else values
    return found


def thinned(data: bytes, step: int) -> bytes:
    """The same hour with one point for `step` minutes: the sums of counts, the greatest of states.
    Raises HourDamaged."""
    stored = _stored(data)
    if stored.step >= step or not stored.columns:
        return data
    found: Minutes = {}
    for minute, values in _points(stored):
        add(found.setdefault(minute - minute % step, {}), values)
    return encode_hour(found, step)


def _stored(data: bytes) -> _Stored:
    try:
        stored = _decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise HourDamaged(str(error)) from error
    points = stored.mask.bit_count()
    lengths = {len(values) for values in stored.columns.values()}
    if stored.mask >> MINUTES or stored.step < 1 or lengths - {points}:
        raise HourDamaged("its parts do not fit together")
    return stored


def _points(stored: _Stored) -> Iterator[tuple[int, Values]]:
    known = [minute for minute in range(MINUTES) if stored.mask >> minute & 1]
    found: list[Values] = [{} for _ in known]
    for column, differences in stored.columns.items():
        if column >= len(COLUMNS):
            continue  # of a later version
        for values, value in zip(found, accumulate(differences), strict=True):
            if value:
                values[column] = value
    return zip(known, found, strict=True)


assert set(COLUMNS) == {*GAUGES, *KEPT_COUNTS}
