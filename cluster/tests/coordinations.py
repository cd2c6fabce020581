"""Coordinations of every kind, for the tests: several hosts on the same records."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.clock import Clock, SystemClock, SystemEntropy
from cluster.coordination.coordination import Coordination
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire, Wire
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire

_ETCD = pytest.param("etcd", marks=pytest.mark.slow)
KINDS = ["sqlite", "memory", "simulated", _ETCD]
SHARED = ["simulated", _ETCD]
"""Kinds with leases and several hosts."""
PAGE = 7
"""Small, so that a few records are several pages."""

_SOON_S = 30.0
"""Bound of what takes a few seconds at most, unless something is broken."""

MakeWire = Callable[[], Wire]


class Hosts:
    """Hosts that share records below a prefix of their own."""

    def __init__(self, access: Access, make_wire: MakeWire, clock: Clock | None = None) -> None:
        self.prefix = f"/test/{secrets.token_hex(8)}/"
        self.access = access
        self.clock = clock or SystemClock()
        self.make_wire = make_wire
        self._opened: list[EtcdCoordination] = []

    def host(self, wire: Wire | None = None, **options: Any) -> EtcdCoordination:
        """The coordination of one host; `options` are its own."""
        usual: dict[str, Any] = {
            "prefix": self.prefix,
            "name": f"host-{len(self._opened)}",
            "clock": self.clock,
            "entropy": SystemEntropy(),
            "page": PAGE,
        }
        made = EtcdCoordination(self.access, wire or self.make_wire(), **usual | options)
        self._opened.append(made)
        return made

    async def close(self) -> None:
        for each in self._opened:
            await each.close()


def simulated_hosts() -> Hosts:
    """Hosts on a model of etcd, in real time: its answers come at once, as nobody need wait."""
    random = Random(1)
    etcd = SimulatedEtcd(random)
    return Hosts(Access(etcd.endpoints), lambda: SimulatedWire(etcd, random, delay_s=0))


@asynccontextmanager
async def opened(
    kind: str, folder: Path, endpoints: Callable[[], tuple[str, ...]]
) -> AsyncIterator[Coordination]:
    """A coordination of a kind."""
    if kind in SHARED:
        async with leasing(kind, endpoints) as hosts:
            yield hosts.host()
        return
    made: Coordination = MemoryCoordination()
    if kind == "sqlite":
        made = await SqliteCoordination.open(folder / "catalog.sqlite")
    yield made
    await made.close()


@asynccontextmanager
async def leasing(kind: str, endpoints: Callable[[], tuple[str, ...]]) -> AsyncIterator[Hosts]:
    """Hosts on a coordination that has leases."""
    hosts = simulated_hosts() if kind == "simulated" else Hosts(Access(endpoints()), HttpWire)
    try:
        yield hosts
    finally:
        await hosts.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    async with asyncio.timeout(_SOON_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
