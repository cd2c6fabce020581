"""The service's announcements at `webhook_url`, if there is one."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every, in_slices
from sqs_api.settings.outgoing_settings import secret_of
from sqs_api.webhook.announcer import SLICE, Announcer, Watch
from sqs_api.webhook.dead_letter_watch import DeadLetterWatch
from sqs_api.webhook.redrive_watch import RedriveWatch
from sqs_api.webhook.webhook_delivery import ATTEMPT_S, HttpPost, WebhookDelivery

WATCH_S = 5.0
"""Interval between two looks."""


class Look:
    """Looks at all queues once for several watches."""

    def __init__(self, queues: QueueView, watches: Sequence[Watch]) -> None:
        self.queues = queues
        self.watches = watches

    async def __call__(self) -> None:
        """Look."""
        for watch in self.watches:
            watch.begin()
        async for queues in in_slices(list(self.queues), SLICE):
            for watch in self.watches:
                watch.see(queues)
        for watch in self.watches:
            await watch.end()


def announcements(process: Process, queues: QueueView, router: Router) -> Feature:
    """Announce the first message of a dead-letter queue, and redrives that wait, stop or fail."""
    settings, clock, entropy, opened = process
    url, secret = settings.webhook_url, settings.webhook_secret
    if url is None or secret is None:
        return Feature()
    signing = secret_of(secret.get_secret_value())
    delivery = WebhookDelivery(HttpPost(url, ATTEMPT_S), signing, clock.wall_s)
    opened.push_async_callback(delivery.stop)
    announcer = Announcer(delivery.deliver, clock.wall_s, entropy.bits128, settings.public_url)
    letters = DeadLetterWatch(queues, router, announcer)
    redrives = RedriveWatch(router, announcer, clock.wall_s)
    return Feature(periodic=(Every(WATCH_S, Look(queues, (letters, redrives))),))
