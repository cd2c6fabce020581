"""Memory, latency and restarts by size of the backlog: `python -m compat_tests.benchmarks.size`.

Each case starts a node on a fresh folder, fills it over the wire, and times single messages on one
connection: send, receive, delete. After half of the backlog is consumed, these are timed again;
then the node is stopped, and killed, and each time until it answers again is measured. The timed
messages of `priority` are high ones behind a backlog of low ones, and in turn ones in an empty
queue. Of those of `scheduled` some are due, a thousand a second, and received by long polls: `late`
is the time from the due time to the answer. With ten million messages a case takes five to fifteen
minutes. The exit status is 1 if a bound below is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.node_process import NodeProcess

SIZES = (10_000, 1_000_000, 10_000_000)
MEMORY_MIB_MAX = 500
P99_RATIO_MAX = 1.5
BEHIND_LOW_P99_RATIO_MAX = 2.0
"""Of the receive of a high message behind a backlog, to that in an empty queue."""
SCHEDULED_MIB_MAX = 20
"""Memory for scheduled messages in a service that has started with them."""
LATE_P99_MS_MAX = 200.0
"""From the due time of a scheduled message to the answer of a long poll that waits for it."""
STOPPED_SECONDS_MAX = 2.0
KILLED_SECONDS_MAX = 5.0

_ASKED = 2_000  # calls of each action for one row of latencies
_FILLERS = 8  # connections
_BATCH = 10
_BODY = "x" * 100
_GROUPS = 1_000
_ACTIONS = ("SendMessage", "ReceiveMessage", "DeleteMessage")
_LATE = "late"
_DUE_PER_SECOND, _DUE = 1_000, 20_000
"""Of the scheduled messages, those that are received at their times."""
_DUE_SOON_S = 10.0
"""From the first send of messages that are due soon to the first due time."""
_PRIORITY, _DELIVER_AT = "priority", "deliver-at"
_NEW = "new"
"""The moment before a service is filled."""
_EMPTY = "empty queue"
"""Beside a full one."""


class Row(NamedTuple):
    """The figures of one moment of one case."""

    case: str
    moment: str
    resident_mib: float
    quantiles_us: dict[str, tuple[float, float]]
    """p50 and p99 by action; empty where only the start was timed."""
    start_seconds: float | None = None


class Case(NamedTuple):
    """One kind of backlog."""

    name: str
    messages: int
    fifo: bool = False
    groups: int = _GROUPS
    delay_seconds: int | None = None
    in_flight: int = 0
    queues: int = 1
    tag: tuple[str, str] | None = None
    """A tag of the queues."""
    attribute: tuple[str, str] | None = None
    """A message attribute of the backlog, a number."""
    asked_attribute: tuple[str, str] | None = None
    """One of the messages that are timed."""


class _Filler:
    """Calls on one queue or several."""

    def __init__(self, endpoint: Endpoint, case: Case) -> None:
        self._endpoint = endpoint
        self._case = case
        self._numbers = 0
        self.urls: list[str] = []
        self.empty_url = ""
        """A queue that is not filled."""

    async def create(self, connection: Connection) -> None:
        """Make the case's queues."""
        ending = ".fifo" if self._case.fifo else ""
        attributes = {"VisibilityTimeout": "600"} | (
            {"FifoQueue": "true"} if self._case.fifo else {}
        )
        for number in range(self._case.queues + 1):
            members = {"QueueName": f"size-{number}{ending}", "Attributes": attributes}
            if self._case.tag:
                members["tags"] = dict([_own(self._case.tag, ":")])
            self.urls.append((await _call(connection, "CreateQueue", members))["QueueUrl"])
        self.empty_url = self.urls.pop()

    def _entry(self, position: int) -> dict[str, Any]:
        self._numbers += 1
        entry: dict[str, Any] = {"Id": str(position), "MessageBody": _BODY}
        if self._case.attribute:
            entry["MessageAttributes"] = _attributes(self._case.attribute)
        if self._case.fifo:
            entry["MessageGroupId"] = f"g{self._numbers % self._case.groups}"
            entry["MessageDeduplicationId"] = str(self._numbers)
        if self._case.delay_seconds is not None:
            entry["DelaySeconds"] = self._case.delay_seconds
        return entry

    async def fill(self, messages: int) -> None:
        """Send so many messages of the case, the same number to each queue."""
        calls = iter(range(messages // _BATCH))
        await self._at_once(lambda connection: self._send(connection, calls))

    async def _send(self, connection: Connection, calls: Iterator[int]) -> None:
        for call in calls:
            url = self.urls[call % len(self.urls)]
            entries = [self._entry(position) for position in range(_BATCH)]
            await _call(connection, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})

    async def take(self, messages: int, *, delete: bool) -> None:
        """Receive this number of messages from the first queue; delete them if `delete`."""
        calls = iter(range(messages // _BATCH))
        await self._at_once(lambda connection: self._consume(connection, calls, delete))

    async def _consume(self, connection: Connection, calls: Iterator[int], delete: bool) -> None:
        url = self.urls[0]
        receive = {"QueueUrl": url, "MaxNumberOfMessages": _BATCH}
        for _ in calls:
            messages = (await _call(connection, "ReceiveMessage", receive)).get("Messages", [])
            if delete and messages:
                entries = [
                    {"Id": str(position), "ReceiptHandle": message["ReceiptHandle"]}
                    for position, message in enumerate(messages)
                ]
                await _call(connection, "DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})

    async def late(self) -> tuple[float, float]:
        """Schedule messages, so many for each second, and receive them by long polls: p50 and p99
        of how late they came, in microseconds."""
        url, number = self.urls[0], _DUE
        first_ms = int((time.time() + _DUE_SOON_S) * 1000)
        calls = iter(range(number // _BATCH))
        late: list[float] = []

        async def schedule(connection: Connection) -> None:
            for call in calls:
                entries = []
                for place in range(_BATCH):
                    due_ms = str(first_ms + (call * _BATCH + place) * 1000 // _DUE_PER_SECOND)
                    attributes = _attributes((_DELIVER_AT, due_ms))
                    entries.append(
                        {"Id": str(place), "MessageBody": due_ms, "MessageAttributes": attributes}
                    )
                members = {"QueueUrl": url, "Entries": entries}
                answer = await _call(connection, "SendMessageBatch", members)
                assert len(answer["Successful"]) == _BATCH

        async def receive(connection: Connection) -> None:
            poll = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 5}
            while len(late) < number:
                found = (await _call(connection, "ReceiveMessage", poll)).get("Messages", [])
                now_ms = time.time() * 1000
                late.extend((now_ms - int(message["Body"])) / 1000 for message in found)
                handles = [
                    {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                    for place, message in enumerate(found)
                ]
                if handles:
                    members = {"QueueUrl": url, "Entries": handles}
                    await _call(connection, "DeleteMessageBatch", members)

        await self._at_once(schedule)
        assert time.time() * 1000 < first_ms, "the first were due before the last was sent"
        await self._at_once(receive)
        return _quantiles_us(late)

    async def _at_once(self, work: Callable[[Connection], Any]) -> None:
        connections = await connect(self._endpoint, _FILLERS)
        await asyncio.gather(*[work(connection) for connection in connections])
        for connection in connections:
            connection.close()

    async def ask(self, urls: list[str]) -> list[dict[str, tuple[float, float]]]:
        """One message after another, in each queue in turn: sent, received, deleted."""
        (connection,) = await connect(self._endpoint, 1)
        took: dict[str, dict[str, list[float]]] = {
            url: {action: [] for action in _ACTIONS} for url in urls
        }

        async def timed(action: str, **members: Any) -> dict[str, Any]:
            begun = time.perf_counter()
            answer = await _call(connection, action, {"QueueUrl": url, **members})
            took[url][action].append(time.perf_counter() - begun)
            return answer

        for number in range(_ASKED * len(urls)):
            url = urls[number % len(urls)]
            message = self._entry(0)
            del message["Id"]
            message.pop("DelaySeconds", None)
            message.pop("MessageAttributes", None)
            if self._case.asked_attribute:
                message["MessageAttributes"] = _attributes(self._case.asked_attribute)
            await timed("SendMessage", **message)
            for received in (await timed("ReceiveMessage")).get("Messages", []):
                await timed("DeleteMessage", ReceiptHandle=received["ReceiptHandle"])
        connection.close()
        return [
            {action: _quantiles_us(durations) for action, durations in of.items()}
            for of in took.values()
        ]


def _own(pair: tuple[str, str], mark: str) -> tuple[str, str]:
    name, value = pair
    return f"holdfast{mark}{name}", value


def _attributes(pair: tuple[str, str]) -> dict[str, Any]:
    name, value = _own(pair, ".")
    return {name: {"DataType": "Number", "StringValue": value}}


async def _call(connection: Connection, action: str, members: dict[str, Any]) -> dict[str, Any]:
    answer = await connection.call(action, json.dumps(members).encode())
    decoded: dict[str, Any] = json.loads(answer) if answer else {}
    return decoded


def _quantiles_us(durations: list[float]) -> tuple[float, float]:
    ordered = sorted(durations)
    if not ordered:
        return (0.0, 0.0)
    return ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6


class _Run:
    """One case on one node."""

    def __init__(self, case: Case, folder: Path, durability: str) -> None:
        self._case = case
        self._node = NodeProcess(folder, "--durability", durability)
        self.rows: list[Row] = []

    def run(self) -> list[Row]:
        """All moments of the case."""
        try:
            self._node.start()
            node = self._node
            self._endpoint = Endpoint("holdfast", node.url, node.credentials, node.pid)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._fill_and_ask())
            self._node.stop()
            self._start("start after a stop")
            self._node.kill()
            self._start("start after kill -9")
            self._node.stop()
        finally:
            self._node.close()
        return self.rows

    async def _fill_and_ask(self) -> None:
        case = self._case
        self._filler = filler = _Filler(self._endpoint, case)
        (connection,) = await connect(self._endpoint, 1)
        await filler.create(connection)
        connection.close()
        self._note(_NEW, {})
        is_scheduled = case.attribute is not None and case.attribute[0] == _DELIVER_AT
        due = _DUE if is_scheduled else 0
        await filler.fill(case.messages - due)
        if due:
            self._note("due", {_LATE: await filler.late()})
            await filler.fill(due)
        if case.in_flight:
            await filler.take(case.in_flight, delete=False)
        beside = [filler.empty_url] if case.asked_attribute else []
        full, *empty = await filler.ask([filler.urls[0], *beside])
        for quantiles in empty:
            self._note(_EMPTY, quantiles)
        self._note("full", full)
        is_waiting = case.delay_seconds is None and not case.attribute
        if not case.in_flight and is_waiting and case.queues == 1:
            await filler.take(case.messages // 2, delete=True)
            (half,) = await filler.ask(filler.urls[:1])
            self._note("half consumed", half)

    def _start(self, moment: str) -> None:
        begun = time.monotonic()
        self._node.start()
        taken = time.monotonic() - begun
        self._endpoint = self._endpoint._replace(pid=self._node.pid)
        self._note(moment, {}, taken)

    def _note(
        self, moment: str, quantiles: dict[str, tuple[float, float]], start: float | None = None
    ) -> None:
        resident = read_cost(self._node.pid).resident_mib
        row = Row(self._case.name, moment, resident, quantiles, start)
        self.rows.append(row)
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    cells = [f"{row.case:22}", f"{row.moment:20}", f"{row.resident_mib:6.0f} MiB"]
    for action, (p50, p99) in row.quantiles_us.items():
        cells.append(f"{action} p50 {p50:5.0f} p99 {p99:5.0f} us")
    if row.start_seconds is not None:
        cells.append(f"ready in {row.start_seconds:.2f} s")
    return "  ".join(cells)


def _cases(names: list[str], sizes: list[int]) -> list[Case]:
    cases = []
    for kind in ("standard", "fifo"):
        if kind in names:
            cases += [Case(f"{kind} {size:,}", size, kind == "fifo") for size in sizes]
    if _PRIORITY in names:
        low, high = (_PRIORITY, "0"), (_PRIORITY, "9")
        strict = (_PRIORITY, "strict")
        cases += [
            Case(f"{_PRIORITY} {size:,}", size, tag=strict, attribute=low, asked_attribute=high)
            for size in sizes
        ]
    in_ten_days = str(int((time.time() + 864_000) * 1000))
    others = {
        "delayed": Case("delayed 1,000,000", 1_000_000, delay_seconds=900),
        "scheduled": Case(
            "scheduled 1,000,000",
            1_000_000,
            tag=(_DELIVER_AT, "on"),
            attribute=(_DELIVER_AT, in_ten_days),
        ),
        "in-flight": Case("in flight 120,000", 200_000, in_flight=118_000),
        "groups": Case("fifo, 1,000,000 groups", 1_000_000, fifo=True, groups=1_000_000),
        "queues": Case("10,000 queues", 100_000, queues=10_000),
    }
    return cases + [case for name, case in others.items() if name in names]


def _broken_bounds(rows: list[Row]) -> list[str]:
    """The bounds that do not hold, one a line."""
    broken = []
    smallest: dict[str, float] = {}
    new = {row.case: row for row in rows if row.moment == _NEW}
    for row in rows:
        kind = row.case.split(" ", maxsplit=1)[0]
        limit = KILLED_SECONDS_MAX if "kill" in row.moment else STOPPED_SECONDS_MAX
        if row.start_seconds is not None and row.start_seconds > limit:
            broken.append(f"{row.case}, {row.moment}: {row.start_seconds:.2f} s, not {limit} s")
        if row.resident_mib > MEMORY_MIB_MAX:
            broken.append(
                f"{row.case}, {row.moment}: {row.resident_mib:.0f} MiB, not {MEMORY_MIB_MAX}"
            )
        grown = row.resident_mib - new[row.case].resident_mib
        if kind == "scheduled" and row.start_seconds is not None and grown > SCHEDULED_MIB_MAX:
            broken.append(
                f"{row.case}, {row.moment}: {grown:.0f} MiB more, not {SCHEDULED_MIB_MAX}"
            )
        late_ms = row.quantiles_us.get(_LATE, (0.0, 0.0))[1] / 1000
        if late_ms > LATE_P99_MS_MAX:
            broken.append(f"{row.case}: late p99 {late_ms:.0f} ms, not {LATE_P99_MS_MAX:.0f}")
        if "ReceiveMessage" in row.quantiles_us and kind in ("standard", "fifo", _PRIORITY):
            p99 = row.quantiles_us["ReceiveMessage"][1]
            least = smallest.setdefault(kind, p99)
            most = BEHIND_LOW_P99_RATIO_MAX if kind == _PRIORITY else P99_RATIO_MAX
            if p99 > least * most:
                broken.append(f"{row.case}, {row.moment}: receive p99 {p99 / least:.2f} times")
    return broken


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = [
        "standard",
        "fifo",
        "priority",
        "delayed",
        "scheduled",
        "in-flight",
        "groups",
        "queues",
    ]
    parser.add_argument("cases", nargs="*", default=kinds, help=", ".join(kinds))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--durability", default="os")
    options = parser.parse_args()
    return 0 if are_kept(options.cases, options.sizes, options.durability) else 1


def are_kept(names: list[str], sizes: list[int], durability: str = "os") -> bool:
    """Run the cases and print their rows; True if all bounds hold."""
    rows: list[Row] = []
    for case in _cases(names, sizes):
        with tempfile.TemporaryDirectory(prefix="holdfast-size-") as folder:
            rows += _Run(case, Path(folder), durability).run()
    broken = _broken_bounds(rows)
    print("\n".join(f"FAIL {line}" for line in broken) or "PASS every bound holds", flush=True)
    return not broken


if __name__ == "__main__":
    sys.exit(main())
