"""An owner and a worker are built each alone, beside a stand-in of the other; a start that fails
closes what it opened, the last first."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster.catalog.catalog import Catalog
from cluster.clock import SystemClock, SystemEntropy
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring
from cluster.parts.shared_tasks import SharedTasks
from cluster.parts.split_queues import SplitQueues
from cluster.parts.unlocking import Unlocking
from cluster.shards.delivery import Deliveries
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from sqs_api.admin.backup_points import OwnPoint, quiesce
from sqs_api.admin.backups import Backups
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.usage_page import UsagePage
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.measures import Measures
from sqs_api.gateway.sealer import Sealer
from sqs_api.http.server import Server
from sqs_api.node import start_node
from sqs_api.owner import Owner
from sqs_api.parts import Process, parts_of
from sqs_api.service_records import Records, open_records
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.shards import Shards
from sqs_api.single_host import OwnStores, open_single_host
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.serving import ACCOUNT, REGION, Client, json_request
from sqs_api.worker import Worker
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store_options import Durability, StoreOptions
from storage.files.folder import open_folder
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener


class _OwnerStandIn(NamedTuple):
    catalog: Catalog
    keyring: Keyring
    identities: IdentityStore
    deletions: Deletions
    accounting: Accounting

    def note(self, event: str, **fields: object) -> None:
        """There is no audit log."""

    async def catch_up(self) -> None:
        """Nobody else changes users or keys."""


class _ShardsStandIn(NamedTuple):
    folders: Mapping[int, Path]
    router: Router
    queue_watch: QueueWatch
    disk: DiskSpace

    def store_of(self, number: int) -> FlushedRows:
        """Its rows are in memory."""
        raise NotImplementedError


class _Ground(NamedTuple):
    """The things that both are built on."""

    process: Process
    records: Records
    router: Router
    sealer: Sealer


@asynccontextmanager
async def _ground(data: Path) -> AsyncIterator[_Ground]:
    clock, entropy = SystemClock(), SystemEntropy()
    open_folder(data, 1)
    async with AsyncExitStack() as opened:
        settings = Settings(port=0, data=data, auth=AuthMode.OPEN)
        process = Process(settings, clock, entropy, opened)
        disk = DiskSpace(data, 0)
        host = await open_single_host(process, StoreOptions(Durability.FSYNC), disk)
        records = await open_records(process, host, [0])
        sealer = Sealer(records.keyring, clock, makes_keys=True)
        shard = Shard(
            0,
            ShardParts(
                open_store=opener(MemoryStore()),
                clock=clock,
                entropy=entropy,
                definitions=records.catalog,
                sealing=sealer,
            ),
        )
        await shard.start()
        opened.push_async_callback(shard.stop)
        yield _Ground(process, records, Router([shard]), sealer)


async def test_an_owner_needs_no_worker(tmp_path: Path) -> None:
    async with _ground(tmp_path / "data") as (process, records, router, _):
        catalog = records.catalog
        watch, disk = QueueWatch(catalog, router), DiskSpace(tmp_path, 0)
        deliveries = Deliveries(router, process.entropy)
        point = OwnPoint(lambda: quiesce(deliveries, catalog))
        shards = _ShardsStandIn({}, router, watch, disk)
        owner = Owner(process, records, shards, point, EveryHost())

        queue = await catalog.create_queue((ACCOUNT, REGION, "q"), {}, {})
        await owner.deletions.delete(queue)
        (kept,) = owner.deletions.all()
        await owner.stop()

    assert kept.queue == queue
    assert {Backups, UsagePage} <= parts_of(owner.features).keys()


async def test_a_worker_needs_no_owner(tmp_path: Path) -> None:
    async with _ground(tmp_path / "data") as (process, records, router, sealer):
        catalog, settings, clock = records.catalog, process.settings, process.clock
        watch = QueueWatch(catalog, router)
        owner = _OwnerStandIn(
            catalog,
            records.keyring,
            records.identities,
            Deletions(catalog, router, watch),
            Accounting(),
        )
        shards = Shards(
            {},
            catalog,
            OwnStores(StoreOptions(Durability.FSYNC), lambda shard: {}),
            DiskSpace(tmp_path, 0),
            sealer,
            router,
            SplitQueues(router, catalog, process.entropy, process.clock.wall_s),
            Deliveries(router, process.entropy),
            watch,
            Unlocking(router, catalog, process.entropy),
            SharedTasks(router, catalog, process.entropy, lost=()),
        )
        worker = Worker(
            process,
            owner,
            shards,
            Server(settings, clock.wall_s, inherited=None),
            EveryHost(),
            features=(),
            measures=Measures(clock.monotonic_s),
            doors=None,
            recorder=None,
        )

        async def no_pages(request: object) -> None:
            """There is no administrative side."""

        address = await worker.listen(no_pages)
        client = await Client.connected(address)
        made = await client.ask(json_request("CreateQueue", QueueName="q"))
        sent = await client.ask(json_request("SendMessage", QueueUrl="q", MessageBody="x"))
        received = await client.ask(json_request("ReceiveMessage", QueueUrl="q"))
        await client.close()
        worker.begin_to_stop()
        await worker.stop()

    assert (made.status, sent.status) == (200, 200)
    assert [each["Body"] for each in received.json["Messages"]] == ["x"]
    assert owner.accounting.requests()["SendMessage", 200] == 1


async def test_a_start_that_fails_late_closes_all_in_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    for kind in (Catalog, Shard, Deliveries):
        name = "close" if kind is Catalog else "stop"
        end = getattr(kind, name)

        async def ended(self: object, _end=end, _name=kind.__name__) -> None:  # type: ignore[no-untyped-def]
            closed.append(_name)
            await _end(self)

        monkeypatch.setattr(kind, name, ended)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NodeRefused, match="cannot listen on"):
            await start_node(Settings(data=tmp_path / "data", port=port))
    assert closed == ["Shard", "Deliveries", "Catalog"]

    node = await start_node(Settings(data=tmp_path / "data", port=0))
    await node.stop()
    assert closed == 2 * ["Shard", "Deliveries", "Catalog"]
