"""A client's transactions: what it received is deleted, and others are sent, all or none."""

from __future__ import annotations

import asyncio

import msgspec

from cluster.tests.simulation import queues
from cluster.tests.simulation.client import Client, Held, name_of
from compat_tests.faults.history import Delete, Outcome, Send, Transaction
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Transacted
from visibility.rules.archive_batches import the_shard
from visibility.rules.transactions import TransactedEntry, TransactMessages
from visibility.tests import prepared

_AGAIN_S = 0.2
_RETRIED_S_MAX = 200.0
_SENT_TO = (queues.PLAIN, queues.RESCUED, queues.FAIR, queues.ORDER)
_DIGEST = bytes(16)


async def transact(client: Client, steps: int) -> None:
    """Consume and produce, or produce only, over all queues."""
    for step in range(steps):
        consumed = None
        if client.random.random() < 0.8:
            found = await client.receive(
                client.random.choice((queues.PLAIN, queues.RESCUED, queues.FAIR)), 1
            )
            consumed = found[0] if found else None
            await asyncio.sleep(client.random.choice((0.0, 0.0, 0.0, 4.0, 8.0)))
        names = [client.random.choice(_SENT_TO) for _ in range(client.random.choice((1, 2, 3)))]
        await _Transaction(client, consumed, names, step).run()
        await asyncio.sleep(client.random.choice((0.0, 0.001, 0.05, 2.0)))


class _Transaction:
    """One transaction, repeated under its token until its outcome is known."""

    def __init__(self, client: Client, consumed: Held | None, names: list[str], step: int) -> None:
        self._client = client
        self._simulation = client.simulation
        self._consumed = consumed
        self._names = names
        self._groups = [
            f"{client.name}t{step}.{place}" if name == queues.ORDER else ""
            for place, name in enumerate(names)
        ]
        self._bodies = [client.new_body() for _ in names]
        self._token = client.random.randbytes(16)

    async def run(self) -> None:
        """Do it, and note the outcome."""
        simulation = self._simulation
        await simulation.connected()
        begun = simulation.time.read()
        outcome, done = Outcome.UNKNOWN, None
        attempt = 0
        while simulation.time.read() < begun + _RETRIED_S_MAX:
            about = f"transact {self._bodies[0][:12]}"
            reply = await self._client.ask(self._request(attempt), about)
            if isinstance(reply.answer, Transacted):
                done = reply.answer
                outcome = Outcome.DONE
                if any(code for code, _ in done.reasons):
                    outcome = Outcome.UNKNOWN if attempt else Outcome.REFUSED
                    break
                if done.is_settled:
                    break
            attempt += 1
            await asyncio.sleep(self._client.random.uniform(0, _AGAIN_S))
            await simulation.connected()
        self._note(begun, simulation.time.read(), outcome, done)

    def _request(self, attempt: int) -> Request:
        entries: list[TransactedEntry] = []
        parts: list[Content | Receipt] = []
        at = None
        if self._consumed is not None:
            queue = self._client.queue(self._consumed.delivery.queue)
            way = queue.way_of(self._consumed.receipt.sequence)
            queue = way[attempt % len(way)]
            at = queue.shard
            entries.append(TransactedEntry(queue.queue_id, queue.version))
            parts.append(self._consumed.receipt)
        for queue, body, group in self._sends():
            entries.append(TransactedEntry(queue.queue_id, queue.version))
            parts.append(prepared.content(body, queue, group=group or None))
            at = queue.shard if at is None else at
        assert at is not None
        operation = TransactMessages(entries, self._token, _DIGEST)
        request = prepared.prepared(the_shard(at), operation, parts)
        return msgspec.structs.replace(request, request_id=self._simulation.new_id())

    def _sends(self) -> list[tuple[QueueDefinition, str, str]]:
        found = [self._client.queue(name) for name in self._names]
        return list(zip(found, self._bodies, self._groups, strict=True))

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
        consumed = None if self._consumed is None else self._consumed.delivery
        if consumed is not None:
            history.deletes.append(Delete(consumed, begun, ended, outcome))
        names = tuple(map(name_of, self._bodies))
        history.transactions.append(Transaction(names, consumed, begun, outcome))
