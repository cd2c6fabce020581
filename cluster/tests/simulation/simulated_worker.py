"""One life of the worker: the real shard, router and store over simulated files and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from cluster.clock import SystemClock
from cluster.parts.shared_tasks import LOOK_S, SharedTasks
from cluster.parts.unlocking import Unlocking
from cluster.shards.delivery import Deliveries
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.row_consistency import check_rows
from cluster.tests.simulation.disk_of_life import LifeDisk, WatchedDisk
from cluster.tests.simulation.known_parts import KnownParts, split_queues
from cluster.tests.simulation.simulated_rows import RowFiles, SimulatedRows
from cluster.tests.simulation.time import WallClock
from cluster.tests.world import lead_of, state_of
from storage.engines import opening
from storage.engines.durable import DurableStore
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.log import Position
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import log_of
from visibility.contract.model import Request
from visibility.rows.row_keys import ARRIVAL, DEPARTURE
from visibility.rules.acknowledge import ReturnMessages
from visibility.state.waiters import Ticket
from visibility.tests.invariants import check_shard

_LOSS = "came back shorter"


class SimulatedEntropy:
    """Chance from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    @property
    def bits128(self) -> Callable[[], int]:
        """See `Entropy.bits128`."""
        return self._bits128

    def _bits128(self) -> int:
        return self._random.getrandbits(128)

    def secret(self, size: int) -> bytes:
        """See `Entropy.secret`."""
        return self._random.randbytes(size)


class ShardFiles:
    """The part of a shard that outlives the worker."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.folder = Path(f"/data/shard-{number}")
        self.files = RowFiles()
        self.entries: dict[tuple[int, int], int] = {}
        """Checksum of every body that was appended, by term and index."""
        self.before: dict[Position, Position] = {}
        """The Entry that each was appended behind."""


class Machine:
    """Everything that outlives the worker: its disk, its clock, and the definitions of the
    queues."""

    def __init__(self, random: Random, *, under_way_max: int, shards: int = 1) -> None:
        self.random = random
        self.disk = WatchedDisk(Random(random.getrandbits(64)))
        self.shards = [ShardFiles(number) for number in range(shards)]
        self.wall = WallClock()
        self.queues = KnownParts()
        self.given_back: Callable[[Request], object] = lambda request: None
        """Called when the messages of a receive are given back."""
        self.under_way_max = under_way_max
        self.segment_bytes = random.choice((20, 20, 32, 64)) << 10
        self.flush_bytes = self.segment_bytes * random.choice((1, 3)) // 2
        self.flush_rows = random.choice((40, 200, 2_000))
        self.flush_s_max = random.choice((0.01, 1.0, 10.0))
        self.flips = False
        """True to flip a bit of the log at a crash, until one cost an Entry."""
        self.part_seed = 0
        """Of the gateway's chance, for queues of several parts."""
        self.has_loss = False
        """True once a start reported lost Entries; then it is made to continue without them."""
        self.violations: list[str] = []


class Worker:
    """From a start to a crash or a clean stop."""

    def __init__(self, machine: Machine) -> None:
        self._disk = LifeDisk(machine.disk)
        loop = asyncio.get_running_loop()
        self.clock = SystemClock(wall=machine.wall.time, monotonic=loop.time)
        self.parts = [
            WorkerShard(machine, files, self._disk, self.clock) for files in machine.shards
        ]
        self.router = Router([part.shard for part in self.parts])
        entropy = SimulatedEntropy(Random(machine.random.getrandbits(64)))
        self.deliveries = Deliveries(self.router, entropy)
        self.split = split_queues(self.router, machine.queues, Random(machine.part_seed))
        self.unlocking = Unlocking(self.router, machine.queues, entropy)
        self.shared_tasks = SharedTasks(self.router, machine.queues, entropy, lost=())
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True once nothing it does reaches the disk or a client."""
        return self._disk.is_over

    async def start(self) -> None:
        """Open all shards."""
        for part in self.parts:
            await part.shard.start()
        self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while not self.is_over:
            await self.unlocking.look()
            await self.shared_tasks.look()
            await asyncio.sleep(LOOK_S)

    def end(self) -> None:
        """A crash: cut it off from everything."""
        self._disk.is_over = True
        self.deliveries.begin_to_stop()
        self.unlocking.stop()
        self.shared_tasks.stop()
        self.split.end_waiting()
        for part in self.parts:
            part.end()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.deliveries.stop()
        self.unlocking.stop()
        self.shared_tasks.stop()
        self.split.end_waiting()
        stops = [part.shard.stop() for part in self.parts]
        ends = await asyncio.gather(*stops, return_exceptions=True)
        self._disk.is_over = True
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    # -- looking in --------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that memory is sound, and that the rows agree with it."""
        for part in self.parts:
            part.check()

    def check_end(self) -> None:
        """Assert that no shard has or remembers a message of an outbox."""
        for part in self.parts:
            part.check_end()

    @property
    def is_moving(self) -> bool:
        """True while a move task runs, or a message is on its way between shards."""
        return any(part.is_moving for part in self.parts)


