"""CheckpointLinks: a process's connections for checkpoints, in place of a `Transport`.

A connection carries requests and answers in order of arrival, or is lost: through a cut, at the end
of a process, after a silence, and by chance where the network loses messages.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, cast

from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_outcomes import NotSent, OnOutcome, Outcome, Reason, Refused, Unknown
from cluster.peers.peer_settings import Channel

if TYPE_CHECKING:
    from cluster.tests.replication.shard_process import Process

_SILENCE_S = 2.5
"""A connection without a word for so long is lost."""


class _Exchange:
    """A request, at the host that sent it."""

    def __init__(self, links: CheckpointLinks, host: str, on_outcome: OnOutcome) -> None:
        self.links = links
        self.host = host
        self.call: _Call | None = None
        self._on_outcome = on_outcome
        self.is_over = False

    def settle(self, outcome: Outcome) -> None:
        """The first outcome counts."""
        if not self.is_over:
            self.is_over = True
            self.links.process.enter(partial(self._on_outcome, outcome))

    def look(self) -> None:
        """See whether the connection stands."""
        if self.is_over:
            return
        there = self.call.server if self.call is not None else None
        if self.links.is_cut(self.host) or there is None or there.is_over or there.host.is_paused:
            self.settle(Unknown(Reason.LOST))
        else:
            asyncio.get_running_loop().call_later(_SILENCE_S, self.look)


class _Call:
    """A request, at the host that serves it: see `cluster.peers.link.Call`."""

    def __init__(self, exchange: _Exchange, server: Process, body: bytes) -> None:
        self.server = server
        self.peer = exchange.links.process.host.name
        self.body = body
        self.is_cancelled = False
        self._exchange = exchange

    def answer(self, body: bytes) -> bool:
        self._send(body)
        return True

    def refuse(self, reason: str, detail: str = "") -> bool:
        self._send(Refused(reason, detail))
        return True

    def _send(self, outcome: Outcome) -> None:
        links = self._exchange.links
        if not self.server.is_over and not links.is_cut(self._exchange.host):
            links.carry(partial(self._exchange.settle, outcome))


class CheckpointLinks:
    """Implements what checkpoints use of `cluster.peers.transport.Transport`."""

    def __init__(self, process: Process, random: Random) -> None:
        self.process = process
        self._random = random
        self._service: ChannelService | None = None

    def serve(self, channel: Channel, service: ChannelService) -> None:
        assert channel is Channel.CHECKPOINTS
        self._service = service

    def link(self, host: str, channel: Channel) -> CheckpointLink:
        assert channel is Channel.CHECKPOINTS
        return CheckpointLink(self, host)

    # -- the way -----------------------------------------------------------------------------------

    def is_cut(self, host: str) -> bool:
        """A connection needs both directions."""
        cut, own = self.process.host.cluster.network.cut, self.process.host.name
        return (own, host) in cut or (host, own) in cut

    def carry(self, deliver: partial[None]) -> None:
        """Deliver later, or never."""
        network = self.process.host.cluster.network
        if self._random.random() >= network.loss:
            delay_s = self._random.uniform(*network.delay_s)
            asyncio.get_running_loop().call_later(delay_s, deliver)

    def reach(self, exchange: _Exchange, body: bytes) -> None:
        """A request arrives."""
        there = self.process.host.cluster.hosts[exchange.host].process
        if there is None or there.links is None or self.is_cut(exchange.host):
            exchange.settle(Unknown(Reason.LOST))
            return
        exchange.call = _Call(exchange, there, body)
        there.enter(partial(there.links.serve_call, exchange.call))

    def serve_call(self, call: _Call) -> None:
        """Do what another host asks for."""
        assert self._service is not None
        assert self._service.on_request is not None
        self._service.on_request(cast("Call", call))


class CheckpointLink:
    """A connection to one host: see `cluster.peers.link.Link`."""

    def __init__(self, links: CheckpointLinks, host: str) -> None:
        self._links = links
        self._host = host
        self._numbers = count(1)
        self._exchanges: dict[int, _Exchange] = {}

    def request(self, body: bytes, on_outcome: OnOutcome, timeout_s: float) -> int | NotSent:
        if self._links.is_cut(self._host):
            return NotSent(Reason.NOT_CONNECTED)
        exchange = _Exchange(self._links, self._host, on_outcome)
        self._links.carry(partial(self._links.reach, exchange, body))
        loop = asyncio.get_running_loop()
        loop.call_later(_SILENCE_S, exchange.look)
        loop.call_later(timeout_s, exchange.settle, Unknown(Reason.DEADLINE))
        number = next(self._numbers)
        self._exchanges[number] = exchange
        return number

    def cancel(self, number: int) -> bool:
        exchange = self._exchanges[number]
        exchange.is_over = True
        if exchange.call is not None:
            exchange.call.is_cancelled = True
        return False
