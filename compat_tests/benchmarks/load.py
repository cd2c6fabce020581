"""The load of one run on one queue: its calls, their durations, and an account of every message.

Each message carries the run's name and a number of its own, so that the account can tell a lost
message from one delivered twice and from another run's.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from compat_tests.benchmarks.bench_wire import Connection, Refused

BATCH = 10
BODY_BYTES = 170
VISIBILITY_SECONDS = 600
"""Longer than any run, so that a second delivery is never due."""

SEND_TO_ARRIVAL = "send to arrival"


class _Members(msgspec.Struct, rename="pascal", frozen=True, gc=False):
    """Members of a request or an answer, under AWS's names on the wire."""


class _Entry(_Members, frozen=True):
    entry_id: str = msgspec.field(name="Id")


class _CreateQueue(_Members, frozen=True):
    queue_name: str
    attributes: dict[str, str]


class _Queue(_Members, frozen=True):
    queue_url: str


class _Send(_Members, frozen=True):
    queue_url: str
    message_body: str
    message_group_id: str | msgspec.UnsetType = msgspec.UNSET
    message_deduplication_id: str | msgspec.UnsetType = msgspec.UNSET


class _SendEntry(_Entry, frozen=True):
    message_body: str


class _SendBatch(_Members, frozen=True):
    queue_url: str
    entries: list[_SendEntry]


class _Receive(_Members, frozen=True):
    queue_url: str
    max_number_of_messages: int
    wait_time_seconds: int


class _Delete(_Members, frozen=True):
    queue_url: str
    receipt_handle: str


class _DeleteEntry(_Entry, frozen=True):
    receipt_handle: str


class _DeleteBatch(_Members, frozen=True):
    queue_url: str
    entries: list[_DeleteEntry]


class _Sent(_Members, frozen=True):
    message_id: str


class _Message(_Members, frozen=True):
    receipt_handle: str
    body: str


class _Received(_Members, frozen=True):
    messages: list[_Message] = []


class _BatchAnswer(_Members, frozen=True):
    successful: list[_Entry]
    failed: list[msgspec.Raw] = []


_encode = msgspec.json.Encoder().encode
_decode_queue = msgspec.json.Decoder(_Queue).decode
_decode_sent = msgspec.json.Decoder(_Sent).decode
_decode_received = msgspec.json.Decoder(_Received).decode
_decode_batch = msgspec.json.Decoder(_BatchAnswer).decode


class Delivery(NamedTuple):
    """A received message."""

    number: int
    receipt_handle: str


class Tally:
    """Counts and durations between two moments."""

    def __init__(self) -> None:
        self.messages = 0
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        """Durations by action and by the scenario's other timings."""

    def quantile_ms(self, name: str, quantile: float) -> float:
        """The duration that this share of them did not exceed; not a number if there were none."""
        durations = sorted(self.seconds[name])
        if not durations:
            return math.nan
        return 1e3 * durations[min(len(durations) - 1, int(quantile * len(durations)))]


class Load:
    """Calls for one queue and their account. Workers stop once `running` is False."""

    def __init__(self, run: str, groups: int = 0) -> None:
        """`run` names the queue; it is FIFO with this many groups, or standard if that is 0."""
        self.running = True
        self.tally = Tally()
        """Counts present events; a measurement puts a fresh one here."""

        self.numbers_given = 0
        """Messages whose send has begun."""

        self.acknowledged: set[int] = set()
        self.received: set[int] = set()
        self.duplicates = 0
        self.errors: list[str] = []
        self._run = run
        self._groups = groups
        self._queue_url = f"http://127.0.0.1:9324/000000000000/{run}"
        """That of the queue once it is made; before, one as long."""
        self._begun: dict[int, float] = {}
        """For each message under way, the time at which its send began."""

    @property
    def lost(self) -> int:
        """Messages acknowledged and never received; final only when the queue is empty."""
        return len(self.acknowledged - self.received)

    async def create_queue(self, connection: Connection) -> None:
        """Make the queue that the other calls use."""
        attributes = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
        name = self._run
        if self._groups:
            attributes["FifoQueue"] = "true"
            name += ".fifo"
        body = _encode(_CreateQueue(name, attributes))
        self._queue_url = _decode_queue(await connection.call("CreateQueue", body)).queue_url

    async def send(self, connection: Connection) -> None:
        """Send one message."""
        number = self._take_numbers(1)[0]
        self._begun[number] = time.perf_counter()
        fifo = (f"group-{number % self._groups}", str(number)) if self._groups else ()
        body = _encode(_Send(self._queue_url, self._body(number), *fifo))
        _decode_sent(await self._call(connection, "SendMessage", body))
        self.acknowledged.add(number)

    async def send_batch(self, connection: Connection) -> None:
        """Send ten messages; raises Refused if any was."""
        numbers = self._take_numbers(BATCH)
        now = time.perf_counter()
        self._begun.update((number, now) for number in numbers)
        entries = [_SendEntry(str(number), self._body(number)) for number in numbers]
        body = _encode(_SendBatch(self._queue_url, entries))
        answer = _decode_batch(await self._call(connection, "SendMessageBatch", body))
        self.acknowledged.update(int(entry.entry_id) for entry in answer.successful)
        _check_batch(answer, BATCH)

    async def receive(
        self, connection: Connection, count: int, *, wait_seconds: int = 0
    ) -> list[Delivery]:
        """Receive at most `count` messages and enter them into the account."""
        body = _encode(_Receive(self._queue_url, count, wait_seconds))
        answer = await self._call(connection, "ReceiveMessage", body)
        now = time.perf_counter()
        deliveries = []
        for message in _decode_received(answer).messages:
            number = self._number(message.body)
            if number in self.received:
                self.duplicates += 1
            self.received.add(number)
            self.tally.seconds[SEND_TO_ARRIVAL].append(now - self._begun.pop(number, now))
            deliveries.append(Delivery(number, message.receipt_handle))
        return deliveries

    async def delete(self, connection: Connection, delivery: Delivery) -> None:
        """Delete one message."""
        body = _encode(_Delete(self._queue_url, delivery.receipt_handle))
        await self._call(connection, "DeleteMessage", body)

    async def delete_batch(self, connection: Connection, deliveries: Sequence[Delivery]) -> None:
        """Delete at most ten messages; raises Refused if any was."""
        entries = [_DeleteEntry(str(each.number), each.receipt_handle) for each in deliveries]
        body = _encode(_DeleteBatch(self._queue_url, entries))
        answer = _decode_batch(await self._call(connection, "DeleteMessageBatch", body))
        _check_batch(answer, len(deliveries))

    async def _call(self, connection: Connection, action: str, body: bytes) -> bytes:
        begin = time.perf_counter()
        answer = await connection.call(action, body)
        self.tally.seconds[action].append(time.perf_counter() - begin)
        return answer

    def _take_numbers(self, count: int) -> range:
        self.numbers_given += count
        return range(self.numbers_given - count, self.numbers_given)

    def _body(self, number: int) -> str:
        return f"{self._run} {number} ".ljust(BODY_BYTES, "x")

    def _number(self, body: str) -> int:
        run, number, _ = body.split(" ", 2)
        if run != self._run or body != self._body(int(number)):
            raise Refused(f"a message that this run did not send: {body[:100]}")
        return int(number)


def _check_batch(answer: _BatchAnswer, expected: int) -> None:
    if answer.failed or len(answer.successful) != expected:
        reasons = [bytes(each).decode(errors="replace") for each in answer.failed[:1]]
        raise Refused(f"{len(answer.successful)} of {expected} entries succeeded; {reasons}")
