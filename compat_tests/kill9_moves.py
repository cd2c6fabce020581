"""Kill the service again and again while dead letters and move tasks are under way: every message is at exactly one place.

Producers fill a queue, receivers drive its messages into the dead-letter queue by receiving them twice, and move tasks are
started again and again. Nothing is deleted. At the end, when no task runs any more, both queues are emptied: each
acknowledged body must be there exactly once.

`python -m compat_tests.kill9_moves --rounds 50`
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections import Counter
from typing import Any

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.facade import counts
from compat_tests.kill9 import (
    KILL,
    RESTING_SECONDS,
    Crash,
    History,
    Place,
    attempt,
    crash_rounds,
    run_command_line,
)
from compat_tests.node_process import NodeProcess

PRODUCERS = 2
RECEIVERS = 3


class Work:
    """What the threads share."""

    def __init__(self, source: Place, letters: Place, letters_arn: str) -> None:
        self.source = source
        self.letters = letters
        self.letters_arn = letters_arn
        self.end = threading.Event()
        self.history = History()
        self.tasks = 0

    def client(self) -> Any:
        """A client for one thread."""
        return connect(self.source.endpoint, self.source.credentials, read_timeout=10)


def main() -> int:
    """Run from the command line; the exit status is 1 when the service broke its word."""
    return run_command_line("kill -9 under dead letters and move tasks", run)


def run(node: NodeProcess, *, rounds: int, seed: int, crash: Crash = KILL) -> tuple[str, list[str]]:
    """Load, crash and start `rounds` times; a summary, and every broken word in a line."""
    node.start()
    client = Boto3Client(node.url, node.credentials)
    letters = client.call("CreateQueue", QueueName="letters")["QueueUrl"]
    asked = {"QueueUrl": letters, "AttributeNames": ["QueueArn"]}
    arn = client.call("GetQueueAttributes", **asked)["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    attributes = {"VisibilityTimeout": "0", "RedrivePolicy": policy}
    source = client.call("CreateQueue", QueueName="source", Attributes=attributes)["QueueUrl"]
    work = Work(
        Place(node.url, node.credentials, source, 0),
        Place(node.url, node.credentials, letters, 0),
        arn,
    )
    threads = [
        threading.Thread(target=_produce, args=(work, f"p{number}")) for number in range(PRODUCERS)
    ]
    threads += [threading.Thread(target=_receive, args=(work,)) for _ in range(RECEIVERS)]
    threads.append(threading.Thread(target=_redrive, args=(work,)))
    for thread in threads:
        thread.start()
    try:
        crash_rounds(node, crash, rounds, seed)
    finally:
        work.end.set()
    for thread in threads:
        thread.join(300)
    moved = _wait_for_tasks(client, work)
    found = [*_drain(client, source), *_drain(client, letters)]
    client.close()
    summary, broken = _judge(work, Counter(found), rounds, moved)
    return summary, [*broken, *work.history.broken(crash)]


def _produce(work: Work, name: str) -> None:
    client = work.client()
    for number in itertools.count():
        if work.end.is_set():
            return
        body = f"{name}.{number}"
        members = {"QueueUrl": work.source.queue, "MessageBody": body}
        if attempt(client.send_message, work.history, **members) is not None:
            work.history.sent.add(body)


def _receive(work: Work) -> None:
    client = work.client()
    members = {"QueueUrl": work.source.queue, "MaxNumberOfMessages": 10}
    while not work.end.is_set():
        attempt(client.receive_message, work.history, **members)


def _redrive(work: Work) -> None:
    client = work.client()
    while not work.end.is_set():
        refusals = History()
        if attempt(client.start_message_move_task, refusals, SourceArn=work.letters_arn):
            work.tasks += 1
        unexpected = [text for text in refusals.refusals if "already a task running" not in text]
        work.history.refusals += unexpected
        work.history.faults += refusals.faults
        time.sleep(RESTING_SECONDS)


def _wait_for_tasks(client: Boto3Client, work: Work) -> int:
    """Messages that the latest tasks moved, once none runs any more."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        asked = {"SourceArn": work.letters_arn, "MaxResults": 10}
        tasks = client.call("ListMessageMoveTasks", **asked).get("Results", [])
        if all(task["Status"] not in ("RUNNING", "CANCELLING") for task in tasks):
            return sum(task["ApproximateNumberOfMessagesMoved"] for task in tasks)
        time.sleep(RESTING_SECONDS)
    raise AssertionError("a move task does not end")


def _drain(client: Boto3Client, url: str) -> list[str]:
    """The bodies of a queue, each as often as it is there."""
    client.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    found: list[str] = []
    while True:
        answer = client.call(
            "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600
        )
        messages = answer.get("Messages", [])
        found += [message["Body"] for message in messages]
        for message in messages:
            client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        if not messages:
            assert counts(client, url) == (0, 0, 0)
            return found


def _judge(work: Work, found: Counter[str], rounds: int, moved: int) -> tuple[str, list[str]]:
    lost = [f"acknowledged and not there: {body}" for body in work.history.sent - found.keys()]
    twice = [f"there {count} times: {body}" for body, count in found.items() if count > 1]
    summary = (
        f"{rounds} crashes; {len(work.history.sent)} sends acknowledged, {found.total()} there at the end; "
        f"{work.tasks} move tasks begun, the latest moved {moved}; "
        f"{work.history.failed_calls} calls failed, {len(work.history.refusals)} were refused; "
        f"lost {len(lost)}, twice {len(twice)}"
    )
    return summary, [*lost, *twice]


if __name__ == "__main__":
    sys.exit(main())
