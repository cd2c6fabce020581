"""The places in which the policies of queues are tried beside one process: several workers, and a
fleet of two clusters of three hosts, with whole queues and with ones of parts in both clusters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import GATEWAY, HOSTS, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask
from compat_tests.test_transactions import transacting
from compat_tests.workers import kill_worker_of

PARTS = 4
_RETRIES = {"mode": "standard", "total_max_attempts": 8}


class Place(ABC):
    """A running service whose leaders can be killed."""

    def __init__(self, process: NodeProcess, url: str, *keepers: str) -> None:
        """`url` is that of a process which is not killed; of `keepers` each keeps some queues."""
        self.process = process
        self.url = url
        self._keepers = keepers or (url,)

    def client(self, **config: Any) -> Any:
        """A new boto3 client, by default one that repeats what failed."""
        return connect(self.url, self.process.credentials, **{"retries": _RETRIES, **config})

    def shards(self, name: str) -> list[int]:
        """The shards of a queue's parts."""
        parts = self.page(f"api/queues/{name}/parts")["parts"]
        return [part["shard"] for part in parts if part["state"] == "open"]

    def split(self, name: str) -> None:
        """Keep a queue in several parts."""
        self.page(f"api/queues/{name}/parts/split", {"parts": PARTS})

    @abstractmethod
    def kill_leader(self, shard: int) -> None:
        """kill -9 the process that leads a shard, and wait until another one is there."""

    def page(self, page: str, content: object = None) -> dict[str, Any]:
        """The answer of the first that can give it, also to a POST: that is one of the queue's
        cluster, once it has heard of the queue."""
        found: dict[str, Any] = {}

        def is_answered() -> bool:
            for url in self._keepers:
                status, answer = ask(url, self.process.credentials, page, content)
                if status == 200:
                    found.update(answer)
                    break
            return bool(found)

        eventually(is_answered)
        return found


class _Workers(Place):
    """A service with two workers."""

    @override
    def kill_leader(self, shard: int) -> None:
        kill_worker_of(self.process, shard)


class _Fleet(Place):
    """Two clusters, asked through their gateway."""

    @override
    def kill_leader(self, shard: int) -> None:
        fleet = self.process
        assert isinstance(fleet, FleetProcess)
        fleet.restart(fleet.leader_of(shard))


class World:
    """A kind of queues at a place."""

    def __init__(self, place: Place, *, is_split: bool, holdfast: Any) -> None:
        """`holdfast` is a client with `transact_messages`."""
        self.place = place
        self.is_split = is_split
        self.holdfast = holdfast
        self.sqs = place.client()

    def queue(self, name: str, tags: dict[str, str] | None = None, **attributes: str) -> str:
        """Make a queue of this kind; returns its URL. Tags are without their `holdfast:`."""
        name = f"{'split' if self.is_split else 'whole'}-{name}"
        own_tags = {f"holdfast:{key}": value for key, value in (tags or {}).items()}
        url = self.sqs.create_queue(QueueName=name, Attributes=attributes, tags=own_tags)[
            "QueueUrl"
        ]
        if self.is_split:
            self.place.split(name)
        return str(url)

    def arn(self, url: str) -> str:
        """The queue's ARN."""
        asked = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(asked["Attributes"]["QueueArn"])

    def send(self, url: str, *bodies: str, **members: Any) -> None:
        """Send messages, ten at a time, all of which must be accepted."""
        for begin in range(0, len(bodies), 10):
            entries = [
                {"Id": str(place), "MessageBody": body, **members}
                for place, body in enumerate(bodies[begin : begin + 10])
            ]
            answer = self.sqs.send_message_batch(QueueUrl=url, Entries=entries)
            assert not answer.get("Failed"), answer

    def receive(self, url: str, **members: Any) -> list[dict[str, Any]]:
        """The messages of one receive, at most ten."""
        members = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], **members}
        return list(self.sqs.receive_message(QueueUrl=url, **members).get("Messages", []))

    def receive_all(self, url: str, **members: Any) -> list[dict[str, Any]]:
        """The messages of all receives until one is empty after a second. None is visible again
        before, however long a thousand take."""
        members = {"WaitTimeSeconds": 1, "VisibilityTimeout": 3600, **members}
        found: list[dict[str, Any]] = []
        while some := self.receive(url, **members):
            found += some
        return found

    def counts(self, url: str) -> tuple[int, int, int]:
        """Visible messages, those in flight, and delayed ones."""
        names = [f"ApproximateNumberOfMessages{each}" for each in ("", "NotVisible", "Delayed")]
        asked = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        visible, in_flight, delayed = (int(asked["Attributes"][name]) for name in names)
        return visible, in_flight, delayed


@contextmanager
def worlds(folder: Path) -> Iterator[dict[str, World]]:
    """All worlds by name: `workers`, `hosts` and `parts`, of which the last two are one fleet."""
    node = NodeProcess(folder / "workers", "--workers", "2", "--aws-waits", "off")
    fleet = FleetProcess(folder / "fleet", "--aws-waits", "off")
    try:
        with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
            list(pool.map(lambda process: process.start(), (node, fleet)))
            workers = _Workers(node, node.url)
            urls = fleet.parts.cluster().hosts
            hosts = _Fleet(fleet, *(urls[name] for name in (GATEWAY, HOSTS[0], SECOND[0])))
            made = {}
            for name, place in (("workers", workers), ("hosts", hosts), ("parts", hosts)):
                models = folder / f"models-{name}"
                key = place.process.credentials
                holdfast = transacting(place.url, key, models, patch)
                made[name] = World(place, is_split=name == "parts", holdfast=holdfast)
            yield made
    finally:
        node.close()
        fleet.close()
