"""A cluster's backup, made under traffic across its shards and restored as a new cluster."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.facade import Credentials, eventually
from compat_tests.node_process import NodeProcess, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
PAIRS = 3
"""Sources, each with a dead-letter queue in the shard behind its own."""
MESSAGES = 200
"""Sent to each source before the backup begins."""
EMPTY_S = 2
"""A queue that is empty for so long is left for the others."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    process = ClusterProcess(folder, variables=variables).start(seconds=120)
    yield process
    process.close()


class Traffic:
    """Messages go to dead-letter queues and back, across shards, and further ones are sent."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._urls = list(cluster.parts.cluster().hosts.values())
        self._credentials = cluster.credentials
        self._stopped = threading.Event()
        self.crossed = 0
        """Messages that were received from a dead-letter queue."""
        self.sent = 0

    def client(self, number: int = 0) -> Any:
        """A client of one of the hosts."""
        url = self._urls[number % len(self._urls)]
        return connect(url, self._credentials, retries={"total_max_attempts": 5})

    def prepare(self) -> set[str]:
        """Make the queues and fill them. Returns the bodies."""
        client = self.client()
        arns: dict[str, str] = {}
        for number in range(PAIRS):
            made = client.create_queue(QueueName=f"dead-{number}")["QueueUrl"]
            found = client.get_queue_attributes(QueueUrl=made, AttributeNames=["QueueArn"])
            arns[f"dead-{number}"] = found["Attributes"]["QueueArn"]
        for number in range(PAIRS):
            dead = arns[f"dead-{(number + 1) % PAIRS}"]
            policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 1})
            client.create_queue(QueueName=f"source-{number}", Attributes={"RedrivePolicy": policy})
        bodies = [f"before {number}" for number in range(PAIRS * MESSAGES)]
        for begin in range(0, len(bodies), 10):
            self._send(client, f"source-{begin % PAIRS}", bodies[begin : begin + 10])
        return set(bodies)

    def _send(self, client: Any, queue: str, bodies: list[str]) -> None:
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)]
        assert not client.send_message_batch(QueueUrl=url, Entries=entries).get("Failed")

    @contextmanager
    def running(self) -> Iterator[None]:
        """The traffic runs meanwhile."""
        works: list[Callable[[], None]] = [self._send_more]
        for number in range(PAIRS):
            works += [lambda n=number: self._fail(n), lambda n=number: self._move_back(n)]  # type: ignore[misc]
        with ThreadPoolExecutor(len(works)) as pool:
            running = [pool.submit(work) for work in works]
            try:
                yield
            finally:
                self._stopped.set()
                for each in running:
                    each.result()

    def _send_more(self) -> None:
        client = self.client(1)
        while not self._stopped.wait(0.02):
            body = f"during {self.sent}"
            self.sent += 1
            self._send(client, f"source-{self.sent % PAIRS}", [body])

    def _fail(self, number: int) -> None:
        """Receive and give back: the next receive sends them to the dead-letter queue."""
        client = self.client(number)
        url = client.get_queue_url(QueueName=f"source-{number}")["QueueUrl"]
        while not self._stopped.is_set():
            client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)

    def _move_back(self, number: int) -> None:
        client = self.client(number)
        url = client.get_queue_url(QueueName=f"dead-{number}")["QueueUrl"]
        arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        while not self._stopped.wait(0.1):
            seen = client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0
            ).get("Messages", ())
            self.crossed += len(seen)
            with suppress(client.exceptions.ClientError):  # the last task still runs
                client.start_message_move_task(SourceArn=arn["Attributes"]["QueueArn"])


class Restored:
    """Hosts of a new cluster beside the old one's etcd."""

    def __init__(self, cluster: ClusterProcess, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._peers = {
            name: f"127.0.0.1:{port}" for name, port in zip(HOSTS, ports(3), strict=True)
        }

    def data(self, name: str) -> Path:
        """The data folder of a host."""
        return self._folder / name

    def node(self, name: str, *, of: str = "again") -> NodeProcess:
        """The process of a host, in the cluster of that name."""
        old = tomllib.loads((self._cluster.data / f"{name}.toml").read_text())
        given = {
            "etcd": old["etcd"],
            "cluster": of,
            "host-name": name,
            "cluster-hosts": old["cluster_hosts"],
            "peer-address": self._peers[name],
            "peer-ca": old["peer_ca"],
            "peer-certificate": old["peer_certificate"],
            "peer-key": old["peer_key"],
            "master-key-file": old["master_key_file"],
        }
        options = [word for flag, value in given.items() for word in (f"--{flag}", value)]
        return NodeProcess(
            self._folder / f"{name}.log",
            *options,
            data=self.data(name),
            credentials=self._cluster.credentials,
            variables={"HOLDFAST_AWS_WAITS": "off"},
        )


def ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def test_a_backup_made_under_traffic_has_each_message_once(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    traffic = Traffic(cluster)
    before = traffic.prepare()
    target = tmp_path / "backup"
    hosts = cluster.parts.cluster().hosts
    with traffic.running():
        eventually(lambda: traffic.crossed > 50)
        done = run_command("backup", str(target), "--url", hosts["b"], variables=cluster.exports())
    assert done.returncode == 0, done.stderr
    assert f"{2 * PAIRS} queues" in done.stdout
    assert run_command("verify", str(target)).returncode == 0
    assert json.loads((target / "backup.json").read_text())["backup"]["cluster"] == "holdfast"
    restored = Restored(cluster, tmp_path / "restored")
    for name in HOSTS:
        made = run_command("restore", str(target), "--data", str(restored.data(name)))
        assert made.returncode == 0, made.stderr
    assert "on each founding host" in made.stdout
    assert run_command("verify", str(restored.data("a"))).returncode == 0

    _assert_refused_elsewhere(restored)
    nodes = {name: restored.node(name) for name in HOSTS}
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.start(seconds=120), nodes.values()))
    try:
        found = drained(nodes["a"].url, cluster.credentials, before)

        assert {body: found[body] for body in before} == dict.fromkeys(before, 1)
        during = {body: times for body, times in found.items() if body not in before}
        assert set(during.values()) <= {1}
        assert during.keys() <= {f"during {number}" for number in range(traffic.sent)}
        assert not (restored.data("a") / "records.json").exists()
        _assert_a_new_disk_is_filled(nodes, restored, cluster.credentials)
    finally:
        for node in nodes.values():
            node.close()


