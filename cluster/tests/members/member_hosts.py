"""Hosts of a cluster on the same records, as tests of its members need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from cluster.coordination.coordination import Conflict, Done, Unavailable, Unknown
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.members.host_lease import HostLease
from cluster.members.shard_keys import ShardKeys, ShardLeadership
from cluster.replication.leadership import Holder, Renewal, Seen, TermRecord

TTL_S = 3
LOG_ID = b"l" * 16
VOTERS = {"id-a": "a", "id-b": "b", "id-c": "c"}

T = TypeVar("T")


async def told(ask: Callable[[Callable[[T], None]], None]) -> T:
    """The outcome that a call tells later."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(outcome.set_result)
    assert not outcome.done()
    return await outcome


class Candidate:
    """A host that wants to lead."""

    def __init__(
        self, coordination: EtcdCoordination, name: str, ttl_s: int = TTL_S, **options: Any
    ) -> None:
        self.name = name
        self.lease = HostLease(coordination, ttl_s)
        self.keys = ShardKeys(coordination.below("leaders/"), self.lease)
        self._leaderships: dict[int, ShardLeadership] = {}

    def holder(self, term: int) -> Holder:
        return Holder(self.name, f"id-{self.name}", term)

    def of_shard(self, shard: int = 0) -> ShardLeadership:
        return self._leaderships.setdefault(shard, self.keys.of_shard(shard))

    async def read(self, shard: int = 0) -> Seen:
        seen = await told(self.of_shard(shard).read)
        assert isinstance(seen, Seen), seen
        return seen

    async def take(
        self, seen: Seen, term: int, shard: int = 0
    ) -> Done | Conflict | Unknown | Unavailable:
        leadership, record = self.of_shard(shard), TermRecord(term, LOG_ID, VOTERS)
        return await told(lambda done: leadership.take(seen, self.holder(term), record, done))

    async def taken(self, term: int, shard: int = 0) -> int:
        """Take a key that is free; returns the revision."""
        outcome = await self.take(await self.read(shard), term, shard)
        assert isinstance(outcome, Done), outcome
        return outcome.revision

    async def renew(self, term: int, shard: int = 0) -> Renewal:
        leadership = self.of_shard(shard)
        return await told(lambda done: leadership.renew(self.holder(term), done))

    async def stop(self) -> None:
        await self.keys.close()
        await self.lease.release()


async def gone(candidate: Candidate, shard: int = 0) -> None:
    """Wait until nobody holds the key."""
    async with asyncio.timeout(30):
        while (await candidate.read(shard)).holder is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
