"""Depths: the messages of the queues of each host's shards, as records that outlive the host: when
a cluster is lost for good, they tell what was lost. They are written every twenty seconds.

depths/HOST    the shards that the host led, each with its deepest queues

Nobody watches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from cluster.coordination.coordination import Coordination, Transaction, Unavailable
from cluster.shards.router import Router

DEPTHS = "depths/"
DEPTHS_EVERY_S = 20.0
_QUEUES_MAX = 500
"""Queues of a shard that are named, those with the most messages; empty ones are not."""


class ShardDepth(msgspec.Struct, frozen=True):
    """A shard: messages by queue id, and those of the queues that are not named."""

    shard: int
    at_ms: int
    queues: dict[int, int]
    others: int = 0


class DepthBoard:
    """Those of one host, and what the others wrote."""

    def __init__(
        self, records: Coordination, host: str, router: Router, now_ms: Callable[[], int]
    ) -> None:
        """`records` are those below DEPTHS."""
        self._records = records
        self._host = host
        self._router = router
        self._now_ms = now_ms

    async def publish(self) -> None:
        """Replace this host's record. If etcd does not answer, the next one follows."""
        now_ms = self._now_ms()
        led = [shard for shard in self._router.shards.values() if shard.ready]
        found = [
            depth_of(shard.number, now_ms, {k: each.stored for k, each in shard.counters().items()})
            for shard in led
        ]
        if found:
            await self._records.commit(Transaction({}, {self._host: msgspec.json.encode(found)}))


def depth_of(shard: int, at_ms: int, messages: dict[int, int]) -> ShardDepth:
    """The record of a shard, by the messages of its queues."""
    deepest = sorted(filter(messages.get, messages), key=lambda each: -messages[each])
    named = {each: messages[each] for each in deepest[:_QUEUES_MAX]}
    return ShardDepth(shard, at_ms, named, sum(messages.values()) - sum(named.values()))


async def read_depths(records: Coordination, shards: Iterable[int]) -> dict[int, ShardDepth]:
    """The last record of each of these shards; without those that nobody published, and empty while
    etcd does not answer."""
    found, wanted = await records.read_all(), {*shards}
    latest: dict[int, ShardDepth] = {}
    if isinstance(found, Unavailable):
        return latest
    for record in found.records:
        try:
            said = msgspec.json.decode(record.value, type=list[ShardDepth])
        except msgspec.MsgspecError:
            continue  # of another version: what it tells is not known
        for each in said:
            before = latest.get(each.shard)
            if each.shard in wanted and (before is None or before.at_ms < each.at_ms):
                latest[each.shard] = each
    return latest
