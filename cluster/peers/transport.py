"""Transport: the connections between this host and its peers.

Each host opens a connection for each channel to every other host and sends its own messages and
requests over it; answers come back on the same. So two hosts have two connections per channel.
Those of channels that are rarely used, and those to hosts of other clusters, are opened when they
are first asked for, and closed when they were not used for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Protocol

import structlog
from typing_extensions import override

from cluster.clock import Clock, Entropy
from cluster.peers.breaker import Breaker, Pause
from cluster.peers.hello import VERSIONS, Hello
from cluster.peers.link import Acceptor, ChannelService, Incoming, Link
from cluster.peers.peer_log import PeerLog
from cluster.peers.peer_outcomes import NotSent, Outcome, Reason, Refused
from cluster.peers.peer_settings import Address, Channel, PeerSettings, is_host_id
from cluster.peers.roles import CHANNELS, FIRST_MARK, Neighbour, PeerRole, Place
from cluster.peers.wire import Wire
from cluster.tasks import start_task

KEPT = (Channel.REPLICATION, Channel.REQUESTS, Channel.CATALOG)
"""Channels whose connections are kept open. Each costs heartbeats on both sides."""
_NO_NEIGHBOURS: Mapping[str, Neighbour] = MappingProxyType({})


class Network(Protocol):
    """TLS over TCP, or the simulator's. Connects protocols; the transports know the other side's
    certificate ("peercert")."""

    is_between_workers: bool = False
    """True if all peers are processes of one service."""

    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        """Connect to the host with this id. Raises OSError."""

    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        """Accept connections; port 0 picks a free one. Raises OSError."""

    def reload_if_changed(self) -> bool:
        """Take over changed certificates, for new connections; True if there were any."""

    def close(self) -> None:
        """Accept no more."""


class Transport(Acceptor):
    """`serve` and `set_peers`, then `start`; `stop`."""

    def __init__(
        self,
        *,
        cluster: str,
        host: str,
        log_ids: Callable[[], dict[int, bytes]],
        network: Network,
        settings: PeerSettings,
        clock: Clock,
        entropy: Entropy,
        versions: tuple[int, ...] = VERSIONS,
        mark: str = FIRST_MARK,
        channels: Collection[Channel] = KEPT,
    ) -> None:
        """`log_ids` is asked at each handshake, see `Hello`; `mark` is that of the cluster's hosts,
        see `roles.py`; `channels` are those that are kept open to each peer."""
        assert is_host_id(host)
        self.host = host
        self._cluster = cluster
        self._own_place = Place(cluster, PeerRole.MEMBER, mark)
        self._log_ids = log_ids
        self._network = network
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._versions = versions
        self._channels = channels
        self._addresses: dict[str, Address] = {}
        self._neighbours = _NO_NEIGHBOURS
        self._dialers: dict[tuple[str, Channel], Dialer] = {}
        self._services: dict[str, ChannelService] = {}
        self._of_role: dict[tuple[str, PeerRole], ChannelService] = {}
        self._incoming: set[Incoming] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._peer_log = PeerLog(host, is_between_workers=network.is_between_workers)
        self.on_open: list[Callable[[str, Channel], None]] = []
        """Called each time a link's connection stands."""
        self.on_lost: list[Callable[[str, Channel], None]] = []
        """Called each time it has ended, unless this host stops."""

    def serve(
        self, channel: Channel, service: ChannelService, role: PeerRole | None = None
    ) -> None:
        """Serve a channel from now on, only for those with this role if one is given."""
        if role is None:
            self._services[channel] = service
        else:
            self._of_role[channel, role] = service

    def set_peers(self, addresses: Mapping[str, Address]) -> None:
        """Keep links to these hosts; they and the neighbours are admitted, and no others."""
        assert all(map(is_host_id, addresses))
        before, self._addresses = self._addresses, dict(addresses)
        self._let_go({host for host in before if addresses.get(host) != before[host]})
        for host in addresses:
            for channel in self._channels:
                if host != self.host and (host, channel) not in self._dialers:
                    self._dialers[host, channel] = self._dialer(host, channel)

    def set_neighbours(self, neighbours: Mapping[str, Neighbour]) -> None:
        """Admit these processes of other clusters, and connect to them when they are asked."""
        before, self._neighbours = self._neighbours, dict(neighbours)
        self._let_go({host for host in before if neighbours.get(host) != before[host]})

    def _let_go(self, hosts: Collection[str]) -> None:
        """End the links to hosts that are gone, or elsewhere, and those of strangers to here."""
        for key in [key for key in self._dialers if key[0] in hosts]:
            self._drop(key)
        for incoming in list(self._incoming):
            if incoming.peer and self.place_of(incoming.peer) is None:
                incoming.close()

    def _drop(self, key: tuple[str, Channel]) -> None:
        start_task(self._leaving, self._dialers.pop(key).stop())

    def close_idle(self) -> None:
        """Close the links on demand that were not used since the last call. Due about once a
        minute."""
        for key, dialer in list(self._dialers.items()):
            if isinstance(dialer, DialerOnDemand) and not dialer.was_used():
                self._drop(key)

    @property
    def peers(self) -> list[str]:
        """The other hosts of the cluster."""
        return [host for host in self._addresses if host != self.host]

    def link(self, host: str, channel: Channel) -> Link | None:
        """The link to a peer that takes messages and requests now; None if there is none. One on
        demand is opened for later."""
        dialer = self._dialers.get((host, channel))
        if dialer is not None:
            return dialer.link
        self._open(host, channel)
        return None

    async def opened(self, host: str, channel: Channel, wait_s: float) -> Link | None:
        """The same once a host that was just asked for was reached, or was not."""
        dialer = self._dialers.get((host, channel))
        if not isinstance(dialer, DialerOnDemand):
            return None
        with suppress(TimeoutError):
            await asyncio.wait_for(dialer.tried.wait(), wait_s)
        return dialer.link

    def _open(self, host: str, channel: Channel) -> None:
        neighbour = self._neighbours.get(host)
        if host in self._addresses:
            may_open = host != self.host
        else:
            is_known = neighbour is not None and neighbour.address is not None
            may_open = is_known and channel in CHANNELS[PeerRole.NEIGHBOUR]
        if may_open and not self._is_stopping:
            self._dialers[host, channel] = self._dialer(host, channel, DialerOnDemand)

    # -- life --------------------------------------------------------------------------------------

    async def start(self, address: Address) -> Address:
        """Accept connections of peers; returns the address with its port. Raises OSError."""
        return await self._network.listen(address, self._accept)

    def reload(self) -> None:
        """Take over changed certificates; connections are made anew with them, one by one."""
        if self._network.reload_if_changed():
            for dialer in self._dialers.values():
                dialer.renew()
            for incoming in list(self._incoming):
                incoming.close()

    async def stop(self) -> None:
        """Take no more requests, finish those under way for a bounded time, close everything."""
        self._is_stopping = True
        self._network.close()
        for incoming in list(self._incoming):
            incoming.close()
        await asyncio.gather(*(dialer.stop() for dialer in self._dialers.values()), *self._leaving)
        # An event instead of looking would be for a stop only.
        while self._incoming:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # -- outgoing ----------------------------------------------------------------------------------

    def _hello(self, to: str, channel: str) -> Hello:
        return Hello(self._versions, self._cluster, self.host, to, channel, self._log_ids())

    def _address_of(self, host: str) -> Address:
        """Raises OSError for a process that is gone."""
        address = self._addresses.get(host)
        if address is None and host in self._neighbours:
            address = self._neighbours[host].address
        if address is None:
            raise ConnectionRefusedError(f"{host} is no host of the fleet any more")
        return address

    def _dialer(self, host: str, channel: Channel, kind: type[Dialer] | None = None) -> Dialer:
        def report(listeners: list[Callable[[str, Channel], None]]) -> None:
            for listener in listeners:
                listener(host, channel)

        return (kind or Dialer)(
            hello=lambda: self._hello(host, channel),
            dial=lambda wire: self._network.connect(host, self._address_of(host), wire),
            place=lambda: self.place_of(host) or self._own_place,
            on_open=partial(report, self.on_open),
            on_lost=partial(report, self.on_lost),
            settings=self._settings,
            clock=self._clock,
            entropy=self._entropy,
            peers=self._peer_log,
        )

    # -- incoming: the calls of `Acceptor` ---------------------------------------------------------

    def _accept(self) -> Wire:
        return Incoming(self, self._settings).wire

    @override
    def place_of(self, host: str) -> Place | None:
        if host in self._addresses:
            return self._own_place
        neighbour = self._neighbours.get(host)
        return None if neighbour is None else neighbour.place

    @override
    def answer_to(self, theirs: Hello) -> tuple[Hello, ChannelService]:
        service = self._services.get(theirs.channel)
        place = self.place_of(theirs.host)
        if place is not None:
            service = self._of_role.get((theirs.channel, place.role), service)
        if service is None:
            return self._hello(theirs.host, ""), ChannelService()
        return self._hello(theirs.host, theirs.channel), service

    @override
    def begun(self, incoming: Incoming) -> None:
        self._incoming.add(incoming)
        if self._is_stopping:
            incoming.wire.break_off(Reason.STOPPED)
        elif len(self._incoming) > self._settings.connections_max:
            incoming.wire.break_off(Reason.BUSY)

    @override
    def welcomed(self, incoming: Incoming) -> None:
        """A peer that connects again has lost its connection before we noticed (rule 39)."""
        self._peer_log.welcomed(incoming.peer, incoming.channel)
        for other in list(self._incoming):
            if other is not incoming and (other.peer, other.channel, other.is_closing) == (
                incoming.peer,
                incoming.channel,
                False,
            ):
                other.wire.break_off(Reason.REPLACED)

    @override
    def refused(self, theirs: Hello, refusal: Refused) -> None:
        self._peer_log.refused(theirs.host, theirs.channel, refusal)

    @override
    def ended(self, incoming: Incoming) -> None:
        self._incoming.discard(incoming)


