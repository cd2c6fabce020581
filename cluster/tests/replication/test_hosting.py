"""Stores of a host on real folders: real rows, real files, and ids that are there before the
cluster."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from cluster.clock import SystemClock, SystemEntropy
from cluster.peers.link import OnMessage
from cluster.peers.peer_settings import CheckpointSettings, PeerSettings
from cluster.replication import Timing
from cluster.replication.checkpointing import ON_THIS_MACHINE, CheckpointTraffic
from cluster.replication.hosting import HostInCluster, HostParts, ReplicatedStores, replica_id_of
from cluster.shards.answers import NotDecided
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.shards.shard_report import Phase
from cluster.tests.peers.peers import Peer
from cluster.tests.peers.peers import start as connect
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.replication.replica_coordination import Coordination, HostLeadership
from storage.copies.checkpoint_files import SystemFiles
from storage.copies.replaced_rows import Replaced, make_incoming, replace_rows
from storage.copies.scrub import ScrubTimes
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions, log_folder
from storage.log import OLDEST_FORMAT
from storage.tests.store_places import SEGMENT_BYTES
from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_keys import message_key
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

Q = prepared.queue_named("q", 1)
LOG_ID = bytes(range(16))
NAMES = ["a", "b", "c"]
PATIENCE_S = 60.0
TIMING = Timing(heartbeat_s=0.05, quiet_s=0.1, silence_s=0.3, read_s=0.1)


class Wire:
    """Carries messages within the process."""

    def __init__(self) -> None:
        self.joined: dict[tuple[str, int], OnMessage] = {}

    def port(self, name: str) -> Port:
        return Port(self, name)


class Port:
    """A host's `Messages`."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    def join(self, shard: int, on_message: OnMessage) -> None:
        self._wire.joined[self._name, shard] = on_message

    def leave(self, shard: int) -> None:
        del self._wire.joined[self._name, shard]

    def send(self, host: str, shard: int, body: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._deliver, host, shard, body)

    def _deliver(self, host: str, shard: int, body: bytes) -> None:
        on_message = self._wire.joined.get((host, shard))
        if on_message is not None:
            on_message(self._name, body)


class FailingFiles(SystemFiles):
    """Files of which one sync of a folder may fail."""

    failing: Path | None = None

    def sync_folder(self, folder: Path) -> None:
        if folder == self.failing:
            self.failing = None
            raise OSError(errno.EIO, "Input/output error")
        super().sync_folder(folder)


