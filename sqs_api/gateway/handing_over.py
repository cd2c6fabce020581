"""Handing over: a gateway gives what it counted to a host of the fleet, every ten seconds and at a
stop, so that usage and CloudWatch of the fleet have its requests.

    usage    sums of each day, see `usage.py`: they may come twice, and to any host
    counts   of queues, for CloudWatch: what came since the last ones, numbered for each process

A gateway that is killed goes on from its folder. If that is lost, too, so is what was counted since
the last time. Counts of queues are lost with the process, and where the answer of a host is.
"""

from __future__ import annotations

import asyncio
import sqlite3

import msgspec
import structlog

from cluster.clock import Entropy
from cluster.peers.peer_settings import host_of
from cluster.peers.questions import Question, Questions, Said
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.queue_counts import GatewayCounts, QueueCounts
from sqs_api.gateway.usage import Usage, UsageRow

HAND_OVER_S = 10.0
ROWS_MAX = 1000
"""Rows of one question."""
_WAIT_S = 5.0
_STOP_S = 5.0
"""Time that a stop waits for it."""
_HAND_OVER = "hand-over"
_OK, _NOT_TAKEN = 200, 503


class _Handed(msgspec.Struct, array_like=True, frozen=True):
    folder: str
    rows: list[UsageRow]
    process: str
    number: int
    counts: list[tuple[int, GatewayCounts]]


_decode = msgspec.msgpack.Decoder(_Handed).decode
_Sums = tuple[int, ...]


class TakingOver:
    """A host's side."""

    def __init__(self, doors: Questions, usage: Usage, counts: QueueCounts) -> None:
        self._usage = usage
        self._counts = counts
        self._numbers: dict[str, tuple[str, int]] = {}
        """The last process of each gateway, and the number of its last counts."""
        self._log = structlog.get_logger("usage")
        doors.serve(_HAND_OVER, self._take_over)

    async def _take_over(self, question: Question) -> Said:
        """Under the gateway's own name only, and for days that are kept: its certificate is that of
        a process beside clients, which may fall into other hands."""
        handed = _decode(question.body)
        folder = f"{host_of(question.asker)}/{handed.folder}"
        rows = [row for row in handed.rows if self._usage.may_have(row)]
        if len(rows) < len(handed.rows):
            self._log.warning("usage_not_taken", gateway=question.asker, rows=len(handed.rows))
        try:
            await asyncio.to_thread(self._usage.take_over, folder, rows)
        except (sqlite3.Error, OSError) as error:
            self._log.error("usage_not_taken_over", error=str(error))
            return Said(_NOT_TAKEN, b"")
        process, number = self._numbers.get(question.asker, ("", 0))
        if handed.counts and (process != handed.process or number < handed.number):
            self._numbers[question.asker] = handed.process, handed.number
            for queue_id, more in handed.counts:
                if min(more) >= 0:
                    self._counts.add(queue_id, more)
        return Said(_OK, b"")


class HandingOver:
    """A gateway's side."""

    def __init__(
        self,
        doors: Questions,
        accounting: Accounting,
        usage: Usage,
        counts: QueueCounts,
        entropy: Entropy,
    ) -> None:
        self._doors = doors
        self._accounting = accounting
        self._usage = usage
        self._counts = counts
        self._process = f"{entropy.bits128():032x}"
        self._host = ""
        """The host that took it last."""
        self._has: dict[tuple[str, str, str], _Sums] = {}
        """The sums that this host has."""
        self._number = 0
        self._given: dict[int, GatewayCounts] = {}
        """Counts of queues that were handed over."""
        self._seen: dict[tuple[str, int], int] | None = None
        """The answered requests when all was handed over last."""
        self._log = structlog.get_logger("usage")

    async def look(self) -> None:
        """Hand over what is new. Due every HAND_OVER_S."""
        seen = self._accounting.requests()
        if seen != self._seen:
            self._seen = seen if await self._hand_over() else None

    async def stop(self) -> None:
        """Hand over the last, for a bounded time."""
        try:
            await asyncio.wait_for(self.look(), _STOP_S)
        except TimeoutError:
            self._log.warning("usage_not_handed_over")

    async def _hand_over(self) -> bool:
        """True if a host has it all now."""
        try:
            found = await asyncio.to_thread(self._usage.to_hand_over, self._process)
        except (sqlite3.Error, OSError) as error:
            self._log.error("usage_not_read", error=str(error))
            return False
        counts = self._new_counts()
        others = [host for host in self._doors.hosts_of_all_clusters if host != self._doors.host]
        for host in sorted(others, key=lambda each: each != self._host):
            if host != self._host:
                self._host, self._has = host, {}
            if await self._give(host, found.gateway, found.rows, counts):
                await asyncio.to_thread(self._usage.handed_over, found.today)
                return True
            counts = []  # it may have them
        return False

    async def _give(
        self,
        host: str,
        folder: str,
        rows: list[UsageRow],
        counts: list[tuple[int, GatewayCounts]],
    ) -> bool:
        news = [row for row in rows if self._has.get(row[:3]) != row[3:]]
        for begin in range(0, len(news), ROWS_MAX) or [0]:
            some = news[begin : begin + ROWS_MAX]
            handed = _Handed(folder, some, self._process, self._number, counts)
            question = Question(_HAND_OVER, b"", msgspec.msgpack.encode(handed))
            said = await self._doors.ask(host, question, _WAIT_S)
            if said is None or said.status != _OK:
                return False
            self._has.update((row[:3], row[3:]) for row in some)
        return True

    def _new_counts(self) -> list[tuple[int, GatewayCounts]]:
        now = {queue_id: self._counts.of(queue_id) for queue_id in self._counts.queue_ids}
        before, self._given = self._given, now
        self._number += 1
        found: list[tuple[int, GatewayCounts]] = []
        for queue_id, counts in now.items():
            given = before.get(queue_id, GatewayCounts())
            more = GatewayCounts(*(a - b for a, b in zip(counts, given, strict=True)))
            if any(more):
                found.append((queue_id, more))
        return found
