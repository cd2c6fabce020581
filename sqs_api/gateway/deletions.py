"""Deletions: delete, purge and restore queues, and drop those that can be restored no more.

For every client a deleted queue does not exist and a purged one is empty, from the answer on; in a
fleet, once the leader's watch reports it. The messages are kept for the restore window. Those of a
deleted queue whose tags say so leave for its dead-letter queue meanwhile, and before it is dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import structlog

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import KeptQueue, KeptState
from cluster.catalog.queue_view import Kind, QueueChange
from cluster.shards.queue_watch import QueueWatch, own_request
from cluster.shards.router import Router
from cluster.shards.shard_report import QueueReport
from cluster.tasks import start_task
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition
from visibility.contract.on_delete_tag import outlive
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Progress
from visibility.rules.kept_queues import DropQueue, RestoreMessages
from visibility.rules.on_delete import MoveDeleted

ANSWER_S = 2.0
"""A restore is answered after this time; what is left then follows."""
_LOOK_S = 0.05
_SOON_MS = 1_000
"""A longer pause ends the work on a queue until a later look."""
_LOOK_AGAIN_S = 60.0
"""Interval at which a queue is looked at that has nothing left."""
_LOST_MS = 600_000
_STEPS_MAX = 2
"""Steps of dropping and restoring that one Turn gets at most: each takes milliseconds of the event
loop."""


class Deletions:
    """The next look resumes work that an answer left unfinished.

    The host that leads a queue's shard drops and restores it; no step is sent to another host.
    """

    def __init__(self, catalog: Catalog, router: Router, watch: QueueWatch) -> None:
        self._catalog = catalog
        self._router = router
        self._watch = watch
        catalog.subscribe(self._on_change)
        self._log = structlog.get_logger("deletions")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steps = asyncio.Semaphore(_STEPS_MAX)
        self._busy = set[int]()
        """Queues whose messages are being dropped, restored or moved."""
        self._rests: dict[int, float] = {}
        """Queues that nothing can be done for before this time of the loop."""

    def report_unknown(self) -> None:
        """Log queues that the catalog does not know but that have messages: these are kept, out of
        reach."""
        known = {queue.queue_id for queue in self._catalog.all_queues()}
        known |= {kept.queue.queue_id for kept in self._catalog.kept}
        for queue_id, counters in self._router.counters().items():
            if queue_id not in known and counters.stored:
                self._log.error("queue_unknown", queue_id=queue_id, messages=counters.stored)

    # -- delete and purge --------------------------------------------------------------------------

    async def delete(self, queue: QueueDefinition, *, force: bool = False) -> None:
        """Delete a queue and end its long polls. Raises the errors of `Catalog.delete_queue`."""
        await self._catalog.delete_queue(queue, force=force)
        await self._confirmed(queue)

    async def purge(self, queue: QueueDefinition, *, force: bool = False) -> None:
        """Purge a queue. Raises the errors of `Catalog.purge_queue`."""
        await self._catalog.purge_queue(queue, force=force)
        await self._confirmed(queue)

    async def _confirmed(self, queue: QueueDefinition) -> None:
        """Wait for the shards of all its parts."""
        await self._watch.confirmed(*(part.queue_id for part in queue.all_parts()))

    # -- restore -----------------------------------------------------------------------------------

    def all(self) -> list[KeptQueue]:
        """The queues that can be restored now, the latest deleted first."""
        return self._catalog.restorable_queues()

    def restoring(self) -> list[KeptQueue]:
        """The purged queues, or parts of them, whose messages are being put back."""
        return self._catalog.kept.in_state(KeptState.RESTORING)

    def messages(self, restorable: list[KeptQueue]) -> list[int]:
        """Messages that restoring each of these queues would bring back."""
        return self._summed(restorable, lambda report: report.stored)

    def rescued(self, restorable: list[KeptQueue]) -> list[int]:
        """Messages of each of these queues that went to its dead-letter queue."""
        return self._summed(restorable, lambda report: report.rescued)

    def _summed(
        self, restorable: list[KeptQueue], number: Callable[[QueueReport], int]
    ) -> list[int]:
        sums = Counter[int]()
        queues = [
            kept.queue  # with its parts; of one that is being restored each part is here itself
            if kept.state is KeptState.KEPT
            else msgspec.structs.replace(kept.queue, parts=())
            for kept in restorable
        ]
        for report in self._router.queues(queues):
            sums[report.queue_id] += number(report)
        return [sums[kept.queue.queue_id] for kept in restorable]

    def restorable_until_ms(self, kept: KeptQueue) -> int:
        """End of its window (epoch milliseconds)."""
        return kept.deleted_at_ms + self._catalog.kept.window_ms

    async def restore(self, queue_id: int) -> QueueDefinition:
        """Restore a deleted queue, or the messages of a purged one; continues if the caller is
        cancelled.

        Returns the queue that has the messages, or gets them, see `restoring`: those in flight
        follow after their leases, and the rest if moving them takes long.
        Raises QueueDoesNotExist and QueueNameExists, see `Catalog.restore_queue`.
        """
        return await asyncio.shield(start_task(self._tasks, self._restore(queue_id)))

    async def _restore(self, queue_id: int) -> QueueDefinition:
        kept = self._catalog.kept.get(queue_id)
        parts = [] if kept is None else [each.queue for each in self._catalog.kept.together(kept)]
        free = {queue_id, *(part.queue_id for part in parts)} - self._busy
        self._busy |= free
        try:
            queue = await self._catalog.restore_queue(queue_id)
        finally:
            self._busy -= free
        if queue.queue_id == queue_id:
            await self._confirmed(queue)
        else:
            await asyncio.gather(*map(self._restore_part, parts))
        return queue

    async def _restore_part(self, purged: QueueDefinition) -> None:
        """Move the messages of one part, or of an unsplit queue, that are not in flight, in the
        background if it takes long."""
        if self._router.is_led_elsewhere(purged.shard):
            await self._restored_elsewhere(purged.queue_id)
        else:
            work = partial(self._restore_messages, waits=False)
            moving = start_task(self._tasks, self._undisturbed(purged.queue_id, work))
            await asyncio.wait([moving], timeout=ANSWER_S)

    async def _restored_elsewhere(self, queue_id: int) -> None:
        """Wait a little for the host that leads the shard, which sees that there is work."""
        for _ in range(round(ANSWER_S / _LOOK_S)):
            kept = self._catalog.kept.get(queue_id)
            if kept is None or kept.state is not KeptState.RESTORING:
                return
            await asyncio.sleep(_LOOK_S)

    async def _restore_messages(self, queue_id: int, *, waits: bool = True) -> None:
        """Move the messages of a purged queue to its successor; without `waits`, only those not in
        flight."""
        operation = RestoreMessages()
        while (kept := self._catalog.kept.get(queue_id)) is not None:
            successor = self._catalog.successor(queue_id)
            if successor is None or kept.state is not KeptState.RESTORING:
                await self._catalog.end_restoring(queue_id, KeptState.KEPT)
                return
            step = await self._step(operation, kept.queue, successor)
            if step.is_done:
                if step.left:
                    name = kept.queue.name
                    self._log.error(
                        "messages_not_restored", queue_id=queue_id, queue=name, messages=step.left
                    )
                state = KeptState.KEPT if step.left else KeptState.DROPPING
                await self._catalog.end_restoring(queue_id, state)
                return
            operation = RestoreMessages(step.next_sequence, step.blocked)
            if step.again_in_ms and not waits:
                return
            await asyncio.sleep(step.again_in_ms / 1000)

    # -- dead letters ------------------------------------------------------------------------------

    def _has_outliving(self, kept: KeptQueue) -> bool:
        """True if messages of a queue that is kept may leave now."""
        queue = kept.queue
        if kept.continued_as or not outlive(queue.settings, queue.arn):
            return False
        return not self._rests_now(kept)

    def _rest(self, queue_id: int, rest_s: float) -> None:
        """Leave the queue alone for this time, or until the next look."""
        self._rests[queue_id] = asyncio.get_running_loop().time() + rest_s

    def _rests_now(self, kept: KeptQueue) -> bool:
        return self._rests.get(kept.queue.queue_id, 0.0) > asyncio.get_running_loop().time()

    async def _move_deleted(self, queue_id: int) -> None:
        """Move what can leave now; what cannot, the next look goes on with."""
        kept = self._catalog.kept.get(queue_id)
        step: Progress | None = None
        while kept is not None and kept.state is KeptState.KEPT:
            step = await self._move_some(kept, step)
            if step.is_done or step.again_in_ms > _SOON_MS:
                rest_s = _LOOK_AGAIN_S if step.is_done else step.again_in_ms / 1000
                self._rest(queue_id, rest_s)
                return
            await asyncio.sleep(step.again_in_ms / 1000)
            kept = self._catalog.kept.get(queue_id)

    async def _move_all(self, kept: KeptQueue) -> None:
        """Move all messages of a queue that is to be dropped, or wait for the end of their
        retention."""
        if kept.continued_as or not outlive(kept.queue.settings, kept.queue.arn):
            return
        step = await self._move_some(kept, None)
        while not step.is_done:
            await asyncio.sleep(step.again_in_ms / 1000)
            step = await self._move_some(kept, step)
        if step.left:
            name = kept.queue.name
            self._log.warning("messages_not_rescued", queue=name, messages=step.left)

    async def _move_some(self, kept: KeptQueue, before: Progress | None) -> Progress:
        until_ms = kept.deleted_at_ms + kept.queue.settings.retention_ms
        operation = MoveDeleted(until_ms)
        if before is not None:
            operation = MoveDeleted(until_ms, before.next_sequence, before.blocked)
        return await self._step(operation, kept.queue)

    # -- drop --------------------------------------------------------------------------------------

    async def look(self, now_ms: int, *, disk_is_short: bool = False) -> None:
        """End the windows that are over at `now_ms` (epoch), and continue unfinished work. Raises
        ServiceUnavailable.

        On a disk that is short of space, the queue that was deleted or purged first goes at once.
        Clock and disk that count are those of the host that leads the first shard of
        a cluster, for the queues of that cluster.
        """
        self._rests.clear()
        shards = self._router.shards
        if shards and self._router.leads(min(shards)):
            await self._catalog.end_windows(now_ms, shards)
            if disk_is_short:
                await self._catalog.give_up_oldest(shards)
            await self._forget_lost(now_ms)
        self.go_on()

    async def _forget_lost(self, now_ms: int) -> None:
        """Forget tombstones on shards that are lost; requests under way find successors by them."""
        for kept in self._catalog.kept.in_state(KeptState.DROPPING):
            is_old = now_ms - kept.deleted_at_ms > _LOST_MS
            if is_old and kept.queue.shard in self._catalog.removed_at_ms:
                await self._catalog.forget_queue(kept.queue.queue_id)

    def _on_change(self, change: QueueChange) -> None:
        if change.kind is not Kind.CHANGED:  # without a window it is dropped at once
            self.go_on()

    def go_on(self) -> None:
        """Drop and restore queues in the background, as the catalog requires.

        The host that leads a queue's shard does it: the others would do the same.
        """
        for kept in self._catalog.kept.in_state(KeptState.DROPPING):
            if not self._rests_now(kept):
                self._begin(kept, self._drop)
        for kept in self._catalog.kept.in_state(KeptState.RESTORING):
            self._begin(kept, self._restore_messages)
        for kept in filter(self._has_outliving, self._catalog.kept.in_state(KeptState.KEPT)):
            self._begin(kept, self._move_deleted)

    def _begin(self, kept: KeptQueue, work: Callable[[int], Awaitable[None]]) -> None:
        queue_id = kept.queue.queue_id
        if queue_id not in self._busy and self._router.leads(kept.queue.shard):
            self._busy.add(queue_id)
            start_task(self._tasks, self._undisturbed(queue_id, work))

    async def _undisturbed(self, queue_id: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Do the work while nothing else happens to the queue, then start the work that follows."""
        self._busy.add(queue_id)
        try:
            await work(queue_id)
        except QueueError as error:  # the next look retries
            self._log.warning("kept_queue_waits", queue_id=queue_id, error=str(error))
            return
        except Exception:
            self._log.exception("kept_queue_failed", queue_id=queue_id)
            return
        finally:
            self._busy.discard(queue_id)
        self.go_on()

    async def _drop(self, queue_id: int) -> None:
        kept = self._catalog.kept.get(queue_id)
        assert kept is not None
        await self._move_all(kept)
        step = await self._step(DropQueue(), kept.queue)
        while not step.is_done:
            if step.again_in_ms > _SOON_MS:
                self._rest(queue_id, step.again_in_ms / 1000)
                return
            await asyncio.sleep(step.again_in_ms / 1000)
            step = await self._step(DropQueue(), kept.queue)
        self._rests.pop(queue_id, None)
        await self._catalog.forget_queue(queue_id)
        if kept.queue.is_home and not kept.continued_as:
            self._log.info("deleted_queue_dropped", queue_id=queue_id, queue=kept.queue.name)

    async def settle(self) -> None:
        """Wait until no queue is being dropped or restored."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Abandon drops and restores under way: the next start resumes them."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    # -- shards ------------------------------------------------------------------------------------

    async def _step(
        self, operation: Operation, queue: QueueDefinition, to: QueueDefinition | None = None
    ) -> Progress:
        async with self._steps:
            answer = await self._ask(operation, queue, to)
        assert isinstance(answer, Progress)
        return answer

    async def _ask(
        self, operation: Operation, queue: QueueDefinition, to: QueueDefinition | None = None
    ) -> object:
        return await self._router.ask_here(own_request(operation, queue, destination=to))
