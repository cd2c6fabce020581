"""RaisedIds: no host of a cluster makes a queue before the ids of all shards count as issued.

A leader sees to that before it takes requests, see `issued_ids`. So a host that starts asks each
shard for an answer, once.
"""

from __future__ import annotations

import asyncio

from auth.caller import Caller
from cluster.shards.router import Router
from visibility.contract.model import Request
from visibility.contract.operations import ReadQueues
from visibility.rules.archive import the_shard

_CALLER = Caller("", "", "raised-ids")


class RaisedIds:
    """Belongs to the event loop's thread."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._unheard = set(router.shards)
        """Shards whose leader has not answered yet."""

    async def wait(self) -> None:
        """Wait for the leaders that have not answered yet. Raises ServiceUnavailable if one does
        not, although the request was held."""
        await asyncio.gather(*map(self._hear, self._unheard))

    async def _hear(self, shard: int) -> None:
        await self._router.ask(Request(ReadQueues(), the_shard(shard), _CALLER, "raised-ids"))
        self._unheard.discard(shard)
