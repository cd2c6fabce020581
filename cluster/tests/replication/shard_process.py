"""Process: one life of a host with a real shard over a replicated store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from cluster.clock import SystemClock
from cluster.peers.link import OnMessage
from cluster.peers.peer_settings import CheckpointSettings
from cluster.peers.transport import Transport
from cluster.replication import Leadership
from cluster.replication.checkpointing import CheckpointTraffic, RowsPlace
from cluster.replication.hosting import HostInCluster, HostParts, ReplicatedStores
from cluster.replication.replica_messages import Message, decode_message, encode_message
from cluster.replication.replicated_store import ReplicatedStore
from cluster.shards.delivery import Deliveries
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.shards.shard_report import News
from cluster.tests.replication.checkpoint_links import CheckpointLinks
from cluster.tests.replication.early_watch import EarlyWatch
from cluster.tests.replication.replica_coordination import HostLeadership
from cluster.tests.simulation.disk_of_life import LifeDisk
from cluster.tests.simulation.simulated_rows import SimulatedRows
from cluster.tests.simulation.simulated_worker import SimulatedEntropy
from storage.copies.scrub import ScrubTimes
from storage.engines.store import StoreFailed
from storage.log import OLDEST_FORMAT
from storage.log.disk import Done, Work
from storage.tests.simulated_disk import PowerCut
from visibility.contract.model import Request
from visibility.rules.acknowledge import ReturnMessages
from visibility.state.waiters import Ticket

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost

SHARD = 0
_STEP_S = 0.05
_T = TypeVar("_T")


class Checkpointing(NamedTuple):
    """Timing of checkpoints and scrubs."""

    settings: CheckpointSettings
    scrub_times: ScrubTimes


class _GatedDisk(LifeDisk):
    """A disk whose lanes tell a process only while it runs."""

    def __init__(self, host: ShardHost) -> None:
        super().__init__(host.disk)
        self._host = host

    def run(self, work: Work, done: Done) -> None:
        super().run(work, lambda error: self._host.enter(partial(self._tell, done, error)))

    def prepare(self, work: Work, done: Done) -> None:
        super().prepare(work, lambda error: self._host.enter(partial(self._tell, done, error)))

    def _tell(self, done: Done, error: Exception | None) -> None:
        if not self.is_over:
            done(error)


class CatalogOfProcess:
    """The catalog as one process has it: see `SharedCatalog`."""

    def __init__(self, cluster: ShardCluster) -> None:
        self._cluster = cluster
        self.times_restored = 0
        self.on_restored: list[Callable[[], None]] = []

    def went_back(self) -> None:
        """The watch reports records that are older."""
        self.times_restored += 1
        for call in self.on_restored:
            call()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


class Process:
    """One life of a host. It is its own `Messages`."""

    def __init__(self, host: ShardHost) -> None:
        self.host = host
        self.disk = _GatedDisk(host)
        self.rows: SimulatedRows | None = None
        self.store: ReplicatedStore | None = None
        self.early: EarlyWatch | None = None
        """None if all answers wait for a majority."""
        self._random = Random(host.random.getrandbits(64))
        self._on_message: OnMessage | None = None
        entropy = SimulatedEntropy(Random(host.random.getrandbits(64)))
        cluster = host.cluster
        self.clock = SystemClock(wall=host.wall_s, monotonic=host.monotonic_s)
        self.links: CheckpointLinks | None = None
        traffic = None
        place = RowsPlace(
            host.folders,
            open_rows=self._open_rows,
            read_rows=host.folders.view,
            new_disk=lambda: self.disk,
            in_thread=self._in_thread_of_life,
        )
        if cluster.checkpoints is not None:
            self.links = CheckpointLinks(self, Random(host.random.getrandbits(64)))
            traffic = CheckpointTraffic(
                cast("Transport", self.links),
                monotonic_s=host.monotonic_s,
                entropy=entropy,
                settings=cluster.checkpoints.settings,
                scrub_times=cluster.checkpoints.scrub_times,
                place=place,
            )
        self._stores = ReplicatedStores(
            HostInCluster(
                host.name,
                self,
                peers=partial(cluster.others, host.name),
                leadership_of=self._leadership_of,
                log_id_of=lambda number: cluster.log_id,
                written_as=lambda: OLDEST_FORMAT,
                reluctance_s=lambda shard: 0.0,
            ),
            HostParts(
                cluster.options._replace(in_thread=self._in_thread),
                self.clock,
                entropy,
                has_space=lambda: True,
                has_much_space=lambda: True,
                place=place,
            ),
            traffic,
            timing=cluster.timing,
        )
        self.deliveries: Deliveries | None = None
        """Carries messages to other shards, if there are several."""
        self.catalog = CatalogOfProcess(cluster)
        self.shard = Shard(
            cluster.number,
            ShardParts(
                open_store=self._open,
                clock=self.clock,
                entropy=entropy,
                definitions=cluster.queues,
                remembers=True,
                shared_catalog=cast("Catalog", self.catalog),
            ),
        )
        self._submit = self.shard.submit
        self.shard.submit = self._watched_submit  # type: ignore[method-assign]
        self.shard.subscribe(self._hear)
        cluster.began(self)

    def _hear(self, number: int, news: News) -> None:
        if news is News.LEADS and not self.is_over:
            self.host.cluster.leads()

    def _watched_submit(self, request: Request, *more: Any, **options: Any) -> Ticket:
        if isinstance(request.operation, ReturnMessages):
            self.host.cluster.given_back(request)
        return self._submit(request, *more, **options)

    @property
    def is_over(self) -> bool:
        """True once nothing it does reaches the disk, a peer or a client."""
        return self.disk.is_over

    async def start(self) -> None:
        """Start the shard; a disk that fails ends the process again."""
        try:
            await self.shard.start()
        except (PowerCut, StoreFailed) as error:
            if not self.is_over:
                self.host.crash(is_power_loss=isinstance(error, PowerCut))

    def end(self) -> None:
        """A crash: cut it off from everything."""
        self.disk.is_over = True
        if self.deliveries is not None:
            self.deliveries.begin_to_stop()
        self.shard.end_long_polls()  # so that it does not open its store again
        if self.store is not None:
            self.store.cut_off()
            self.store.replacement.cancel()
        if self.rows is not None:
            self.rows.crash()

    async def _open(self) -> ReplicatedStore:
        self.disk.list(self.host.folder)  # raises if this life is over
        if self.host.cluster.checkpoints is None:
            self.store = await self._stores.assemble(
                SHARD, self._open_rows(self.host.folder), self.disk
            )
        else:
            self.store = await self._stores.open(SHARD, self.host.folder)
        replica = self.store.replica
        replica.tick = partial(self._tick, replica.tick)  # type: ignore[method-assign]
        if self.store.answers_early:
            self.early = EarlyWatch(self.host.cluster, self.store, self.shard)
        return self.store

    def _open_rows(self, folder: Path) -> SimulatedRows:
        rows = self.rows = SimulatedRows(folder, self.host.folders.rows(folder), self._random)
        rows.on_write = partial(self.host.cluster.applied, self.host)
        rows.make_checkpoint = self.host.folders.write_rows
        return rows

    def _tick(self, tick: Callable[[], None]) -> None:
        if not self.host.is_paused:
            tick()

    async def _in_thread_of_life(self, work: Callable[[], _T], /) -> _T:
        """One step with the files of rows; who waits for it ends with the process."""
        if self.is_over:
            raise asyncio.CancelledError
        await asyncio.sleep(self._random.uniform(0, _STEP_S))
        if self.is_over:
            raise asyncio.CancelledError
        return work()

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """The work happens at some moment between now and the end."""
        longest_s = self.host.cluster.thread_s_max
        await asyncio.sleep(self._random.uniform(0, longest_s / 2))
        if self.is_over:
            await asyncio.get_running_loop().create_future()
        work()
        await asyncio.sleep(self._random.uniform(0, longest_s / 2))

    def _leadership_of(self, number: int) -> Leadership:
        return HostLeadership(self.host.cluster.coordination, self.host.name, self.enter)

    def enter(self, work: Callable[[], object]) -> None:
        """Do something in the process, once it runs."""
        self.host.enter(partial(self._run, work))

    def _run(self, work: Callable[[], object]) -> None:
        if not self.is_over:
            work()

    # -- Messages ----------------------------------------------------------------------------------

    def join(self, shard: int, on_message: OnMessage) -> None:
        self._on_message = on_message

    def leave(self, shard: int) -> None:
        self._on_message = None

    def send(self, host: str, shard: int, body: bytes) -> None:
        if not self.is_over:
            self.host.cluster.network.send(self.host.name, host, decode_message(body))

    def receive(self, sender: str, message: Message) -> None:
        """A message arrives."""
        self.enter(partial(self._received, sender, encode_message(message)))

    def _received(self, sender: str, body: bytes) -> None:
        if self._on_message is not None:
            self._on_message(sender, body)