class Dialer:
    """Keeps one link open to a channel of a peer, from now on. `stop` it in the end."""

    def __init__(
        self,
        *,
        hello: Callable[[], Hello],
        dial: Callable[[Wire], Awaitable[None]],
        place: Callable[[], Place],
        on_open: Callable[[], None],
        on_lost: Callable[[], None],
        settings: PeerSettings,
        clock: Clock,
        entropy: Entropy,
        peers: PeerLog,
    ) -> None:
        """`hello` and `place`, that of the peer, are asked before each attempt; `dial` connects a
        wire and raises OSError;
        `on_open` is called each time a link stands, `on_lost` when it has ended."""
        self._hello = hello
        self._dial = dial
        self._place = place
        self._on_open = on_open
        self._on_lost = on_lost
        self._settings = settings
        self._clock = clock
        self._peers = peers
        self._log = structlog.get_logger("peers")
        self._pause = Pause(settings.reconnect_s, settings.reconnect_max_s, entropy)
        pause = Pause(settings.breaker_s, settings.breaker_max_s, entropy)
        self._breaker = Breaker(settings.breaker_failures, pause)
        self.tried = asyncio.Event()
        """Set after the first attempt to connect."""
        self._current: Link | None = None
        self._links: set[Link] = set()
        """The current one, and those that wait for their last answers."""
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    @property
    def link(self) -> Link | None:
        """The connection for messages and requests, None while there is none."""
        link = self._current
        return link if link is not None and link.is_open else None

    def renew(self) -> None:
        """Let go of the link in order; the next one shows new certificates."""
        if self.link is not None:
            self.link.close()

    async def stop(self) -> None:
        """End the links, after their last answers."""
        self.tried.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for link in list(self._links):
            link.close()
        # An event instead of looking would be for a stop only.
        while self._links:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _keep_open(self) -> None:
        while True:
            try:
                await self._connect_once()
            except Exception:
                self._log.exception("link_failed")
            await asyncio.sleep(self._pause.next_s())

    async def _connect_once(self) -> None:
        """Connect, and wait until the link takes no more requests."""
        hello = self._hello()
        link = self._current = Link(
            hello,
            settings=self._settings,
            monotonic_s=self._clock.monotonic_s,
            breaker=self._breaker,
            place=self._place(),
            on_end=self._links.discard,
        )
        failure = await self._connect(link)
        self.tried.set()
        if failure:
            self._peers.failed(hello.to, failure)
            return
        self._pause.reset()
        self._peers.opened(hello.to, hello.channel, link.version)
        self._on_open()
        failure = await link.retired
        self._peers.closed(hello.to, hello.channel, failure)
        self._on_lost()

    async def _connect(self, link: Link) -> str:
        """Empty if the link stands, else the reason why not."""
        self._links.add(link)
        try:
            async with asyncio.timeout(2 * self._settings.handshake_s):
                await self._dial(link.wire)
                refusal = await link.welcomed
        except (OSError, TimeoutError) as error:
            self._give_up(link)
            return str(error) or type(error).__name__
        except BaseException:
            self._give_up(link)
            raise
        return "" if refusal is None else f"{refusal.reason}: {refusal.detail}"

    def _give_up(self, link: Link) -> None:
        self._links.discard(link)
        link.wire.break_off(Reason.NO_HANDSHAKE)


