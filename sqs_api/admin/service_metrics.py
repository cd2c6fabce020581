"""TABLE: the metrics of the service itself.

All parts that count something are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from typing_extensions import override

from auth.native import native
from cluster.shards.router import Router
from cluster.shards.shard_report import ShardReport
from sqs_api.gateway.access import Access
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.measures import Measures
from sqs_api.gateway.metrics import Source, add_histogram
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.sealer import Sealer
from sqs_api.settings.logs import EVENTS, OUTPUT


class Parts(msgspec.Struct):
    """The parts of a node that count."""

    router: Router
    access: Access
    disk: DiskSpace
    sealer: Sealer
    measures: Measures
    rates: Rates
    outstanding: Callable[[], int]
    queues: Callable[[], int]
    deletions: Deletions
    wall_s: Callable[[], float]
    version: str
    durability: str


class ServiceMetrics(Source):
    """The metrics of the node itself."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @override
    async def read(self) -> None:
        """These are all in memory."""

    @override
    def collect(self) -> Iterator[Metric]:
        parts = self._parts
        reports = parts.router.reports()
        restorable = parts.deletions.all()
        path = "python" if native is None else "native"
        about = {"version": parts.version, "durability": parts.durability, "path": path}
        yield InfoMetricFamily("holdfast", "The service.", about)
        for name, text, gauge in (
            ("queues", "Queues that exist.", parts.queues()),
            ("deleted_queues", "Deletions and purges that can be undone.", len(restorable)),
            (
                "deleted_queue_messages",
                "Messages that undoing them all would bring back.",
                sum(parts.deletions.messages(restorable)),
            ),
            ("requests_in_flight", "Requests that wait for their answer.", parts.outstanding()),
            ("long_polls", "Receives that wait for a message.", _sum_of(reports, "parked")),
            ("disk_free_bytes", "Free space of the data folder's disk.", parts.disk.free_bytes),
            ("disk_short", "1 while sends are refused for want of space.", parts.disk.is_short),
            ("wall_clock_seconds", "The host's clock, since 1970.", parts.wall_s()),
            (
                "loop_late_seconds_max",
                "The longest the event loop was late.",
                parts.measures.stalls.longest_s,
            ),
        ):
            yield GaugeMetricFamily(f"holdfast_{name}", text, value=float(gauge))
        for name, text, count in (
            ("denied", "Calls that policies denied.", parts.access.denied),
            ("disk_short_refused", "Requests refused for want of space.", parts.disk.refused),
            ("messages_unreadable", "Messages that could not be opened.", parts.sealer.broken),
            ("store_failures", "How often a shard's disk failed.", _sum_of(reports, "failures")),
            (
                "parts_written_back",
                "Queues whose parts in etcd were older than those that shards knew.",
                _sum_of(reports, "parts_written_back"),
            ),
            ("log_lines_dropped", "Log lines that could not be written.", OUTPUT.dropped),
            ("clock_leaps", "Leaps of the wall clock.", parts.measures.clock_leaps),
        ):
            yield CounterMetricFamily(f"holdfast_{name}", text, value=float(count))
        logged = CounterMetricFamily(
            "holdfast_log_events", "Warnings and errors in the log.", labels=("event", "level")
        )
        for labels, count in sorted(EVENTS.items()):
            logged.add_metric(labels, count)
        yield logged
        throttled = CounterMetricFamily(
            "holdfast_throttled", "Requests above a rate.", labels=("rate",)
        )
        for kind, count in parts.rates.throttled.items():
            throttled.add_metric((kind,), count)
        yield throttled
        ready = GaugeMetricFamily(
            "holdfast_shard_ready", "1 while the shard decides requests.", labels=("shard",)
        )
        for shard in reports:
            ready.add_metric((str(shard.number),), float(shard.ready))
        yield ready
        yield from _outboxes(reports, parts.wall_s())
        yield from self._histograms(reports)

    def _histograms(self, reports: list[ShardReport]) -> Iterator[Metric]:
        parts = self._parts
        for name, text, histogram in (
            ("sync_seconds", "Time of a sync of the log.", parts.measures.sync_s),
            (
                "loop_late_seconds",
                "How late the event loop was, ten times a second.",
                parts.measures.stalls.late_s,
            ),
        ):
            family = HistogramMetricFamily(f"holdfast_{name}", text)
            add_histogram(family, (), histogram)
            yield family
        turns = HistogramMetricFamily(
            "holdfast_turn_seconds", "Time of deciding a turn, without the disk.", labels=("shard",)
        )
        requests = HistogramMetricFamily(
            "holdfast_turn_requests", "Requests decided in a turn.", labels=("shard",)
        )
        for shard in reports:
            add_histogram(turns, (str(shard.number),), shard.turn_s)
            add_histogram(requests, (str(shard.number),), shard.turn_requests)
        yield from (turns, requests)


def _outboxes(reports: list[ShardReport], now_s: float) -> Iterator[Metric]:
    """Messages between the shards; a single one has none."""
    messages = GaugeMetricFamily(
        "holdfast_outbox_messages",
        "Messages on their way to other shards, and questions about transactions.",
        labels=("shard",),
    )
    age = GaugeMetricFamily(
        "holdfast_outbox_age_seconds",
        "Time since the oldest of them left its queue or was asked; without those that wait for a "
        "deleted queue.",
        labels=("shard",),
    )
    waiting = GaugeMetricFamily(
        "holdfast_outbox_waiting_messages",
        "Those of transactions that wait for a deleted queue, which may be restored.",
        labels=("shard",),
    )
    share = GaugeMetricFamily(
        "holdfast_outbox_waiting_share",
        "The part of their own room that these take, 500 messages or 4 MiB; above 1 they take that "
        "of other transactions.",
        labels=("shard",),
    )
    prepared = GaugeMetricFamily(
        "holdfast_prepared_deletes",
        "Messages in flight until another shard has decided a transaction that deletes them.",
        labels=("shard",),
    )
    for shard in reports if len(reports) > 1 else ():
        since_s = shard.outbox_since_ms / 1000
        messages.add_metric((str(shard.number),), shard.outbox)
        age.add_metric((str(shard.number),), max(0.0, now_s - since_s) if since_s else 0.0)
        waiting.add_metric((str(shard.number),), shard.outbox_waiting)
        share.add_metric((str(shard.number),), shard.outbox_waiting_share)
        prepared.add_metric((str(shard.number),), shard.prepared)
    yield from (messages, age, waiting, share, prepared)


def _sum_of(reports: list[ShardReport], name: str) -> int:
    return sum(getattr(report, name) for report in reports)
