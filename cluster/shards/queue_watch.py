"""QueueWatch: reports changed, deleted and purged queues to their shards.

It reports at the moment the view changes, before a request can use the new definition. So a shard
gets every change, in order, even if the request that caused it is cancelled. A shard that is away,
or a crash in between, loses nothing: a loading shard checks every queue, finishes each purge of the
view that its rows lack (`unfinished_purges`), and has no long polls.

Each host reports to its own shards only: the one that leads sees every change, too.
"""

from __future__ import annotations

import asyncio

from auth.caller import Caller
from cluster.catalog.catalog import Catalog
from cluster.catalog.queue_view import Kind, QueueChange
from cluster.shards.router import Router
from visibility.contract import operations as op
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer
from visibility.rules.closing_parts import CheckPart, PartsAdded
from visibility.rules.kept_queues import ContinueQueue
from visibility.rules.noted_parts import NoteParts
from visibility.rules.queues import CloseQueue, QueueChanged

PRINCIPAL = "operator"
"""Principal of requests that the service itself makes."""


def own_request(
    operation: op.Operation,
    queue: QueueDefinition,
    request_id: str = "",
    destination: QueueDefinition | None = None,
) -> Request:
    """A request that the service itself makes; without an id, it has that of the queue."""
    caller = Caller(queue.account, queue.region, PRINCIPAL)
    request_id = request_id or f"{PRINCIPAL}-{queue.queue_id}"
    return Request(operation, queue, caller, request_id, destination=destination)


_OPERATIONS: dict[Kind, op.Operation] = {
    Kind.CHANGED: QueueChanged(),
    Kind.DELETED: CloseQueue(),
    Kind.PURGED: ContinueQueue(),
    Kind.DRAINING: CheckPart(),
    Kind.SPLIT: PartsAdded(),
    Kind.PARTS: NoteParts(),
}


class QueueWatch:
    """Tells each shard of its queues."""

    def __init__(self, catalog: Catalog, router: Router) -> None:
        self._router = router
        self._reported: dict[asyncio.Future[None], int] = {}
        """Reports not yet confirmed by shards, with the id of the queue before the change."""
        catalog.subscribe(self._report)

    def _report(self, change: QueueChange) -> None:
        operation = _OPERATIONS.get(change.kind)
        queue = change.queue
        shard = self._router.shards.get(queue.shard)
        if operation is None or shard is None:  # another process has the shard
            return
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reported[confirmed] = queue.queue_id

        def on_answer(answer: Answer | QueueError) -> None:
            """Count a refusal as confirmed: a shard that is away reads the view when it loads."""
            del self._reported[confirmed]
            confirmed.set_result(None)

        shard.submit(own_request(operation, queue, destination=change.successor), on_answer)

    async def confirmed(self, *queue_ids: int) -> None:
        """Wait until the shards have confirmed all changes of these queues and parts."""
        reports = [future for future, named in self._reported.items() if named in queue_ids]
        if reports:
            await asyncio.wait(reports)
