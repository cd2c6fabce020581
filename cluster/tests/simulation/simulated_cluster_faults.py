"""Faults of a cluster with shards: those of its replicas, and of rows."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

from cluster.tasks import start_task
from cluster.tests.replication.cluster import Cluster
from cluster.tests.replication.replica_faults import Faults
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost

_WITHOUT = ("new disk", "flipped bit", "damaged rows", "restored coordination")
"""Faults that need more than a majority of logs: a checkpoint, or a record of all terms."""
_DAY_S = 86_400.0
FREEZE = "freeze"


class ShardFaults(Faults):
    """Causes one fault after the other."""

    def __init__(
        self,
        cluster: ShardCluster,
        random: Random,
        often: tuple[str, ...],
        without: tuple[str, ...] = (),
    ) -> None:
        of_replicas = tuple(name for name in often if name != FREEZE)
        super().__init__(cast("Cluster", cluster), random, of_replicas, _WITHOUT + without)
        self.shards = cluster
        self._kinds += [self._fail_flushes, self._stop_cleanly, self._freeze]
        self._kinds += [self._freeze] * (len(self._kinds) if FREEZE in often else 0)
        self._stopping: set[asyncio.Task[None]] = set()

    def _a_host(self) -> ShardHost:
        return self._random.choice(list(self.shards.hosts.values()))

    def cut_off_wholly(self, host: ShardHost) -> None:
        """A host loses its network for some seconds: peers and coordination."""
        self._cut_off_wholly(host)  # type: ignore[arg-type]

    def keep_down(self, host: ShardHost, seconds: float) -> None:
        """Let a host that has crashed start no sooner."""
        loop = asyncio.get_running_loop()
        self._down_until[host.name] = loop.time() + seconds
        self._note(f"{host.name} stays away for {seconds:.1f} s")

    def _fail_flushes(self) -> None:
        self._a_host().files.failing_flushes = self._random.randint(1, 3)
        self._note("flushes fail")

    def _stop_cleanly(self) -> None:
        host = self._a_host()
        if host.is_up and not host.is_paused and not self._stopping:
            self._note(f"{host.name} stops")
            start_task(self._stopping, self._stop(host))

    async def _stop(self, host: ShardHost) -> None:
        await host.stop()
        if self.shards.is_ending and not (self.shards.is_gone or host.is_up):
            host.start()

    def _freeze(self) -> None:
        """A leader stands still until another leads, and goes on before it hears of that."""
        host = self.shards.leading()
        if host is None or host.is_paused:
            return
        host.pause()
        self.cut_off_wholly(host)
        frozen_s = self._random.uniform(3, 8)
        loop = asyncio.get_running_loop()
        self._held_until = loop.time() + frozen_s + 2
        loop.call_later(frozen_s, host.resume)
        self._note(f"{host.name} is frozen")

    def _turn_a_clock(self) -> None:
        """At most one clock is wrong by more than a leader's may be."""
        host = self._a_host()
        others = [each for each in self.shards.hosts.values() if each is not host]
        some = (0.0, 3.0, -3.0)
        wrong = (-_DAY_S, _DAY_S) if all(abs(each.ahead_s) < 5 for each in others) else ()
        host.ahead_s = self._random.choice(some + wrong)
        host.speed = self._random.choice((1.0, 0.98, 1.02))
        self._note(f"the clock of {host.name} is {host.ahead_s} ahead")
