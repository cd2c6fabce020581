"""DeadLetterWatch: announces the first message of each dead-letter queue.

    {"type": "dead_letters.first", "timestamp", "text", "data": {"queue": ARN, "account", "region",
     "name", "messages", "sources": [ARN, ...], "causes": {CAUSE: messages, ...}}}

`text` says the same in a sentence: Slack, and what takes its messages, shows that.
`causes` tells why messages died that came since the last look, as far as the leader of the queue's
shard has seen.

A queue is announced again after it was seen empty. Announcements are remembered in memory only:
after a restart, or on a new leader of its shard, a queue that holds messages is announced once
more. Only the leader of a queue's shard announces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from cluster.shards.shard_report import QueueReport
from sqs_api.admin.routes import RESERVED
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every, in_slices
from sqs_api.settings.outgoing_settings import secret_of
from sqs_api.webhook.webhook_delivery import ATTEMPT_S, HttpPost, WebhookDelivery
from visibility.contract.death import LATE, MAX_RECEIVES, OVER_LENGTH, QUEUE_DELETED
from visibility.contract.model import QueueDefinition

WATCH_S = 5.0
"""Interval between two looks at the dead-letter queues."""
_SLICE = 100
"""Queues looked at before other work may run."""
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

Deliver = Callable[[str, bytes], None]
"""Takes the id and the body of an event."""


class DeadLetterWatch:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        queues: QueueView,
        router: Router,
        deliver: Deliver,
        wall_s: Callable[[], float],
        bits128: Callable[[], int],
        public_url: str | None = None,
    ) -> None:
        """With `public_url` the text has a link to the console."""
        self._queues = queues
        self._router = router
        self._deliver = deliver
        self._wall_s = wall_s
        self._bits128 = bits128
        self._public_url = public_url
        self._seen: dict[int, QueueReport] = {}
        """Each queue at the last look."""
        self._holding: set[int] = set()
        """Queues that held messages at the last look."""

    async def look(self) -> None:
        """Announce queues that got a message since they were last seen empty."""
        sources = await self._sources()
        seen: dict[int, QueueReport] = {}
        holding: set[int] = set()
        async for queue_ids in in_slices(list(sources), _SLICE):
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

    async def _sources(self) -> dict[int, list[QueueDefinition]]:
        """The queues whose dead letters go to each dead-letter queue, by its id."""
        found: dict[int, list[QueueDefinition]] = {}
        async for queues in in_slices(list(self._queues), _SLICE):
            for queue in queues:
                target = self._queues.dead_letter_queue(queue)
                if target is not None:
                    found.setdefault(target.queue_id, []).append(queue)
        return found

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
        body = {
            "type": _FIRST,
            "timestamp": datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="seconds"),
            "text": self._text(queue, report.stored, from_queues, causes),
            "data": {
                "queue": queue.arn,
                "account": queue.account,
                "region": queue.region,
                "name": queue.name,
                "messages": report.stored,
                "sources": [source.arn for source in from_queues],
                "causes": causes,
            },
        }
        self._deliver(f"msg_{self._bits128():032x}", msgspec.json.encode(body))

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
        if self._public_url is None:
            return text
        place = f"{self._public_url.rstrip('/')}{RESERVED}console#/queues/{queue.name}"
        return f"{text} What they failed for: {place}" if messages else f"{text} {place}"


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def announcements(process: Process, queues: QueueView, router: Router) -> Feature:
    """Announce the first message of a dead-letter queue, if there is an address for that."""
    settings, clock, entropy, opened = process
    url, secret = settings.webhook_url, settings.webhook_secret
    if url is None or secret is None:
        return Feature()
    signing = secret_of(secret.get_secret_value())
    delivery = WebhookDelivery(HttpPost(url, ATTEMPT_S), signing, clock.wall_s)
    opened.push_async_callback(delivery.stop)
    watch = DeadLetterWatch(
        queues, router, delivery.deliver, clock.wall_s, entropy.bits128, settings.public_url
    )
    return Feature(periodic=(Every(WATCH_S, watch.look),))
