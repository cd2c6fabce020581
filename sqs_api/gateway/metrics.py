"""What the service counts, and its page for Prometheus.

The hot path only adds to plain numbers; prometheus-client writes the exposition when it is asked for. Parts of the service
that count something are named in `service_metrics.py` and `queue_metrics.py`, which read them then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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

from storage.histogram import Histogram

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)


class Source(Protocol):
    """A part of the page."""

    async def read(self) -> None:
        """Read what takes longer, in slices that do not hold the loop."""

    def collect(self) -> Iterator[Metric]:
        """The families, from what was read."""


class _Only(Collector):
    """One family, as something that prometheus-client writes."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Metrics:
    """What the gateway counts, and the page of all sources."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._latencies: dict[str, Histogram] = {}
        self._refusals: dict[str, int] = {}
        self._sources: list[Source] = []
        self._reading = asyncio.Lock()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    def observe(self, action: str, status: int, duration_s: float) -> None:
        """Count one answered request."""
        key = (action, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        latencies = self._latencies.get(action)
        if latencies is None:
            latencies = self._latencies[action] = Histogram(LATENCY_BOUNDS_S)
        latencies.observe(duration_s)

    def refused(self, code: str) -> None:
        """Count a refusal by its error code."""
        self._refusals[code] = self._refusals.get(code, 0) + 1

    def attach(self, *sources: Source) -> None:
        """Show these too."""
        self._sources += sources

    async def page(self) -> bytes:
        """The Prometheus text format, written a family at a time so that requests are answered in between."""
        async with self._reading:
            parts = [generate_latest(self._process)]
            for source in self._sources:
                await source.read()
            for family in self._families():
                parts.append(generate_latest(_Only(family)))
                await asyncio.sleep(0)
            return b"".join(parts)

    def _families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_requests", "Answered requests.", labels=("action", "status")
        )
        for (action, status), count in self._requests.items():
            requests.add_metric((action, str(status)), count)
        yield requests
        refusals = CounterMetricFamily(
            "holdfast_refusals", "Refused requests by error code.", labels=("code",)
        )
        for code, count in self._refusals.items():
            refusals.add_metric((code,), count)
        yield refusals
        latencies = HistogramMetricFamily(
            "holdfast_request_seconds",
            "Time from a request's last byte to its answer, the waiting of long polls included.",
            labels=("action",),
        )
        for action, histogram in self._latencies.items():
            add_histogram(latencies, (action,), histogram)
        yield latencies
        for source in self._sources:
            yield from source.collect()


def add_histogram(
    family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram
) -> None:
    """Add a histogram in Prometheus's cumulative form."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.buckets, strict=True):
        total += count
        buckets.append((str(bound), total))
    family.add_metric(labels, buckets=buckets, sum_value=histogram.total)
