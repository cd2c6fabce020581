"""Kill the service again and again under load, and count what it owes.

Eight producers and eight consumers (boto3, in four processes) work on one queue while the service is killed with
SIGKILL at random moments and started again on the same folder. At the end everything left is received, and:

- every acknowledged send was received or is still there, and is still there unless its delete was attempted;
- no message comes back from a receive that began after its delete was acknowledged. Only a delete that was
  acknowledged before its visibility timeout could end counts: a later one may be by an outdated handle.

`power_loss.py` runs the same load over a disk that loses what was not synced.

`python -m compat_tests.kill9 --rounds 50`
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError
from botocore.exceptions import ClientError as BotocoreError

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.facade import Credentials, Members, counts
from compat_tests.node_process import NodeProcess

PROCESSES = 4
PRODUCERS = 2  # in each process
CONSUMERS = 2  # in each process
PUT_BACK_SHARE = 0.1  # of the receives: what they got is shown to others at once
WORKING_SECONDS_MAX = 0.4  # between a receive and its deletes, so that there is a backlog to lose
RESTING_SECONDS = 0.05  # after a failed call, while the service is down
MARGIN_SECONDS = 0.5  # between a delete that counts and the end of the visibility timeout


@dataclass
class History:
    """What one process did. Bodies name messages; times are of the machine's monotonic clock."""

    sent: set[str] = field(default_factory=set)
    """Acknowledged sends."""

    received: list[tuple[str, float]] = field(default_factory=list)
    """Body, and when the receive that returned it began."""

    delete_tried: set[str] = field(default_factory=set)
    """Bodies whose delete was sent, whatever came of it."""

    deleted: dict[str, float] = field(default_factory=dict)
    """When the delete was acknowledged, for deletes that count."""

    failed_calls: int = 0
    refusals: list[str] = field(default_factory=list)
    """Errors of the caller's (4xx): the service may be away, it may not refuse."""

    faults: list[str] = field(default_factory=list)
    """Errors of the service's (5xx), which a client tries again."""

    def broken(self, crash: Crash) -> list[str]:
        """The answers that should not have been given, however the service was brought down."""
        return self.refusals if crash.excuses_faults else [*self.refusals, *self.faults]

    def add(self, other: History) -> None:
        """Take in what another did."""
        self.sent |= other.sent
        self.received += other.received
        self.delete_tried |= other.delete_tried
        self.deleted |= other.deleted
        self.failed_calls += other.failed_calls
        self.refusals += other.refusals
        self.faults += other.faults


class Crash(NamedTuple):
    """How the service is brought down and started again in the middle of its work."""

    strike: Callable[[NodeProcess], None]
    excuses_faults: bool
    """Whether it may answer with errors of its own before it is down, as it must when its disk is gone first."""


class Place(NamedTuple):
    """Where the workers work."""

    endpoint: str
    credentials: Credentials
    queue: str
    visibility_seconds: int


class Verdict(NamedTuple):
    """What came out. The three lists are empty when the service kept its word."""

    summary: str
    lost: list[str]
    returned: list[str]
    refusals: list[str]

    @property
    def kept(self) -> bool:
        """True when nothing was lost, nothing came back and nothing was refused."""
        return not (self.lost or self.returned or self.refusals)


def main() -> int:
    """Run from the command line; the exit status is 1 when the service broke its word."""
    return run_command_line("kill -9 under load", run_and_tell)


def run_and_tell(
    node: NodeProcess, *, rounds: int, seed: int, crash: Crash
) -> tuple[str, list[str]]:
    """`run` as a `Run`."""
    verdict = run(node, rounds=rounds, seed=seed, crash=crash)
    return verdict.summary, [*verdict.lost, *verdict.returned, *verdict.refusals]


class Run(Protocol):
    """One kind of load."""

    def __call__(
        self, node: NodeProcess, *, rounds: int, seed: int, crash: Crash
    ) -> tuple[str, list[str]]:
        """A summary, and every broken word in a line."""


