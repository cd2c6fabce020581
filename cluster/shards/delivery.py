"""Deliveries: carries messages from the outboxes of this host's shards to other shards, or to other
parts of a queue on the same one.

    read (its answer leaves when they are committed) → accept, there → clear, committed → forget

Each pair of shards has a task while there is something to do: one request at a time, in order. A
request that fails is made again after a pause, and does no harm if it had been decided. A shard
that comes to lead delivers what its predecessor left, and has the others forget what that cleared.
A shard delivers to itself what departs again, since another part of its target is here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Container
from contextlib import asynccontextmanager, suppress

import structlog

from auth.caller import Caller
from cluster.clock import Entropy
from cluster.shards.router import Router
from cluster.shards.shard_report import News
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Accepted, Answer, OutboxPage
from visibility.rows.row_values import TARGET_MOVED
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.departures import ClearOutbox, ReadOutbox

PAUSE_S = 0.05
"""Pause after a request that failed, or that brought nothing forward; doubled each time. One that
found only messages which wait in their place goes on when others depart."""
PAUSE_MAX_S = 5.0
_CALLER = Caller("", "", "deliveries")
Floors = list[tuple[bytes, int]]


class Deliveries:
    """Those that begin at this host's shards."""

    def __init__(
        self,
        router: Router,
        entropy: Entropy,
        shards: Collection[int] | None = None,
        lost: Container[int] = (),
    ) -> None:
        """`shards` are those of the service, or of the cluster; by default `router` has them all.
        Messages go to others, too, if it `goes_elsewhere`. `lost` are shards that will never answer
        again."""
        self._router = router
        self._shards = router.shards.keys() if shards is None else shards
        self._entropy = entropy
        self._lost = lost
        self._pairs: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._woken: defaultdict[tuple[int, int], asyncio.Event] = defaultdict(asyncio.Event)
        """Set once something departed since the pair's last delivery began."""
        self._waiting: set[tuple[int, int]] = set()
        """Pairs whose last delivery found only messages that wait in their place."""
        self._reported: dict[tuple[int, int], Floors] = {}
        """Floors below which each other shard last got to forget."""
        self._free = asyncio.Event()
        self._free.set()
        self._moving = 0
        self._moved_none = asyncio.Event()
        self._moved_none.set()
        self._is_stopping = False
        self._log = structlog.get_logger("deliveries")
        for shard in router.shards.values():
            shard.subscribe(self.wake)

    def wake(self, source: int, news: News) -> None:
        """Deliver the messages of a shard. One that just begins to lead has the others of its
        cluster forget what they took; those of other clusters hear it with the next departure."""
        all_shards, elsewhere = self._shards, self._router.goes_elsewhere
        targets = set(self._router.shards[source].departs_to())
        if news is News.LEADS:
            targets |= set(all_shards)
        for target in sorted(targets):
            if not self._is_stopping and (elsewhere or target in all_shards):
                self._begin((source, target))

    def _begin(self, pair: tuple[int, int]) -> None:
        self._woken[pair].set()
        if pair not in self._pairs:
            task = self._pairs[pair] = asyncio.create_task(self._run(pair))
            task.add_done_callback(lambda _: self._ended(pair))

    def _ended(self, pair: tuple[int, int]) -> None:
        del self._pairs[pair]
        if self._woken[pair].is_set() and not self._is_stopping:
            self._begin(pair)

    def begin_to_stop(self) -> None:
        """End all deliveries; what is left is delivered after the next start."""
        self._is_stopping = True
        for task in self._pairs.values():
            task.cancel()

    async def stop(self) -> None:
        """The same, and wait for their ends."""
        self.begin_to_stop()
        await asyncio.gather(*self._pairs.values(), return_exceptions=True)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Meanwhile no message goes from shard to shard, none is cleared, and no delete of a
        transaction is prepared; those that were are committed."""
        self._free.clear()
        shards = self._router.shards
        try:
            for shard in shards.values():
                shard.let_prepare(prepares=False)
            await self._moved_none.wait()
            for number in shards:
                with suppress(ServiceUnavailable):  # of another host
                    await self._ask(number, ReadOutbox(number))
            yield
        finally:
            for shard in shards.values():
                shard.let_prepare(prepares=True)
            self._free.set()

    # -- one pair ----------------------------------------------------------------------------------

    async def _run(self, pair: tuple[int, int]) -> None:
        """Deliver until nothing is left, or until this host does not lead the source any more."""
        failed_s = waited_s = PAUSE_S
        woken = self._woken[pair]
        while self._router.leads(pair[0]):
            woken.clear()
            self._waiting.discard(pair)
            while not self._free.is_set():
                await self._free.wait()
            self._moving += 1
            self._moved_none.clear()
            try:
                is_done = await self._deliver(pair)
            except QueueError as error:
                self._log.info("delivery_waits", source=pair[0], target=pair[1], reason=error.code)
                is_done = None
            except Exception:  # a bug, which must not keep the messages until the next departure
                self._log.exception("delivery_failed", source=pair[0], target=pair[1])
                is_done = None
            finally:
                self._moving -= 1
                if not self._moving:
                    self._moved_none.set()
            if is_done is not None:
                failed_s = waited_s = PAUSE_S
                if is_done and not woken.is_set():
                    return
            elif pair in self._waiting:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), waited_s)
                waited_s = min(2 * waited_s, PAUSE_MAX_S)
            else:  # not before, since a clear wakes the pair of what it lets depart again
                await asyncio.sleep(failed_s)
                failed_s = min(2 * failed_s, PAUSE_MAX_S)
        woken.clear()

    async def _deliver(self, pair: tuple[int, int]) -> bool | None:
        """Deliver one page; True if nothing is left, None if the other shard could take nothing
        yet. Raises QueueError."""
        source, target = pair
        page = await self._ask(source, ReadOutbox(target))
        assert isinstance(page, OutboxPage)
        is_lost = target in self._lost
        if not page.arrivals:
            if not is_lost:
                await self._forget(pair, page.floors)
            if page.waits:
                self._waiting.add(pair)
            return None if page.waits else True
        if is_lost:
            await self._take_back(source, page)
            return None
        accepted = await self._ask(target, AcceptMessages(page.arrivals, page.floors))
        assert isinstance(accepted, Accepted)
        if not accepted.outcomes:
            return None
        await self._ask(source, ClearOutbox(accepted.outcomes))
        asks = any(each.asks for each in page.arrivals)
        if not asks and all(reason for _, _, reason in accepted.outcomes):
            return None  # they go on when this host knows to where, or when their queue is back
        return False

    async def _take_back(self, source: int, page: OutboxPage) -> None:
        """Let messages for a lost shard depart to another part, or return to their queue."""
        taken = [(each.origin, each.number, TARGET_MOVED) for each in page.arrivals]
        await self._ask(source, ClearOutbox(taken))

    async def _forget(self, pair: tuple[int, int], floors: Floors) -> None:
        """Have the other shard forget what is cleared: the floors are committed."""
        if floors and self._reported.get(pair) != floors:
            await self._ask(pair[1], AcceptMessages([], floors))
            self._reported[pair] = floors

    async def _ask(self, shard: int, operation: Operation) -> Answer:
        request_id = f"{self._entropy.bits128():032x}"
        request = Request(operation, the_shard(shard), _CALLER, request_id)
        if isinstance(operation, AcceptMessages):
            return await self._router.ask(request)
        return await self._router.ask_here(request)
