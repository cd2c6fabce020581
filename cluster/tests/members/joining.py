"""Hosts that register, found and join, on a model of etcd or a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

import pytest

from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Snapshot
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import Wire
from cluster.members.host_lease import HostLease
from cluster.members.member_records import Cluster, Identity, MembershipRefused
from cluster.members.membership import Me, Membership
from cluster.peers.peer_settings import Address
from cluster.tests.coordinations import Hosts
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import LoopClock

T = TypeVar("T")
FOUNDERS = ("a", "b", "c")
SHARDS = 3
TTL_S = 3


async def _at_once(work: Callable[[], T]) -> T:
    return work()


class World:
    """Folders of hosts, and what they share."""

    def __init__(self, shared: Hosts) -> None:
        self.all = shared
        self.folders: dict[str, Identity] = {}

    def wire(self) -> Wire | None:
        """A host's own way to etcd, None for the usual one."""
        return None

    def host(self, name: str, folder: str = "", **options: object) -> Host:
        return Host(self, name, folder or name, **options)  # type: ignore[arg-type]

    async def founded(self) -> list[Host]:
        hosts = [self.host(name) for name in FOUNDERS]
        await asyncio.gather(*[host.join() for host in hosts])
        return hosts

    async def records(self) -> dict[str, bytes]:
        found = await self.all.host().read_all()
        assert isinstance(found, Snapshot), found
        records = {record.key: record.value for record in found.records}
        return {key: value for key, value in records.items() if ".writers/" not in key}

    async def close(self) -> None:
        await self.all.close()


class Host:
    """A process of a host on its folder."""

    def __init__(
        self,
        world: World,
        name: str,
        folder: str,
        founders: tuple[str, ...] = FOUNDERS,
        shards: int = SHARDS,
        formats: int = 1,
        peer_address: str = "",
        first_shard: int = 0,
        below: str = "",
        *,
        is_disk_full: bool = False,
    ) -> None:
        self.name = name
        self.root = world.all.host(world.wire(), name=name)
        own = self.root.below(below) if below else self.root
        self.records = own.below("members/")
        self.lease = HostLease(self.root, TTL_S)
        self.is_removed = False
        self.heard: list[Mapping[str, Address]] = []
        identity = world.folders.setdefault(folder, Identity(f"id-{folder}"))
        self.membership = Membership(
            Me(
                name,
                peer_address or f"{name}.test:7000",
                "1.0",
                founders,
                range(first_shard, first_shard + shards),
                formats,
                cluster="holdfast",
                zone="",
            ),
            identity,
            root=own,
            records=self.records,
            lease=self.lease,
            entropy=SystemEntropy(),
            save=self._save,
            replica_ids=self._replica_ids,
            on_removed=self._removed,
            in_thread=_at_once,
            restored_records=dict,
        )
        self._folders, self._folder = world.folders, folder
        self._is_disk_full = is_disk_full
        self._is_running = False
        self.membership.subscribe(self.heard.append)

    def _replica_ids(self, shards: range) -> list[str]:
        if self._is_running:
            raise OSError("its replicas have the files open")
        return [f"{self._folder}-{shard}" for shard in shards]

    def fill_disk(self) -> None:
        self._is_disk_full = True

    def _save(self, identity: Identity) -> None:
        if self._is_disk_full:
            raise OSError("No space left on device")
        self._folders[self._folder] = identity

    def _removed(self) -> None:
        self.is_removed = True

    async def join(self) -> Cluster:
        joined = await self.membership.join()
        self._is_running = True
        return joined

    async def refused(self) -> str:
        with pytest.raises(MembershipRefused) as refused:
            await self.join()
        return str(refused.value)

    async def stop(self) -> None:
        await self.membership.close()
        await self.lease.release()
        await self.root.close()

    async def crash(self) -> None:
        """The process ends without a word."""
        await self.membership.close()
        await self.root.close()

    def drained(self) -> list[str]:
        return [name for name, host in self.membership.shown.hosts.items() if host.is_drained]

    def alive(self) -> list[str]:
        return sorted(self.membership.shown.alive)


def peers(*names: str) -> dict[str, Address]:
    return {name: Address(f"{name}.test", 7000) for name in names}


class SimulatedWorld(World):
    """On a model of etcd, in virtual time."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.etcd = SimulatedEtcd(self.random)
        self.wires: list[SimulatedWire] = []
        super().__init__(Hosts(Access(self.etcd.endpoints), self.wire, LoopClock()))

    def wire(self) -> SimulatedWire:
        """The wires are kept in the order in which hosts were made."""
        self.wires.append(SimulatedWire(self.etcd, self.random))
        return self.wires[-1]