class Cluster:
    """Three hosts in one process, each with a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        options: StoreOptions | None = None,
        retained_bytes: int = 1 << 20,
        scrub_times: ScrubTimes | None = None,
    ) -> None:
        self.folder = folder
        self.log_id = LOG_ID
        self.files = FailingFiles()
        self.options = options or StoreOptions(segment_bytes=SEGMENT_BYTES)
        self.scrub_times = scrub_times
        self.timing = TIMING._replace(retained_bytes=retained_bytes)
        network = SimulatedNetwork()
        self.links = {name: Peer(name, network, PeerSettings()) for name in NAMES}
        self.wire = Wire()
        self.coordination = Coordination(Random(1))
        self.peers = {name: [other for other in NAMES if other != name] for name in NAMES}
        self.stores = {name: self._stores(name) for name in NAMES}
        self.shards: dict[str, Shard] = {}

    def _stores(self, name: str) -> ReplicatedStores:
        return ReplicatedStores(
            HostInCluster(
                name,
                self.wire.port(name),
                peers=lambda: self.peers[name],
                leadership_of=lambda number: HostLeadership(
                    self.coordination, name, lambda work: work()
                ),
                log_id_of=lambda number: self.log_id,
                written_as=lambda: OLDEST_FORMAT,
                reluctance_s=lambda shard: 0.0,
            ),
            HostParts(
                self.options,
                SystemClock(),
                SystemEntropy(),
                has_space=lambda: True,
                has_much_space=lambda: True,
                place=ON_THIS_MACHINE._replace(files=self.files),
            ),
            CheckpointTraffic(
                self.links[name].transport,
                monotonic_s=SystemClock().monotonic_s,
                entropy=SystemEntropy(),
                settings=CheckpointSettings(reserve_bytes=1 << 20),
                scrub_times=self.scrub_times,
            ),
            timing=self.timing,
        )

    def rows_folder(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name / "shard-0"

    def found(self) -> None:
        entropy = SystemEntropy()
        ids = {replica_id_of(self.rows_folder(name), entropy): name for name in NAMES}
        self.coordination.found(LOG_ID, ids)

    async def start(self, name: str) -> None:
        shard = self.shards[name] = Shard(
            0,
            ShardParts(
                open_store=partial(self.stores[name].open, 0, self.rows_folder(name)),
                clock=SystemClock(),
                entropy=SystemEntropy(),
                definitions=KnownQueues(Q),
            ),
        )
        await shard.start()

    async def leader(self) -> str:
        def leading() -> list[str]:
            return [name for name in NAMES if self.shards[name].phase is Phase.LEADING]

        await until(lambda: bool(leading()))
        return leading()[0]

    async def answer(self, name: str, request: Request) -> Answer | QueueError:
        answered: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()
        self.shards[name].submit(request, answered.set_result)
        return await asyncio.wait_for(answered, PATIENCE_S)

    def rows(self, name: str) -> list[tuple[bytes, bytes]]:
        return list(self.stores[name].of(0).scan(b"", b"\xff" * 32))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_three_hosts_with_real_rows_hand_over_and_agree(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    first = await cluster.leader()
    for number in range(20):
        await cluster.answer(first, prepared.send(Q, f"m{number}"))

    await cluster.shards[first].stop()
    second = await cluster.leader()
    answer = await cluster.answer(second, prepared.receive(Q, 10))
    await cluster.start(first)

    assert second != first
    assert isinstance(answer, Deliveries)
    assert [message.data for message in answer.messages] == [b"m%d" % n for n in range(10)]
    report = cluster.stores[second].reports()[0]
    await until(lambda: len({cluster.stores[name].of(0).applied for name in NAMES}) == 1)
    assert cluster.rows(first) == cluster.rows(second)
    assert report.role == "leader"
    assert {peer.name for peer in report.peers} == set(NAMES) - {second}
    for name in NAMES:
        await cluster.shards[name].stop()


async def test_all_hosts_with_a_short_disk_flush_their_rows(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    leader = await cluster.leader()
    for number in range(5):
        await cluster.answer(leader, prepared.send(Q, f"m{number}"))
    stores = [cluster.stores[name].of(0) for name in NAMES]
    await until(lambda: len({store.applied for store in stores}) == 1)
    assert all(store.unflushed_rows for store in stores)

    for name in NAMES:
        cluster.stores[name].give_back_space()

    await until(lambda: all(store.flushed == store.applied for store in stores))
    assert not any(store.unflushed_rows for store in stores)
    for name in NAMES:
        await cluster.shards[name].stop()
        cluster.stores[name].give_back_space()  # a stopped store has nothing to give


async def test_what_is_applied_during_a_flush_is_not_durable_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 14."""
    cluster = Cluster(tmp_path)
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(Q, "before"))
    store = cluster.stores[leader].of(0)
    flush, goes_on, reached = store.rows.flush, threading.Event(), store.applied
    monkeypatch.setattr(store.rows, "flush", lambda: (goes_on.wait(20), flush()))
    cluster.stores[leader].give_back_space()
    await cluster.answer(leader, prepared.send(Q, "meanwhile"))
    await until(lambda: store.applied.index > reached.index > store.flushed.index)

    goes_on.set()
    await until(lambda: store.flushed.index >= reached.index)

    assert store.flushed == reached
    for name in NAMES:
        await cluster.shards[name].stop()


@pytest.mark.slow
async def test_a_host_that_joins_becomes_a_voter(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for name in NAMES:
        cluster.peers[name] = [other for other in ("a", "b") if other != name]
    entropy = SystemEntropy()
    ids = {
        await asyncio.to_thread(replica_id_of, cluster.rows_folder(name), entropy): name
        for name in ("a", "b")
    }
    cluster.coordination.found(LOG_ID, ids)
    for name in NAMES:
        await cluster.start(name)
    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(Q, "m"))

    for name in NAMES:
        cluster.peers[name] = [other for other in NAMES if other != name]

    await until(lambda: cluster.stores["c"].of(0).report().is_voter)
    leader = await cluster.leader()
    await until(lambda: all(peer.is_voter for peer in cluster.stores[leader].of(0).report().peers))
    await until(lambda: cluster.rows("c") == cluster.rows("a"))
    for name in NAMES:
        await cluster.shards[name].stop()


async def test_the_id_of_a_folder_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    folder, entropy = cluster.rows_folder("a"), SystemEntropy()
    first = await asyncio.to_thread(replica_id_of, folder, entropy)
    again = await asyncio.to_thread(replica_id_of, folder, entropy)
    await cluster.start("a")

    assert again == first
    assert cluster.stores["a"].reports()[0].replica_id == first
    await cluster.shards["a"].stop()


async def test_a_folder_that_lost_its_promise_says_so(tmp_path: Path) -> None:
    """It counts no more until others have made it a voter; two of those leave no leader."""
    cluster = Cluster(tmp_path)
    folder, entropy = cluster.rows_folder("a"), SystemEntropy()
    with capture_logs() as fresh:
        first = await asyncio.to_thread(replica_id_of, folder, entropy)
        await cluster.start("a")
    await cluster.shards["a"].stop()
    (log_folder(folder) / "promise").unlink()

    with capture_logs() as lines:
        other = await asyncio.to_thread(replica_id_of, folder, entropy)

    assert other != first
    (line,) = [line for line in lines if line["event"] == "replica_damaged"]
    assert (line["folder"], line["log_level"]) == (str(folder), "error")
    assert not [line for line in fresh if line["event"] == "replica_damaged"]