def say(text: str) -> None:
    """Show a line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_command_line(description: str, load: Run) -> int:
    """Run one kind of load on a fresh folder; the exit status is 1 when the service broke its word."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--durability", default="fsync", choices=["fsync", "os"])
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder), "--aws-waits", "off", "--durability", options.durability)
        try:
            summary, broken = load(node, rounds=options.rounds, seed=seed, crash=KILL)
        finally:
            node.close()
    say(summary)
    for line in broken[:60]:
        say(line)
    return 1 if broken else 0


def crash_rounds(node: NodeProcess, crash: Crash, rounds: int, seed: int) -> float:
    """Bring the service down and up at random moments; the seconds that the slowest took."""
    moments = random.Random(seed)
    slowest = 0.0
    for _ in range(rounds):
        time.sleep(moments.uniform(0.3, 2.0))
        begin = time.monotonic()
        crash.strike(node)
        slowest = max(slowest, time.monotonic() - begin)
    time.sleep(0.5)
    return slowest


def _kill_and_start(node: NodeProcess) -> None:
    node.kill()
    node.start()


KILL = Crash(_kill_and_start, excuses_faults=False)
"""SIGKILL: the process ends, what it wrote is with the kernel."""


def run(
    node: NodeProcess,
    *,
    rounds: int,
    seed: int,
    visibility_seconds: int = 5,
    crash: Crash = KILL,
) -> Verdict:
    """Load, crash and start `rounds` times, then receive what is left and judge."""
    node.start()
    client = Boto3Client(node.url, node.credentials)
    attributes = {"VisibilityTimeout": str(visibility_seconds)}
    url = client.call("CreateQueue", QueueName="kill9", Attributes=attributes)["QueueUrl"]
    place = Place(node.url, node.credentials, url, visibility_seconds)
    with Workers(place) as workers:
        slowest_start = crash_rounds(node, crash, rounds, seed)
        history = workers.finish()
    rest = drain(client, place, history)
    client.close()
    summary, lost, returned = judge(history, rest, rounds, slowest_start)
    return Verdict(summary, lost, returned, history.broken(crash))


class Workers:
    """The processes that produce and consume."""

    def __init__(self, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self._end: Event = context.Event()
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(PROCESSES):
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(place, number, self._end, theirs))
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()  # it is connected and starts now

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        for process in self._processes:
            process.join(timeout=60)
            process.kill()

    def finish(self) -> History:
        """Let every worker end its present call and tell what it did."""
        self._end.set()
        history = History()
        for pipe in self._pipes:
            assert pipe.poll(60), "a worker does not end"
            history.add(pipe.recv())
        return history


def work(place: Place, number: int, end: Event, report: Connection) -> None:
    """The main function of one process."""
    client = connect(place.endpoint, place.credentials, read_timeout=10)
    histories = [History() for _ in range(PRODUCERS + CONSUMERS)]
    threads = []
    for lane, history in enumerate(histories):
        target = produce if lane < PRODUCERS else consume
        arguments = (client, place, f"{number}.{lane}", end, history)
        threads.append(threading.Thread(target=target, args=arguments))
    report.send("ready")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = History()
    for history in histories:
        whole.add(history)
    report.send(whole)
    report.close()


def produce(client: Any, place: Place, name: str, end: Event, history: History) -> None:
    """Send messages with bodies that are never used twice."""
    for number in itertools.count():
        if end.is_set():
            return
        body = f"{name}.{number}"
        answer = attempt(client.send_message, history, QueueUrl=place.queue, MessageBody=body)
        if answer is not None:
            history.sent.add(body)