class DialerOnDemand(Dialer):
    """A link that is not kept open, which notes that it is used."""

    _is_used = True

    @property
    @override
    def link(self) -> Link | None:
        self._is_used = True
        return super().link

    def was_used(self) -> bool:
        """True if it was asked for since the last call, or has requests under way."""
        was_used, self._is_used = self._is_used, False
        return was_used or any(link.is_busy for link in self._links)


async def ask(
    transport: Transport, host: str, channel: Channel, body: bytes, timeout_s: float
) -> Outcome:
    """The outcome of a request to one host, which is cancelled with this call."""
    link = transport.link(host, channel) or await transport.opened(host, channel, timeout_s)
    if link is None:
        return NotSent(Reason.NOT_CONNECTED)
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def settle(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    number = link.request(body, settle, timeout_s)
    if isinstance(number, NotSent):
        return number
    try:
        return await future
    except asyncio.CancelledError:
        link.cancel(number)
        raise


async def ask_all(
    transport: Transport, channel: Channel, body: bytes, timeout_s: float
) -> dict[str, bytes]:
    """The answers by host, without those of hosts that cannot be reached or take longer than about
    `timeout_s`."""
    hosts = transport.peers
    asked = [ask(transport, host, channel, body, timeout_s) for host in hosts]
    outcomes = zip(hosts, await asyncio.gather(*asked), strict=True)
    return {host: answer for host, answer in outcomes if isinstance(answer, bytes)}
