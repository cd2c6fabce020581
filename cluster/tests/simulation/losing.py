"""A cluster of a simulated fleet is lost for good amid the work of the others: all its hosts end at
once, with their disks. An operator gives it up, and its queues answer again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random

from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.resizing import Resizer
from cluster.tests.simulation.simulated_client import name_of
from compat_tests.faults.fault_history import Loss
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import DELAYED, DEPARTURE, MESSAGE
from visibility.rows.row_values import Departure

_PATIENCE_S = 300.0


class Losing(Resizer):
    """The operator of a fleet."""

    def __init__(self, simulation: ClusterSimulation, random: Random) -> None:
        super().__init__(simulation, "losing", random)
        self._fleet = simulation

    async def lose(self, shard: int) -> None:
        """Lose the cluster of a shard; later its queues give up their parts there, one after the
        other, and at times not all in one go."""
        cluster = self._fleet.clusters[shard]
        await cluster.until(lambda: self._is_quiet(cluster), _PATIENCE_S)
        await asyncio.sleep(self.random.uniform(0, 10))
        await cluster.until(lambda: self._is_quiet(cluster), _PATIENCE_S)
        loss = self._loss(shard)
        self._fleet.history.losses.append(loss)
        self._fleet.switch_off(shard)
        self._fleet.note(f"the cluster of shard {shard} is lost, with {len(loss.held)} messages")
        await asyncio.sleep(self.random.choice((1, 5, 20)))
        known = self._fleet.machine.queues
        known.draining = frozenset({shard})
        known.removed_at_ms[shard] = 1
        for name in self._fleet.history.queues:
            known.give_up(self.queue(name), {shard}, self.shards)
            await asyncio.sleep(self.random.choice((0, 0, 0.1, 3)))
        self._fleet.note(f"the cluster of shard {shard} is given up")
        loss.ended = self._fleet.time.read()

    def _is_quiet(self, cluster: ShardCluster) -> bool:
        """True if faults are over, and the clusters are there."""
        return all(each.is_ending and each.leading() for each in self._fleet.clusters) and all(
            host.is_up for host in cluster.hosts.values()
        )

    def _loss(self, shard: int) -> Loss:
        """The messages that only this shard has now, and those on their way there. What departs to
        it is at both once it is accepted, until its clear, which may be under way."""
        lost = [*self._fleet.clusters[shard].hosts.values()]
        others = [each for each in self._fleet.clusters if each.number != shard]
        leaders = [each.leading() for each in others]
        followers = [host for each in others for host in each.hosts.values()]
        there = _in_queues(lost) | {name for name, _ in _departing(lost)}
        stays = _in_queues(leaders) | {name for name, to in _departing(leaders) if to != shard}
        coming = {name for name, to in _departing(followers) if to == shard}
        return Loss(frozenset(there - stays), frozenset(coming), self._fleet.time.read())


Hosts = Sequence[ShardHost | None]


def _in_queues(hosts: Hosts) -> set[str]:
    """The names of the messages in the queues of hosts. A follower may still have what its leader
    has no more."""
    return {
        _name(decode_row(StoredMessage, key, value))
        for key, value in _rows(hosts)
        if key[8:9] in (MESSAGE, DELAYED)
    }


def _departing(hosts: Hosts) -> Iterator[tuple[str, int]]:
    """The names of the messages in the outboxes of hosts, each with the shard it goes to."""
    for key, value in _rows(hosts):
        if key[8:9] == DEPARTURE:
            departure = decode_row(Departure, key, value)
            yield _name(departure.message), departure.to_shard


def _rows(hosts: Hosts) -> Iterator[tuple[bytes, bytes]]:
    for host in hosts:
        if host is not None and host.process is not None and host.process.rows is not None:
            yield from host.rows.items()


def _name(message: StoredMessage) -> str:
    return name_of(message.data.decode())