async def test_the_folder_of_another_cluster_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start("a")
    await cluster.shards["a"].stop()
    cluster.log_id = bytes(16)

    with pytest.raises(StoreFailed, match="cannot open"):
        await cluster.start("a")


async def test_rows_whose_mark_cannot_be_removed_are_closed_and_open_at_the_next_try(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.to_thread(cluster.found)
    await cluster.start("a")
    position = cluster.stores["a"].of(0).applied
    await cluster.shards["a"].stop()
    folder = cluster.rows_folder("a")
    await asyncio.to_thread(_replace_by_a_copy, folder, Replaced(LOG_ID, position))
    cluster.files.failing = folder

    with pytest.raises(StoreFailed, match="Input/output error"):
        await cluster.start("a")

    assert not cluster.wire.joined, "no message may reach a replica that is not used"
    await cluster.start("a")
    assert list(cluster.wire.joined) == [("a", 0)]
    await cluster.shards["a"].stop()


def _replace_by_a_copy(folder: Path, replaced: Replaced) -> None:
    """As if the rows had come from another host."""
    files = SystemFiles()
    incoming = make_incoming(files, folder)
    shutil.copytree(folder, incoming, dirs_exist_ok=True)
    replace_rows(files, folder, replaced)


@pytest.mark.slow  # seconds of real time pass
async def test_a_host_with_a_new_disk_gets_a_checkpoint_and_counts_again(tmp_path: Path) -> None:
    options = StoreOptions(segment_bytes=64 << 10, flush_bytes=64 << 10)
    cluster = Cluster(tmp_path, options=options, retained_bytes=64 << 10)
    await connect(cluster.links.values())
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    leader = await cluster.leader()
    lost = next(name for name in NAMES if name != leader)
    await cluster.shards[lost].stop()
    await asyncio.to_thread(shutil.rmtree, cluster.folder / lost)
    for number in range(100):
        await cluster.answer(leader, prepared.send(Q, f"{number}:".ljust(8_000)))
    await until(lambda: cluster.stores[leader].of(0).log_start > 10)

    await cluster.start(lost)
    await until(lambda: cluster.stores[lost].of(0).report().is_voter)

    await until(lambda: cluster.stores[lost].of(0).applied.index > 100)
    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(Q, "after"))
    await until(lambda: len({cluster.stores[name].of(0).applied for name in NAMES}) == 1)
    assert cluster.rows(lost) == cluster.rows(leader)
    assert cluster.shards[lost].report().failures == 1
    for name in NAMES:
        await cluster.shards[name].stop()
        await cluster.links[name].transport.stop()


@pytest.mark.slow
async def test_a_leader_with_a_damaged_row_gets_a_checkpoint_and_counts_again(
    tmp_path: Path,
) -> None:
    """Rule 20: the good copies of the other hosts stay, and replace it."""
    cluster = Cluster(tmp_path)
    await connect(cluster.links.values())
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    first = await cluster.leader()
    for number in range(5):
        await cluster.answer(first, prepared.send(Q, f"m{number}"))
    await cluster.shards[first].stop()
    damaged = await cluster.leader()
    store = cluster.stores[damaged].of(0)
    store.rows.write([message_key(1, 3), b"\x01rubbish"])
    await cluster.start(first)

    assert isinstance(await cluster.answer(damaged, prepared.receive(Q, 10)), NotDecided)

    leader = await cluster.leader()
    assert leader != damaged
    answer = await cluster.answer(leader, prepared.receive(Q, 10))
    assert isinstance(answer, Deliveries)
    assert [message.data for message in answer.messages] == [b"m%d" % n for n in range(5)]
    await until(lambda: cluster.stores[damaged].of(0) is not store)
    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(Q, "after"))
    await until(lambda: len({cluster.stores[name].of(0).applied for name in NAMES}) == 1)
    assert cluster.rows(damaged) == cluster.rows(leader)
    assert cluster.stores[damaged].of(0).report().is_voter
    for name in NAMES:
        await cluster.shards[name].stop()
        await cluster.links[name].transport.stop()


@pytest.mark.slow
async def test_a_scrub_finds_the_damage_of_a_follower_and_heals_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, scrub_times=ScrubTimes(start_s=0.1, rest_s=0.1))
    await connect(cluster.links.values())
    await asyncio.to_thread(cluster.found)
    for name in NAMES:
        await cluster.start(name)
    leader = await cluster.leader()
    for number in range(5):
        await cluster.answer(leader, prepared.send(Q, f"{number}:".ljust(20_000)))
    damaged = next(name for name in NAMES if name != leader)
    store = cluster.stores[damaged].of(0)
    await until(lambda: store.applied.index >= 5)
    await asyncio.to_thread(store.flush)
    table = max(store.folder.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)

    await until(lambda: cluster.stores[damaged].of(0) is not store)

    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(Q, "after"))
    await until(lambda: len({cluster.stores[name].of(0).applied for name in NAMES}) == 1)
    assert cluster.rows(damaged) == cluster.rows(leader)
    for name in NAMES:
        await cluster.shards[name].stop()
        await cluster.links[name].transport.stop()
