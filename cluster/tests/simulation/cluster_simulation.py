"""ClusterSimulation: clients ask whoever leads, while hosts fall and rise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from math import ceil
from random import Random

import msgspec

from cluster.parts.split_receives import SplitReceive
from cluster.shards.answers import NotDecided
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.shard_process import Process
from cluster.tests.simulation.known_parts import is_of_all_parts, is_of_counters
from cluster.tests.simulation.simulated_cluster_parts import count_parts, split_of
from cluster.tests.simulation.simulated_worker import Machine
from cluster.tests.simulation.simulation import Call, ConnectionLost, Simulation
from cluster.tests.world import state_of
from compat_tests.faults.fault_history import Outcome, Send
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive
from visibility.rules.features import OPERATIONS
from visibility.rules.kept_queues import ContinueQueue, DropQueue
from visibility.rules.noted_parts import NoteParts
from visibility.tests import prepared

_PATIENCE_S = 10.0
"""Time after which an undecided request is given up."""
_AGAIN_S = (0.01, 0.2)
_LOOK_S = 0.05
_UNDO_TRIES = 20
_LATEST = 0.7
"""Share of requests that go to the latest leader; the others to any that takes itself for one."""


class ClusterSimulation(Simulation):
    """One seed. Requests are held and tried again as a router does."""

    unlocks_groups = False

    def __init__(self, machine: Machine, clusters: Sequence[ShardCluster]) -> None:
        """Each of `clusters` is one shard, with hosts and faults of its own."""
        super().__init__(machine)
        self.clusters = clusters
        for cluster in clusters:
            cluster.queues = machine.queues
            cluster.violations = machine.violations
            cluster.lines = self.lines
            cluster.ended = self._ended
            cluster.leads = self._leads
            cluster.given_back = self._given_back
        self._followed: Process | None = None
        """The process whose clock is the shard's."""
        self._asked: dict[int, tuple[Call, Process]] = {}
        self._counting_parts: set[asyncio.Task[None]] = set()
        self._undoing: dict[str, float] = {}
        """Receives that are to be undone, and when they were asked."""
        self._chance = Random(machine.random.getrandbits(64))
        self._split = split_of(self, machine.queues, Random(machine.part_seed))

    @property
    def staying(self) -> list[ShardCluster]:
        """The clusters that have not left."""
        return [each for each in self.clusters if not each.is_gone]

    def clients_end(self) -> None:
        """Clients ask for nothing any more but what is left."""

    def switch_off(self, shard: int) -> None:
        """The hosts of a shard's cluster end for good, with all that they have."""
        cluster = self.clusters[shard]
        cluster.is_gone = True
        for host in cluster.hosts.values():
            host.crash(is_power_loss=True)

    @property
    def is_moving(self) -> bool:
        """See Simulation."""
        leaders = [cluster.leading() for cluster in self.staying]
        states = [state_of(leader.shard) for leader in leaders if leader is not None]
        return len(states) < len(leaders) or any(
            state.outbox.departures
            or any(
                task.is_active for queue in state.queues.values() for task in queue.tasks.values()
            )
            for state in states
        )

    async def connected(self) -> None:
        """Wait until there is a leader; after a restore of etcd until all shards had one."""
        known = self.machine.queues
        while (known.unheard and known.are_gateways_new) or not any(  # noqa: ASYNC110
            map(self._leader, self.clusters)
        ):
            await asyncio.sleep(_LOOK_S)

    def _leader(self, cluster: ShardCluster) -> ShardHost | None:
        """One that leads; its clock is the shard's if it is the latest."""
        leading = [host for host in cluster.hosts.values() if host.leads]
        if not leading:
            return None
        latest = max(leading, key=lambda host: host.store.replica.journal.promise.term)
        if latest.process is not self._followed:
            assert latest.process is not None
            self._followed = latest.process
            self._follow(latest.process.clock)
        return latest if self._chance.random() < _LATEST else self._chance.choice(leading)

    def _leads(self) -> None:
        """A host begins to lead, with an allowance of its own for rates."""
        self.history.starts.append(self.time.read())

    def _ended(self, host: ShardHost) -> None:
        """A process is gone, with its connections."""
        if self._followed is not None and self._followed.is_over:
            self._followed = None
            if len(self.clusters) == 1:  # those of several shards are right: time goes on
                self.time.end()
        lost = [key for key, (_, process) in self._asked.items() if process.is_over]
        for key in lost:
            call, _ = self._asked.pop(key)
            self._answer(call, ConnectionLost())

    def forget_lost(self) -> int:
        """Take what was answered early and lost out of the history, as if it was never asked for;
        returns how much that is."""
        lost = [(records, record) for records, record, early in self.early if early.is_lost]
        for records, record in lost:
            records[:] = [each for each in records if each is not record]
        history = self.history
        # Of a lost send, tries whose outcome is unknown may remain, none of which happened.
        there = {each.name for each in history.sends if each.outcome is Outcome.DONE}
        there |= {each.name for each in history.deliveries}
        gone = {record.name for _, record in lost if isinstance(record, Send)} - there
        history.sends[:] = [each for each in history.sends if each.name not in gone]
        return len(lost)

    # -- requests ----------------------------------------------------------------------------------

    async def call(self, request: Request) -> Call:
        """Send a request, once there is a leader."""
        if not is_of_all_parts(request) and not is_of_counters(request):
            return await self.call_part(request)
        await self.connected()
        call = Call(self.time.read())
        if is_of_counters(request):
            self._counted(call, request)
        else:
            call.ticket = self._split.submit(request, partial(self._answer, call))
        return call

    def _counted(self, call: Call, request: Request) -> None:
        asking = count_parts(self._split, request, partial(self._answer, call))
        self._counting_parts.add(asking)
        asking.add_done_callback(self._counting_parts.discard)

    async def call_part(self, request: Request, *, is_offered: bool = False) -> Call:
        """The same, of a part or of an unsplit queue."""
        await self.connected()
        call = Call(self.time.read())
        call.is_offered = is_offered
        self._try(call, request, asyncio.get_running_loop().time() + _PATIENCE_S)
        return call

    def _try(self, call: Call, request: Request, until_s: float) -> None:
        if call.reply.done():
            return
        cluster = self.clusters[request.queue.shard]
        host = self._leader(cluster)
        if isinstance(request.operation, ContinueQueue):
            self._tell_all(cluster, request)
        elif self._chance.random() < 0.05:
            host = self._chance.choice(list(cluster.hosts.values()))
        if host is None or host.process is None:
            self._again(call, request, until_s)
            return
        if not isinstance(request.operation, ContinueQueue | DropQueue):
            request = self.machine.queues.renewed(request) or request
        self._asked[id(call)] = call, host.process
        host.enter(partial(self._submit, call, host.process, request, until_s))

    def _tell_all(self, cluster: ShardCluster, request: Request) -> None:
        """Each host's watch tells its shard of a purge before it gets requests for the new queue.

        A shard that is loaded later finds out itself.
        """
        for host in cluster.hosts.values():
            if host.process is not None:
                host.enter(partial(host.process.shard.submit, request, _ignore))

    def tell_parts(self, part: QueueDefinition) -> None:
        """Each host's watch tells its shard of other parts before it gets requests for them."""
        self._tell_all(self.clusters[part.shard], prepared.prepared(part, NoteParts()))

    def _again(self, call: Call, request: Request, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        if call.is_offered:
            loop.call_soon(self._answer, call, NotDecided())
        elif loop.time() < until_s:
            loop.call_later(self._chance.uniform(*_AGAIN_S), self._try, call, request, until_s)
        else:
            self._answer(call, ServiceUnavailable())

    def _submit(self, call: Call, process: Process, request: Request, until_s: float) -> None:
        if process.is_over:
            return  # the connection is lost

        def on_answer(answer: Answer | QueueError) -> None:
            if process.is_over or self._asked.pop(id(call), None) is None:
                return
            if isinstance(answer, NotDecided):
                self._again(call, request, until_s)
                return
            is_known = not isinstance(answer, ServiceUnavailable)
            is_early = OPERATIONS[type(request.operation)].is_early
            if process.early is not None and is_known and is_early:
                call.early = process.early.of(call.ticket)
            self._answer(call, answer)

        age_s = 0.0
        if isinstance(request.operation, UndoReceive):
            age_s = asyncio.get_running_loop().time() - self._undoing[request.request_id]
        call.ticket = process.shard.submit(request, on_answer, ceil(age_s * 1000))

    async def undone(self, receive: Request, begun_s: float) -> bool:
        """See Simulation: as a router does. Of a queue of several parts it is not known which of
        them to ask."""
        if self.machine.queues.before:
            return False
        self._undoing[receive.request_id] = begun_s
        undo = msgspec.structs.replace(receive, operation=UndoReceive(), dead_letter_queue=None)
        for _ in range(_UNDO_TRIES):
            if (await self.ask(undo)).outcome is Outcome.DONE:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    def hang_up(self, call: Call) -> bool:
        """See Simulation."""
        if isinstance(call.ticket, SplitReceive):
            return not call.reply.done() and self._split.cancel(call.ticket)
        asked = self._asked.get(id(call))
        if call.reply.done() or asked is None or call.ticket is None:
            return False
        if asked[1].shard.cancel(call.ticket):
            del self._asked[id(call)]
            return True
        return False


def _ignore(answer: Answer | QueueError) -> None:
    """The client's own request is answered."""
