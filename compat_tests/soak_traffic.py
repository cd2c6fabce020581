"""What `soak.py` puts on a service: lanes of mixed traffic in one event loop, and a ledger of what was acknowledged.

A lane calls over connections of its own and takes a service that is away for normal: it connects again and goes on. What
must not happen is written into the ledger in a line each.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from compat_tests.benchmarks.wire import Connection, Endpoint, Refused, connect
from compat_tests.facade import Members

VISIBILITY_SECONDS = 30
RESTING_SECONDS = 0.2
PARKED_POLLS = 20
_BROKEN_MAX = 1000
_CALL_SECONDS = 40.0


@dataclass
class Ledger:
    """What was acknowledged and what came, over all lanes. Bodies name messages."""

    calls: int = 0
    failed_calls: int = 0
    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    deleted: dict[str, float] = field(default_factory=dict)
    """When the delete was acknowledged."""

    latencies: list[float] = field(default_factory=list)
    """Seconds of each send since the sampler looked last."""

    broken: list[str] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    """The highest number received of each FIFO group."""

    def missing(self) -> set[str]:
        """Acknowledged and never seen."""
        return self.sent - self.received


class Caller:
    """Calls over one connection, which it makes anew when it is lost."""

    def __init__(self, endpoint: Endpoint, ledger: Ledger) -> None:
        self._endpoint = endpoint
        self._ledger = ledger
        self._connection: Connection | None = None

    async def call(self, action: str, expected: str = "\0", **members: Any) -> Members | None:
        """The answer; None when the service is away or unable, or refuses with a text that holds `expected`."""
        try:
            if self._connection is None:
                (self._connection,) = await connect(self._endpoint, 1)
            body = json.dumps(members).encode()
            self._ledger.calls += 1
            answer = await asyncio.wait_for(self._connection.call(action, body), _CALL_SECONDS)
        except Refused as refusal:
            if str(refusal).startswith("4") and expected not in str(refusal):
                self._ledger.broken.append(f"{action} was refused: {str(refusal)[:300]}")
                del self._ledger.broken[_BROKEN_MAX:]
            self._ledger.failed_calls += 1
            await asyncio.sleep(RESTING_SECONDS)
            return None
        except (OSError, TimeoutError):
            self._ledger.failed_calls += 1
            self.close()
            await asyncio.sleep(RESTING_SECONDS)
            return None
        read: Members = json.loads(answer) if answer else {}
        return read

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


Lane = Callable[["Traffic"], Coroutine[Any, Any, None]]


class Traffic:
    """All lanes over one service."""

    def __init__(self, endpoint: Endpoint, chance: random.Random) -> None:
        self.endpoint = endpoint
        self.ledger = Ledger()
        self.chance = chance
        self.is_sending = True
        self._numbers = itertools.count()
        self._urls: dict[str, str] = {}

    async def make_queues(self) -> None:
        """Make the queues that live for the whole run."""
        caller = Caller(self.endpoint, self.ledger)
        timeout = {"VisibilityTimeout": str(VISIBILITY_SECONDS)}
        made = {
            "plain": timeout,
            "fair": timeout,
            "order.fifo": {**timeout, "FifoQueue": "true"},
            "letters": timeout,
            "idle": timeout,
        }
        for name, attributes in made.items():
            answer = await caller.call("CreateQueue", QueueName=name, Attributes=attributes)
            assert answer is not None, f"{name} cannot be made"
            self._urls[name] = answer["QueueUrl"]
        answer = await caller.call(
            "GetQueueAttributes", QueueUrl=self._urls["letters"], AttributeNames=["QueueArn"]
        )
        assert answer is not None
        arn = answer["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        attributes = {"VisibilityTimeout": "0", "RedrivePolicy": policy}
        answer = await caller.call("CreateQueue", QueueName="failing", Attributes=attributes)
        assert answer is not None
        self._urls["failing"] = answer["QueueUrl"]
        self._letters_arn = arn
        caller.close()

    async def run(self, until: Callable[[], bool]) -> None:
        """Run every lane until the claim holds, then stop sending, consume what is left, and end."""
        lanes: list[Coroutine[Any, Any, None]] = [
            *(self._send("plain", batch=batch) for batch in (1, 1, 10)),
            *(self._send("fair", batch=1) for _ in range(2)),
            *(self._send("order.fifo", batch=1) for _ in range(2)),
            self._send("failing", batch=10),
            *(self._consume(name) for name in ("plain", "plain", "fair", "order.fifo", "letters")),
            self._fail_to_consume(),
            self._redrive(),
            self._make_and_drop_queues(),
            *(self._poll_idly() for _ in range(PARKED_POLLS)),
            self._misbehave(),
        ]
        tasks = [asyncio.create_task(lane) for lane in lanes]
        try:
            while not until():
                await asyncio.sleep(0.1)
                for task in tasks:
                    if task.done():
                        task.result()  # a lane ends early only by a bug of its own
            self.is_sending = False
            deadline = time.monotonic() + 2 * VISIBILITY_SECONDS + 30
            while self.ledger.missing() and time.monotonic() < deadline:  # noqa: ASYNC110 - it happens once
                await asyncio.sleep(0.1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def _caller(self) -> AsyncIterator[Caller]:
        caller = Caller(self.endpoint, self.ledger)
        try:
            yield caller
        finally:
            caller.close()

    # -- lanes ------------------------------------------------------------------------------------------------------------

    async def _send(self, queue: str, *, batch: int) -> None:
        lane = next(self._numbers)
        async with self._caller() as caller:
            for number in itertools.count(1):
                bodies = [f"{queue}/{lane}/{number}.{part}" for part in range(batch)]
                if queue.endswith(".fifo"):
                    bodies = [f"{queue}/{lane}/{number}"]
                while not await self._send_once(caller, queue, lane, bodies):
                    pass  # FIFO: the same number again, under the same id
                if not self.is_sending:
                    return
                await asyncio.sleep(self.chance.uniform(0.005, 0.04) * batch)

    async def _send_once(self, caller: Caller, queue: str, lane: int, bodies: list[str]) -> bool:
        url = self._urls[queue]
        padding = "-" * self.chance.choice((10, 200, 4000))
        begun = time.monotonic()
        if len(bodies) > 1:
            entries = [
                {"Id": str(n), "MessageBody": f"{b}|{padding}"} for n, b in enumerate(bodies)
            ]
            answer = await caller.call("SendMessageBatch", QueueUrl=url, Entries=entries)
            ids = [int(entry["Id"]) for entry in (answer or {}).get("Successful", [])]
            self.ledger.sent |= {bodies[number] for number in ids}
        else:
            members = {"QueueUrl": url, "MessageBody": f"{bodies[0]}|{padding}"}
            if queue == "fair":
                members["MessageGroupId"] = self.chance.choice(("noisy", "noisy", "noisy", "quiet"))
            if queue.endswith(".fifo"):
                members |= {"MessageGroupId": str(lane), "MessageDeduplicationId": bodies[0]}
            answer = await caller.call("SendMessage", **members)
            if answer is not None:
                self.ledger.sent.add(bodies[0])
        if answer is not None:
            self.ledger.latencies.append(time.monotonic() - begun)
        return answer is not None or not queue.endswith(".fifo")

    async def _consume(self, queue: str) -> None:
        url = self._urls[queue]
        async with self._caller() as caller:
            while True:
                begun = time.monotonic()
                answer = await caller.call(
                    "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5
                )
                messages = (answer or {}).get("Messages", [])
                for message in messages:
                    self._note(message["Body"].split("|")[0], begun)
                if not messages:
                    continue
                entries = [
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(messages)
                ]
                answer = await caller.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
                if answer is None or time.monotonic() > begun + VISIBILITY_SECONDS / 2:
                    continue  # a late delete may be by an outdated handle
                for entry in answer.get("Successful", []):
                    name = messages[int(entry["Id"])]["Body"].split("|")[0]
                    self.ledger.deleted[name] = time.monotonic()

    def _note(self, name: str, begun: float) -> None:
        ledger = self.ledger
        ledger.received.add(name)
        if ledger.deleted.get(name, begun) < begun:
            ledger.broken.append(f"came back after its delete: {name}")
        if name.startswith("order"):
            _, group, number = name.split("/")
            highest = ledger.last.get(group, 0)
            if int(number) > highest + 1:
                ledger.broken.append(f"{name} came after {highest}")
            ledger.last[group] = max(highest, int(number))

    async def _fail_to_consume(self) -> None:
        """Receive twice, so that messages become dead letters."""
        async with self._caller() as caller:
            while True:
                url = self._urls["failing"]
                await caller.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
                await asyncio.sleep(0.1)

    async def _redrive(self) -> None:
        """Move dead letters back now and then; the other consumer may take them first."""
        async with self._caller() as caller:
            while True:
                await asyncio.sleep(2)
                arn = self._letters_arn
                await caller.call("StartMessageMoveTask", "already a task running", SourceArn=arn)

    async def _make_and_drop_queues(self) -> None:
        async with self._caller() as caller:
            while True:
                name = f"passing-{next(self._numbers)}"
                answer = await caller.call("CreateQueue", QueueName=name)
                url = (answer or {}).get("QueueUrl")
                if url is None:
                    continue
                for _ in range(5):
                    await caller.call("SendMessage", QueueUrl=url, MessageBody=name)
                await caller.call("ReceiveMessage", QueueUrl=url)
                await caller.call("DeleteQueue", "does not exist", QueueUrl=url)
                await asyncio.sleep(0.3)

    async def _poll_idly(self) -> None:
        async with self._caller() as caller:
            while True:
                url = self._urls["idle"]
                await caller.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
                if self.chance.random() < 0.3:
                    caller.close()

    async def _misbehave(self) -> None:
        """Clients that are slow, silent, hang up, or speak something else."""
        parts = urlsplit(self.endpoint.url)
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"
        ways = (
            b"",
            b"POST / HT",
            head,
            head + b"x" * 50_000,
            b"\x16\x03\x01" * 50,
            b"GET / HTTP/1.1\r\n\r\n",
        )
        open_now: list[asyncio.StreamWriter] = []
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                for byte in self.chance.choice(ways).splitlines(keepends=True):
                    writer.write(byte)
                    await asyncio.sleep(0.01)
                open_now.append(writer)
            if len(open_now) > 50:
                open_now.pop(self.chance.randrange(50)).transport.abort()
            await asyncio.sleep(0.2)
