"""Observed: the part of a shard that others may look into."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from cluster.clock import Clock
from cluster.shards.shard_report import (
    Phase,
    QueueReport,
    ShardReport,
    TimesReport,
    archive_report,
    queue_reports,
    times_reports,
)
from storage.histogram import Histogram
from visibility.contract.model import QueueCounters
from visibility.state.shard_state import ShardState

TURN_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
TURN_BOUNDS_REQUESTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)


class OnDeparture(Protocol):
    """Delivers messages of a shard to others."""

    def __call__(self, source: int, *, is_new: bool = False) -> None:
        """Messages departed; `is_new`: the shard begins to lead, and may have some."""


class Observed:
    """See above."""

    def __init__(self, number: int, clock: Clock, state: ShardState) -> None:
        self.number = number
        self.phase = Phase.LOADING
        self._clock = clock
        self._state = state
        self._turn_s = Histogram(TURN_BOUNDS_S)
        self._turn_requests = Histogram(TURN_BOUNDS_REQUESTS)
        self._failures = 0
        self._loaded_at_ms = 0

    @property
    def ready(self) -> bool:
        """True while requests are decided here; else they are answered ServiceUnavailable."""
        return self.phase is Phase.LEADING

    def report(self) -> ShardReport:
        """The shard's present state, without its queues."""
        return ShardReport(
            number=self.number,
            phase=self.phase,
            loaded_at_ms=self._loaded_at_ms,
            parked=len(self._state.waits),
            failures=self._failures,
            trusted_ms=self._clock.trusted_ms(self._clock.now_ms()),
            turn_s=self._turn_s.report(),
            turn_requests=self._turn_requests.report(),
            archive=archive_report(self._state.archive),
            outbox=len(self._state.outbox.departures),
            outbox_since_ms=self._state.outbox.since_ms,
        )

    def departs_to(self) -> set[int]:
        """The shards for which messages are in the outbox. O(those messages)."""
        return {each.to_shard for each in self._state.outbox.departures.values()}

    def counters(self) -> dict[int, QueueCounters]:
        """Counters by id of the queues that hold or held messages."""
        return {queue.queue_id: queue.counters() for queue in self._state.queues.values()}

    def queues(
        self, queue_ids: Iterable[int], detailed_ids: Container[int] = ()
    ) -> list[QueueReport]:
        """Report these queues, without those that never held a message; details may read rows."""
        looked_into = detailed_ids if self.ready else ()
        return queue_reports(self._state, queue_ids, looked_into, self._clock.now_ms())

    def times_in_queues(self, queue_ids: Iterable[int]) -> list[TimesReport]:
        """Report these queues and the times that deleted messages spent there."""
        return times_reports(self._state, queue_ids)

    def limit_archive(self, size_max: int) -> None:
        """Hand nothing over to the archive from now on above `size_max` bytes on disk."""
        self._state.archive.size_max = size_max