def _assert_refused_elsewhere(restored: Restored) -> None:
    """On a restored folder only a new cluster may begin."""
    data = restored.data("a")
    alone = run_command("serve", "--port", "0", "--data", str(data))
    assert alone.returncode == 1
    assert "belongs to a host of a cluster" in alone.stderr
    with pytest.raises(AssertionError, match="did not start") as joined:
        restored.node("a", of="holdfast").start()
    assert "was restored from backup" in str(joined.value)


def drained(url: str, credentials: Credentials, awaited: set[str]) -> Counter[str]:
    """How often each body is delivered, until those are there and nothing else arrives."""
    client = connect(url, credentials, retries={"total_max_attempts": 5})
    queues = client.list_queues()["QueueUrls"]
    found: Counter[str] = Counter()

    def drain(queue: str) -> None:
        while messages := client.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=EMPTY_S
        ).get("Messages"):
            found.update(message["Body"] for message in messages)
            entries = [
                {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
                for n, message in enumerate(messages)
            ]
            assert not client.delete_message_batch(QueueUrl=queue, Entries=entries).get("Failed")

    def drain_all() -> bool:
        with ThreadPoolExecutor(len(queues)) as pool:
            list(pool.map(drain, queues))
        return found.keys() >= awaited

    eventually(drain_all)
    drain_all()
    return found


def _assert_a_new_disk_is_filled(
    nodes: dict[str, NodeProcess], restored: Restored, credentials: Credentials
) -> None:
    """A host with an empty folder gets the restored rows, which no log reaches back to."""
    client = connect(nodes["a"].url, credentials, retries={"total_max_attempts": 5})
    url = client.create_queue(QueueName="later")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="later")
    nodes["c"].stop()
    shutil.rmtree(restored.data("c"))
    nodes["c"].start(seconds=120)

    def is_well() -> bool:
        asked = ("cluster", "status", "--data", str(restored.data("a")), "--json")
        said: subprocess.CompletedProcess[str] = run_command(*asked)
        shards = json.loads(said.stdout)["shards"] if said.stdout else []
        return said.returncode == 0 and all(len(shard["voters"]) == 3 for shard in shards)

    eventually(is_well)
    again = connect(nodes["c"].url, credentials, retries={"total_max_attempts": 5})
    (message,) = again.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "later"
