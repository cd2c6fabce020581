"""The network between a host and a simulated etcd, in virtual time: delays, losses, cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from random import Random

from cluster.coordination.etcd_wire import NoAnswer, Reply
from cluster.tests.simulated_etcd import Fields, Refusal, SimulatedEtcd, to_json

_STATUS = {3: 400, 5: 404, 6: 409, 11: 400, 14: 503}


class SimulatedWire:
    """See Wire. One host's way to all members."""

    def __init__(self, etcd: SimulatedEtcd, random: Random, delay_s: float = 0.001) -> None:
        self.etcd = etcd
        self.loss = 0.0
        """Share of requests that are lost, and of answers, and of requests that come late."""
        self.is_cut = False
        self.cut_members: set[str] = set()
        """Endpoints that this host cannot reach, while it reaches the others."""
        self.lose_next: list[str] = []
        """Fates of the next requests: "request", "answer" or "late"; others follow `loss`."""
        self._random = random
        self.delay_s = delay_s

    async def close(self) -> None:
        """Nothing is held."""

    def _delay(self) -> float:
        return self._random.uniform(0, 2 * self.delay_s)

    def _fate(self) -> str:
        if self.lose_next:
            return self.lose_next.pop(0)
        drawn = self._random.random()
        fates = ("request", "answer", "late")
        return next((fate for at, fate in enumerate(fates, 1) if drawn < at * self.loss), "")

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        fate, loop = self._fate(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.sleep(self._delay())
                is_cut = self.is_cut or endpoint in self.cut_members
                if fate == "late" and not is_cut:
                    after_s = limit_s + self._random.uniform(0, 5)
                    loop.call_later(after_s, self.carry_out, endpoint, path, body)
                reply = None
                if not (is_cut or fate in ("request", "late")):
                    reply = self.carry_out(endpoint, path, body)
                await asyncio.sleep(self._delay())
                if reply is None or self.is_cut or fate == "answer":
                    await asyncio.sleep(2 * limit_s)
                assert reply is not None
                return reply
        except TimeoutError:
            raise NoAnswer("time is over", was_sent=True) from None

    async def _healed(self, endpoint: str) -> None:
        while self.is_cut or endpoint in self.cut_members:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(1)

    def carry_out(self, endpoint: str, path: str, body: bytes) -> Reply:
        """A member's answer."""
        member = self.etcd.endpoints.index(endpoint)
        try:
            return Reply(200, to_json(self.etcd.answer(member, path, body)))
        except Refusal as refusal:
            return Reply(_STATUS[refusal.fields["code"]], to_json(refusal.fields))

    async def stream(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> AsyncGenerator[bytes]:
        lines: asyncio.Queue[Fields] = asyncio.Queue()
        await asyncio.sleep(self._delay())
        if self.is_cut or endpoint in self.cut_members:
            await asyncio.sleep(limit_s)
            raise NoAnswer("time is over", was_sent=True)
        member = self.etcd.endpoints.index(endpoint)
        end = self.etcd.watch(member, body, lines.put_nowait)
        try:
            while True:
                line = await lines.get()
                await asyncio.sleep(self._delay())
                await self._healed(endpoint)
                yield to_json(line)
        finally:
            end()
