"""A gateway of a simulated fleet, whose etcd is away for many seconds while queues are split,
moved, shrunk and purged, and all clusters serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import msgspec
from typing_extensions import override

from cluster.catalog.adopted_records import AdoptedRecords
from cluster.catalog.catalog_records import QueueName, name_of, queue_key
from cluster.catalog.queue_view import QueueView
from cluster.catalog.record_codec import RecordCodec
from cluster.coordination.coordination import Change
from cluster.fleet.gateway_view import GatewayLeaders
from cluster.parts.split_queues import SplitQueues
from cluster.parts.split_receives import SplitReceive
from cluster.peers.forwarding import PeerRouter
from cluster.peers.held_requests import Routed
from cluster.peers.link import Call as Asked
from cluster.peers.peer_outcomes import Refusal
from cluster.peers.peer_settings import ForwardingSettings, PeerSettings
from cluster.peers.queue_news import QueueNews, tell
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS, Neighbour, PeerRole, Place
from cluster.peers.transport import Transport
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.simulation.known_parts import KnownParts
from cluster.tests.simulation.simulated_worker import SimulatedEntropy
from cluster.tests.virtual_time import LoopClock, some_secrets
from compat_tests.faults.fault_history import History
from visibility.contract.errors import Moved, QueueDoesNotExist, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)
from visibility.contract.outcomes import Answer
from visibility.state.waiters import OnAnswer, Room, Ticket

NAME = "g"
_OPERATIONS = (
    SendMessage,
    SendMessageBatch,
    ReceiveMessage,
    DeleteMessage,
    DeleteMessageBatch,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
)
_AWAY_S = (5.0, 20.0, 60.0)
_THERE_S = (0.5, 3.0)
_MARK_S = 0.5
_FEW = 20
"""One request in so many may meet a second change while it is asked about the first."""
_codec = RecordCodec(some_secrets())


class _Told:
    """The catalog of the hosts, as far as they are asked."""

    def __init__(self, known: KnownParts) -> None:
        self._known = known

    @property
    def revision(self) -> int:
        """See `Catalog`."""
        return self._known.revision

    def records_of(self, names: Iterable[QueueName]) -> dict[QueueName, bytes | None]:
        """See `Catalog`."""
        found = {name: self._known.find(name) for name in names}
        return {name: None if each is None else _codec.encode(each) for name, each in found.items()}


def telling(known: KnownParts) -> Callable[[Asked], None]:
    """A host's answers on the channel of the catalog."""
    return partial(tell, _Told(known))


