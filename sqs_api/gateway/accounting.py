"""Accounting: one count of each answered request, for metrics and the usage of accounts, and its
line in the audit log."""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator
from typing import Protocol

import structlog

from auth.auth_errors import AuthError
from auth.caller import Caller
from sqs_api.gateway.access import Sender
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.usage import CHUNK_BYTES, Counters, Usage, UsageRow
from storage.histogram import Histogram
from visibility.contract.actions import Action
from visibility.contract.errors import KmsAccessDenied, QueueError
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import Operation

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0)
NOT_READ = "-"
"""The action of a request that could not be read."""
DENIALS = (AuthError, KmsAccessDenied)
"""Refusals that the audit log has."""
_KEYS_MAX = 50_000

_Key = tuple[str, int, str, int]
"""Account (empty if unknown), queue id (0 for requests on no queue's messages), action, status."""


class Answered(Protocol):
    """An answered request, with the members that accounting needs; unreadable ones are None."""

    request_id: str
    bytes_in: int
    action: Action | None
    operation: Operation | None
    queue: QueueDefinition | None
    caller: Caller | None
    refusal: QueueError | AuthError | None

    @property
    def client(self) -> Sender:
        """The origin of the request."""


class Accounting:
    """Counts for one process."""

    def __init__(self, usage: Usage | None = None, audit: AuditLog | None = None) -> None:
        """Without a usage nothing outlives the process."""
        self.usage = usage
        self._audit = audit
        self._counted: dict[_Key, tuple[Counters, Histogram]] = {}
        """Since the last `write`; latencies are those of the action, since the start."""
        self._requests: dict[tuple[str, int], int] = {}
        """Requests by action and status, up to the last `write`."""
        self.latencies: dict[str, Histogram] = {}
        """Time from a request's last byte to its answer, by action."""
        self.refusals: dict[str, int] = {}
        """Refused requests by error code."""
        self._unwritten: list[UsageRow] = []
        self._log = structlog.get_logger("usage")

    def answered(self, exchange: Answered, status: int, bytes_out: int, taken_s: float) -> None:
        """Count a request that is about to be answered."""
        caller, queue, action = exchange.caller, exchange.queue, exchange.action
        key = (
            "" if caller is None else caller.account,
            0 if queue is None else queue.queue_id,
            NOT_READ if action is None else action.name,
            status,
        )
        counters, latencies = self._counted.get(key) or self._begin(key, queue)
        bytes_in = exchange.bytes_in
        payload = bytes_in if bytes_in > bytes_out else bytes_out
        counters[0] += 1
        counters[1] += 1 if payload <= CHUNK_BYTES else -(-payload // CHUNK_BYTES)
        counters[2] += bytes_in
        counters[3] += bytes_out
        latencies.buckets[bisect_left(LATENCY_BOUNDS_S, taken_s)] += 1
        latencies.total += taken_s
        if exchange.refusal is not None:
            self._refused(exchange)
        elif action is not None and action.audited and self._audit is not None:
            self._note(exchange, "")

    def _begin(self, key: _Key, queue: QueueDefinition | None) -> tuple[Counters, Histogram]:
        account, _, action, status = key
        arn = "" if queue is None else queue.arn
        if len(self._counted) >= _KEYS_MAX:
            key, arn = (account, 0, action, status), ""  # more queues than a minute should name
        found = self._counted.get(key)
        if found is None:
            counters: Counters = [0, 0, 0, 0]
            if account and self.usage is not None:
                counters = self.usage.counters(account, arn, f"{action} {status}")
            latencies = self.latencies.setdefault(action, Histogram(LATENCY_BOUNDS_S))
            found = self._counted[key] = (counters, latencies)
        return found

    def count_refusal(self, code: str) -> None:
        """Count a refused request by its error code."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def _refused(self, exchange: Answered) -> None:
        refusal, action = exchange.refusal, exchange.action
        assert refusal is not None
        self.count_refusal(refusal.code)
        if self._audit is None:
            return
        if isinstance(refusal, DENIALS):
            self.note_denied(exchange, exchange.caller, refusal.code)
        elif action is not None and action.audited:
            self._note(exchange, refusal.code)

    def note_denied(self, exchange: Answered, caller: Caller | None, code: str) -> None:
        """Write a call that was denied to the audit log."""
        if self._audit is not None:
            name = NOT_READ if exchange.action is None else exchange.action.name
            source_ip, request_id = exchange.client.source_ip, exchange.request_id
            self._audit.denied(name, caller, source_ip, request_id, code)

    def _note(self, exchange: Answered, refusal: str) -> None:
        """An administrative action for the audit log; `refusal` is an error code, empty if it was
        done."""
        caller, operation, action = exchange.caller, exchange.operation, exchange.action
        assert caller is not None
        assert operation is not None
        assert action is not None
        assert self._audit is not None
        source_ip = exchange.client.source_ip
        self._audit.action(operation, action.name, caller, source_ip, exchange.request_id, refusal)

    def requests(self) -> dict[tuple[str, int], int]:
        """Answered requests since the start, by action and status."""
        found = dict(self._requests)
        for (action, status), count in self._by_action():
            found[action, status] = found.get((action, status), 0) + count
        return found

    def _by_action(self) -> Iterator[tuple[tuple[str, int], int]]:
        for (_, _, action, status), (counters, _) in self._counted.items():
            yield (action, status), counters[0]

    async def write(self) -> None:
        """Add the counts to the usage; any that cannot be written now are part of the next call."""
        if self.usage is None:
            return
        self._requests, self._counted = self.requests(), {}
        journals, rows = self.usage.take()
        rows, self._unwritten = self._unwritten + rows, []
        if not journals and not rows:
            return
        try:
            await asyncio.to_thread(self.usage.write, journals, rows)
        except (sqlite3.Error, OSError) as error:
            self._unwritten = rows
            self._log.error("usage_not_written", error=str(error))
