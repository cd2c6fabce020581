"""Users and keys of several hosts on the records of one coordination."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from cluster.clock import SystemEntropy
from cluster.coordination.background_loop import BackgroundLoop
from cluster.coordination.coordination import Change, Coordination, Snapshot
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import HttpWire
from cluster.coordination.shared_records import SharedRecords
from cluster.keys.keyring import Keyring, KeysAway
from cluster.keys.shared_keyring import SharedKeyring
from cluster.tests.coordinations import Hosts, simulated_hosts
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.key_folder import MASTER, Folder
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.virtual_time import SettableClock

KINDS = ["sqlite", "simulated", pytest.param("etcd", marks=pytest.mark.slow)]
"""A file, a model of etcd, and a real one."""
_SOON_S = 30.0


def soon(is_so: Callable[[], bool]) -> None:
    """Wait for something that another thread does soon."""
    end_s = time.monotonic() + _SOON_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.002)


class SharedHosts:
    """Opens records as another host has them."""

    def __init__(self, hosts: Hosts, loop: BackgroundLoop) -> None:
        self.hosts = hosts
        self.loop = loop
        self.coordinations: list[Coordination] = []

    def records(self, away: type[Exception] = KeysAway) -> SharedRecords:
        async def opened() -> Coordination:
            self.coordinations.append(self.hosts.host())
            return self.coordinations[-1]

        return SharedRecords(self.loop, opened, away)

    def snapshot(self) -> Snapshot:
        """The records of now."""

        async def read() -> Snapshot:
            found = await self.hosts.host().read_all()
            assert isinstance(found, Snapshot)
            return found

        return self.loop.run(read())

    def bytes(self) -> bytes:
        return b"".join(record.value for record in self.snapshot().records)

    def wait_for(self, records: SharedRecords) -> None:
        """Wait until a host shows everything."""
        revision = self.snapshot().revision
        soon(lambda: records.view.revision >= revision)


@contextmanager
def shared_hosts(request: pytest.FixtureRequest, kind: str) -> Iterator[SharedHosts]:
    """Hosts on a model of etcd, or on a real one."""
    loop = BackgroundLoop("hosts")
    if kind == "etcd":
        etcd: EtcdProcesses = request.getfixturevalue("etcd")
        hosts = Hosts(Access(etcd.endpoints), HttpWire)
    else:
        hosts = simulated_hosts()
    try:
        yield SharedHosts(hosts, loop)
    finally:
        loop.run(hosts.close())
        loop.close()


class SharedFolder(Folder):
    """A keyring in shared records, in place of a folder's."""

    def __init__(self, hosts: SharedHosts, stack: ExitStack) -> None:
        self.hosts = hosts
        self.entropy = SystemEntropy()
        self._stack = stack

    def open(
        self,
        master: bytes = MASTER,
        read_master: Callable[[], bytes] | None = None,
        owner: str | None = None,
    ) -> SharedKeyring:
        keyring = SharedKeyring(self.hosts.records(), master, SettableClock(), self.entropy)
        return self._stack.enter_context(closing(keyring))

    def bytes(self) -> bytes:
        return self.hosts.bytes()

    def take_over(self, keyring: Keyring) -> bool:
        assert isinstance(keyring, SharedKeyring)
        self.hosts.wait_for(keyring._records)
        return keyring.reload_if_changed()


@contextmanager
def key_folder(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[Folder]:
    """A folder's keyrings, or those of the hosts of a cluster."""
    with ExitStack() as stack:
        if kind == "sqlite":
            yield Folder(folder, stack)
        else:
            yield SharedFolder(stack.enter_context(shared_hosts(request, kind)), stack)


class Memory:
    """Hosts on a coordination whose outcomes and reports are as a test wants them."""

    def __init__(self, stack: ExitStack) -> None:
        self.coordination = MemoryCoordination()
        self.loop = BackgroundLoop("memory")
        self._stack = stack
        stack.callback(self.loop.close)

    def open(self, shown_s: float = 3.0) -> SharedRecords:
        async def opened() -> Coordination:
            return self.coordination

        records = SharedRecords(self.loop, opened, KeysAway, shown_s=shown_s)
        self._stack.callback(records.close)
        return records

    def report(self) -> None:
        """Report what was held back."""

        async def report() -> None:
            self.coordination.report()

        self.loop.run(report())


class Late:
    """The keyrings of two hosts; the watch of the second reports nothing until `report`."""

    def __init__(self, stack: ExitStack) -> None:
        self._memory = Memory(stack)
        self.coordination = self._memory.coordination
        self.one, self.other = self.open(), self.open()
        self._on_change = self.coordination._watchers[1]
        self._held: list[Change] = []
        self.coordination._watchers[1] = self._held.append

    def open(self) -> SharedKeyring:
        return SharedKeyring(self._memory.open(), MASTER, SettableClock(), SystemEntropy())

    def report(self) -> None:
        async def report() -> None:
            for change in self._held:
                self._on_change(change)

        self._memory.loop.run(report())
