"""Transport: the connections between this host and its peers.

Each host opens one connection for each channel to every other host and sends its own messages and
requests over it; answers come back on the same. So two hosts have two connections per channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import structlog

from cluster.clock import Clock, Entropy
from cluster.peers.breaker import Breaker, Pause
from cluster.peers.hello import VERSIONS, Hello, is_host_id
from cluster.peers.incoming import ChannelService, Incoming, OnMessage
from cluster.peers.link import Link
from cluster.peers.peer_log import PeerLog
from cluster.peers.peer_outcomes import NotSent, Outcome, Reason, Refused
from cluster.peers.peer_settings import Address, Channel, PeerSettings
from cluster.peers.wire import Wire


class Network(Protocol):
    """TLS over TCP, or the simulator's. Connects protocols; the transports know the other side's
    certificate ("peercert")."""

    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        """Connect to the host with this id. Raises OSError."""

    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        """Accept connections; port 0 picks a free one. Raises OSError."""

    def reload_if_changed(self) -> bool:
        """Take over changed certificates, for new connections; True if there were any."""

    def close(self) -> None:
        """Accept no more."""


class Transport:
    """Belongs to the event loop's thread. `serve` and `set_peers`, then `start`; `stop`."""

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
        channels: Collection[Channel] = tuple(Channel),
    ) -> None:
        """`log_ids` is asked at each handshake, see `Hello`; `channels` are those that are opened
        to each peer."""
        assert is_host_id(host)
        self.host = host
        self._cluster = cluster
        self._log_ids = log_ids
        self._network = network
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._versions = versions
        self._channels = channels
        self._addresses: dict[str, Address] = {}
        self._dialers: dict[tuple[str, Channel], Dialer] = {}
        self._replicas = ChannelService()
        self._services: dict[str, ChannelService] = {Channel.REPLICATION: self._replicas}
        self._incoming: set[Incoming] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._peer_log = PeerLog()
        self.on_open: list[Callable[[str, Channel], None]] = []
        """Called each time a link's connection stands."""
        self.on_lost: list[Callable[[str, Channel], None]] = []
        """Called each time it has ended, unless this host stops."""

    def serve(self, channel: Channel, service: ChannelService) -> None:
        """Serve a channel from now on."""
        self._services[channel] = service

    def set_peers(self, addresses: Mapping[str, Address]) -> None:
        """Keep links to these hosts and admit no others."""
        assert all(map(is_host_id, addresses))
        for key, dialer in list(self._dialers.items()):
            if addresses.get(key[0]) != self._addresses[key[0]]:
                del self._dialers[key]
                task = asyncio.get_running_loop().create_task(dialer.stop())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._addresses = dict(addresses)
        for incoming in list(self._incoming):
            if incoming.peer and incoming.peer not in addresses:
                incoming.close()
        for host in addresses:
            for channel in self._channels:
                if host != self.host and (host, channel) not in self._dialers:
                    self._dialers[host, channel] = self._dialer(host, channel)

    @property
    def peers(self) -> list[str]:
        """The other hosts."""
        return [host for host in self._addresses if host != self.host]

    def link(self, host: str, channel: Channel) -> Link | None:
        """The link to a peer that takes messages and requests now; None if there is none."""
        dialer = self._dialers.get((host, channel))
        return None if dialer is None else dialer.link

    # -- messages between the replicas of a shard --------------------------------------------------

    def join(self, shard: int, on_message: OnMessage) -> None:
        """Give a shard the messages that are meant for it, from now on."""
        self._replicas.on_message[shard] = on_message

    def leave(self, shard: int) -> None:
        """Drop what is meant for a shard from now on."""
        self._replicas.on_message.pop(shard, None)

    def send(self, host: str, shard: int, body: bytes) -> NotSent | None:
        """Send to the same shard of another host. It may get lost; replicas know that."""
        link = self.link(host, Channel.REPLICATION)
        return NotSent(Reason.NOT_CONNECTED) if link is None else link.message(shard, body)

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

    def _dialer(self, host: str, channel: Channel) -> Dialer:
        def report(listeners: list[Callable[[str, Channel], None]]) -> None:
            for listener in listeners:
                listener(host, channel)

        return Dialer(
            hello=lambda: self._hello(host, channel),
            dial=lambda wire: self._network.connect(host, self._addresses[host], wire),
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

    def is_member(self, host: str) -> bool:
        """See `Acceptor`."""
        return host in self._addresses

    def answer_to(self, theirs: Hello) -> tuple[Hello, ChannelService]:
        """See `Acceptor`."""
        service = self._services.get(theirs.channel)
        if service is None:
            return self._hello(theirs.host, ""), ChannelService()
        return self._hello(theirs.host, theirs.channel), service

    def begun(self, incoming: Incoming) -> None:
        """See `Acceptor`."""
        self._incoming.add(incoming)
        if self._is_stopping:
            incoming.wire.break_off(Reason.STOPPED)
        elif len(self._incoming) > self._settings.connections_max:
            incoming.wire.break_off(Reason.BUSY)

    def welcomed(self, incoming: Incoming) -> None:
        """See `Acceptor`. A peer that connects again has lost its connection before we noticed."""
        self._peer_log.welcomed(incoming.peer, incoming.channel)
        for other in list(self._incoming):
            if other is not incoming and (other.peer, other.channel, other.is_closing) == (
                incoming.peer,
                incoming.channel,
                False,
            ):
                other.wire.break_off(Reason.REPLACED)

    def refused(self, theirs: Hello, refusal: Refused) -> None:
        """See `Acceptor`."""
        self._peer_log.refused(theirs.host, theirs.channel, refusal)

    def ended(self, incoming: Incoming) -> None:
        """See `Acceptor`."""
        self._incoming.discard(incoming)


class Dialer:
    """Keeps one link open to a channel of a peer, from now on. `stop` it in the end."""

    def __init__(
        self,
        *,
        hello: Callable[[], Hello],
        dial: Callable[[Wire], Awaitable[None]],
        on_open: Callable[[], None],
        on_lost: Callable[[], None],
        settings: PeerSettings,
        clock: Clock,
        entropy: Entropy,
        peers: PeerLog,
    ) -> None:
        """`hello` is asked before each attempt; `dial` connects a wire and raises OSError;
        `on_open` is called each time a link stands, `on_lost` when it has ended."""
        self._hello = hello
        self._dial = dial
        self._on_open = on_open
        self._on_lost = on_lost
        self._settings = settings
        self._clock = clock
        self._peers = peers
        self._log = structlog.get_logger("peers")
        self._pause = Pause(settings.reconnect_s, settings.reconnect_max_s, entropy)
        pause = Pause(settings.breaker_s, settings.breaker_max_s, entropy)
        self._breaker = Breaker(settings.breaker_failures, pause)
        self._current: Link | None = None
        self._links: set[Link] = set()
        """The current one, and those that wait for their last answers."""
        self._task = asyncio.get_running_loop().create_task(self._keep_open())

    @property
    def link(self) -> Link | None:
        """See `Transport.link`."""
        link = self._current
        return link if link is not None and link.is_open else None

    def renew(self) -> None:
        """Let go of the link in order; the next one shows new certificates."""
        if self.link is not None:
            self.link.close()

    async def stop(self) -> None:
        """End the links, after their last answers."""
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
            on_end=self._links.discard,
        )
        failure = await self._connect(link)
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


async def ask(
    transport: Transport, host: str, channel: Channel, body: bytes, timeout_s: float
) -> Outcome:
    """The outcome of a request to one host, which is cancelled with this call."""
    link = transport.link(host, channel)
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
