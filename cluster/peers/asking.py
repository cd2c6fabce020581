"""One question to another host, or to all of them at once."""

from __future__ import annotations

import asyncio
from functools import partial

from cluster.peers.peer_outcomes import NotSent, Outcome, Reason
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport


async def ask_all(
    transport: Transport, channel: Channel, body: bytes, wait_s: float
) -> dict[str, bytes]:
    """The answers by host, without those of hosts that cannot be reached or take longer than about
    `wait_s`."""
    hosts = transport.peers
    asked = [ask_one(transport, host, channel, body, wait_s) for host in hosts]
    outcomes = zip(hosts, await asyncio.gather(*asked), strict=True)
    return {host: answer for host, answer in outcomes if isinstance(answer, bytes)}


async def ask_one(
    transport: Transport, host: str, channel: Channel, body: bytes, wait_s: float
) -> Outcome:
    """The outcome of a question to one host."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    link = transport.link(host, channel)
    if link is None:
        return NotSent(Reason.NOT_CONNECTED)
    sent = link.request(body, partial(_settle, future), wait_s)
    return sent if isinstance(sent, NotSent) else await future


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
