"""QueueSamples: the numbers of queues as they are now on this host, from its shards and gateway.

In a cluster each host knows a part: the leader of a queue's shard its messages, every host the
requests that it answered. `add_up` makes a whole of the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from cluster.shards.shard_report import COUNTS, GAUGES, QueueReport, add_reports
from sqs_api.gateway.queue_counts import GatewayCounts, QueueCounts
from sqs_api.periodic import in_slices
from visibility.contract.model import QueueDefinition

_SLICE = 20
"""Queues read before other work may run."""
_NOTHING: dict[str, Any] = dict.fromkeys((*GAUGES, *COUNTS), 0)


class QueueSample(msgspec.Struct, frozen=True):
    """A reading of one queue."""

    report: QueueReport
    gateway: GatewayCounts = GatewayCounts()
    is_led: bool = True
    """False on a host that does not know the queue's messages: then the report is zero."""

    @property
    def queue_id(self) -> int:
        """The queue."""
        return self.report.queue_id

    def without_details(self) -> QueueSample:
        """Without ages and groups, of which there is no sum."""
        return QueueSample(
            msgspec.structs.replace(self.report, oldest=None, groups=None), self.gateway
        )


class QueueSamples:
    """Reads the queues of this host."""

    def __init__(self, queues: QueueView, router: Router, counts: QueueCounts) -> None:
        self._queues = queues
        self._router = router
        self._counts = counts

    def depths(self) -> dict[int, int]:
        """Stored messages by queue id; without queues that never held any."""
        depths = Counter[int]()
        for queue_id, counts in self._router.counters().items():
            queue = self._queues.queue_of_id(queue_id)
            whole = queue.parts[0].queue_id if queue is not None and queue.parts else queue_id
            depths[whole] += counts.stored
        return depths

    async def read(
        self, queues: Iterable[QueueDefinition], detailed_ids: Collection[int]
    ) -> list[QueueSample]:
        """Samples of these queues, in slices that do not hold the loop; a queue that neither held a
        message nor was asked for one is left out. Only `detailed_ids` have ages and groups."""
        self._counts.keep(lambda queue_id: self._queues.queue_of_id(queue_id) is not None)
        samples: list[QueueSample] = []
        async for part in in_slices(list(queues), _SLICE):
            samples += self._slice(part, detailed_ids)
        return samples

    def _slice(
        self, queues: Sequence[QueueDefinition], detailed_ids: Collection[int]
    ) -> list[QueueSample]:
        reports = {report.queue_id: report for report in self._router.queues(queues, detailed_ids)}
        samples: list[QueueSample] = []
        for queue in queues:
            report, counts = reports.get(queue.queue_id), self._counts.of(queue.queue_id)
            if report is not None or any(counts):
                is_led = report is not None
                report = report or QueueReport(queue.queue_id, **_NOTHING)
                samples.append(QueueSample(report, counts, is_led))
        return samples


def add_up(samples: Sequence[QueueSample], queue_id: int) -> QueueSample:
    """The sum, with the oldest ages, and the groups that are known."""
    report = add_reports([each.report for each in samples])
    gateway = GatewayCounts(*map(sum, zip(*(each.gateway for each in samples), strict=True)))
    is_led = any(each.is_led for each in samples)
    return QueueSample(msgspec.structs.replace(report, queue_id=queue_id), gateway, is_led)


def add_up_all(parts: Iterable[Iterable[QueueSample]]) -> dict[int, QueueSample]:
    """By queue id, the sums of what several hosts know."""
    found: dict[int, QueueSample] = {}
    for samples in parts:
        for sample in samples:
            before = found.get(sample.queue_id)
            found[sample.queue_id] = (
                sample if before is None else add_up((before, sample), sample.queue_id)
            )
    return found
