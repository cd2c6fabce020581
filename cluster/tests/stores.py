"""Keys, users and records of several processes on the same records, of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from auth.envelope import DataKey
from cluster.catalog.host_records import FILE_NAME
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Change, Coordination, Snapshot
from cluster.coordination.records import Records
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.keys.identity_store import IdentityStore
from cluster.keys.key_owners import NamedKey
from cluster.keys.keyring import Keyring, KeysAway, Secrets
from cluster.tests.coordinations import Hosts, leasing
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.virtual_time import SettableClock, some_secrets

KINDS = ["sqlite", "simulated", pytest.param("etcd", marks=pytest.mark.slow)]
"""A file, a model of etcd, and a real one."""
MASTER = b"m" * 32
ACCOUNT = "000000000000"


class Place:
    """Records; each store that is opened has them as another process, or host, has them."""

    def __init__(
        self, stack: AsyncExitStack, records: Hosts | SqliteCoordination | MemoryCoordination
    ) -> None:
        self.records = records
        self.clock = SettableClock()
        self.entropy = SystemEntropy()
        self._stack = stack

    def coordination(self) -> Coordination:
        if isinstance(self.records, Hosts):
            return self.records.host()
        if isinstance(self.records, SqliteCoordination):
            return self.records.below("")
        return self.records

    async def opened(self, away: type[Exception] = KeysAway, shown_s: float = 3.0) -> Records:
        made = await Records.open(self.coordination(), away, shown_s)
        self._stack.push_async_callback(made.close)
        return made

    async def keyring(
        self, master: bytes = MASTER, owner: str = "", *, founds: bool = True
    ) -> Keyring:
        made = await Keyring.open(
            self.coordination(),
            master,
            self.clock,
            self.entropy,
            owner=owner,
            founds=founds,
            is_shared=not isinstance(self.records, SqliteCoordination),
        )
        self._stack.push_async_callback(made.close)
        return made

    async def identities(self, secrets: Secrets | None = None) -> IdentityStore:
        self.clock.at_ms += 1
        secrets = secrets or some_secrets()
        made = await IdentityStore.open(self.coordination(), secrets, self.clock, self.entropy)
        self._stack.push_async_callback(made.close)
        return made

    async def snapshot(self) -> Snapshot:
        """The records of now."""
        found = await self.coordination().read_all()
        assert isinstance(found, Snapshot)
        return found

    async def bytes(self) -> bytes:
        return b"".join(record.value for record in (await self.snapshot()).records)

    async def heard(self, *stores: Keyring | IdentityStore | Records) -> None:
        """Wait until these show everything."""
        for store in stores:
            await store.catch_up()


async def found(keyring: Keyring, number: int) -> tuple[NamedKey, DataKey]:
    """A data key, once the keyring knows of it."""
    while True:
        with suppress(KeysAway):
            return keyring.data_key(number)
        await asyncio.sleep(0.001)


@asynccontextmanager
async def opened_place(
    request: pytest.FixtureRequest, kind: str, folder: Path
) -> AsyncIterator[Place]:
    """A place of a kind."""

    def endpoints() -> tuple[str, ...]:
        etcd: EtcdProcesses = request.getfixturevalue("etcd")
        return etcd.endpoints

    async with AsyncExitStack() as stack:
        if kind == "sqlite":
            file = await SqliteCoordination.open(folder / FILE_NAME)
            stack.push_async_callback(file.close)
            yield Place(stack, file)
        else:
            yield Place(stack, await stack.enter_async_context(leasing(kind, endpoints)))


@asynccontextmanager
async def memory_place() -> AsyncIterator[tuple[Place, MemoryCoordination]]:
    """A place whose outcomes and reports are as a test wants them."""
    coordination = MemoryCoordination()
    async with AsyncExitStack() as stack:
        yield Place(stack, coordination), coordination


class Late:
    """The keyrings of two hosts; the watch of the second reports nothing until `report`."""

    def __init__(self, place: Place, coordination: MemoryCoordination) -> None:
        self.place = place
        self.coordination = coordination
        self.one: Keyring
        self.other: Keyring
        self._held: list[Change] = []

    async def open(self) -> Late:
        self.one, self.other = await self.place.keyring(), await self.place.keyring()
        self._on_change = self.coordination.watchers[1]
        self.coordination.watchers[1] = self._held.append
        return self

    def report(self) -> None:
        for change in self._held:
            self._on_change(change)


@asynccontextmanager
async def late_hosts() -> AsyncIterator[Late]:
    """Two hosts, of which the second hears late."""
    async with memory_place() as (place, coordination):
        yield await Late(place, coordination).open()
