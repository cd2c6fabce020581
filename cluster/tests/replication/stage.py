"""A cluster for tests that tell one story, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any, TypeVar

from cluster.replication import ReplicaRole
from cluster.replication.replica_messages import Message
from cluster.tests.replication.cluster import Cluster
from cluster.tests.replication.host import TIMING, Host
from cluster.tests.virtual_time import VirtualLoop, failures_of

_PATIENCE_S = 60.0
S = TypeVar("S", bound="Stage")


class Stage(Cluster):
    """Three hosts, at first without faults."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(Random(1), size, 12 << 10)
        self.timing = TIMING._replace(batch_bytes=1, retained_bytes=8 << 10)
        self.coordination.ttl_s = 3.0

    def host(self, name: str) -> Host:
        return self.hosts[name]

    def join(self, name: str) -> Host:
        """Add a host, which begins as a learner."""
        host = self.hosts[name] = Host(self, name, Random(len(self.names)))
        self.names.append(name)
        host.start()
        for each in self.hosts.values():
            if each.replica is not None:
                each.replica.set_peers([other for other in self.names if other != each.name])
        return host

    async def leader(self, *, but: Host | None = None) -> Host:
        """Whoever serves, soon."""

        def serving() -> Host | None:
            return next(
                (host for host in self.hosts.values() if host.serves and host is not but), None
            )

        await self.until(lambda: serving() is not None)
        found = serving()
        assert found is not None
        return found

    def others(self, *hosts: Host) -> list[Host]:
        return [host for host in self.hosts.values() if host not in hosts]

    async def until(self, holds: Callable[[], bool], patience_s: float = _PATIENCE_S) -> None:
        """Wait until it is so."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        while not holds():
            assert loop.time() < end, [host.state() for host in self.hosts.values()]
            await asyncio.sleep(0.02)

    async def sent(self, host: Host, count: int = 1) -> bool:
        """Send messages; True if all were acknowledged."""
        return all([await self.send(host, 600) for _ in range(count)])

    def append(self, host: Host) -> None:
        """Send a message without waiting for its answer."""
        host.propose(b"unanswered", lambda done: None)

    def isolate(self, host: Host) -> None:
        """Cut it from its peers and from coordination."""
        self.cut_off(host)
        self.coordination.unreachable.add(host.name)

    def cut_off(self, host: Host) -> None:
        for other in self.names:
            self.network.cut.update({(host.name, other), (other, host.name)})

    def heal(self) -> None:
        self.network.cut.clear()
        self.network.drops = None
        self.coordination.end_faults()

    def only(self, host: Host) -> None:
        """Cut all others off from coordination, so that this host leads next."""
        self.coordination.unreachable.update(other.name for other in self.others(host))

    async def settled(self) -> None:
        """All are voters and have what was committed."""
        host = await self.leader()
        await self.sent(host)
        await self.until(self.are_whole)
        await self.until(lambda: len({each.applied for each in self.hosts.values()}) == 1)

    def drop(self, drops: Callable[[str, str, Message], bool]) -> None:
        self.network.drops = drops


def last_index(host: Host) -> int:
    """Of the host's log."""
    assert host.replica is not None
    return host.replica.log.last_index


def role_of(host: Host) -> ReplicaRole:
    assert host.replica is not None
    return host.replica.role


def staged_on(
    make: Callable[[], S],
) -> Callable[[Callable[[S], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a story on such a stage; no rule may be broken on the way."""

    def decorated(test: Callable[[S], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        @wraps(test)
        def run() -> None:
            stage = make()
            loop = VirtualLoop()
            failures = failures_of(loop)

            async def story() -> None:
                stage.start()
                await test(stage)

            try:
                loop.run_until_complete(story())
            finally:
                loop.close()
            assert not failures
            assert not stage.record.findings

        del run.__wrapped__
        return run

    return decorated


staged = staged_on(Stage)
