"""kill -9 of the service and of its archive jobs, again and again, while messages leave their queues for the archive.

Each round sends messages and deletes them in queues whose deleted messages are archived, with archive jobs under way, one
or two at once; the service or a job, or both, are killed at a random moment. At the end the archive must have every message
whose delete was acknowledged exactly once, as it was sent, and no other one twice; nothing may wait in the service any more,
and no file of a job may be left that the table does not know.

`python -m compat_tests.kill9_archive --rounds 20` (needs the extra packages of the jobs)
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from botocore.exceptions import BotoCoreError
from deltalake import DeltaTable

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import ClientError, Members
from compat_tests.kill9 import say
from compat_tests.lake_files import segments, waiting
from compat_tests.node_process import NodeProcess, command, environment

QUEUES = ("standard", "ordered.fifo")
BATCH = 10
KILL_SECONDS_MAX = 20.0
"""A job takes some fifteen seconds on two cores: it is killed at any point of that, or ends before."""
JOB_SECONDS_MAX = 120.0
LAST_JOBS_MAX = 6
VISIBILITY_S = 120
"""Longer than a service is away, so that every acknowledged delete is of the latest delivery."""
DEAD_S = 3600.0
"""Killed jobs are taken to be dead when their notes are ten minutes old; they are made to look so."""
_TAGS = {"holdfast:archive": "all"}


class Traffic:
    """Sends and deletes in one queue until it is told to stop; knows what was acknowledged."""

    def __init__(self, node: NodeProcess, name: str, chance: random.Random) -> None:
        self._node = node
        self._name = name
        self._chance = chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._number = 0
        self.bodies: dict[str, str] = {}
        """What was sent, by message id."""
        self.deleted: set[str] = set()
        """Whose delete was acknowledged."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            client = Boto3Client(self._node.url, self._node.credentials)
            try:
                self._serve(client)
            except (ClientError, BotoCoreError, OSError):
                time.sleep(0.2)
            finally:
                client.close()

    def _serve(self, client: Boto3Client) -> None:
        attributes = {"FifoQueue": "true"} if self._name.endswith(".fifo") else {}
        made = client.call("CreateQueue", QueueName=self._name, Attributes=attributes, tags=_TAGS)
        url = made["QueueUrl"]
        while not self._stop.is_set():
            self._send(client, url)
            self._delete(client, url)

    def _send(self, client: Boto3Client, url: str) -> None:
        entries: list[Members] = []
        for position in range(BATCH):
            self._number += 1
            body = f"{self._name} {self._number} " + "x" * self._chance.randrange(2_000)
            entry: Members = {"Id": str(position), "MessageBody": body}
            if self._name.endswith(".fifo"):
                entry |= {
                    "MessageGroupId": f"g{self._number % 3}",
                    "MessageDeduplicationId": str(self._number),
                }
            entries.append(entry)
        answer = client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
        for sent in answer.get("Successful", []):
            self.bodies[sent["MessageId"]] = entries[int(sent["Id"])]["MessageBody"]

    def _delete(self, client: Boto3Client, url: str) -> None:
        received = client.call(
            "ReceiveMessage",
            QueueUrl=url,
            MaxNumberOfMessages=BATCH,
            VisibilityTimeout=VISIBILITY_S,
        ).get("Messages", [])
        if not received:
            return
        entries = [
            {"Id": str(position), "ReceiptHandle": message["ReceiptHandle"]}
            for position, message in enumerate(received)
        ]
        for message in received:  # its send may not have been answered
            self.bodies.setdefault(message["MessageId"], message["Body"])
        answer = client.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
        self.deleted |= {received[int(e["Id"])]["MessageId"] for e in answer.get("Successful", [])}


