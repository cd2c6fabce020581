"""Kill the service again and again during one filtered redrive, then count: `python -m
compat_tests.faults.kill9_redrive --messages 100000 --rounds 10`.

A tenth as many messages do not match the filter. The kills are spread over the redrive, each at a
random moment. Nothing may be lost, nothing moved twice, and the redrive's own counts must be right.
With `--undo` the whole redrive is undone afterwards, under as many kills. With `--cluster` they hit
hosts of a cluster of three.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import ClusterProcess
from compat_tests.console_world import count
from compat_tests.faults.run import say, status
from compat_tests.node_process import NodeProcess

_THREADS = 4
_BATCH = 10
_DEAD, _TARGET, _SOURCE = "letters", "target", "source"
_LATEST_KILL_S = 0.15
"""A kill comes up to this long after its share of the messages has moved."""
_STUCK_S = 120.0
"""Time without a single moved message after which the run ends as stuck. It is no limit of speed:
a restart and a step take seconds, and a redrive that does not go on would be waited for forever."""
_ARN = "arn:aws:sqs:us-east-1:000000000000:"


class Redrive:
    """One service, its queues, and the redrive."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        variables = {"HOLDFAST_AWS_WAITS": "off"}
        self._node: NodeProcess
        if options.cluster:
            self._node = ClusterProcess(folder, variables=variables).start()
        else:
            shards = ("--shards", str(options.shards)) if options.shards > 1 else ()
            self._node = NodeProcess(folder, *shards, variables=variables).start()
        self._key = self._node.credentials
        self._random = random.Random(options.seed)
        self.wanted = options.messages
        self.others = options.messages // 10
        self.kills = options.rounds
        self.broken: list[str] = []

    def close(self) -> None:
        """End the service."""
        self._node.close()

    def _client(self) -> Any:
        retries = {"total_max_attempts": 8}
        return connect(self._node.url, self._key, retries=retries)

    def _kill(self) -> None:
        """Kill the service, or a host of the cluster, and have it started again."""
        if isinstance(self._node, ClusterProcess):
            parts = self._node.parts
            host = self._random.choice(parts.hosts_behind_the_endpoint())
            parts.wait_for_another(host, parts.signal(host, signal.SIGKILL))
            parts.wait_until_ready(host)
        else:
            self._node.kill()
            self._node.start()

    # -- messages ----------------------------------------------------------------------------------

    def send(self) -> None:
        """Fill the dead-letter queue; every eleventh message does not match."""
        client = self._client()
        client.create_queue(QueueName=_DEAD)
        policy = json.dumps({"deadLetterTargetArn": _ARN + _DEAD, "maxReceiveCount": 5})
        client.create_queue(QueueName=_SOURCE, Attributes={"RedrivePolicy": policy})
        client.create_queue(QueueName=_TARGET)
        total = self.wanted + self.others
        batches = [range(at, min(at + _BATCH, total)) for at in range(0, total, _BATCH)]
        _in_threads(self._client, self._send_batch, batches)

    def _send_batch(self, client: Any, numbers: range) -> None:
        entries = [{"Id": str(n), "MessageBody": self.body(n)} for n in numbers]
        sent = client.send_message_batch(QueueUrl=_DEAD, Entries=entries)
        assert len(sent["Successful"]) == len(entries)

    def body(self, number: int) -> str:
        """The body of a message, which tells if it is to move."""
        kind = "stays" if number % 11 == 10 and number // 11 < self.others else "moves"
        return json.dumps({"n": number, "kind": kind})

    def judge(self, expected: dict[str, set[str]]) -> None:
        """Receive and delete everything, and compare it with what must be in each queue."""
        for queue, bodies in expected.items():
            found: Counter[str] = Counter()
            for received in _in_threads(self._client, _drain, [queue] * _THREADS):
                found.update(received)
            self._check(f"{queue}: received", found.total(), len(bodies))
            self._check(f"{queue}: messages lost", len(bodies - found.keys()), 0)
            self._check(f"{queue}: messages twice", sum(n - 1 for n in found.values()), 0)
            self._check(f"{queue}: messages of others", len(found.keys() - bodies), 0)

    def of_kind(self, kind: str) -> set[str]:
        """All bodies that were sent of a kind."""
        bodies = map(self.body, range(self.wanted + self.others))
        return {body for body in bodies if f'"{kind}"' in body}

    def _check(self, what: str, found: object, expected: object) -> None:
        say(f"{what}: {found}")
        if found != expected:
            self.broken.append(f"{what}: {found} instead of {expected}")

    # -- the redrive -------------------------------------------------------------------------------

    def ask(self, path: str, content: object = None) -> Any:
        """The answer of the operators' API about the redrives of a queue."""
        queue, _, rest = path.partition(" ")
        address = f"{self._node.url}/_holdfast/api/queues/{queue}/redrives{rest}"
        headers = {"content-type": "application/json", "x-holdfast-nonce": str(uuid.uuid4())}
        method, body = ("GET", b"") if content is None else ("POST", json.dumps(content).encode())
        for last in (False, False, False, True):
            request = AWSRequest(method, address, headers, body)
            key = Credentials(self._key.access_key_id, self._key.secret_access_key)
            SigV4Auth(key, "sqs", self._key.region).add_auth(request)
            sent = Request(address, body or None, dict(request.headers))
            try:
                with urlopen(sent, timeout=60) as answer:
                    return json.load(answer)
            except (HTTPError, URLError) as error:  # a host of a cluster is away for a moment
                if last or content is not None or getattr(error, "code", 503) != 503:
                    raise
                time.sleep(1.0)
        return None

    def run(self) -> None:
        """Move the messages under kills, and check the counts."""
        wanted = {"filter": {"json": "kind=moves"}, "destination": _TARGET, "reason": "kill -9"}
        plan = self.ask(f"{_DEAD} /plan", wanted)
        while plan["next"] is not None:
            plan = self.ask(f"{_DEAD} /plan", {**wanted, "token": plan["next"]})
        self._check("planned", plan["messages"], self.wanted)
        self.ask(_DEAD, wanted)
        task = self._killed_often(_DEAD)
        counts = {name: task[name] for name in ("status", "moved", "looked_at", "stayed")}
        everything = self.wanted + self.others
        expected = {"status": "COMPLETED", "moved": self.wanted, "looked_at": everything}
        self._check("redrive", counts, {**expected, "stayed": 0})

    def undo(self) -> None:
        """Bring all back under kills."""
        handle = self.ask(f"{_DEAD} ?limit=1")["redrives"][0]["handle"]
        self.ask(f"{_DEAD} /undo", {"handle": handle})
        task = self._killed_often(_TARGET)
        counts = (task["status"], task["moved"])
        self._check("undo", counts, ("COMPLETED", self.wanted))
        undone = self.ask(f"{_DEAD} ?limit=1")["redrives"][0]["undone"]
        self._check("undone", undone, {"moved": self.wanted, "is_running": False})

    def _killed_often(self, queue: str) -> dict[str, Any]:
        """The latest redrive of a queue, once it ended; kills on its way."""
        killed, latest, began_s = 0, -1, time.monotonic()
        latest_at_s = began_s
        while True:
            task: dict[str, Any] = self.ask(f"{queue} ?limit=1")["redrives"][0]
            if not task["is_active"]:
                say(f"{task['moved']} moved in {time.monotonic() - began_s:.1f} s with restarts")
                self._check(f"{queue}: kills", killed, self.kills)
                return task
            if task["moved"] != latest:
                latest, latest_at_s = task["moved"], time.monotonic()
            assert time.monotonic() < latest_at_s + _STUCK_S, f"stuck at {task}"
            if killed < self.kills and latest >= self.wanted * killed // (self.kills + 1):
                time.sleep(self._random.uniform(0, _LATEST_KILL_S))
                self._kill()
                killed += 1
                say(f"kill {killed} after at least {latest} messages")


