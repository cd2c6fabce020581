"""Counters of the service, and their page for Prometheus.

The hot path only adds to plain numbers; prometheus-client writes the exposition when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cluster.catalog import Catalog
from cluster.router import Router

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)


_GROUP_GAUGES = {
    "groups_with_inflight_messages": "Message groups of which a message is in flight.",
    "noisy_groups": "Message groups of a fair queue that are noisy.",
    "messages_visible_in_quiet_groups": "Visible messages that are not of a noisy group.",
    "messages_not_visible_in_quiet_groups": "Messages in flight that are not of a noisy group.",
    "messages_delayed_in_quiet_groups": "Delayed messages that are not of a noisy group.",
    "oldest_message_age_in_quiet_groups_seconds": "Age of the oldest message of a quiet group.",
}
"""Shown for queues that have groups in flight or noisy ones; in the order of `visibility.gauges.GroupGauges`."""


class _Latencies:
    """A histogram of one action."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0


class Metrics(Collector):
    """What the node counts."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._latencies: dict[str, _Latencies] = {}
        self._wall_s: Callable[[], float] = float
        self._catalog: Catalog | None = None
        self._router: Router | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, action: str, status: int, duration_s: float) -> None:
        """Count one answered request."""
        key = (action, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        latencies = self._latencies.get(action)
        if latencies is None:
            latencies = self._latencies[action] = _Latencies()
        latencies.buckets[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        latencies.sum_s += duration_s

    def attach(self, catalog: Catalog, router: Router, wall_s: Callable[[], float]) -> None:
        """Name the sources of the queues' gauges."""
        self._wall_s = wall_s
        self._catalog = catalog
        self._router = router

    def page(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, made when the page is read."""
        yield self._request_family()
        yield self._latency_family()
        yield from self._queue_families()
        yield from self._group_families()
        yield self._expired_family()

    def _request_family(self) -> Metric:
        family = CounterMetricFamily(
            "holdfast_requests", "Answered requests.", labels=("action", "status")
        )
        for (action, status), count in self._requests.items():
            family.add_metric((action, str(status)), count)
        return family

    def _latency_family(self) -> Metric:
        family = HistogramMetricFamily(
            "holdfast_request_seconds",
            "Time from a request's last byte to its answer, waiting included.",
            labels=("action",),
        )
        for action, latencies in self._latencies.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*LATENCY_BOUNDS_S, "+Inf"), latencies.buckets, strict=True):
                total += count
                buckets.append((str(bound), total))
            family.add_metric((action,), buckets=buckets, sum_value=latencies.sum_s)
        return family

    def _queue_families(self) -> Iterator[Metric]:
        labels = ("account", "region", "queue")
        visible = GaugeMetricFamily(
            "holdfast_queue_messages_visible", "Messages that can be received.", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "holdfast_queue_messages_not_visible", "Messages in flight.", labels=labels
        )
        delayed = GaugeMetricFamily(
            "holdfast_queue_messages_delayed", "Messages whose delay is not over.", labels=labels
        )
        if self._catalog is not None and self._router is not None:
            counters = self._router.counters()
            for queue in self._catalog:
                counts = counters.get(queue.queue_id)
                if counts is not None:
                    names = (queue.account, queue.region, queue.name)
                    visible.add_metric(names, counts.visible)
                    in_flight.add_metric(names, counts.in_flight)
                    delayed.add_metric(names, counts.delayed)
        yield from (visible, in_flight, delayed)

    def _expired_family(self) -> Metric:
        shards = self._router.shards.values() if self._router is not None else ()
        return CounterMetricFamily(
            "holdfast_messages_expired",
            "Messages that were older than their queue's retention period.",
            value=sum(shard.expired for shard in shards),
        )

    def _group_families(self) -> Iterator[Metric]:
        labels = ("account", "region", "queue")
        families = {
            name: GaugeMetricFamily(f"holdfast_queue_{name}", text, labels=labels)
            for name, text in _GROUP_GAUGES.items()
        }
        if self._catalog is not None and self._router is not None:
            now_ms = self._wall_s() * 1000
            for queue_id, gauges in self._router.group_gauges().items():
                queue = self._catalog.queue_of_id(queue_id)
                if queue is None:
                    continue
                oldest_ms = gauges.oldest_quiet_sent_ms
                age_s = max(0.0, now_ms - oldest_ms) / 1000 if oldest_ms else 0.0
                values = (
                    gauges.groups_in_flight,
                    gauges.noisy_groups,
                    gauges.visible_in_quiet_groups,
                    gauges.in_flight_in_quiet_groups,
                    gauges.delayed_in_quiet_groups,
                    age_s,
                )
                for family, value in zip(families.values(), values, strict=True):
                    family.add_metric((queue.account, queue.region, queue.name), value)
        yield from families.values()
