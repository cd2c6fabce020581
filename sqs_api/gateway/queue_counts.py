"""QueueCounts: the gateway's counts of each queue, for metrics; the shards count the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from storage.histogram import Histogram
from visibility.contract.errors import OverLimit, QueueError, RequestThrottled
from visibility.contract.operations import Operation, SendMessageBatch
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageBatchResult

SEND_TO_RECEIVE_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    *(15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0),
)
_BOUNDS_MS = [bound_s * 1000 for bound_s in SEND_TO_RECEIVE_BOUNDS_S]


class GatewayCounts(NamedTuple):
    """The counts of one queue."""

    empty_receives: int = 0
    deduplicated: int = 0
    limited_receives: int = 0
    lost_to_clients: int = 0
    without_room: int = 0
    throttled: int = 0
    first_receives: int = 0
    first_receive_ms: int = 0


class QueueCounts:
    """By queue id."""

    def __init__(self) -> None:
        self.empty_receives: dict[int, int] = {}
        """Receives that returned nothing."""
        self.deduplicated: dict[int, int] = {}
        """Messages that were sent again within five minutes and not stored."""
        self.first_receives: dict[int, int] = {}
        """Messages that were received for the first time."""
        self.first_receive_ms: dict[int, int] = {}
        """The sum of their times since they were sent, delays included."""
        self.limited_receives: dict[int, int] = {}
        """Receives that returned nothing because of a limit of the queue's tags."""
        self.lost_to_clients: dict[int, int] = {}
        """Messages, delivered at most once, of answers whose connection broke."""
        self.without_room: dict[int, int] = {}
        """Messages that were refused as the queue was full."""
        self.throttled: dict[int, int] = {}
        """Messages that were refused to slow their producers down."""
        self.send_to_receive_s = Histogram(SEND_TO_RECEIVE_BOUNDS_S)
        """The same times, of all queues."""

    def received_none(self, queue_id: int, *, is_limited: bool) -> None:
        """Count a receive that returned nothing."""
        self.empty_receives[queue_id] = self.empty_receives.get(queue_id, 0) + 1
        if is_limited:
            self.limited_receives[queue_id] = self.limited_receives.get(queue_id, 0) + 1

    def lost(self, queue_id: int, messages: int) -> None:
        """Count messages that do not come again, of an answer whose connection broke."""
        self.lost_to_clients[queue_id] = self.lost_to_clients.get(queue_id, 0) + messages

    def sent_again(self, queue_id: int, messages: int) -> None:
        """Count messages that were sent again."""
        self.deduplicated[queue_id] = self.deduplicated.get(queue_id, 0) + messages

    def not_sent(
        self,
        queue_id: int,
        operation: Operation | None,
        answer: SendMessageBatchResult | QueueError,
    ) -> None:
        """Count messages of a send that the queue's tags refused."""
        entries = len(operation.entries or ()) if isinstance(operation, SendMessageBatch) else 1
        if isinstance(answer, SendMessageBatchResult):
            full = sum(each.code == OverLimit.code for each in answer.failed or ())
            if full:
                self.without_room[queue_id] = self.without_room.get(queue_id, 0) + full
        elif isinstance(answer, OverLimit):
            self.without_room[queue_id] = self.without_room.get(queue_id, 0) + entries
        elif isinstance(answer, RequestThrottled):
            self.throttled[queue_id] = self.throttled.get(queue_id, 0) + entries

    def received(self, queue_id: int, deliveries: Deliveries) -> None:
        """Count the time of messages that are received for the first time."""
        messages = taken_ms = 0
        buckets = self.send_to_receive_s.buckets
        for lease, message in zip(deliveries.leases, deliveries.messages, strict=True):
            if lease.receive_count == 1:
                waited_ms = lease.received_at_ms - message.sent_at_ms
                buckets[bisect_left(_BOUNDS_MS, waited_ms)] += 1
                messages += 1
                taken_ms += waited_ms
        if messages:
            self.send_to_receive_s.total += taken_ms / 1000
            self.first_receives[queue_id] = self.first_receives.get(queue_id, 0) + messages
            self.first_receive_ms[queue_id] = self.first_receive_ms.get(queue_id, 0) + taken_ms

    def of(self, queue_id: int) -> GatewayCounts:
        """The counts of a queue."""
        return GatewayCounts(*(counts.get(queue_id, 0) for counts in self._all()))

    @property
    def queue_ids(self) -> set[int]:
        """The queues of which anything was counted."""
        return set().union(*self._all())

    def add(self, queue_id: int, more: GatewayCounts) -> None:
        """Add what a gateway counted."""
        for counts, count in zip(self._all(), more, strict=True):
            if count:
                counts[queue_id] = counts.get(queue_id, 0) + count

    def keep(self, exists: Callable[[int], bool]) -> None:
        """Forget queues that do not exist any more."""
        for counts in self._all():
            for queue_id in [*counts]:
                if not exists(queue_id):
                    del counts[queue_id]

    def _all(self) -> tuple[dict[int, int], ...]:
        """In the order of `GatewayCounts`."""
        return (
            self.empty_receives,
            self.deduplicated,
            self.limited_receives,
            self.lost_to_clients,
            self.without_room,
            self.throttled,
            self.first_receives,
            self.first_receive_ms,
        )