class WorkerShard:
    """One shard of a worker."""

    def __init__(
        self, machine: Machine, files: ShardFiles, disk: LifeDisk, clock: SystemClock
    ) -> None:
        self._machine = machine
        self._files = files
        self._random = Random(machine.random.getrandbits(64))
        self._disk = disk
        self._rows: SimulatedRows | None = None
        self.shard = Shard(
            files.number,
            ShardParts(
                open_store=self._open_store,
                clock=clock,
                entropy=SimulatedEntropy(Random(machine.random.getrandbits(64))),
                definitions=machine.queues,
                under_way_max=machine.under_way_max,
            ),
        )
        self._submit = self.shard.submit
        self.shard.submit = self._watched_submit  # type: ignore[method-assign]

    def _watched_submit(self, request: Request, *more: Any, **options: Any) -> Ticket:
        if isinstance(request.operation, ReturnMessages):
            self._machine.given_back(request)
        return self._submit(request, *more, **options)

    def end(self) -> None:
        """A crash."""
        self.shard.end_long_polls()  # so that it does not open its store again
        if self._rows is not None:
            self._rows.crash()

    # -- the store ---------------------------------------------------------------------------------

    async def _open_store(self) -> DurableStore:
        machine = self._machine
        self._disk.list(self._files.folder)  # raises if this life is over
        rows = SimulatedRows(self._files.folder, self._files.files, self._random)
        options = StoreOptions(
            accepts_loss=machine.has_loss,
            segment_bytes=machine.segment_bytes,
            flush_bytes=machine.flush_bytes,
            flush_rows=machine.flush_rows,
            monotonic_s=asyncio.get_running_loop().time,
            in_thread=self._in_thread,
            new_log_id=partial(self._random.randbytes, 16),
        )
        self._rows = rows
        self._watch_replay(rows)
        try:
            store = opening.assemble(rows, self._disk, options)
        except StoreFailed as error:
            if machine.flips and _LOSS in str(error):
                machine.has_loss = True
            elif not isinstance(error.__cause__, OSError) and not machine.has_loss:
                machine.violations.append(f"start refused: {error}")
            raise
        self._watch(store, rows)
        return store

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """The work happens at some moment between now and the end."""
        await asyncio.sleep(self._random.uniform(0, self._machine.flush_s_max / 2))
        if self._disk.is_over:
            await asyncio.get_running_loop().create_future()
        work()
        await asyncio.sleep(self._random.uniform(0, self._machine.flush_s_max / 2))

    def _watch_replay(self, rows: SimulatedRows) -> None:
        """Check that a start replays Entries one behind the other, as they were appended."""
        machine = self._machine
        last = rows.applied()

        def check_replayed(position: Position) -> None:
            nonlocal last
            is_behind = self._files.before.get(position) == last
            if not is_behind and not machine.has_loss:
                machine.violations.append(f"Entry {position.index} was replayed behind another")
            last = position

        rows.on_write = check_replayed

    def _watch(self, store: DurableStore, rows: SimulatedRows) -> None:
        """Check the rules that clients do not see: names of Entries, and rows only of committed
        ones."""
        log = log_of(store)
        append = store.append

        def append_noted(body: bytes, queue_ids: Sequence[int]) -> None:
            before = log.last
            append(body, queue_ids)
            self._files.before[log.last] = before
            name, checksum = (log.term, log.last_index), crc32(body)
            if self._files.entries.setdefault(name, checksum) != checksum:
                self._machine.violations.append(f"two Entries have term and index {name}")

        def check_written(position: Position) -> None:
            if position.index > log.synced_index:
                self._machine.violations.append(f"rows have Entry {position.index}, not synced")

        store.append = append_noted  # type: ignore[method-assign]
        rows.on_write = check_written

    # -- looking in --------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """True if memory, rows and log say the same: nothing is under way."""
        return self.shard.ready and not lead_of(self.shard)._under_way

    def check(self) -> None:
        """Assert that memory is sound, and that the rows agree with it."""
        assert self._rows is not None
        check_shard(state_of(self.shard))
        if self.is_at_rest:
            memory = MemoryStore()
            memory.rows = self._rows.rows
            check_rows(memory, state_of(self.shard))

    def check_end(self) -> None:
        """Assert that nothing is in the outbox, nor remembered of others."""
        assert self._rows is not None
        left = [key for key in self._rows.rows if key[8:9] in (ARRIVAL, DEPARTURE)]
        assert not left, f"shard {self.shard.number} has {len(left)} rows of outboxes"

    @property
    def is_moving(self) -> bool:
        """See Worker."""
        state = state_of(self.shard)
        return bool(state.outbox.departures) or any(
            task.is_active for queue in state.queues.values() for task in queue.tasks.values()
        )
