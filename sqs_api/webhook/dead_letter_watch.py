"""DeadLetterWatch: announces the first message of each dead-letter queue.

    {"type": "dead_letters.first", ..., "data": {..., "messages", "sources": [ARN, ...],
     "causes": {CAUSE: messages, ...}}}

`causes` tells why messages died that came since the last look, as far as the leader of the queue's
shard has seen.

A queue is announced again after it was seen empty. Announcements are remembered in memory only:
after a restart, or on a new leader of its shard, a queue that holds messages is announced once
more. Only the leader of a queue's shard announces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from cluster.shards.shard_report import QueueReport
from sqs_api.periodic import in_slices
from sqs_api.webhook.announcer import SLICE, Announcer, Watch
from visibility.contract.death import LATE, MAX_RECEIVES, OVER_LENGTH, QUEUE_DELETED
from visibility.contract.model import QueueDefinition

_FIRST = "dead_letters.first"
_NAMES_MAX = 5
"""Source queues that the text names."""
_CAUSES = {
    MAX_RECEIVES: "received too often",
    OVER_LENGTH: "over the queue's length",
    QUEUE_DELETED: "of a deleted queue",
    LATE: "came too late",
}
"""Causes of deaths that do not say it themselves."""


class DeadLetterWatch(Watch):
    """Watches the queues of this host."""

    def __init__(self, queues: QueueView, router: Router, announcer: Announcer) -> None:
        self._queues = queues
        self._router = router
        self._announcer = announcer
        self._sources: dict[int, list[QueueDefinition]] = {}
        """The queues whose dead letters go to each dead-letter queue, by its id."""
        self._seen: dict[int, QueueReport] = {}
        """Each queue at the last look."""
        self._holding: set[int] = set()
        """Queues that held messages at the last look."""

    @override
    def begin(self) -> None:
        self._sources = {}

    @override
    def see(self, queues: Sequence[QueueDefinition]) -> None:
        """Note where dead letters of these queues go."""
        for queue in queues:
            target = self._queues.dead_letter_queue(queue)
            if target is not None:
                self._sources.setdefault(target.queue_id, []).append(queue)

    @override
    async def end(self) -> None:
        """Announce queues that got a message since they were last seen empty."""
        sources, self._sources = self._sources, {}
        seen: dict[int, QueueReport] = {}
        holding: set[int] = set()
        async for queue_ids in in_slices(list(sources), SLICE):
            found = map(self._queues.queue_of_id, queue_ids)
            queues = {queue.queue_id: queue for queue in found if queue is not None}
            for report in self._router.queues(list(queues.values())):
                queue_id = report.queue_id
                seen[queue_id] = report
                if report.stored:
                    holding.add(queue_id)
                if queue_id not in self._holding and self._has_got_some(report):
                    self._announce(queues[queue_id], report, sources[queue_id])
        self._seen, self._holding = seen, holding

    def _has_got_some(self, report: QueueReport) -> bool:
        """True if the queue holds a message, or one came and went since the last look."""
        before = self._seen.get(report.queue_id)
        if report.stored or before is None:
            return report.stored > 0
        return report.sent + report.moved_in > before.sent + before.moved_in

    def _causes(self, report: QueueReport) -> dict[str, int]:
        before = self._seen.get(report.queue_id)
        known = {} if before is None or before.moved_in > report.moved_in else before.deaths
        return dict(Counter(report.deaths) - Counter(known))

    def _announce(
        self, queue: QueueDefinition, report: QueueReport, sources: Iterable[QueueDefinition]
    ) -> None:
        from_queues = sorted(sources, key=lambda source: source.arn)
        causes = self._causes(report)
        self._announcer.announce(
            _FIRST,
            queue,
            self._text(queue, report.stored, from_queues, causes),
            {
                "messages": report.stored,
                "sources": [source.arn for source in from_queues],
                "causes": causes,
            },
        )

    def _text(
        self,
        queue: QueueDefinition,
        messages: int,
        sources: Iterable[QueueDefinition],
        causes: Mapping[str, int],
    ) -> str:
        noun = "dead letter" if messages == 1 else "dead letters"
        names = _listed([each.name for each in sources])
        told = f"{queue.name} has {messages:,} {noun}, from {names}"
        if messages == 0:
            told = f"{queue.name} got dead letters from {names}, which have gone"
        died = ", ".join(
            f"{number:,} {_CAUSES.get(cause, cause)}" for cause, number in causes.items()
        )
        text = f"{told} ({died})." if died else f"{told}."
        place = self._announcer.place(queue)
        if place is None:
            return text
        return f"{text} What they failed for: {place}" if messages else f"{text} {place}"


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
