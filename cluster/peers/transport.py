"""Transport: the connections between this host and its peers.

Each host opens one connection for each channel to every other host and sends its own messages and
requests over it; answers come back on the same. So two hosts have two connections per channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from cluster.clock import Clock, Entropy
from cluster.peers.hello import VERSIONS, Hello, is_host_id
from cluster.peers.incoming import Incoming, Service
from cluster.peers.link import Link
from cluster.peers.network import Address, Network
from cluster.peers.peer_log import PeerLog
from cluster.peers.peer_outcomes import Reason, Refused
from cluster.peers.settings import Channel, PeerSettings
from cluster.peers.wire import Wire


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
    ) -> None:
        """`log_ids` is asked at each handshake, see `Hello`."""
        assert is_host_id(host)
        self.host = host
        self._cluster = cluster
        self._log_ids = log_ids
        self._network = network
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._versions = versions
        self._addresses: dict[str, Address] = {}
        self._links: dict[tuple[str, Channel], Link] = {}
        self._services: dict[str, Service] = {}
        self._incoming: set[Incoming] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._peer_log = PeerLog()
        self.on_open: list[Callable[[str, Channel], None]] = []
        """Called each time a link's connection stands."""
        self.on_lost: list[Callable[[str, Channel], None]] = []
        """Called each time it has ended, unless this host stops."""

    def serve(self, channel: Channel, service: Service) -> None:
        """Serve a channel from now on."""
        self._services[channel] = service

    def set_peers(self, addresses: Mapping[str, Address]) -> None:
        """Keep links to these hosts and admit no others."""
        assert all(map(is_host_id, addresses))
        for key, link in list(self._links.items()):
            if addresses.get(key[0]) != self._addresses[key[0]]:
                del self._links[key]
                task = asyncio.get_running_loop().create_task(link.stop())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._addresses = dict(addresses)
        for incoming in list(self._incoming):
            if incoming.peer and incoming.peer not in addresses:
                incoming.close()
        for host in addresses:
            for channel in Channel:
                if host != self.host and (host, channel) not in self._links:
                    self._links[host, channel] = self._begin_link(host, channel)

    @property
    def peers(self) -> list[str]:
        """The other hosts."""
        return [host for host in self._addresses if host != self.host]

    def link(self, host: str, channel: Channel) -> Link | None:
        """The link to a peer; None for a host that is none."""
        return self._links.get((host, channel))

    async def start(self, address: Address) -> Address:
        """Accept connections of peers; returns the address with its port. Raises OSError."""
        return await self._network.listen(address, self._accept)

    def reload(self) -> None:
        """Take over changed certificates; connections are made anew with them, one by one."""
        if self._network.reload_if_changed():
            for link in self._links.values():
                link.renew()
            for incoming in list(self._incoming):
                incoming.close()

    async def stop(self) -> None:
        """Take no more requests, finish those under way for a bounded time, close everything."""
        self._is_stopping = True
        self._network.close()
        for incoming in list(self._incoming):
            incoming.close()
        await asyncio.gather(*(link.stop() for link in self._links.values()), *self._leaving)
        # An event instead of looking would be for a stop only.
        while self._incoming:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # -- outgoing ----------------------------------------------------------------------------------

    def _hello(self, to: str, channel: str) -> Hello:
        return Hello(self._versions, self._cluster, self.host, to, channel, self._log_ids())

    def _begin_link(self, host: str, channel: Channel) -> Link:
        async def dial(wire: Wire) -> None:
            await self._network.connect(host, self._addresses[host], wire)

        def opened() -> None:
            for listener in self.on_open:
                listener(host, channel)

        def lost() -> None:
            for listener in self.on_lost:
                listener(host, channel)

        link = Link(
            hello=lambda: self._hello(host, channel),
            dial=dial,
            on_open=opened,
            on_lost=lost,
            settings=self._settings,
            clock=self._clock,
            entropy=self._entropy,
            peers=self._peer_log,
        )
        link.start()
        return link

    # -- incoming: the calls of `Acceptor` ---------------------------------------------------------

    def _accept(self) -> Wire:
        return Incoming(self, self._settings).wire

    def is_member(self, host: str) -> bool:
        """See `Acceptor`."""
        return host in self._addresses

    def answer_to(self, theirs: Hello) -> tuple[Hello, Service]:
        """See `Acceptor`."""
        service = self._services.get(theirs.channel)
        if service is None:
            return self._hello(theirs.host, ""), Service()
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
