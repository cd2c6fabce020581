"""QuiescedHost: this host's part in a backup of its cluster, which any host may ask for.

    hold     no message goes from shard to shard, and no queue is changed, until
    release  which says if that was so all the time
    led      the shards that this host leads, with their terms and last committed Entries

A hold whose backup does not come back ends by itself. Hosts ask each other; no client can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
import structlog

from cluster.peers.questions import Question, Said
from cluster.replication.replicated_store import ReplicatedStore

ACTION = "BackupStep"
"""No page has it, so it is for other hosts only."""
HOLD_S = 60.0
"""Longer than a backup takes between its first checkpoint and its last."""


Quiesce = Callable[[], AbstractAsyncContextManager[None]]
"""Meanwhile no message goes from shard to shard, and this host changes no queue."""


class Step(msgspec.Struct, frozen=True):
    """A request of the host that makes the backup."""

    name: str
    token: str
    """The backup's token."""


class LedShard(msgspec.Struct, frozen=True):
    """A shard whose leader a majority has confirmed."""

    shard: int
    term: int
    committed: int
    """Index of the last committed Entry: all that was answered before is up to here."""


class StepDone(msgspec.Struct, frozen=True):
    """The answer."""

    is_held: bool = False
    led: list[LedShard] = []


class Hold:
    """Holds still for one backup at a time."""

    def __init__(self, quiesce: Quiesce) -> None:
        self._quiesce = quiesce
        self._token = ""
        self._released = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("backups")

    async def stop(self) -> None:
        """End a hold."""
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])

    async def begin(self, token: str) -> bool:
        """Hold still for a backup; False if that is done for another one."""
        if self._holding is not None and not self._holding.done():
            return False
        self._token, self._released = token, asyncio.Event()
        held = asyncio.Event()
        holding = self._holding = asyncio.create_task(self._held(held, self._released))
        holding.add_done_callback(lambda _: held.set())
        await held.wait()
        return not holding.done()

    async def _held(self, held: asyncio.Event, released: asyncio.Event) -> None:
        async with self._quiesce():
            held.set()
            try:
                async with asyncio.timeout(HOLD_S):
                    await released.wait()
            except TimeoutError:
                self._log.warning("backup_did_not_come_back", seconds=HOLD_S)

    def give_up(self) -> None:
        """Go on: the one that makes the backup is gone."""
        self._released.set()

    async def end(self, token: str) -> bool:
        """Go on; True if this host held still for that backup until now."""
        if token != self._token or self._holding is None or self._holding.done():
            return False
        self._released.set()
        await asyncio.wait([self._holding])
        return True


class QuiescedHost:
    """Holds and releases for the host that makes the backup."""

    def __init__(
        self,
        quiesce: Quiesce,
        stores: Callable[[], Mapping[int, ReplicatedStore]],
        leads: Callable[[int], bool],
    ) -> None:
        self._hold = Hold(quiesce)
        self._stores = stores
        self._leads = leads
        self.stop = self._hold.stop
        """Ends a hold."""

    async def answer(self, question: Question) -> Said:
        """The answer for the host that makes the backup."""
        step = msgspec.json.decode(question.body, type=Step)
        if step.name == "hold":
            done = StepDone(is_held=await self._hold.begin(step.token))
        elif step.name == "led":
            done = StepDone(led=await self._led())
        elif step.name == "release":
            done = StepDone(is_held=await self._hold.end(step.token))
        else:
            return Said(400, b'{"error": "there is no such step"}')
        return Said(200, msgspec.json.encode(done))

    async def _led(self) -> list[LedShard]:
        stores = self._stores().items()
        asked = [self._point(number, store) for number, store in stores if self._leads(number)]
        return [found for found in await asyncio.gather(*asked) if found is not None]

    async def _point(self, number: int, store: ReplicatedStore) -> LedShard | None:
        """The shard if this host leads it: a majority has confirmed its term after the question."""
        replica = store.replica
        found = LedShard(number, replica.journal.promise.term, replica.commit)
        said: list[bool] = []
        heard = asyncio.Event()

        def hear(is_confirmed: bool) -> None:
            said.append(is_confirmed)
            heard.set()

        store.confirm(hear)
        await heard.wait()
        return found if said[0] else None
