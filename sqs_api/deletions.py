"""Deletions: queues that clients deleted and an operator can still bring back, with their messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from auth.caller import Caller
from cluster.catalog import Catalog
from cluster.catalog_rows import DeletedQueue
from cluster.router import Router
from sqs_api.queue_actions import ask
from visibility import operations as op
from visibility.errors import QueueError, ServiceUnavailable
from visibility.model import QueueDefinition, Request

_PRINCIPAL = "operator"


class Deletions:
    """What the restore window is for. For every client these queues do not exist."""

    def __init__(self, catalog: Catalog, router: Router) -> None:
        self._catalog = catalog
        self._router = router
        self._tasks: set[asyncio.Task[QueueDefinition]] = set()
        self._to_drop: list[QueueDefinition] = []
        """Queues that the catalog forgot and whose messages are still there. What a stop leaves here, the start sweeps."""

    def all(self) -> list[DeletedQueue]:
        """The queues that can be restored now, the latest deleted first."""
        return self._catalog.deleted_queues()

    def restorable_until_ms(self, deleted: DeletedQueue) -> int:
        """When its window ends (epoch milliseconds)."""
        return deleted.deleted_at_ms + self._catalog.restore_window_ms

    async def restore(self, queue_id: int) -> QueueDefinition:
        """Bring a queue back, also if the caller is cancelled meanwhile.

        Raises QueueDoesNotExist and QueueNameExists, see `Catalog.restore_queue`.
        """
        task = asyncio.create_task(self._restore(queue_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _restore(self, queue_id: int) -> QueueDefinition:
        queue = await self._catalog.restore_queue(queue_id)
        with suppress(ServiceUnavailable):  # a shard that opens its store looks at every queue anew
            await ask(self._router, _request(op.QueueChanged(), queue))
        return queue

    async def drop_expired(self, now_ms: int) -> int:
        """Give up the queues whose window is over at `now_ms` (epoch), with their messages. Returns how many.

        Those whose shard cannot answer come again with the next call. Raises aiosqlite.Error.
        """
        self._to_drop += await self._catalog.take_expired_deletions(now_ms)
        waiting, self._to_drop = self._to_drop, []
        for queue in waiting:
            try:
                await ask(self._router, _request(op.DropQueue(), queue))
            except QueueError:
                self._to_drop.append(queue)
        return len(waiting) - len(self._to_drop)


def _request(operation: op.DropQueue | op.QueueChanged, queue: QueueDefinition) -> Request:
    caller = Caller(queue.account, queue.region, _PRINCIPAL)
    return Request(operation, queue, caller, f"{_PRINCIPAL}-{queue.queue_id}")
