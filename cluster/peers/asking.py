"""One question to all other hosts at once."""

from __future__ import annotations

import asyncio
from functools import partial

from cluster.peers.outcomes import NotSent, Outcome
from cluster.peers.settings import Channel
from cluster.peers.transport import Transport


async def ask_all(
    transport: Transport, channel: Channel, body: bytes, wait_s: float
) -> dict[str, bytes]:
    """The answers by host, without those of hosts that cannot be reached or take longer than about
    `wait_s`."""
    asked: dict[str, asyncio.Future[Outcome]] = {}
    for host in transport.peers:
        link = transport.link(host, channel)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if link is not None:
            sent = link.request(body, partial(_settle, future), wait_s)
            if not isinstance(sent, NotSent):
                asked[host] = future
    await asyncio.gather(*asked.values())
    outcomes = {host: future.result() for host, future in asked.items()}
    return {host: answer for host, answer in outcomes.items() if isinstance(answer, bytes)}


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