def consume(client: Any, place: Place, name: str, end: Event, history: History) -> None:
    """Receive and delete."""
    while not end.is_set():
        begin = time.monotonic()
        answer = attempt(
            client.receive_message,
            history,
            QueueUrl=place.queue,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
        )
        messages = (answer or {}).get("Messages", [])
        history.received += [(message["Body"], begin) for message in messages]
        if messages:
            time.sleep(random.uniform(0, WORKING_SECONDS_MAX))
        if messages and random.random() < PUT_BACK_SHARE:
            put_back(client, place, messages, history)
        elif messages:
            delete(client, place, messages, begin, history)


def put_back(client: Any, place: Place, messages: list[Members], history: History) -> None:
    """Show messages to others at once."""
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        for number, message in enumerate(messages)
    ]
    method = client.change_message_visibility_batch
    attempt(method, history, QueueUrl=place.queue, Entries=entries)


def delete(
    client: Any, place: Place, messages: list[Members], begin: float, history: History
) -> None:
    """Delete in one batch, and note which deletes were acknowledged in time to count."""
    bodies = {str(number): message["Body"] for number, message in enumerate(messages)}
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(messages)
    ]
    history.delete_tried |= set(bodies.values())
    answer = attempt(client.delete_message_batch, history, QueueUrl=place.queue, Entries=entries)
    if answer is None:
        return
    for entry in answer.get("Failed", []):
        (history.refusals if entry["SenderFault"] else history.faults).append(str(entry))
    now = time.monotonic()
    if now < begin + place.visibility_seconds - MARGIN_SECONDS:
        history.deleted |= {bodies[entry["Id"]]: now for entry in answer.get("Successful", [])}


def attempt(method: Any, history: History, **members: Any) -> Members | None:
    """The answer, or None when the service was away or went away."""
    try:
        answer: Members = method(**members)
    except BotocoreError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
            history.refusals.append(str(error))
        else:
            history.faults.append(str(error))
            time.sleep(RESTING_SECONDS)
    except (BotoCoreError, OSError):
        history.failed_calls += 1
        time.sleep(RESTING_SECONDS)
    else:
        return answer
    return None


def drain(client: Boto3Client, place: Place, history: History) -> set[str]:
    """Receive everything that is left, also what was in flight; returns the bodies."""
    rest: set[str] = set()
    deadline = time.monotonic() + place.visibility_seconds + 600
    while time.monotonic() < deadline:
        begin = time.monotonic()
        answer = client.call(
            "ReceiveMessage",
            QueueUrl=place.queue,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
            VisibilityTimeout=600,
        )
        messages = answer.get("Messages", [])
        rest |= {message["Body"] for message in messages}
        history.received += [(message["Body"], begin) for message in messages]
        visible, hidden, delayed = counts(client, place.queue)
        if not messages and (visible, delayed) == (0, 0) and hidden <= len(rest):
            break  # all that is in flight is what this function holds
    return rest


def judge(
    history: History, rest: set[str], rounds: int, slowest_start: float
) -> tuple[str, list[str], list[str]]:
    """Compare what was acknowledged with what was seen: a summary, what was lost, what came back."""
    seen = {body for body, _ in history.received} | rest
    lost = [f"acknowledged and never seen: {body}" for body in sorted(history.sent - seen)]
    missing = history.sent - history.delete_tried - rest - (history.sent - seen)
    lost += [f"received, never deleted, not there: {body}" for body in sorted(missing)]
    returned = [
        f"came back {begin - history.deleted[body]:.3f} s after its delete: {body}"
        for body, begin in history.received
        if body in history.deleted and begin > history.deleted[body]
    ]
    summary = (
        f"{rounds} crashes; {len(history.sent)} sends acknowledged, {len(history.received)} received, "
        f"{len(history.deleted)} deletes counted, {len(rest)} left at the end; "
        f"{history.failed_calls} calls failed, {len(history.refusals)} were refused, "
        f"{len(history.faults)} met errors of the service; "
        f"slowest start {slowest_start:.2f} s; lost {len(lost)}, came back {len(returned)}"
    )
    return summary, lost, returned


if __name__ == "__main__":
    sys.exit(main())
