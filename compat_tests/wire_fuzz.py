"""Fuzzed requests over many connections on one real service, while a bystander measures its
latency.

Every answer must be a success or the caller's fault (4xx), never 5xx; a well-framed request must
always get an answer; the service must stay up and log no failure of its own; and the bystander must
never wait more than 100 ms for the service (time without a free processor does not count, and is
shown).

Half of the requests go to a service that checks signatures, half to an open one.

`python -m compat_tests.wire_fuzz --count 1000000`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.bystander import Bystander, Waits
from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Credentials
from compat_tests.faults.run import say
from compat_tests.fuzz_requests import QUEUES, Fuzzed, Fuzzer, Signer
from compat_tests.node_process import NodeProcess

CONNECTIONS = 32
STALL_SECONDS = 0.1
PATIENCE_SECONDS = 20.0  # for one answer; the longest requested poll takes one
SHOWN = 12
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HANDLE = re.compile(
    rb'(?:"(?:ReceiptHandle|TaskHandle|NextToken)":"'
    rb'|<(?:ReceiptHandle|TaskHandle|NextToken)>)([^"<]+)'
)


@dataclass
class Outcome:
    """The outcome of a run."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken: dict[str, str] = field(default_factory=dict)
    """Wrong answers, by their common traits, each with one request that caused it."""

    broken_count: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    """Successes by action."""

    def add(self, what: str, request: Fuzzed) -> None:
        """Note a wrong answer."""
        self.broken_count += 1
        if what not in self.broken:
            self.broken[what] = repr(request.data[:3000])


def main() -> int:
    """Run from the command line; exits with 1 if an answer, a log line or a wait is not allowed."""
    parser = argparse.ArgumentParser(description="fuzzed requests")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    say(f"seed {seed}")
    is_good = True
    for auth in ("sigv4", "open"):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--aws-waits", "off", "--durability", "os", "--auth", auth)
            node = NodeProcess(
                Path(folder), *arguments, credentials=_NO_KEY if auth == "open" else None
            )
            try:
                node.start()
                is_good &= run_and_tell(node, auth, options.count // 2, seed)
            finally:
                node.close()
    return 0 if is_good else 1


_NO_KEY = Credentials("000000000000", "none", "us-east-1")


def run_and_tell(node: NodeProcess, auth: str, count: int, seed: int) -> bool:
    """Fuzz one running service beside a bystander and show the outcome; True if all was well."""
    client = Boto3Client(node.url, node.credentials)
    url = client.call("CreateQueue", QueueName="bystander")["QueueUrl"]
    client.close()
    bystander = Bystander(Endpoint("fuzzed", node.url, node.credentials, node.pid), url)
    begun = time.monotonic()
    outcome = fuzz_node(node, auth, count, seed)
    seconds = time.monotonic() - begun
    is_up = node.running
    waits = bystander.finish()
    failures = failures_logged(node)
    stalls = [wait for wait in waits.own if wait > STALL_SECONDS]
    say(f"{auth}: {count} requests in {seconds:.0f} s, {dict(sorted(outcome.statuses.items()))}")
    say(
        f"    successes of {len(outcome.answered)} actions: "
        f"{dict(sorted(outcome.answered.items()))}"
    )
    say(f"    {_told(waits)}")
    for what, request in list(outcome.broken.items())[:SHOWN]:
        say(f"    {what}\n        {request}")
    for line in failures[:SHOWN]:
        say(f"    logged: {line[:3000]}")
    say(
        f"    {outcome.broken_count} wrong answers, {len(failures)} failures logged, {len(stalls)} "
        "stalls"
    )
    return not (outcome.broken_count or failures or stalls) and is_up


def _told(waits: Waits) -> str:
    whole, own = sorted(waits.whole), sorted(waits.own)
    over = sum(wait > STALL_SECONDS for wait in whole)
    return (
        f"bystander: {len(whole)} calls, p50 {whole[len(whole) // 2] * 1000:.1f} ms, "
        f"p99 {whole[len(whole) * 99 // 100] * 1000:.1f} ms, max {whole[-1] * 1000:.0f} ms, {over} "
        "over 100 ms; "
        f"without waits for a processor: max {own[-1] * 1000:.0f} ms"
    )


def failures_logged(node: NodeProcess) -> list[str]:
    """Lines of the log about faults of the service's own."""
    found = []
    for line in node.log.read_text(errors="replace").splitlines():
        try:
            if json.loads(line)["level"] in ("error", "critical"):
                found.append(line)
        except (ValueError, KeyError):
            found.append(line)
    return found


def fuzz_node(node: NodeProcess, auth: str, count: int, seed: int) -> Outcome:
    """Make the queues that the requests name, and send `count` requests."""
    client = Boto3Client(node.url, node.credentials)
    for name in QUEUES:
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        client.call("CreateQueue", QueueName=name, Attributes=attributes)
    client.close()
    signer = Signer(node.credentials) if auth == "sigv4" else None
    fuzzer = Fuzzer(random.Random(seed), urlsplit(node.url).netloc, signer)
    return asyncio.run(fuzz(node.url, fuzzer, count))


async def fuzz(url: str, fuzzer: Fuzzer, count: int) -> Outcome:
    """Send `count` requests over many connections, each waiting for its answer."""
    outcome = Outcome()
    left = iter(range(count))
    await asyncio.gather(*(_lane(url, fuzzer, left, outcome) for _ in range(CONNECTIONS)))
    return outcome


class _Answer(NamedTuple):
    status: int
    body: bytes
    closes: bool


async def _lane(url: str, fuzzer: Fuzzer, left: Iterator[int], outcome: Outcome) -> None:
    parts = urlsplit(url)
    streams = None
    for _ in left:
        request = fuzzer.make()
        try:
            if streams is None:
                streams = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
            reader, writer = streams
            writer.write(request.data)
            answer = await asyncio.wait_for(_read(reader), PATIENCE_SECONDS)
        except TimeoutError:
            answer = None
            if request.well_framed:
                outcome.add("no answer in time", request)
        except (OSError, EOFError) as error:
            answer = None
            if request.well_framed:
                outcome.add(f"closed without an answer: {type(error).__name__}", request)
        if answer is not None:
            _note(request, answer, fuzzer, outcome)
        if streams is not None and (answer is None or answer.closes or not request.well_framed):
            streams[1].close()
            streams = None
    if streams is not None:
        streams[1].close()


async def _read(reader: asyncio.StreamReader) -> _Answer:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        if status >= 200:
            return _Answer(status, body, b"\r\nconnection: close" in head.lower())


def _note(request: Fuzzed, answer: _Answer, fuzzer: Fuzzer, outcome: Outcome) -> None:
    outcome.statuses[answer.status] += 1
    if answer.status >= 500:
        outcome.add(f"{answer.status} {request.action}: {answer.body[:200]!r}", request)
    if answer.status == 200:
        outcome.answered[request.action] += 1
        for found in _HANDLE.finditer(answer.body):
            fuzzer.remember(request.queue_url, found[1].decode())


if __name__ == "__main__":
    sys.exit(main())
