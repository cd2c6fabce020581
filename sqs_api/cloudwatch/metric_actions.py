"""The three actions: a request in, the members of its answer out; a `Reader` has the data.

Not there are expressions (metric math, SEARCH, Metrics Insights), which are refused, and
percentiles, since no single values are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from sqs_api.cloudwatch.cbor import Instant
from sqs_api.cloudwatch.metric_statistics import STATISTICS, Datapoint, Window
from sqs_api.cloudwatch.metric_table import DIMENSION, METRICS, NAMESPACE, has_metric
from sqs_api.cloudwatch.requests import (
    Dimension,
    GetMetricData,
    GetMetricStatistics,
    ListMetrics,
    MetricDataQuery,
    MonitoringRefusal,
    instant_s,
    invalid,
    invalid_data_query,
)

_QUERIES_MAX = 500
_DATAPOINTS_MAX = 1440
_LISTED_MAX = 500
_ID = re.compile(r"[a-z][A-Za-z0-9_]{0,254}")
_PERIOD_S = 60
_SHORT_PERIODS_S = (1, 5, 10, 20, 30)
"""Periods of metrics with a higher resolution; here they give the values of a minute."""
_RECENTLY_ACTIVE = "PT3H"
_RECENTLY_S = 3 * 3600
_LISTED_S = 14 * 86400
"""Metrics without data for longer are not listed."""

Members = dict[str, object]


class Wanted(NamedTuple):
    """A metric of a queue in a window of time."""

    queue: str
    metric: str
    window: Window


class Found(NamedTuple):
    """Datapoints by the second at which their period begins."""

    datapoints: dict[Wanted, dict[int, Datapoint]]
    is_complete: bool
    """False if a host of the cluster did not answer."""
    is_late: bool = False
    """True if one of them is late, and not away."""


class Reader(Protocol):
    """Reads the queues of the caller's account and region."""

    async def datapoints(self, wanted: Iterable[Wanted]) -> Found:
        """The datapoints of metrics."""

    async def names(self, within_s: float) -> list[str]:
        """Names of the queues with data in this time up to now, sorted."""


def _window(start: object, end: object, period_s: int) -> Window:
    """Raises MonitoringRefusal."""
    begin_s, end_s = instant_s("StartTime", start), instant_s("EndTime", end)
    if begin_s >= end_s:
        raise invalid("The parameter StartTime must be less than the parameter EndTime.")
    if period_s in _SHORT_PERIODS_S:
        period_s = _PERIOD_S
    if period_s < _PERIOD_S or period_s % _PERIOD_S:
        raise invalid(
            "The value for parameter Period must be 1, 5, 10, 20, 30 or a multiple of 60."
        )
    return Window(int(begin_s) // 60 * 60, int(end_s), period_s)


def _queue_of(dimensions: tuple[Dimension, ...]) -> str | None:
    """The queue that the dimensions name; None if they name something else."""
    if len(dimensions) == 1 and dimensions[0].name == DIMENSION:
        return dimensions[0].value
    return None


def _wanted(
    namespace: str | None,
    metric: str | None,
    dimensions: tuple[Dimension, ...],
    unit: str | None,
    window: Window,
) -> Wanted | None:
    """None if there cannot be any data."""
    queue = _queue_of(dimensions)
    if namespace != NAMESPACE or metric is None or queue is None or not has_metric(queue, metric):
        return None
    if unit not in (None, METRICS[metric].unit):
        return None
    return Wanted(queue, metric, window)


# -- GetMetricData ---------------------------------------------------------------------------------


async def get_metric_data(request: GetMetricData, reader: Reader) -> Members:
    """Raises MonitoringRefusal."""
    _check_queries(request.metric_data_queries)
    if request.scan_by not in ("TimestampDescending", "TimestampAscending"):
        raise invalid_data_query("ScanBy must be TimestampDescending or TimestampAscending.")
    returned = [query for query in request.metric_data_queries if query.return_data]
    wanted = {query.id: _wanted_by(query, request) for query in returned}
    found = await reader.datapoints(filter(None, wanted.values()))
    first = _place(request.next_token, len(returned))
    results: list[object] = []
    left = request.max_datapoints
    answer: Members = {"MetricDataResults": results}
    for place, query in enumerate(returned[first:], first):
        each = wanted[query.id]
        datapoints = found.datapoints.get(each, {}) if each is not None else {}
        if len(datapoints) > left and results:
            answer["NextToken"] = str(place)
            break
        left -= len(datapoints)
        is_descending = request.scan_by == "TimestampDescending"
        results.append(_result(query, datapoints, found, is_descending=is_descending))
    answer["Messages"] = []
    return answer


def _check_queries(queries: list[MetricDataQuery]) -> None:
    if not 0 < len(queries) <= _QUERIES_MAX:
        raise invalid_data_query(f"MetricDataQueries must have 1 to {_QUERIES_MAX} members.")
    ids = [query.id for query in queries]
    if len({*ids}) < len(ids):
        raise invalid_data_query("The values for parameter id in MetricDataQueries are not unique.")
    for query in queries:
        if not _ID.fullmatch(query.id):
            raise invalid_data_query(
                f"The value {query.id[:100]} for parameter MetricDataQueries.member.Id does not "
                "match ^[a-z][a-zA-Z0-9_]*$."
            )
        if query.expression is not None:
            raise invalid_data_query(
                f"Error in expression '{query.id}': expressions are not supported here, ask for "
                "metrics by MetricStat."
            )
        if query.metric_stat is None:
            raise invalid_data_query(f"MetricStat is missing in '{query.id}'.")
        _check_statistic(query.metric_stat.stat)


def _check_statistic(name: str) -> None:
    if name not in STATISTICS:
        raise invalid_data_query(
            f"The value {name[:100]} for parameter Stat is not supported: use one of "
            f"{', '.join(STATISTICS)}."
        )


def _wanted_by(query: MetricDataQuery, request: GetMetricData) -> Wanted | None:
    stat = query.metric_stat
    assert stat is not None
    window = _window(request.start_time, request.end_time, stat.period)
    metric = stat.metric
    return _wanted(metric.namespace, metric.metric_name, metric.dimensions, stat.unit, window)


def _result(
    query: MetricDataQuery, datapoints: dict[int, Datapoint], found: Found, *, is_descending: bool
) -> Members:
    stat = query.metric_stat
    assert stat is not None
    order = sorted(datapoints, reverse=is_descending)
    return {
        "Id": query.id,
        "Label": query.label or stat.metric.metric_name or "",
        "Timestamps": [Instant(at_s) for at_s in order],
        "Values": [float(datapoints[at_s].statistic(stat.stat)) for at_s in order],
        "StatusCode": "Complete" if found.is_complete else "PartialData",
    }


def _place(token: str | None, size: int) -> int:
    """The place that a token continues from. Raises MonitoringRefusal."""
    if token is None:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < size):
        raise MonitoringRefusal("InvalidNextToken", "The next token specified is invalid.")
    return int(token)


