"""Deleted and purged queues on a host that does not lead their shard."""

from __future__ import annotations

from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.gateway.deletions import Deletions
from sqs_api.tests.keeping import HOUR_MS, MINUTE_MS, Kept
from visibility.contract.model import Request
from visibility.rules.kept_queues import RestoreMessages
from visibility.state.waiters import OnAnswer, Room, Ticket


class RouterElsewhere(Router):
    """Of a host that does not lead; notes what it would send to another host."""

    def __init__(self, shards: list[Shard]) -> None:
        super().__init__(shards)
        self.asked: list[Request] = []

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        self.asked.append(request)
        return super().submit(request, on_answer)


async def test_messages_are_restored_by_the_host_that_leads_at_once(kept: Kept) -> None:
    first = await kept.make()
    await kept.purge()
    elsewhere = RouterElsewhere([kept.follower()])
    watch = QueueWatch(kept.catalog, elsewhere)

    restored = await Deletions(kept.catalog, elsewhere, watch).restore(first.queue_id)
    await kept.deletions.settle()

    assert restored == kept.queue()
    assert not any(type(each.operation) is RestoreMessages for each in elsewhere.asked)
    assert await kept.received() == ["x"]


async def test_only_the_host_that_leads_ends_windows(kept: Kept) -> None:
    for name in ("a", "b"):
        await kept.make(name)
        await kept.delete(name)
        kept.clock.at_ms += MINUTE_MS
    elsewhere = Router([kept.follower()])
    other = Deletions(kept.catalog, elsewhere, QueueWatch(kept.catalog, elsewhere))

    await other.look(kept.clock.at_ms + HOUR_MS, disk_is_short=True)

    assert len(kept.deletions.all()) == 2
