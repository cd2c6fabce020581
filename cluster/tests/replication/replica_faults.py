"""Faults: one thing after the other goes wrong, and some of it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from cluster.replication.replica_messages import Append, Message
from cluster.tests.replication.cluster import Cluster
from cluster.tests.replication.host import Host
from storage.log.entry import Entry, read_entry

_PAUSES_S = (0.3, 1.0, 3.0, 6.0)


class Faults:
    """See above."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        often: tuple[str, ...],
        without: tuple[str, ...] = (),
    ) -> None:
        self._cluster = cluster
        self._random = random
        kinds: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "crash all": self._crash_all,
            "pause": self._pause,
            "cut a link": self._cut_a_link,
            "cut off": self._cut_off,
            "split": self._split,
            "isolate": self._isolate,
            "relay": self._relay,
            "churn": self._churn,
            "crash at a message": self._crash_at_a_message,
            "starve": self._starve,
            "network": self._trouble_the_network,
            "failing syncs": self._fail_syncs,
            "slow syncs": self._slow_down,
            "power cut in a call": self._cut_in_a_call,
            "short write": self._write_short,
            "clock": self._turn_a_clock,
            "coordination": self._trouble_coordination,
            "cut from coordination": self._cut_from_coordination,
            "restored coordination": self._restore_coordination,
            "new disk": self._replace_a_disk,
            "flipped bit": self._flip_a_bit,
            "hand over": self._hand_over,
            "damaged rows": self._damage_rows,
        }
        for name in without:
            del kinds[name]
        cluster.network.on_crash = self._crash_sender
        chosen = often or random.sample(list(kinds), 3)
        weight = 12 if often else 4
        self._kinds = list(kinds.values()) + [kinds[name] for name in chosen] * weight
        self._held_until = 0.0
        """Until then cuts are not mended."""
        self._down_until: dict[str, float] = {}
        self._pause_s = random.choice(_PAUSES_S)

    async def run(self, seconds: float) -> None:
        """Trouble the cluster for a time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await asyncio.sleep(self._random.uniform(0, 4))
        while loop.time() < end:
            self._random.choice(self._kinds)()
            self._mend()
            await asyncio.sleep(self._random.uniform(0, self._pause_s))

    def _mend(self) -> None:
        """Most of what is broken works again before long."""
        random, cluster = self._random, self._cluster
        if asyncio.get_running_loop().time() >= self._held_until:
            if random.random() < 0.4:
                cluster.network.cut.clear()
            if random.random() < 0.3:
                cluster.coordination.unreachable.clear()
        if random.random() < 0.3:
            cluster.network.heal()
        for host in cluster.hosts.values():
            is_held = self._down_until.get(host.name, 0.0) > asyncio.get_running_loop().time()
            if not host.is_up and not is_held and random.random() < 0.5:
                host.start()
            elif host.is_paused and random.random() < 0.4:
                host.resume()

    def _note(self, text: str) -> None:
        self._cluster.note(text)

    def _host(self) -> Host:
        """The leader more often than others."""
        hosts = list(self._cluster.hosts.values())
        serving = [host for host in hosts if host.serves]
        return self._random.choice(serving if serving and self._random.random() < 0.4 else hosts)

    # -- processes ---------------------------------------------------------------------------------

    def _crash(self) -> None:
        self._host().crash(is_power_loss=self._random.random() < 0.7)

    def _crash_all(self) -> None:
        for host in self._cluster.hosts.values():
            host.crash(is_power_loss=True)

    def _pause(self) -> None:
        host = self._host()
        if host.is_up and not host.is_paused:
            host.pause()
            self._note(f"{host.name} stopped")
            loop = asyncio.get_running_loop()
            loop.call_later(self._random.choice((0.5, 2.0, 4.0, 8.0)), host.resume)

    def _hand_over(self) -> None:
        """To any peer, also one that is not fit to lead."""
        host = self._host()
        if host.replica is not None and host.serves and not host.is_paused:
            heir = self._random.choice(host.replica.peers)
            self._note(f"{host.name} is to hand over to {heir}")
            host.enter(lambda: host.replica.hand_over(heir))  # type: ignore[union-attr]

    # -- the network -------------------------------------------------------------------------------

    def _cut_a_link(self) -> None:
        one, other = self._random.sample(self._cluster.names, 2)
        self._cluster.network.cut.add((one, other))
        self._note(f"{one} does not reach {other}")

    def _cut_off(self) -> None:
        name = self._host().name
        for other in self._cluster.names:
            self._cluster.network.cut.update({(name, other), (other, name)})
        self._note(f"{name} is cut off")

    def _split(self) -> None:
        names = self._random.sample(self._cluster.names, len(self._cluster.names))
        here, there = names[: len(names) // 2], names[len(names) // 2 :]
        for one in here:
            for other in there:
                self._cluster.network.cut.update({(one, other), (other, one)})
        self._note(f"{here} split off")

    def _trouble_the_network(self) -> None:
        network, random = self._cluster.network, self._random
        network.loss = random.choice((0.0, 0.05, 0.3))
        network.duplication = random.choice((0.0, 0.1))
        network.reordering = random.choice((0.0, 0.2, 1.0))
        network.delay_s = random.choice(((0.0002, 0.002), (0.001, 0.05), (0.001, 0.8)))
        self._note("the network is troubled")

    def _isolate(self) -> None:
        """A host loses its network: peers and coordination."""
        self._cut_off_wholly(self._host())

    def _cut_off_wholly(self, host: Host) -> None:
        if self._cluster.is_ending:
            return
        for other in self._cluster.names:
            self._cluster.network.cut.update({(host.name, other), (other, host.name)})
        self._cluster.coordination.unreachable.add(host.name)
        loop = asyncio.get_running_loop()
        self._held_until = loop.time() + self._random.uniform(2, 7)
        self._note(f"{host.name} is isolated")

    def _relay(self) -> None:
        """The leader is isolated; whoever leads next fails when the first one is back."""
        host = self._host()
        self._cut_off_wholly(host)
        asyncio.get_running_loop().call_later(0.5, self._swap, host, 20)

    def _swap(self, isolated: Host, patience: int) -> None:
        cluster, loop = self._cluster, asyncio.get_running_loop()
        serving = [host for host in cluster.hosts.values() if host.serves and host is not isolated]
        if cluster.is_ending or not patience:
            return
        if not serving:
            loop.call_later(0.3, self._swap, isolated, patience - 1)
        else:
            loop.call_later(self._random.uniform(0.05, 1.0), self._crash_and_heal, serving[0].name)

    def _crash_and_heal(self, name: str) -> None:
        if not self._cluster.is_ending:
            self._cluster.network.cut.clear()
            self._cluster.coordination.unreachable.clear()
            self._crash_sender(name)

    def _crash_at_a_message(self) -> None:
        host = self._host()
        self._cluster.network.until_crash[host.name] = self._random.choice((1, 2, 3, 5, 10, 20))
        host.disk.sync_s = self._random.choice(((0.0001, 0.002), (0.001, 0.02)))
        self._note(f"{host.name} will crash at a message")

    def _churn(self) -> None:
        """Each leader crashes soon after it took office, for a while."""
        loop = asyncio.get_running_loop()
        self._cluster.network.churn_until = loop.time() + self._random.choice((5, 15, 30))
        self._note("leaders do not last")

    def _starve(self) -> None:
        """Entries of their own term do not get through, and leaders crash one after the other."""
        self._cluster.network.drops = self._has_own_entries
        self._note("leaders ship only what is old")
        self._crash_leaders(self._random.randint(5, 30))

    def _crash_leaders(self, rounds: int) -> None:
        cluster, loop = self._cluster, asyncio.get_running_loop()
        if not rounds or cluster.is_ending:
            cluster.network.drops = None
            return
        for host in cluster.hosts.values():
            if host.leads and self._random.random() < 0.7:
                host.crash(is_power_loss=self._random.random() < 0.5)
                down_s = self._random.uniform(1.0, 8.0)
                self._down_until[host.name] = loop.time() + down_s
                loop.call_later(down_s, self._start, host.name)
        loop.call_later(self._random.uniform(0.2, 1.5), self._crash_leaders, rounds - 1)

    def _has_own_entries(self, sender: str, to: str, message: Message) -> bool:
        if not isinstance(message, Append):
            return False
        seed = self._cluster.hosts[sender].seed
        entries = [read_entry(record, 0, seed) for record in message.records]
        return any(isinstance(entry, Entry) and entry.term == message.term for entry in entries)

    def _crash_sender(self, name: str) -> None:
        self._cluster.hosts[name].crash(is_power_loss=self._random.random() < 0.8)
        loop = asyncio.get_running_loop()
        if self._random.random() < 0.3:
            other = self._random.choice(self._cluster.names)
            loop.call_later(0.01, self._cut_off_wholly, self._cluster.hosts[other])
        loop.call_later(self._random.uniform(0.05, 4.0), self._start, name)

    def _start(self, name: str) -> None:
        host = self._cluster.hosts[name]
        if not host.is_up:
            host.start()

    # -- disks -------------------------------------------------------------------------------------

    def _fail_syncs(self) -> None:
        host = self._host()
        host.disk.failing_syncs = self._random.choice((1, 1, 3))
        self._note(f"syncs of {host.name} fail")

    def _slow_down(self) -> None:
        host = self._host()
        host.disk.sync_s = self._random.choice(
            ((0.0001, 0.002), (0.001, 0.02), (0.01, 0.5), (2.0, 4.0))
        )
        self._note(f"syncs of {host.name} take {host.disk.sync_s}")

    def _cut_in_a_call(self) -> None:
        self._host().disk.calls_until_cut = self._random.choice((0, 1, 2, 5, 20))

    def _write_short(self) -> None:
        self._host().disk.short_writes = 1

    def _replace_a_disk(self) -> None:
        host = self._host()
        if self._cluster.may_lose(host):
            host.crash(is_power_loss=True)
            host.replace_disk()
            self._note(f"{host.name} gets a new disk")

    def _damage_rows(self) -> None:
        """A host replaces its rows by those of another, whatever its log holds."""
        host, source = self._random.sample(list(self._cluster.hosts.values()), 2)
        if host.take_rows(source):
            self._note(f"{host.name} has rows of {source.name}")

    def _flip_a_bit(self) -> None:
        host = self._host()
        if self._cluster.may_lose(host):
            host.crash(is_power_loss=self._random.random() < 0.7)
            if self._cluster.flip_a_bit(host):
                self._note(f"a bit of {host.name} flipped")

    # -- clocks and coordination -------------------------------------------------------------------

    def _turn_a_clock(self) -> None:
        host = self._host()
        host.ahead_s = self._random.choice((0.0, 3.0, -86_400.0, 86_400.0))
        host.speed = self._random.choice((1.0, 0.98, 1.02))
        self._note(f"the clock of {host.name} is {host.ahead_s} ahead")

    def _trouble_coordination(self) -> None:
        coordination, random = self._cluster.coordination, self._random
        coordination.snapshot()
        if random.random() < 0.5:
            coordination.lose_leader()
        else:
            coordination.be_away(random.uniform(0.5, 8.0))
        self._note("coordination is away")

    def _cut_from_coordination(self) -> None:
        name = self._host().name
        self._cluster.coordination.unreachable.add(name)
        self._note(f"{name} is cut from coordination")

    def _restore_coordination(self) -> None:
        if not self._cluster.record.served:
            return
        if self._random.random() < 0.3:
            self._cluster.coordination.forget()
            self._note("coordination was restored from nothing")
        else:
            self._cluster.coordination.restore()
            self._note("coordination was restored from an old snapshot")