def start_job(lake: Path, node: NodeProcess) -> subprocess.Popen[str]:
    """An archive job, the first of a group of processes."""
    return subprocess.Popen(
        command(
            "jobs",
            "archive",
            "--lake",
            str(lake),
            "--data",
            str(node.data),
            "--master",
            "local[2,4]",
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_job(job: subprocess.Popen[str]) -> bool:
    """Kill it with its Java; whether it was still running."""
    if job.stdout is None or job.stdout.closed:
        return False
    was_running = job.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    return was_running


def run_round(lake: Path, node: NodeProcess, chance: random.Random, killed: Counter[str]) -> None:
    """One or two jobs, and kills."""
    jobs = [start_job(lake, node) for _ in range(chance.choice((1, 1, 2)))]
    end = time.monotonic() + JOB_SECONDS_MAX
    kill_at = time.monotonic() + chance.uniform(0.0, KILL_SECONDS_MAX)
    kill_node_at = time.monotonic() + chance.uniform(0.0, KILL_SECONDS_MAX)
    kills_job = chance.random() < 0.7
    kills_node = chance.random() < 0.7
    while time.monotonic() < end and any(job.poll() is None for job in jobs):
        time.sleep(0.05)
        if kills_job and time.monotonic() > kill_at:
            kills_job = False
            killed["jobs"] += kill_job(jobs[0])
        if kills_node and time.monotonic() > kill_node_at:
            kills_node = False
            node.kill()
            killed["services"] += 1
            node.start()
    for job in jobs:
        killed["jobs"] += kill_job(job)


def finish(lake: Path, node: NodeProcess) -> str:
    """Archive the rest with jobs that nobody kills; what the last one said."""
    for note in lake.glob("runs/*.json"):
        long_ago_s = note.stat().st_mtime - DEAD_S
        os.utime(note, (long_ago_s, long_ago_s))
    said = ""
    for _ in range(LAST_JOBS_MAX):
        job = start_job(lake, node)
        said, _ = job.communicate()
        if job.returncode == 0 and "nothing to archive" in said:
            break
    return said.strip()


def check(lake: Path, node: NodeProcess, traffic: list[Traffic]) -> list[str]:
    """What is wrong; nothing if all is well."""
    table = DeltaTable(str(lake / "archive"))
    rows = table.to_pyarrow_table(columns=["message_id", "body"]).to_pylist()
    found = Counter(row["message_id"] for row in rows)
    bodies = {message_id: body for each in traffic for message_id, body in each.bodies.items()}
    deleted = {message_id for each in traffic for message_id in each.deleted}
    wrong = [row["message_id"] for row in rows if bodies.get(row["message_id"]) != row["body"]]
    faults = {
        "lost": sorted(deleted - found.keys()),
        "twice": [message_id for message_id, count in found.items() if count > 1],
        "other bodies": wrong,
    }
    known = set(table.get_add_actions(flatten=True)["path"].to_pylist())
    on_disk = {
        path.relative_to(lake / "archive").as_posix()
        for path in lake.glob("archive/account=*/**/*")
        if path.is_file()
    }
    faults["orphans"] = sorted(on_disk - known)
    faults["missing files"] = sorted(known - on_disk)
    faults["segments left"] = [path.name for path in segments(lake)]
    if waiting(node)["messages"]:
        faults["waiting"] = [str(waiting(node))]
    say(
        f"{len(bodies)} messages sent, {len(deleted)} deletes acknowledged, {len(rows)} rows in version "
        f"{table.version()}; " + ", ".join(f"{name} {len(each)}" for name, each in faults.items())
    )
    return [f"{name}: {each[:3]}" for name, each in faults.items() if each]


def main() -> int:
    """Exit status 1 if anything was lost, doubled or left over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    say(f"seed {arguments.seed}")
    chance = random.Random(arguments.seed)
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        lake = Path(scratch, "lake")
        options = ("--lake", str(lake), "--archive-seal-s", "1", "--snapshot-every-s", "10")
        node = NodeProcess(Path(scratch, "node"), *options).start()
        lake.mkdir(exist_ok=True)
        traffic = [Traffic(node, name, random.Random(chance.getrandbits(32))) for name in QUEUES]
        try:
            for each in traffic:
                each.start()
            for number in range(1, arguments.rounds + 1):
                run_round(lake, node, chance, killed)
                say(
                    f"round {number}: {killed['services']} services and {killed['jobs']} jobs killed"
                )
            for each in traffic:
                each.stop()
            say(finish(lake, node))
            faults = check(lake, node, traffic)
        finally:
            node.close()
    for fault in faults:
        say(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
