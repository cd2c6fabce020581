"""Other hosts of a catalog that do as a test plans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from cluster.catalog.catalog_records import QueueName
from cluster.catalog.other_hosts import OtherHosts
from cluster.catalog.queue_view import QueueView


async def _shown(revision: int) -> None:
    """They show all at once."""


async def _heard() -> None:
    """All have been."""


class SharingHosts(OtherHosts):
    """They show what `spread` waits for."""

    is_shared = True

    def __init__(self, spread: Callable[[int], Awaitable[None]] = _shown) -> None:
        self._spread = spread

    @override
    async def spread(self, revision: int) -> None:
        await self._spread(revision)


class RaisingHosts(SharingHosts):
    """Their shards raise ids, or refuse."""

    may_lack_ids = True

    def __init__(self, ids_raised: Callable[[int], Awaitable[None]]) -> None:
        super().__init__()
        self._ids_raised = ids_raised

    @override
    async def ids_raised(self, shard: int) -> None:
        await self._ids_raised(shard)


class HearingHosts(OtherHosts):
    """Their shards are heard once `heard` returns, which a test may replace."""

    def __init__(self) -> None:
        self.heard: Callable[[], Awaitable[None]] = _heard

    @override
    async def all_heard(self) -> None:
        await self.heard()


class ChoosingHosts(OtherHosts):
    """New queues go where `chosen` says."""

    def __init__(self, chosen: Callable[[QueueView, QueueName], Sequence[int]]) -> None:
        self._chosen = chosen

    @override
    def choose(self, view: QueueView, name: QueueName) -> Sequence[int]:
        return self._chosen(view, name)