def _drain(client: Any, queue: str) -> list[str]:
    """Receive and delete until nothing is left; returns the bodies.

    A message whose answer was lost on its way comes again after its timeout.
    """
    bodies: list[str] = []
    while True:
        messages = client.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=_BATCH, VisibilityTimeout=60, WaitTimeSeconds=1
        ).get("Messages")
        if not messages and count(client, queue) == 0:
            return bodies
        if messages:
            entries = [
                {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
                for at, message in enumerate(messages)
            ]
            client.delete_message_batch(QueueUrl=queue, Entries=entries)
            bodies += [message["Body"] for message in messages]


def _in_threads(
    connect_to: Callable[[], Any], work: Callable[[Any, Any], Any], items: Iterable[Any]
) -> list[Any]:
    """Do the work for each item, with a client for each thread."""
    own = threading.local()

    def do(item: Any) -> Any:
        if not hasattr(own, "client"):
            own.client = connect_to()
        return work(own.client, item)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(do, items))


def main() -> int:
    """Run from the command line; exits with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="kill -9 during a redrive")
    parser.add_argument("--messages", type=int, default=100_000, help="that match the filter")
    parser.add_argument("--rounds", type=int, default=10, help="kills during the redrive")
    parser.add_argument("--shards", type=int, default=1, help="of the single host")
    parser.add_argument("--cluster", action="store_true", help="kill hosts of a cluster of three")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--undo", action="store_true", help="also undo all of it, under kills")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        redrive = Redrive(Path(folder), options)
        try:
            redrive.send()
            redrive.run()
            if options.undo:
                redrive.undo()
            moved, others = redrive.of_kind("moves"), redrive.of_kind("stays")
            if options.undo:
                redrive.judge({_TARGET: set(), _DEAD: moved | others})
            else:
                redrive.judge({_TARGET: moved, _DEAD: others})
        finally:
            redrive.close()
    return status(redrive.broken)


if __name__ == "__main__":
    sys.exit(main())
