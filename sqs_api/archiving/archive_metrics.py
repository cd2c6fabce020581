"""TABLE: the metrics of the archive and of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import override

from cluster.shards.router import Router
from sqs_api.archiving.exporter import Exporter
from sqs_api.archiving.job_schedule import Schedule
from sqs_api.gateway.metrics import Source

_QUEUE_LABELS = ("account", "region", "queue")
_QUANTILES = {"age_p50_s": "0.5", "age_p90_s": "0.9", "age_p99_s": "0.99", "age_max_s": "1"}
_TIMES = {
    "time_in_queue_p50_s": "0.5",
    "time_in_queue_p90_s": "0.9",
    "time_in_queue_p99_s": "0.99",
    "time_in_queue_max_s": "1",
}


class ArchiveMetrics(Source):
    """The metrics of a node that has a lake."""

    def __init__(
        self,
        exporter: Exporter,
        router: Router,
        schedule: Schedule | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._exporter = exporter
        self._router = router
        self._schedule = schedule
        self._now_ms = now_ms

    @override
    async def read(self) -> None:
        """These are all in memory."""

    @override
    def collect(self) -> Iterator[Metric]:
        archives = [report.archive for report in self._router.reports()]
        now_ms = self._now_ms()
        oldest_ms = min((a.waiting_since_ms for a in archives if a.messages), default=now_ms)
        done = self._exporter
        for name, text, gauge in (
            ("waiting_messages", "Messages that wait for the archive.",
             sum(a.messages for a in archives)),
            ("waiting_bytes", "About what they take on disk.", sum(a.size for a in archives)),
            ("max_bytes", "What may wait; above it archive_when_full says what happens.",
             sum(a.size_max for a in archives)),
            ("waiting_seconds", "How long the oldest batch of them has waited.",
             (now_ms - oldest_ms) / 1000),
            ("waiting_batches", "Batches that are sealed and not acknowledged.",
             sum(a.waiting_batches for a in archives)),
            ("lake_written_timestamp_seconds", "When the lake was last written to, 0 for never.",
             done.succeeded_at_s),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"holdfast_archive_{name}", text, value=float(gauge))
        for name, text, count in (
            ("handed_over", "Messages that left their queues for the archive.",
             sum(a.handed_over for a in archives)),
            ("discarded", "Messages that were not archived for want of room.",
             sum(a.discarded for a in archives)),
            ("segments", "Segments that were written to the lake.", done.segments),
            ("messages_damaged", "Messages that could not be read when they were to be archived.",
             done.damaged),
            ("export_failures", "How often writing to the lake failed.", done.failures),
        ):  # fmt: skip
            yield CounterMetricFamily(f"holdfast_archive_{name}", text, value=float(count))
        yield from self._jobs()
        yield _of_queues("age", "Age of stored messages", _QUANTILES, done.queue_ages)
        yield _of_queues(
            "time_in_queue", "Time that deleted messages were there", _TIMES, done.queue_ages
        )

    def _jobs(self) -> Iterator[Metric]:
        if self._schedule is None:
            return
        runs = CounterMetricFamily(
            "holdfast_job_runs", "Runs of scheduled jobs.", labels=("job", "outcome")
        )
        for labels, count in self._schedule.runs.items():
            runs.add_metric(labels, count)
        took = GaugeMetricFamily(
            "holdfast_job_seconds", "How long a job's last run took.", labels=("job",)
        )
        for job, seconds in self._schedule.took_s.items():
            took.add_metric((job,), seconds)
        yield from (runs, took)


def _of_queues(
    name: str, text: str, quantiles: dict[str, str], queues: list[dict[str, Any]]
) -> Metric:
    """The metric of the latest hour that the queue-age job computed; empty where it never ran."""
    family = GaugeMetricFamily(
        f"holdfast_queue_{name}_seconds",
        f"{text}, in the latest hour that the queue-age job knows.",
        labels=(*_QUEUE_LABELS, "quantile"),
    )
    for queue in queues:
        labels = tuple(str(queue.get(label, "")) for label in _QUEUE_LABELS)
        for column, quantile in quantiles.items():
            seconds = queue.get(column)
            if isinstance(seconds, int | float):
                family.add_metric((*labels, quantile), seconds)
    return family
