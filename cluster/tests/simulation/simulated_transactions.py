"""A client's transactions: what it received is deleted, and others are sent, all or none."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from cluster.parts.transacting import Entry, Token, Transacting
from cluster.tasks import start_task
from cluster.tests.simulation import simulated_queues as queues
from cluster.tests.simulation.simulated_client import Client, Held, name_of
from compat_tests.faults.fault_history import Delete, Outcome, Send, Transaction
from visibility.contract.errors import Moved, QueueError, ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer, Transacted
from visibility.rules.transactions import TransactMessages
from visibility.tests import prepared

_AGAIN_S = 0.2
_DELETED = 0.2
"""Chance of a queue that is deleted and restored meanwhile."""
_FAILS = 0.15
"""Chance that a gateway fails between the shards that prepare and the one that decides."""
_UNTOLD = 0.2
"""Chance that a shard is not told to ask about what it prepared."""
_RETRIED_S_MAX = 200.0
_RECEIVED_FROM = (queues.PLAIN, queues.RESCUED, queues.FAIR, queues.ORDER)
_SENT_TO = (queues.PLAIN, queues.RESCUED, queues.FAIR, queues.ORDER)


async def transact(client: Client, steps: int) -> None:
    """Consume and produce, or produce only, over all queues."""
    for step in range(steps):
        consumed: list[Held] = []
        if client.random.random() < 0.8:
            for name in client.random.sample(_RECEIVED_FROM, client.random.choice((1, 1, 2, 3))):
                consumed += await client.receive(name, 1) or ()
            await asyncio.sleep(client.random.choice((0.0, 0.0, 0.0, 4.0, 8.0)))
        names = [client.random.choice(_SENT_TO) for _ in range(client.random.choice((1, 2, 3)))]
        work = [_Transaction(client, consumed, names, step).run()]
        if client.random.random() < _DELETED:
            work.append(client.hide(queues.RESCUED))
        await asyncio.gather(*work)
        await asyncio.sleep(client.random.choice((0.0, 0.001, 0.05, 2.0)))


class _Transaction:
    """One transaction, repeated under its token until its outcome is known."""

    def __init__(self, client: Client, consumed: list[Held], names: list[str], step: int) -> None:
        self._client = client
        self._simulation = client.simulation
        self._consumed = consumed
        self._names = names
        self._groups = [
            f"{client.name}t{step}.{place}" if name == queues.ORDER else ""
            for place, name in enumerate(names)
        ]
        self._bodies = [client.new_body() for _ in names]
        self._fails = client.random.random() < _FAILS
        """True if its gateway fails once others prepared their deletes."""
        self._has_failed = False
        self._told: set[asyncio.Task[None]] = set()
        self._token = Token(client.random.randbytes(16), bytes(16))

    async def run(self) -> None:
        """Do it, and note the outcome."""
        simulation = self._simulation
        await simulation.connected()
        begun = simulation.time.read()
        outcome, done = Outcome.UNKNOWN, None
        transacting = Transacting(
            self._ask, self._tell, lambda: self._client.random.getrandbits(128), lambda: 0
        )
        attempt = 0
        while simulation.time.read() < begun + _RETRIED_S_MAX:
            try:
                done, shard = await transacting.decide(
                    self._entries(), self._token, prepared.CALLER, attempt
                )
                is_cancelled = any(code for code, _ in done.reasons)
                outcome = Outcome.REFUSED if is_cancelled else Outcome.DONE
                if is_cancelled or done.is_settled:
                    break
                if await transacting.is_settled(self._token, shard, prepared.CALLER):
                    break
            except Moved:
                attempt += 1
            except ServiceUnavailable:  # Departing is one
                if self._has_failed:
                    break
            await asyncio.sleep(self._client.random.uniform(0, _AGAIN_S))
            await simulation.connected()
        self._note(begun, simulation.time.read(), outcome, done)

    async def _ask(self, request: Request) -> Answer:
        operation = request.operation
        if isinstance(operation, TransactMessages) and operation.prepared:
            await asyncio.sleep(self._client.random.choice((0.0, 0.0, 0.0, 1.0, 3.5)))
            if self._fails:
                self._has_failed = True
                raise ServiceUnavailable()
        request = msgspec.structs.replace(request, request_id=self._simulation.new_id())
        reply = await self._client.ask(request, f"transact {self._bodies[0][:12]}")
        if isinstance(reply.answer, QueueError):  # Moved and Departing are of unknown outcome, too
            raise reply.answer
        if reply.outcome is Outcome.UNKNOWN:
            raise ServiceUnavailable()
        return reply.answer

    def _tell(self, request: Request) -> None:
        """Ask, and do not wait; some requests are lost."""
        if self._has_failed or self._client.random.random() < _UNTOLD:
            return
        start_task(self._told, self._asked(request))

    async def _asked(self, request: Request) -> None:
        with suppress(QueueError):
            await self._ask(request)

    def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        for consumed in self._consumed:
            queue = self._client.queue(consumed.delivery.queue)
            entries.append(Entry(queue, consumed.receipt))
        for name, body, group in zip(self._names, self._bodies, self._groups, strict=True):
            queue = self._client.queue(name)
            entries.append(Entry(queue, prepared.content(body, queue, group=group or None)))
        return entries

    def _note(self, begun: float, ended: float, outcome: Outcome, done: Transacted | None) -> None:
        history = self._simulation.history
        sent = done.sent[-len(self._names) :] if done is not None and done.sent else []
        for place, name in enumerate(self._names):
            body, group = self._bodies[place], self._groups[place]
            message_id = sent[place][0] or "" if sent else ""
            history.sends.append(
                Send(
                    name_of(body),
                    name,
                    body,
                    begun,
                    ended,
                    outcome,
                    message_id,
                    group,
                    1 if group else 0,
                )
            )
        consumed = tuple([each.delivery for each in self._consumed])
        for delivery in consumed:
            history.deletes.append(Delete(delivery, begun, ended, outcome))
        names = tuple(map(name_of, self._bodies))
        history.transactions.append(Transaction(names, consumed, begun, outcome))
