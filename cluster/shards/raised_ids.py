"""RaisedIds: no host of a cluster makes a queue before the ids of all shards count as issued.

A leader sees to that before it takes requests, see `issued_ids`. So a host that starts asks each
shard for an answer, once.
"""

from __future__ import annotations

from auth.caller import Caller
from cluster.shards.router import Router
from visibility.contract.model import Request
from visibility.contract.operations import ReadQueues
from visibility.rules.archive import the_shard

_CALLER = Caller("", "", "raised-ids")
_NO_QUEUES = ReadQueues()
"""The cheapest request that a leader decides."""


class RaisedIds:
    """Belongs to the event loop's thread."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._unheard = set(router.shards)
        """Shards whose leader has not answered yet."""

    async def wait(self) -> None:
        """Wait for the leaders that have not answered yet. Raises ServiceUnavailable if one does
        not while the router holds the request."""
        for shard in sorted(self._unheard):
            request = Request(_NO_QUEUES, the_shard(shard), _CALLER, "raised-ids")
            await self._router.ask(request)
            self._unheard.discard(shard)