class GatewayView(QueueView):
    """The queues as the gateway's watch reported them, and hosts said since."""

    def __init__(self, known: KnownParts) -> None:
        super().__init__(0)
        self._known = known
        self._purged: dict[int, int] = {}
        self.adopted = AdoptedRecords(self)
        self.is_away = False
        self.adoptions = 0

    def catch_up(self) -> None:
        """The watch reports all that it missed."""
        known = self._known
        self._purged = dict(known.purged)
        queues = {queue_key(name_of(each)): each for each in known.queues.values() if each.is_home}
        self.adopted.give_way(Change(known.revision, dict.fromkeys(queues)), is_restored=False)
        changed = {key: queue for key, queue in queues.items() if self.entry(key) != queue}
        self.apply(known.revision, changed)

    def adopt(self, revision: int, records: Mapping[QueueName, bytes | None]) -> bool:
        """See `Catalog`."""
        read = {
            queue_key(name): None if value is None else _codec.decode(queue_key(name), value)
            for name, value in records.items()
        }
        self.adoptions += 1
        return self.adopted.adopt(revision, cast(Any, read))

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `View`."""
        if not self.is_away:
            self.catch_up()
        asyncio.get_running_loop().call_later(_MARK_S if self.is_away else 0.0, then)

    @override
    def successor(self, queue_id: int) -> QueueDefinition | None:
        while queue_id in self._purged:
            queue_id = self._purged[queue_id]
        return self.queue_of_id(queue_id)

    @override
    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        target = super().dead_letter_queue(queue)
        return None if target is None or target.arn in self._known.hidden else target


class _Leaders:
    """Leaders as they were when etcd was last there; a host that is asked knows better."""

    def __init__(self, view: GatewayView, seen: Any, hosts: Sequence[Sequence[str]]) -> None:
        self._view = view
        self._seen = seen
        self._hosts = hosts
        self._known: dict[int, str | None] = {}
        self.subscribe = seen.subscribe

    def leader_of(self, shard: int) -> str | None:
        """See `FleetView`."""
        if not self._view.is_away:
            self._known[shard] = self._seen.leader_of(shard)
        return self._known.get(shard)

    def hosts_that_may_lead(self, shard: int) -> Sequence[str]:
        """See `FleetView`."""
        return self._hosts[shard]


class _Ready:
    is_ready = True


class _Counted:
    """The router, which notes in the history what became of receives at parts."""

    def __init__(self, router: PeerRouter, history: History) -> None:
        self._router = router
        self._history = history
        self.ask = router.ask
        self.leads, self.has_leader = router.leads, router.has_leader
        self.cancel = router.cancel

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """See `Router`."""
        tickets: list[Ticket] = []
        ticket = self._router.submit(request, partial(self._answered, tickets, on_answer))
        tickets.append(ticket)
        return ticket

    def offer(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """See `Router`."""
        return self._router.offer(request, on_answer)

    def give_back(self, request: Request, received: Ticket | None) -> None:
        """See `Router`."""
        self._router.give_back(request, received)

    def _answered(
        self, tickets: list[Ticket], on_answer: OnAnswer, answer: Answer | QueueError
    ) -> None:
        (ticket,) = tickets
        if isinstance(ticket.request.operation, ReceiveMessage):
            is_repeated = isinstance(ticket, Routed) and ticket.is_retry
            if is_repeated or type(answer) is ServiceUnavailable:
                self._history.unknown_receives[ticket.request.queue.name] += 1
        on_answer(answer)


class SimulatedGateway:
    """Begins with the first request."""

    def __init__(
        self,
        known: KnownParts,
        network: SimulatedNetwork,
        see_leaders: Callable[[], Any],
        hosts: Mapping[str, Neighbour],
        hosts_of: Sequence[Sequence[str]],
        random: Random,
    ) -> None:
        """`hosts` are all hosts by name, `hosts_of` the names of those of each shard."""
        self.view = GatewayView(known)
        self.random = random
        self.history: History
        self._coming_and_going: asyncio.Task[None]
        self.is_up = False
        self.asked = self.not_known = 0
        """Requests of clients; those given up since a host knew another version of their queue."""
        self._network = network
        self._see_leaders = see_leaders
        self._hosts, self._hosts_of = hosts, hosts_of
        network.names[NAME] = (NAME, GATEWAY_MARK)
        self.transport: Transport
        self.router: PeerRouter
        self.split: SplitQueues

    def _start(self, history: History) -> None:
        entropy = SimulatedEntropy(self.random)
        self.transport = Transport(
            cluster=GATEWAYS,
            host=NAME,
            log_ids=dict,
            network=self._network.of(NAME),
            settings=PeerSettings(),
            clock=LoopClock(),
            entropy=entropy,
            mark=GATEWAY_MARK,
        )
        leaders = _Leaders(self.view, self._see_leaders(), self._hosts_of)
        self.router = PeerRouter(
            (),
            transport=self.transport,
            leaders=GatewayLeaders(cast(Any, leaders), self.transport),
            view=self.view,
            settings=ForwardingSettings(),
            clock=LoopClock(),
            entropy=entropy,
            readiness=_Ready(),
            shown_leader_of=leaders.leader_of,
            news=QueueNews(self.transport, self.view),
        )
        self._give_up = self.router.retries.give_up
        self.router.retries.give_up = self._given_up  # type: ignore[method-assign]
        counted = cast(Any, _Counted(self.router, history))
        self.split = SplitQueues(counted, self.view, entropy, LoopClock().wall_s)
        self.view.catch_up()
        self.transport.set_neighbours(self._hosts)
        self.history = history
        self.is_up = True

    def _given_up(self, ticket: Routed, reason: str) -> None:
        self.not_known += reason == Refusal.DEFINITION_UNKNOWN
        self._give_up(ticket, reason)

    async def run(self, seconds: float) -> None:
        """Etcd comes and goes from now on, until the clients are through."""
        self._coming_and_going = asyncio.create_task(self._come_and_go())

    async def _come_and_go(self) -> None:
        while True:
            self.view.is_away = True
            await asyncio.sleep(self.random.choice(_AWAY_S))
            self.back()
            await asyncio.sleep(self.random.choice(_THERE_S))

    def back(self) -> None:
        """Etcd is there again, and the watch reports what it missed."""
        self.view.is_away = False
        self.view.catch_up()
        if self.is_up:
            self.transport.close_idle()

    def end(self) -> str:
        """The clients are through: etcd stays. Returns what went wrong, if anything did."""
        self._coming_and_going.cancel()
        self.back()
        if self.not_known * _FEW <= self.asked:
            return ""
        return f"{self.not_known} of {self.asked} requests met queues that the gateway did not know"

    def takes(self, request: Request, history: History) -> bool:
        """True for some of the requests of clients."""
        if not self.is_up:
            self._start(history)
        return self.is_up and type(request.operation) in _OPERATIONS and self.random.random() < 0.5

    def submit(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """Take a request of a client, for the queue as it is known here."""
        self.asked += 1
        queue = self.view.find(name_of(request.queue))
        if queue is None:
            asyncio.get_running_loop().call_soon(on_answer, QueueDoesNotExist())
            return Ticket(request, on_answer)
        target = self.view.dead_letter_queue(queue)
        request = msgspec.structs.replace(request, queue=queue, dead_letter_queue=target)
        if queue.parts:
            return self.split.submit(request, on_answer)
        tickets: list[Ticket] = []

        def answered(answer: Answer | QueueError) -> None:
            (ticket,) = tickets
            if isinstance(ticket, Routed) and ticket.is_retry:
                if isinstance(request.operation, ReceiveMessage):
                    self.history.unknown_receives[queue.name] += 1
            if type(answer) is Moved:  # see `Gateway.go_on`
                tickets[0] = self.split.submit(ticket.request, on_answer)
            else:
                on_answer(answer)

        tickets.append(self.router.submit(request, answered))
        return tickets[0]

    def cancel(self, ticket: Ticket) -> bool:
        """A client hangs up."""
        if isinstance(ticket, SplitReceive):
            return self.split.cancel(ticket)
        return self.router.cancel(ticket)


def gateway_place() -> Neighbour:
    """The gateway, as hosts know it."""
    return Neighbour(None, Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK))
