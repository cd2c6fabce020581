"""The metrics page for Prometheus.

The hot path only adds to numbers (`accounting.py`); prometheus-client writes the exposition on
request. `service_metrics.py` and `queue_metrics.py` name the parts of the service that count
something, and read them then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from sqs_api.gateway.accounting import Accounting
from storage.histogram import Histogram, HistogramReport

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Source(Protocol):
    """A part of the page."""

    async def read(self) -> None:
        """Prepare slow readings, in slices that do not hold the loop."""

    def collect(self) -> Iterator[Metric]:
        """The families, from those readings."""


class _Only(Collector):
    """One family, in a form that prometheus-client writes."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    @override
    def collect(self) -> Iterator[Metric]:
        yield self._family


class Metrics:
    """The page of all sources, and of answered requests."""

    def __init__(self, accounting: Accounting, sources: Sequence[Source]) -> None:
        self._accounting = accounting
        self._sources = sources
        self._reading = asyncio.Lock()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    async def page(self) -> bytes:
        """The Prometheus text format, written family by family so that requests are answered in
        between."""
        async with self._reading:
            parts = [generate_latest(self._process)]
            for source in self._sources:
                await source.read()
            return b"".join([*parts, await written(self._families())])

    def _families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_requests", "Answered requests.", labels=("action", "status")
        )
        for (action, status), count in self._accounting.requests().items():
            requests.add_metric((action, str(status)), count)
        yield requests
        refusals = CounterMetricFamily(
            "holdfast_refusals", "Refused requests by error code.", labels=("code",)
        )
        for code, count in self._accounting.refusals.items():
            refusals.add_metric((code,), count)
        yield refusals
        latencies = HistogramMetricFamily(
            "holdfast_request_seconds",
            "Time from a request's last byte to its answer, the waiting of long polls included.",
            labels=("action",),
        )
        for action, histogram in self._accounting.latencies.items():
            add_histogram(latencies, (action,), histogram)
        yield latencies
        for source in self._sources:
            yield from source.collect()


async def written(families: Iterable[Metric]) -> bytes:
    """The families in the Prometheus text format; other work may run after each of them."""
    parts: list[bytes] = []
    for family in families:
        parts.append(generate_latest(_Only(family)))
        await asyncio.sleep(0)
    return b"".join(parts)


def add_histogram(
    family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram | HistogramReport
) -> None:
    """Add a histogram in Prometheus's cumulative form."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.buckets, strict=True):
        total += count
        buckets.append((str(bound), total))
    family.add_metric(labels, buckets=buckets, sum_value=histogram.total)
