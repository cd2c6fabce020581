"""Policies of queues on a disk that is full: what is answered happened, what is refused did not.

Every call is answered 200, or 503, which SDKs repeat. Once there is space, what was refused works
when it is repeated, and each message is where it should be, as often as it should.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from compat_tests.clients.raw import JSON, RawClient
from compat_tests.facade import eventually
from compat_tests.faults.small_disk import SmallDisk, small_disk
from compat_tests.node_process import NodeProcess

_OPTIONS = ("--disk-reserve-mib", "32", "--aws-waits", "off", "--shards", "2")
_SIZE = "112m"
_MESSAGES = 30
_SOON_MS = 4_000
"""From the first sends until messages are due: the disk is full by then."""
_ARN = "arn:aws:sqs:us-east-1:000000000000"
_LARGE = "x" * 200_000
_HIGHEST = {"holdfast.priority": {"DataType": "Number", "StringValue": "9"}}


class _Service:
    """The calls, and those that were refused."""

    def __init__(self, node: NodeProcess) -> None:
        self._raw = RawClient(node.url, node.credentials)
        self.refused: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[str] = []

    def call(self, action: str, **members: Any) -> dict[str, Any] | None:
        """The answer, None if it was refused."""
        target = "Holdfast" if action == "TransactMessages" else "AmazonSQS"
        headers = {"Content-Type": JSON, "X-Amz-Target": f"{target}.{action}"}
        body = json.dumps(members).encode()
        try:
            answer = self._raw.send("POST", self._raw.url + "/", headers=headers, body=body)
        except OSError as error:
            self.problems.append(f"{action}: no answer: {error}")
            return None
        if answer.status == 200:
            return dict(answer.json) if answer.body else {}
        if answer.status != 503:
            self.problems.append(f"{action}: {answer.status} {answer.text}")
        self.refused.append((action, members))
        return None

    def queue(self, name: str, **tags: str) -> str:
        """Make a queue with tags."""
        own_tags = {f"holdfast:{key.replace('_', '-')}": value for key, value in tags.items()}
        made = self.call("CreateQueue", QueueName=name, tags=own_tags)
        assert made, self.problems
        return str(made["QueueUrl"])

    def send(self, url: str, messages: int) -> None:
        """Send numbers."""
        for number in range(messages):
            assert self.call("SendMessage", QueueUrl=url, MessageBody=str(number)) is not None

    def receive(self, url: str) -> list[dict[str, Any]]:
        """The messages of one receive."""
        answer = self.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
        return list((answer or {}).get("Messages", []))

    def bodies(self, url: str) -> Counter[str]:
        """The bodies of all receives until one is empty."""
        found: Counter[str] = Counter()
        while some := self.receive(url):
            found.update(message["Body"] for message in some)
        return found

    def repeat(self) -> None:
        """Repeat what was refused, until it works."""

        def works() -> bool:
            again, self.refused = self.refused, []
            for action, members in again:
                self.call(action, **members)
            return not self.refused

        eventually(works)


def policies_on_a_full_disk() -> list[str]:
    """Fill up the disk below transactions, delivery at most once, limits and priority, and below
    messages that become due or expire meanwhile; returns the broken promises."""
    problems = []
    for story in (_problems, _problems_of_time):
        with small_disk(_SIZE) as (folder, disk):
            node = NodeProcess(folder, *_OPTIONS, data=disk.mounted_at / "data").start()
            try:
                problems += story(_Service(node), disk)
            finally:
                node.close()
    return problems


def _problems(service: _Service, disk: SmallDisk) -> list[str]:
    once = service.queue("once", delivery="at-most-once")
    full = service.queue("full", max_messages=str(_MESSAGES), overflow="drop-oldest")
    ranked = service.queue("ranked", priority="strict")
    orders, *made = [service.queue(name) for name in ("orders", "bills", "mails", "notes")]
    for url in (once, full, ranked, orders):
        service.send(url, _MESSAGES)
    bought = service.receive(orders)
    disk.fill_up()
    taken = Counter(message["Body"] for _ in range(2) for message in service.receive(once))
    for number, order in enumerate(bought):
        body = order["Body"] + _LARGE
        service.call("SendMessage", QueueUrl=full, MessageBody=body)
        high = {"MessageBody": body, "MessageAttributes": _HIGHEST}
        service.call("SendMessage", QueueUrl=ranked, **high)
        handle = {"QueueUrl": orders, "ReceiptHandle": order["ReceiptHandle"]}
        sends = [{"Send": {"QueueUrl": url, "MessageBody": order["Body"]}} for url in made]
        items = [{"Delete": handle}, *sends]
        service.call("TransactMessages", TransactItems=items, ClientRequestToken=str(number))
    if not service.refused:
        service.problems.append("nothing was refused: the disk was not full")
    disk.free()
    service.refused = [each for each in service.refused if each[0] != "ReceiveMessage"]
    service.repeat()
    taken += service.bodies(once)
    expected = Counter(map(str, range(_MESSAGES)))
    if taken != expected:
        service.problems.append(f"at most once: {taken}")
    sold = Counter(order["Body"] for order in bought)
    for url in made:
        if (found := service.bodies(url)) != sold:
            service.problems.append(f"transactions: {url} has {found}")
    if left := sum((expected - sold - service.bodies(orders)).values()):
        service.problems.append(f"transactions: {left} orders are missing")
    return service.problems + _queues_problems(service, full, ranked, len(bought))


def _queues_problems(service: _Service, full: str, ranked: str, large: int) -> list[str]:
    found = service.bodies(full)
    has_all = sum(body.endswith(_LARGE) for body in found) == large
    problems = [] if has_all and found.total() <= _MESSAGES else [f"limit: {found.total()}"]
    first = [message["Body"].endswith(_LARGE) for message in service.receive(ranked)]
    return problems + ([] if all(first) and first else ["a low message came before a high one"])


def _problems_of_time(service: _Service, disk: SmallDisk) -> list[str]:
    """Schedules, times to live and the order by the sender's clock on a full disk."""
    later = service.queue("later", deliver_at="on")
    ordered = service.queue("ordered", order="sender-clock", order_window=str(_SOON_MS))
    letters = service.queue("letters")
    brief = service.queue("brief", ttl="3", expired="dead-letter")
    target = {"deadLetterTargetArn": f"{_ARN}:letters", "maxReceiveCount": "9"}
    policy = {"RedrivePolicy": json.dumps(target)}
    service.call("SetQueueAttributes", QueueUrl=brief, Attributes=policy)
    now_ms = int(time.time() * 1000)

    def send(url: str, body: str, attribute: str = "", value: int = 0) -> None:
        members: dict[str, Any] = {"QueueUrl": url, "MessageBody": body}
        if attribute:
            number = {"DataType": "Number", "StringValue": str(value)}
            members["MessageAttributes"] = {f"holdfast.{attribute}": number}
        service.call("SendMessage", **members)

    def send_all(first: int, ending: str = "") -> None:
        for number in range(first, first + _MESSAGES // 2):
            send(later, f"{number}{ending}", "deliver-at", now_ms + _SOON_MS)
            send(ordered, f"{_MESSAGES - number}{ending}", "sent-at", now_ms - number)
            send(brief, f"{number}{ending}")

    send_all(0)
    disk.fill_up()
    send_all(_MESSAGES // 2, _LARGE)
    if not service.refused:
        service.problems.append("nothing was refused: the disk was not full")
    time.sleep(_SOON_MS / 1000)
    disk.free()
    service.repeat()
    expected = Counter(map(str, range(_MESSAGES)))
    for name, url in (("scheduled", later), ("expired", letters)):
        found: Counter[str] = Counter()

        def are_all_there(url: str = url, found: Counter[str] = found) -> bool:
            found.update(message["Body"].rstrip("x") for message in service.receive(url))
            return found.total() >= _MESSAGES

        eventually(are_all_there)
        if found != expected:
            service.problems.append(f"{name}: {found}")
    if left := service.bodies(brief):
        service.problems.append(f"not expired: {left}")
    return service.problems + _order_problems(service, ordered)


def _order_problems(service: _Service, ordered: str) -> list[str]:
    """Messages of a moment are in the order of their senders; what was late is behind."""
    numbers: list[int] = []

    def are_all_there() -> bool:
        bodies = [message["Body"].rstrip("x") for message in service.receive(ordered)]
        numbers.extend(map(int, bodies))
        return len(numbers) >= _MESSAGES

    eventually(are_all_there)
    in_time = [number for number in numbers if number > _MESSAGES // 2]
    is_all = sorted(numbers) == list(range(1, _MESSAGES + 1))
    return [] if is_all and in_time == sorted(in_time) else [f"order: {numbers}"]