# -- GetMetricStatistics ---------------------------------------------------------------------------


def _late() -> MonitoringRefusal:
    """The answer cannot say that it is not complete, as GetMetricData does; SDKs ask again."""
    text = "A host did not answer in time: try again."
    return MonitoringRefusal("InternalServiceError", text, "InternalServiceFault", 500)


async def get_metric_statistics(request: GetMetricStatistics, reader: Reader) -> Members:
    """Raises MonitoringRefusal."""
    if request.extended_statistics:
        raise invalid("Percentiles are not supported here: use Statistics.")
    if not request.statistics:
        raise MonitoringRefusal(
            "MissingParameter",
            "The parameter Statistics is required.",
            "MissingRequiredParameterException",
        )
    for name in request.statistics:
        if name not in STATISTICS:
            raise invalid(f"The value {name[:100]} for parameter Statistics is not supported.")
    window = _window(request.start_time, request.end_time, request.period)
    size = -(-(window.end_s - window.begin_s) // window.period_s)
    if size > _DATAPOINTS_MAX:
        raise MonitoringRefusal(
            "InvalidParameterCombination",
            f"You have requested up to {size:,} datapoints, which exceeds the limit of "
            f"{_DATAPOINTS_MAX:,}. You may reduce the datapoints requested by increasing Period, "
            "or decreasing the time range.",
            "InvalidParameterCombinationException",
        )
    wanted = _wanted(
        request.namespace, request.metric_name, request.dimensions, request.unit, window
    )
    datapoints: dict[int, Datapoint] = {}
    if wanted is not None:
        found = await reader.datapoints([wanted])
        if found.is_late:
            raise _late()
        datapoints = found.datapoints[wanted]
    return {
        "Label": request.metric_name,
        "Datapoints": [
            {
                "Timestamp": Instant(at_s),
                **{name: float(point.statistic(name)) for name in request.statistics},
                "Unit": METRICS[request.metric_name].unit,
            }
            for at_s, point in sorted(datapoints.items())
        ],
    }


# -- ListMetrics -----------------------------------------------------------------------------------


async def list_metrics(request: ListMetrics, reader: Reader) -> Members:
    """Raises MonitoringRefusal."""
    if request.recently_active not in (None, _RECENTLY_ACTIVE):
        raise invalid(f"The value for parameter RecentlyActive must be {_RECENTLY_ACTIVE}.")
    listed: list[object] = []
    if request.namespace in (None, NAMESPACE):
        within_s = _LISTED_S if request.recently_active is None else _RECENTLY_S
        names = await reader.names(within_s)
        listed = list(_listed(request, names))
    first = _place(request.next_token, len(listed))
    answer: Members = {"Metrics": listed[first : first + _LISTED_MAX]}
    if first + _LISTED_MAX < len(listed):
        answer["NextToken"] = str(first + _LISTED_MAX)
    return answer


def _listed(request: ListMetrics, names: list[str]) -> Iterator[Members]:
    for name in names:
        if not all(
            each.name == DIMENSION and each.value in (None, name) for each in request.dimensions
        ):
            continue
        for metric in METRICS:
            if request.metric_name in (None, metric) and has_metric(name, metric):
                yield {
                    "Namespace": NAMESPACE,
                    "MetricName": metric,
                    "Dimensions": [{"Name": DIMENSION, "Value": name}],
                }
