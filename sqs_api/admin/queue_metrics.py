"""TABLE: the metrics of each queue, with CloudWatch's meanings.

Only the fullest queues, up to a cap, have labels of their own; the others are summed up, so that
ten thousand queues neither hold the loop nor swell the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from typing_extensions import override

from cluster.catalog.queue_view import QueueView
from sqs_api.admin.queue_samples import QueueSample, QueueSamples, add_up
from sqs_api.gateway.metrics import Source, add_histogram
from storage.histogram import Histogram
from visibility.contract.model import QueueDefinition

_LABELS = ("account", "region", "queue")
_OTHERS = ("(others)", "(others)", "(others)")
_GAUGES = {
    "visible": (
        "messages_visible",
        "Messages that can be received (ApproximateNumberOfMessagesVisible).",
    ),
    "in_flight": (
        "messages_not_visible",
        "Messages in flight (ApproximateNumberOfMessagesNotVisible).",
    ),
    "delayed": (
        "messages_delayed",
        "Messages whose delay is not over (ApproximateNumberOfMessagesDelayed).",
    ),
}
"""Name and text by the field of a QueueReport."""
_QUARANTINED = (
    "Messages that are stored and cannot be served, since they or rows that they need are damaged. "
    "In no other count."
)
_KEPT_QUARANTINED = (
    "The same of deleted and purged queues that are kept; restoring one leaves them behind."
)
_DEATHS = (
    "Dead letters that came to the queue, by cause; with hops those that moved by themselves too "
    "often and went from it to the archive."
)
_CLOCKS_AHEAD = (
    "Messages whose sender's clock was ahead, by sender, in a queue with holdfast:order: they "
    "count as sent when they arrived."
)
_DEAD_LETTERS = "Messages in a dead-letter queue, whatever their state; other queues have none."
_AGES = {
    "stored_ms": (
        "oldest_message_age_seconds",
        "Age of the oldest message that is stored, whatever its state.",
    ),
    "receivable_ms": (
        "oldest_receivable_message_age_seconds",
        "Age of the oldest message that could be received now.",
    ),
    "unspent_ms": (
        "approximate_age_of_oldest_message_seconds",
        "ApproximateAgeOfOldestMessage, as CloudWatch counts it: "
        "without messages that were received three times, and from the move in a dead-letter "
        "queue.",
    ),
}
"""Name and text by the field of `QueueReport.oldest`."""
_COUNTERS = {
    "sent": ("messages_sent", "Messages that were sent (NumberOfMessagesSent)."),
    "sent_bytes": ("sent_bytes", "Their size (the sum of SentMessageSize)."),
    "received": ("messages_received", "Messages that were handed out (NumberOfMessagesReceived)."),
    "deleted": ("messages_deleted", "Messages that were deleted (NumberOfMessagesDeleted)."),
    "expired": (
        "messages_expired",
        "Messages that were older than the retention period or their time to live.",
    ),
    "dropped": ("messages_dropped", "Messages that made room for others in a full queue."),
    "purged": ("messages_purged", "Messages that a purge removed."),
    "moved_in": (
        "messages_moved_in",
        "Messages that came from another queue, also as dead letters.",
    ),
    "moved_out": (
        "messages_moved_out",
        "Messages that went to another queue, also as dead letters.",
    ),
    "late": (
        "messages_late",
        "Messages that came too late for their place in the order of their senders' clocks "
        "(holdfast:order).",
    ),
}
"""Name and text by the field of a QueueReport."""
_OF_THE_GATEWAY = {
    "empty_receives": "Receives that returned no message (NumberOfEmptyReceives).",
    "messages_deduplicated": "Messages that were sent again within five minutes and not stored "
    "(NumberOfDeduplicatedSentMessages).",
    "limited_receives": "Receives that returned no message because of a limit in the queue's tags "
    "(holdfast:receive-rate, holdfast:max-in-flight): more consumers would not get more.",
    "messages_lost_to_clients": "Messages of queues with holdfast:delivery=at-most-once that were "
    "written to a connection that broke. They do not come again.",
    "messages_without_room": "Messages that were refused with OverLimit, as the queue was full "
    "(holdfast:max-messages, holdfast:max-bytes) or had too many scheduled ones.",
    "messages_throttled": "Messages that were refused with RequestThrottled to slow producers down "
    "(holdfast:throttle-depth, holdfast:throttle-age).",
}
"""In the order of `GatewayCounts`."""
_SEND_TO_RECEIVE = (
    "Time from the send of messages to their first receive, delays included{}, as this host "
    "answered them."
)
_GROUP_GAUGES = {
    "groups_in_flight": (
        "groups_with_inflight_messages",
        "Message groups of which a message is in flight.",
    ),
    "noisy_groups": ("noisy_groups", "Message groups of a fair queue that are noisy."),
    "visible_in_quiet_groups": (
        "messages_visible_in_quiet_groups",
        "Visible messages that are not of a noisy group.",
    ),
    "in_flight_in_quiet_groups": (
        "messages_not_visible_in_quiet_groups",
        "Messages in flight that are not of a noisy group.",
    ),
    "delayed_in_quiet_groups": (
        "messages_delayed_in_quiet_groups",
        "Delayed messages that are not of a noisy group.",
    ),
    "oldest_quiet_sent_ms": (
        "oldest_message_age_in_quiet_groups_seconds",
        "Age of the oldest message of a quiet group.",
    ),
}
"""Name and text by the field of `QueueReport.groups`, shown for queues that have groups in flight
or noisy ones."""


class SeenQueue(NamedTuple):
    """A reading of one queue, with its labels."""

    labels: tuple[str, str, str]
    sample: QueueSample
    takes_dead_letters: bool = False


class QueueMetrics(Source):
    """The queues of a host."""

    def __init__(
        self,
        queues: QueueView,
        samples: QueueSamples,
        send_to_receive_s: Histogram,
        wall_s: Callable[[], float],
        queues_max: int,
    ) -> None:
        """`queues_max`: number of queues with labels of their own."""
        self._queues = queues
        self._samples = samples
        self._send_to_receive_s = send_to_receive_s
        self._wall_s = wall_s
        self._queues_max = queues_max
        self._seen: list[SeenQueue] = []
        self._kept_quarantined = 0
        self._now_ms = 0.0

    @override
    async def read(self) -> None:
        queues = list(self._queues)
        shown = fullest(queues, self._samples.depths(), self._queues_max)
        samples = await self._samples.read(queues, shown)
        by_id = {sample.queue_id: sample for sample in samples}
        self._seen = capped(by_id, queues, shown, dead_letter_queue_ids(self._queues))
        kept = await self._samples.read([each.queue for each in self._queues.kept], ())
        self._kept_quarantined = sum(sample.report.quarantined for sample in kept)
        self._now_ms = self._wall_s() * 1000

    @override
    def collect(self) -> Iterator[Metric]:
        yield from families(self._seen, self._now_ms)
        yield GaugeMetricFamily(
            "holdfast_kept_messages_quarantined", _KEPT_QUARANTINED, self._kept_quarantined
        )
        family = HistogramMetricFamily(
            "holdfast_send_to_receive_seconds", _SEND_TO_RECEIVE.format("")
        )
        add_histogram(family, (), self._send_to_receive_s)
        yield family


def fullest(
    queues: Iterable[QueueDefinition], depths: Mapping[int, int], queues_max: int
) -> set[int]:
    """Ids of the queues with the most messages; those that never held any come last."""
    found = nlargest(queues_max, queues, key=lambda queue: depths.get(queue.queue_id, -1))
    return {queue.queue_id for queue in found}


def dead_letter_queue_ids(queues: QueueView) -> set[int]:
    """Ids of the queues to which messages of others go after too many receives."""
    targets = map(queues.dead_letter_queue, queues)
    return {target.queue_id for target in targets if target is not None}


def capped(
    samples: Mapping[int, QueueSample],
    queues: Iterable[QueueDefinition],
    shown: set[int],
    dead_letter_ids: set[int],
) -> list[SeenQueue]:
    """The shown queues with labels of their own, and the sum of the others."""
    seen: list[SeenQueue] = []
    others: list[QueueSample] = []
    for queue in queues:
        sample = samples.get(queue.queue_id)
        if sample is None:
            continue
        if queue.queue_id in shown:
            takes_dead_letters = queue.queue_id in dead_letter_ids
            labels = (queue.account, queue.region, queue.name)
            seen.append(SeenQueue(labels, sample, takes_dead_letters))
        else:
            others.append(sample)
    return [*seen, SeenQueue(_OTHERS, add_up(others, 0).without_details())] if others else seen


def families(seen: list[SeenQueue], now_ms: float) -> Iterator[Metric]:
    """All families of these queues, read at that time."""
    for field, (name, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"holdfast_queue_{name}", text, labels=_LABELS)
        for labels, sample, _ in seen:
            gauge.add_metric(labels, getattr(sample.report, field))
        yield gauge
    quarantined = GaugeMetricFamily("holdfast_messages_quarantined", _QUARANTINED, labels=_LABELS)
    for labels, sample, _ in seen:
        quarantined.add_metric(labels, sample.report.quarantined)
    yield quarantined
    dead_letters = GaugeMetricFamily("holdfast_queue_dead_letters", _DEAD_LETTERS, labels=_LABELS)
    for labels, sample, takes_dead_letters in seen:
        if takes_dead_letters:
            dead_letters.add_metric(labels, sample.report.stored)
    yield dead_letters
    deaths = CounterMetricFamily(
        "holdfast_queue_messages_dead_lettered", _DEATHS, labels=(*_LABELS, "cause")
    )
    for labels, sample, _ in seen:
        for cause, messages in sample.report.deaths.items():
            deaths.add_metric((*labels, cause), messages)
    yield deaths
    ahead = CounterMetricFamily(
        "holdfast_queue_sender_clocks_ahead", _CLOCKS_AHEAD, labels=(*_LABELS, "sender")
    )
    for labels, sample, _ in seen:
        for sender, messages in sample.report.clocks_ahead.items():
            ahead.add_metric((*labels, sender), messages)
    yield ahead
    yield from _age_families(seen, now_ms)
    for field, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"holdfast_queue_{name}", text, labels=_LABELS)
        for labels, sample, _ in seen:
            counter.add_metric(labels, getattr(sample.report, field))
        yield counter
    yield from _gateway_families(seen)
    yield from _group_families(seen, now_ms)


def _age_families(seen: list[SeenQueue], now_ms: float) -> Iterator[Metric]:
    for field, (name, text) in _AGES.items():
        gauge = GaugeMetricFamily(f"holdfast_queue_{name}", text, labels=_LABELS)
        for labels, sample, _ in seen:
            if sample.report.oldest is not None:
                gauge.add_metric(labels, age_s(now_ms, getattr(sample.report.oldest, field)))
        yield gauge


def _gateway_families(seen: list[SeenQueue]) -> Iterator[Metric]:
    for position, (name, text) in enumerate(_OF_THE_GATEWAY.items()):
        counter = CounterMetricFamily(f"holdfast_queue_{name}", text, labels=_LABELS)
        for labels, sample, _ in seen:
            counter.add_metric(labels, sample.gateway[position])
        yield counter
    times = SummaryMetricFamily(
        "holdfast_queue_send_to_receive_seconds",
        _SEND_TO_RECEIVE.format(" (sum and number of messages)"),
        labels=_LABELS,
    )
    for labels, sample, _ in seen:
        counts = sample.gateway
        times.add_metric(labels, counts.first_receives, counts.first_receive_ms / 1000)
    yield times


def _group_families(seen: list[SeenQueue], now_ms: float) -> Iterator[Metric]:
    for field, (name, text) in _GROUP_GAUGES.items():
        gauge = GaugeMetricFamily(f"holdfast_queue_{name}", text, labels=_LABELS)
        for labels, sample, _ in seen:
            groups = sample.report.groups
            if groups is None:
                continue
            value: float = getattr(groups, field)
            if field == "oldest_quiet_sent_ms":
                value = age_s(now_ms, groups.oldest_quiet_sent_ms)
            gauge.add_metric(labels, value)
        yield gauge


def age_s(now_ms: float, at_ms: int) -> float:
    """The age of something that began then, 0 if nothing did."""
    return max(0.0, now_ms - at_ms) / 1000 if at_ms else 0.0
