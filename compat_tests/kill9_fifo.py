"""Kill the service again and again under FIFO load, and look at order, duplicates and losses.

Each producer has message groups of its own and sends them numbers; after an unknown outcome it sends the same number with
the same deduplication id until it is acknowledged. Consumers receive and delete. At the end all that is left is received,
and:

- every acknowledged number was received, under one message id only;
- a number is handed out only when each earlier one of its group was sent for deletion or is before it in the same answer;
- no number comes back from a receive that began after its delete was acknowledged within its visibility timeout.

`python -m compat_tests.kill9_fifo --rounds 50`
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.facade import counts
from compat_tests.kill9 import (
    KILL,
    MARGIN_SECONDS,
    Crash,
    History,
    Place,
    attempt,
    crash_rounds,
    run_command_line,
)
from compat_tests.node_process import NodeProcess

PRODUCERS = 4
GROUPS_EACH = 3
CONSUMERS = 4
VISIBILITY_SECONDS = 3

Name = tuple[str, int]
"""A message: its group and its number there."""


class Delivery(NamedTuple):
    """One message of one answer. Times are of the machine's monotonic clock."""

    name: Name
    message_id: str
    begun: float
    ended: float
    before_it: frozenset[Name]
    """Those before it in the same answer."""


@dataclass
class Record:
    """What all threads did; each appends to it."""

    history: History = field(default_factory=History)
    acknowledged: set[Name] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    delete_tried: dict[Name, float] = field(default_factory=dict)
    """When the first delete of a message was sent."""

    deleted: dict[Name, float] = field(default_factory=dict)
    """When a delete was acknowledged, for deletes that count."""


def main() -> int:
    """Run from the command line; the exit status is 1 when the service broke its word."""
    return run_command_line("kill -9 under FIFO load", run)


def run(node: NodeProcess, *, rounds: int, seed: int, crash: Crash = KILL) -> tuple[str, list[str]]:
    """Load, crash and start `rounds` times; a summary, and every broken word in a line."""
    node.start()
    client = Boto3Client(node.url, node.credentials)
    attributes = {"FifoQueue": "true", "VisibilityTimeout": str(VISIBILITY_SECONDS)}
    url = client.call("CreateQueue", QueueName="kill9.fifo", Attributes=attributes)["QueueUrl"]
    place = Place(node.url, node.credentials, url, VISIBILITY_SECONDS)
    record, end = Record(), threading.Event()
    threads = [
        threading.Thread(target=_produce, args=(place, f"p{number}", record, end))
        for number in range(PRODUCERS)
    ]
    threads += [
        threading.Thread(target=_consume, args=(place, record, end)) for _ in range(CONSUMERS)
    ]
    for thread in threads:
        thread.start()
    try:
        crash_rounds(node, crash, rounds, seed)
    finally:
        end.set()
    for thread in threads:
        thread.join(300)
    end.clear()
    _drain(client, place, record)
    client.close()
    summary, broken = _judge(record, rounds)
    return summary, [*broken, *record.history.broken(crash)]


def _produce(place: Place, name: str, record: Record, end: threading.Event) -> None:
    client = connect(place.endpoint, place.credentials, read_timeout=10)
    for number in itertools.count(1):
        for group in (f"{name}-{part}" for part in range(GROUPS_EACH)):
            answer = None
            while answer is None:
                if end.is_set():
                    return
                answer = attempt(
                    client.send_message,
                    record.history,
                    QueueUrl=place.queue,
                    MessageBody=f"{group} {number}",
                    MessageGroupId=group,
                    MessageDeduplicationId=f"{group}-{number}",
                )
            record.acknowledged.add((group, number))


def _consume(place: Place, record: Record, end: threading.Event) -> None:
    client = connect(place.endpoint, place.credentials, read_timeout=10)
    while not end.is_set():
        begun = time.monotonic()
        answer = attempt(
            client.receive_message,
            record.history,
            QueueUrl=place.queue,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=1,
        )
        for message in _noted(record, answer, begun):
            _delete(client, place, record, message, begun)


def _noted(record: Record, answer: dict[str, Any] | None, begun: float) -> list[dict[str, Any]]:
    ended = time.monotonic()
    messages: list[dict[str, Any]] = (answer or {}).get("Messages", [])
    before: set[Name] = set()
    for message in messages:
        name = _name(message)
        delivery = Delivery(name, message["MessageId"], begun, ended, frozenset(before))
        record.deliveries.append(delivery)
        before.add(name)
    return messages


def _name(message: dict[str, Any]) -> Name:
    group, number = message["Body"].split()
    return group, int(number)


def _delete(
    client: Any, place: Place, record: Record, message: dict[str, Any], begun: float
) -> None:
    name = _name(message)
    record.delete_tried.setdefault(name, time.monotonic())
    if time.monotonic() > begun + place.visibility_seconds - MARGIN_SECONDS:
        return  # its handle may be worth nothing any more
    answer = attempt(
        client.delete_message,
        record.history,
        QueueUrl=place.queue,
        ReceiptHandle=message["ReceiptHandle"],
    )
    now = time.monotonic()
    if answer is not None and now < begun + place.visibility_seconds - MARGIN_SECONDS:
        record.deleted[name] = now


def _drain(client: Boto3Client, place: Place, record: Record) -> None:
    """Receive and delete everything that is left, also what was in flight."""
    deadline = time.monotonic() + 600 + place.visibility_seconds
    while time.monotonic() < deadline:
        begun = time.monotonic()
        answer = client.call(
            "ReceiveMessage", QueueUrl=place.queue, MaxNumberOfMessages=10, WaitTimeSeconds=1
        )
        messages = _noted(record, dict(answer), begun)
        for message in messages:
            record.delete_tried.setdefault(_name(message), time.monotonic())
            client.call(
                "DeleteMessage", QueueUrl=place.queue, ReceiptHandle=message["ReceiptHandle"]
            )
        if not messages and counts(client, place.queue) == (0, 0, 0):
            return


def _judge(record: Record, rounds: int) -> tuple[str, list[str]]:
    ids: dict[Name, set[str]] = {}
    for delivery in record.deliveries:
        ids.setdefault(delivery.name, set()).add(delivery.message_id)
    lost = [f"acknowledged and never seen: {name}" for name in record.acknowledged - ids.keys()]
    twice = [
        f"two messages for one id: {name} {found}" for name, found in ids.items() if len(found) > 1
    ]
    back = [
        f"came back after its delete: {delivery}"
        for delivery in record.deliveries
        if delivery.begun > record.deleted.get(delivery.name, delivery.begun)
    ]
    order = [line for delivery in record.deliveries for line in _out_of_order(record, delivery)]
    summary = (
        f"{rounds} crashes; {len(record.acknowledged)} FIFO sends acknowledged, "
        f"{len(record.deliveries)} received, {len(record.deleted)} deletes counted; "
        f"{record.history.failed_calls} calls failed, {len(record.history.refusals)} were refused; "
        f"lost {len(lost)}, came back {len(back)}, out of order {len(order)}, duplicates {len(twice)}"
    )
    return summary, [*lost, *twice, *back, *order]


def _out_of_order(record: Record, delivery: Delivery) -> list[str]:
    group, number = delivery.name
    return [
        f"{delivery} although {earlier} was neither deleted nor before it"
        for earlier in ((group, n) for n in range(1, number))
        if earlier not in delivery.before_it
        and record.delete_tried.get(earlier, delivery.ended + 1) > delivery.ended
    ]


if __name__ == "__main__":
    sys.exit(main())
