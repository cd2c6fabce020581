"""The three requests as CloudWatch's model names their members, and the refusals of them.

Source: botocore's model of CloudWatch, version 2010-08-01.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from visibility.contract.operations import Operation


class MonitoringRefusal(Exception):
    """A refusal with CloudWatch's code of the query protocol and name of the shape."""

    def __init__(self, code: str, message: str, shape: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.shape = shape or code
        self.message = message
        self.status = status


def invalid(message: str) -> MonitoringRefusal:
    """A value that is out of range or malformed."""
    return MonitoringRefusal("InvalidParameterValue", message, "InvalidParameterValueException")


def invalid_data_query(message: str) -> MonitoringRefusal:
    """The same in GetMetricData."""
    return MonitoringRefusal("ValidationError", message)


class Dimension(msgspec.Struct, rename="pascal"):
    """A name and a value; in a filter, any value if it has none."""

    name: str
    value: str | None = None


class Metric(msgspec.Struct, rename="pascal"):
    """A metric of one thing."""

    namespace: str | None = None
    metric_name: str | None = None
    dimensions: tuple[Dimension, ...] = ()


class MetricStat(msgspec.Struct, rename="pascal"):
    """A statistic of a metric."""

    metric: Metric
    period: int
    stat: str
    unit: str | None = None


class MetricDataQuery(msgspec.Struct, rename="pascal"):
    """One result that is asked for."""

    id: str
    metric_stat: MetricStat | None = None
    expression: str | None = None
    label: str | None = None
    return_data: bool = True


class GetMetricData(Operation, frozen=True):
    """Statistics of many metrics."""

    metric_data_queries: list[MetricDataQuery]
    start_time: Any
    end_time: Any
    next_token: str | None = None
    scan_by: str = "TimestampDescending"
    max_datapoints: int = 100_800


class GetMetricStatistics(Operation, frozen=True):
    """Statistics of one metric."""

    namespace: str
    metric_name: str
    start_time: Any
    end_time: Any
    period: int
    dimensions: tuple[Dimension, ...] = ()
    statistics: tuple[str, ...] = ()
    extended_statistics: tuple[str, ...] = ()
    unit: str | None = None


class ListMetrics(Operation, frozen=True):
    """The metrics that have data."""

    namespace: str | None = None
    metric_name: str | None = None
    dimensions: tuple[Dimension, ...] = ()
    next_token: str | None = None
    recently_active: str | None = None


MonitoringRequest = GetMetricData | GetMetricStatistics | ListMetrics
REQUESTS: dict[str, type[MonitoringRequest]] = {
    each.__name__: each for each in (GetMetricData, GetMetricStatistics, ListMetrics)
}
MONITORING_ACTIONS = frozenset(f"cloudwatch:{name}" for name in REQUESTS)
"""Permissions that a user needs."""
_MISSING = re.compile(r"missing required field `(\w+)`")


def read_request(action: str, content: object, *, from_text: bool) -> MonitoringRequest:
    """The request of a known action; `from_text`: all its values are strings.

    Raises MonitoringRefusal.
    """
    try:
        return msgspec.convert(content, REQUESTS[action], strict=not from_text)
    except msgspec.ValidationError as error:
        missing = _MISSING.search(str(error))
        if missing is not None:
            raise MonitoringRefusal(
                "MissingParameter",
                f"The parameter {missing[1]} is required.",
                "MissingRequiredParameterException",
            ) from error
        raise invalid(f"The request cannot be read: {error}") from error


def instant_s(name: str, value: object) -> float:
    """Seconds since 1970 of a timestamp in any protocol. Raises MonitoringRefusal."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11:
        return float(value)
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    raise invalid(f"The value for parameter {name} is not a timestamp.")


def iso_time(instant: float) -> str:
    """A timestamp as the query protocol writes it."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
