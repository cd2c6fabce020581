"""TABLE: the metrics of the namespace AWS/SQS, with CloudWatch's units and meanings.

Source: "Available CloudWatch metrics for Amazon SQS", of which this is the whole list.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from sqs_api.admin.queue_metrics import age_s
from sqs_api.admin.queue_samples import QueueSample

NAMESPACE = "AWS/SQS"
DIMENSION = "QueueName"
ACTIVE = ""
"""Not a metric: 1 for each minute in which a queue was active on the host that leads it."""


class Queues(Enum):
    """Queues that have a metric."""

    ALL = "all"
    FIFO = "fifo"
    FAIR = "standard queues with message groups"


class Gauge(NamedTuple):
    """A state at the end of each minute."""

    unit: str
    value: Callable[[QueueSample, float], float]
    """The value of a sample that was read at a time in ms."""
    queues: Queues = Queues.ALL


class Count(NamedTuple):
    """Events of each minute."""

    unit: str
    total: Callable[[QueueSample], int]
    """The count so far."""
    queues: Queues = Queues.ALL
    continues: bool = True
    """True if a purged queue goes on counting; False of counts that begin again."""


def _of_groups(field: str) -> Callable[[QueueSample, float], float]:
    def value(sample: QueueSample, now_ms: float) -> float:
        groups = sample.report.groups
        return 0.0 if groups is None else float(getattr(groups, field))

    return value


def _age_s(sample: QueueSample, now_ms: float) -> float:
    oldest = sample.report.oldest
    return 0.0 if oldest is None else age_s(now_ms, oldest.unspent_ms)


def _quiet_age_s(sample: QueueSample, now_ms: float) -> float:
    groups = sample.report.groups
    return 0.0 if groups is None else age_s(now_ms, groups.oldest_quiet_sent_ms)


GAUGES: dict[str, Gauge] = {
    "ApproximateAgeOfOldestMessage": Gauge("Seconds", _age_s),
    "ApproximateNumberOfMessagesVisible": Gauge("Count", lambda s, _: s.report.visible),
    "ApproximateNumberOfMessagesNotVisible": Gauge("Count", lambda s, _: s.report.in_flight),
    "ApproximateNumberOfMessagesDelayed": Gauge("Count", lambda s, _: s.report.delayed),
    "ApproximateNumberOfGroupsWithInflightMessages": Gauge(
        "Count", _of_groups("groups_in_flight"), Queues.FIFO
    ),
    "ApproximateNumberOfNoisyGroups": Gauge("Count", _of_groups("noisy_groups"), Queues.FAIR),
    "ApproximateNumberOfMessagesVisibleInQuietGroups": Gauge(
        "Count", _of_groups("visible_in_quiet_groups"), Queues.FAIR
    ),
    "ApproximateNumberOfMessagesNotVisibleInQuietGroups": Gauge(
        "Count", _of_groups("in_flight_in_quiet_groups"), Queues.FAIR
    ),
    "ApproximateNumberOfMessagesDelayedInQuietGroups": Gauge(
        "Count", _of_groups("delayed_in_quiet_groups"), Queues.FAIR
    ),
    "ApproximateAgeOfOldestMessageInQuietGroups": Gauge("Seconds", _quiet_age_s, Queues.FAIR),
}
SENT, SIZE = "NumberOfMessagesSent", "SentMessageSize"
COUNTS: dict[str, Count] = {
    SENT: Count("Count", lambda s: s.report.sent),
    "NumberOfMessagesReceived": Count("Count", lambda s: s.report.received),
    "NumberOfMessagesDeleted": Count("Count", lambda s: s.report.deleted),
    "NumberOfEmptyReceives": Count("Count", lambda s: s.gateway.empty_receives, continues=False),
    "NumberOfDeduplicatedSentMessages": Count(
        "Count", lambda s: s.gateway.deduplicated, Queues.FIFO, continues=False
    ),
    SIZE: Count("Bytes", lambda s: s.report.sent_bytes),
}
"""SentMessageSize has one value for each message: its SampleCount is NumberOfMessagesSent."""
METRICS: dict[str, Gauge | Count] = {**GAUGES, **COUNTS}
FIRST_RECEIVES, FIRST_RECEIVE_MS = "FirstReceives", "FirstReceiveMilliseconds"
MOVED_IN = "MessagesMovedIn"
KEPT_COUNTS: dict[str, Count] = {
    **COUNTS,
    FIRST_RECEIVES: Count("Count", lambda s: s.gateway.first_receives, continues=False),
    FIRST_RECEIVE_MS: Count("Milliseconds", lambda s: s.gateway.first_receive_ms, continues=False),
    MOVED_IN: Count("Count", lambda s: s.report.moved_in),
}
"""With those that CloudWatch does not have: messages that were received for the first time, the sum
of their times since they were sent, and messages that came as dead letters or by a redrive."""


def has_metric(queue: str, metric: str) -> bool:
    """True if a queue of this name can have the metric."""
    row = METRICS.get(metric)
    if row is None or row.queues is Queues.ALL:
        return row is not None
    return queue.endswith(".fifo") is (row.queues is Queues.FIFO)
