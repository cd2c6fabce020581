"""A data folder whose every message is known: several queues, FIFO, delayed, received, deduplicated, small and large.

`fill` makes the folder through a running service, `read_back` receives whatever a service gives from it and says what was
wrong with it, and what was missing.
"""

from __future__ import annotations

import base64
import random
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import ClientError, Credentials, Members, counts
from compat_tests.node_process import NodeProcess

QUEUES = ("plain", "attributes", "large", "delayed", "received", "groups.fifo", "ids.fifo")
GROUPS = 5
DELAY_SECONDS = 1
VISIBILITY_SECONDS = 1
_TRIES = 4  # of a call that meets an error of the service
_PATIENCE_SECONDS = 8.0  # for messages that are to become visible
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "nobody",
    "looks",
]


class Known(NamedTuple):
    """A message as it was sent."""

    queue: str
    body: str
    attributes: dict[str, Any]
    message_id: str
    group: str | None
    place: int
    """Its place in its group, or in its queue."""


@dataclass
class Folder:
    """What a data folder holds."""

    credentials: Credentials
    urls: dict[str, str] = field(default_factory=dict)
    """Paths of the queues' URLs by name: a service that runs elsewhere has another host."""

    messages: list[Known] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """Message ids by deduplication id, in `ids.fifo`."""


class Reading(NamedTuple):
    """What came out of a folder."""

    wrong: list[str]
    """Served, but not as it was sent."""

    missing: int
    """Known messages that were not served."""

    faults: list[str]
    """Calls that were answered with an error however often they were tried."""


def fill(node: NodeProcess, folder: Folder, chance: random.Random, count: int) -> None:
    """Send `count` messages to each queue of a running service."""
    client = Boto3Client(node.url, node.credentials)
    for name in QUEUES:
        url = client.call("CreateQueue", QueueName=name, Attributes=_settings(name))["QueueUrl"]
        folder.urls[name] = url.removeprefix(node.url)
        for place in range(len(folder.messages), len(folder.messages) + count):
            folder.messages.append(_send(client, url, name, place, chance))
            if name == "ids.fifo":
                folder.ids[f"id-{place}"] = folder.messages[-1].message_id
    members = {"QueueUrl": node.url + folder.urls["received"], "MaxNumberOfMessages": 10}
    for _ in range(count // 20):
        client.call("ReceiveMessage", **members, VisibilityTimeout=chance.randrange(2))
    client.close()


def _settings(name: str) -> dict[str, str]:
    if name == "ids.fifo":
        return {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    if name.endswith(".fifo"):
        return {"FifoQueue": "true", "VisibilityTimeout": "30"}
    return {"VisibilityTimeout": str(VISIBILITY_SECONDS)}


def _send(client: Boto3Client, url: str, name: str, place: int, chance: random.Random) -> Known:
    words = chance.choices(_WORDS, k=chance.randrange(1, 60))
    if name == "large":
        words = [base64.b85encode(chance.randbytes(20_000)).decode()]
    body = f"{name} {place} {' '.join(words)}"
    members: Members = {"QueueUrl": url, "MessageBody": body}
    attributes: dict[str, Any] = {}
    group = None
    if name == "attributes":
        attributes = {
            "Text": {"DataType": "String", "StringValue": body[::-1]},
            "Number": {"DataType": "Number.int", "StringValue": str(chance.randrange(10**9))},
            "Bytes": {"DataType": "Binary", "BinaryValue": chance.randbytes(50)},
        }
        members["MessageAttributes"] = attributes
    if name == "delayed":
        members["DelaySeconds"] = DELAY_SECONDS
    if name.endswith(".fifo"):
        group = members["MessageGroupId"] = f"g{chance.randrange(GROUPS)}"
        members["MessageDeduplicationId"] = f"id-{place}"
    answer = client.call("SendMessage", **members)
    return Known(name, body, attributes, answer["MessageId"], group, place)


def read_back(node: NodeProcess, folder: Folder) -> Reading:
    """Repeat what was deduplicated, then receive and delete everything of every queue, and compare."""
    client = Boto3Client(node.url, folder.credentials)
    reader = _Reader(client, folder)
    for name, path in folder.urls.items():
        reader.read_queue(name, node.url + path)
    client.close()
    missing = len(folder.messages) - len(reader.found)
    return Reading(reader.wrong, missing, reader.faults)


class _Reader:
    def __init__(self, client: Boto3Client, folder: Folder) -> None:
        self._client = client
        self._folder = folder
        self._known = {message.message_id: message for message in folder.messages}
        self._last: dict[tuple[str, str], int] = {}
        self._sent_again: set[str] = set()
        """Messages that a forgotten deduplication id let in."""
        self.found: set[str] = set()
        self.wrong: list[str] = []
        self.faults: list[str] = []

    def read_queue(self, name: str, url: str) -> None:
        if name == "ids.fifo":
            self._repeat_sends(url)
        expected = {m.message_id for m in self._folder.messages if m.queue == name}
        patient_until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            answer = self._call(
                "ReceiveMessage",
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
                VisibilityTimeout=60,
            )
            if answer is None:
                return
            messages = answer.get("Messages", [])
            for message in messages:
                self._compare(name, message)
                handle = message["ReceiptHandle"]
                if self._call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) is None:
                    return
            if not messages and (
                expected <= self.found or time.monotonic() > patient_until or self._is_empty(url)
            ):
                return

    def _is_empty(self, url: str) -> bool:
        try:
            return counts(self._client, url) == (0, 0, 0)
        except ClientError:
            return True

    def _repeat_sends(self, url: str) -> None:
        """Each id was used a moment ago: the answer is the first one's, and nothing is added."""
        for message in self._folder.messages:
            if message.queue != "ids.fifo":
                continue
            answer = self._call(
                "SendMessage",
                QueueUrl=url,
                MessageBody="this must not be delivered",
                MessageGroupId=message.group,
                MessageDeduplicationId=f"id-{message.place}",
            )
            if answer is None:
                return
            if answer["MessageId"] != message.message_id:
                self._sent_again.add(answer["MessageId"])
                self.wrong.append(f"the deduplication id of {message.message_id} was forgotten")

    def _compare(self, name: str, message: Members) -> None:
        message_id = message["MessageId"]
        if message_id in self._sent_again:
            return
        known = self._known.get(message_id)
        if known is None or known.queue != name:
            self.wrong.append(
                f"{name}: {message_id} was never sent there: {message['Body'][:60]!r}"
            )
            return
        self.found.add(message_id)
        if message["Body"] != known.body:
            self.wrong.append(f"{name}: {message_id} has the body {message['Body'][:60]!r}")
        if message.get("MessageAttributes", {}) != known.attributes:
            self.wrong.append(f"{name}: {message_id} has other attributes than were sent")
        group = message["Attributes"].get("MessageGroupId")
        if group != known.group:
            self.wrong.append(f"{name}: {message_id} has the group {group!r}")
        if group is not None:
            before = self._last.get((name, group), -1)
            if known.place < before:
                self.wrong.append(f"{name}: {known.place} of {group} comes after {before}")
            self._last[name, group] = known.place

    def _call(self, operation: str, **members: Any) -> Members | None:
        """The answer; None when it is an error however often it is tried."""
        text = ""
        for attempt in range(_TRIES):
            time.sleep(0.5 * attempt)
            try:
                return self._client.call(operation, **members)
            except (ClientError, BotoCoreError, OSError) as error:
                text = f"{operation}: {error}"
        self.faults.append(text)
        return None
