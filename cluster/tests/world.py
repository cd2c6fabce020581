"""A shard on a MemoryStore that can fail, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from cluster.clock import Clock, Entropy
from cluster.shards.lead import Lead
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.shards.shard_report import ArchiveLimits
from cluster.tests.virtual_time import CountingEntropy, LoopClock
from storage.engines.store import StoreFailed
from storage.healing.rebuild import Healed
from storage.tests.memory_store import MemoryStore
from visibility.contract.errors import QueueError
from visibility.contract.model import Definitions, Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_codec import DamagedRecord
from visibility.state.shard_state import ShardState
from visibility.state.waiters import Ticket
from visibility.tests.prepared import KnownQueues


class FragileStore(MemoryStore):
    """Refuses commits or damages rows on command."""

    def __init__(self, *, auto_sync: bool) -> None:
        super().__init__(auto_sync=auto_sync)
        self.fails = False
        self.has_bug = False
        self.abandoned = 0
        self.closed = 0
        self.copied_for = 0
        """Number of times that it cannot be closed, because a backup copies from it."""
        self.unreadable: set[bytes] = set()
        """Rows in a damaged block."""
        self.reads = 0
        """Number of reads of messages by name."""

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        if self.has_bug:
            self.has_bug = False
            raise RuntimeError("a store that does not report its failure")
        if self.fails:
            self.fails = False
            raise StoreFailed("cannot write: no space left on device")
        super().append(body, queue_ids)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(begin, end):
            if key in self.unreadable:
                raise DamagedRecord(begin, "rows from here on cannot be read: a block's checksum")
            yield key, value

    def get(self, key: bytes) -> bytes | None:
        if key in self.unreadable:
            raise DamagedRecord(key, "it cannot be read: a block's checksum")
        return super().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.reads += 1
        return [self.get(key) for key in keys]

    async def heal(self, known: Mapping[int, bool]) -> list[Healed]:
        """Rows in the damaged block are left behind."""
        healed = await super().heal(known)
        self.unreadable = set()
        return healed

    def damage(self, *keys: bytes) -> None:
        """Damage the rows under these keys."""
        for key in keys:
            assert key in self.durable
            self.rows[key] = self.durable[key] = b"\x01rubbish"

    def commit_unnoticed(self) -> None:
        """Make what was appended durable, and report nothing: the leader falls before it knows."""
        self._waiting.clear()
        self.sync_all()

    def fail_to_sync(self) -> None:
        """Lose the Entries that were appended and not synced."""
        waiting = self._waiting
        self.crash()
        for done in waiting:
            done(StoreFailed("cannot sync: input/output error"))

    async def close(self) -> None:
        await super().close()
        self.closed += 1

    async def abandon(self) -> None:
        if self.copied_for:
            self.copied_for -= 1
            raise StoreFailed("a backup is just copying from it")
        self.crash()
        self.abandoned += 1


class AsSubmitted(KnownQueues):
    """Queues are as the latest requests say."""

    def renewed(self, request: Request) -> Request:
        return request


class AskedShard:
    """A request and all that was answered to it."""

    def __init__(self) -> None:
        self.answers: list[Answer | QueueError] = []
        self.ticket: Ticket

    @property
    def refusal(self) -> type[Answer | QueueError]:
        """The class of the only answer."""
        (answer,) = self.answers
        return type(answer)

    @property
    def bodies(self) -> list[str]:
        """The messages of the only answer."""
        (answer,) = self.answers
        assert isinstance(answer, Deliveries)
        assert None not in answer.messages
        return [message.data.decode() for message in answer.messages if message is not None]


class World:
    """One shard; with `auto_sync=False` nothing is durable before `sync`."""

    def __init__(
        self,
        *,
        auto_sync: bool = True,
        store: FragileStore | None = None,
        definitions: Definitions | None = None,
        archive: ArchiveLimits | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        remembers: bool = False,
        under_way_max: int = 1,
        number: int = 0,
    ) -> None:
        self.store = store or FragileStore(auto_sync=auto_sync)
        self.refuse_opening = 0
        self.opened = 0
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.order: list[AskedShard] = []
        """Answered requests, in order."""
        self.queues = AsSubmitted()
        self.shard = Shard(
            number,
            ShardParts(
                open_store=self._open,
                clock=clock or LoopClock(),
                entropy=entropy or CountingEntropy(),
                definitions=self.queues if definitions is None else definitions,
                archive=archive,
                remembers=remembers,
                under_way_max=under_way_max,
            ),
        )

    async def start(self, highest_queue_id: int | None = None) -> World:
        await self.shard.start(highest_queue_id)
        return self

    async def restarted(self) -> World:
        """Stop the shard; returns the world in which it begins anew with what is stored."""
        await self.shard.stop()
        return await World(store=self.store, definitions=self.queues).start()

    async def _open(self) -> FragileStore:
        await self.may_open.wait()
        if self.refuse_opening:
            self.refuse_opening -= 1
            raise StoreFailed("cannot open: no such device")
        self.opened += 1
        return self.store

    def ask(self, request: Request, age_ms: int = 0) -> AskedShard:
        """`age_ms` makes it a retry."""
        asked = AskedShard()
        self.queues.define(request.queue)

        def on_answer(answer: Answer | QueueError) -> None:
            asked.answers.append(answer)
            self.order.append(asked)

        asked.ticket = self.shard.submit(request, on_answer, age_ms)
        return asked

    async def asked(self, *requests: Request) -> list[AskedShard]:
        """Send requests, and let the shard do what it can do now."""
        all_asked = [self.ask(request) for request in requests]
        await settled()
        return all_asked

    async def sync(self) -> None:
        """Make everything durable, turn after turn."""
        for _ in range(10):
            self.store.sync_all()
            await settled()


def state_of(shard: Shard) -> ShardState:
    """The memory of a shard, which only its own code and tests may see."""
    return shard._state


def lead_of(shard: Shard) -> Lead:
    """The lead of a shard that has one."""
    lead = shard.lead
    assert lead is not None
    return lead


async def settled() -> None:
    """Let the loop do all that needs no time."""
    for _ in range(10):
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Let virtual time pass, and run what is due."""
    await asyncio.sleep(seconds)
    await settled()
