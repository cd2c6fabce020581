"""A cluster's backup, made under traffic across its shards and restored as a new cluster, whose
hosts then go over to a later version, one by one."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typing_extensions import override

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, ClusterProcess, is_well
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask
from compat_tests.ports import free_ports

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
ORDERED = "ordered.fifo"
PAIR = "source-0", "dead-1"
"""A source and its dead-letter queue."""
GROUPS = ("red", "green", "blue")
EMPTY_S = 2
"""A queue that is empty for so long is left for the others."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    process = ClusterProcess(folder, variables=variables).start()
    yield process
    process.close()


class Traffic:
    """Messages go to dead-letter queues and back, across shards, and further ones are sent."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._urls = list(cluster.parts.cluster().hosts.values())
        self._credentials = cluster.credentials
        self._config = cluster.data / "a.toml"
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
        return {*bodies, *self._send_in_order(client)}

    def _send_in_order(self, client: Any) -> list[str]:
        """Send to the groups of a FIFO queue, whose messages are sealed under a key of its own."""
        config = str(self._config)
        said("keys", "--config", config, "add", "orders")
        said("users", "--config", config, "add", "ann")
        given = {"FifoQueue": "true", "KmsMasterKeyId": "alias/orders"}
        url = client.create_queue(QueueName=ORDERED, Attributes=given)["QueueUrl"]
        bodies = [f"{group}-{number:02}" for number in range(10) for group in GROUPS]
        for body in bodies:
            group = body.partition("-")[0]
            client.send_message(
                QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body
            )
        return bodies

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
        while not self._stopped.wait(0.02):
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
            name: f"127.0.0.1:{port}" for name, port in zip(HOSTS, free_ports(3), strict=True)
        }
        self._nodes: dict[str, Host] = {}

    def data(self, name: str) -> Path:
        """The data folder of a host."""
        return self._folder / name

    def node(self, name: str, *, cluster: str = "again") -> Host:
        """The process of a host, in the cluster of that name."""
        old = tomllib.loads((self._cluster.data / f"{name}.toml").read_text())
        of_etcd = ("etcd", "etcd_ca", "etcd_certificate", "etcd_key")
        shared = (*of_etcd, "cluster_hosts", "peer_ca", "peer_certificate", "peer_key")
        given = {each.replace("_", "-"): old[each] for each in (*shared, "master_key_file")}
        given |= {"cluster": cluster, "host-name": name, "peer-address": self._peers[name]}
        return Host(
            self._folder / f"{name}.log",
            *(word for flag, value in given.items() for word in (f"--{flag}", value)),
            data=self.data(name),
            credentials=self._cluster.credentials,
            variables={"HOLDFAST_AWS_WAITS": "off"},
        )

    def start(self) -> None:
        """Found the cluster: that takes all of them."""
        self._nodes = {name: self.node(name) for name in HOSTS}
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            list(pool.map(lambda node: node.start(), self._nodes.values()))

    def restart(self, name: str, *, newest_format: int, has_new_disk: bool = False) -> None:
        """Start a host anew, as a version that reads formats up to this one."""
        node = self._nodes[name]
        node.stop()
        if has_new_disk:
            shutil.rmtree(self.data(name))
        node.newest_format = newest_format
        node.start()
        for each in self._nodes.values():
            eventually(partial(is_well, f"{each.url}/readyz"))

    def client(self, name: str) -> Any:
        """A client of a host."""
        url, credentials = self._nodes[name].url, self._cluster.credentials
        return connect(url, credentials, retries={"total_max_attempts": 5})

    def are_whole(self) -> bool:
        """True if every shard has three copies that count, and nothing is wrong."""
        status, said = ask(self._nodes["c"].url, self._cluster.credentials, "cluster")
        shards = said["shards"] if status == 200 and not said["problems"] else []
        return bool(shards) and all(len(shard["voters"]) == 3 for shard in shards)

    def close(self) -> None:
        """End all processes."""
        for node in self._nodes.values():
            node.close()


_OF_VERSION = """
import sys
import storage.log
from storage.log import entry

storage.log.NEWEST_FORMAT = entry.NEWEST_FORMAT = int(sys.argv.pop(1))
from sqs_api.__main__ import main

main()
"""


class Host(NodeProcess):
    """A host of a version that reads formats up to a given one."""

    newest_format = 1

    @override
    def command_line(self) -> list[str]:
        words = super().command_line()
        serving = words[words.index("serve") :]
        return [sys.executable, "-EP", "-c", _OF_VERSION, str(self.newest_format), *serving]


class Story(NamedTuple):
    """A backup that was restored, and the hosts that run on it."""

    backup: Path
    before: set[str]
    """Bodies that were acknowledged before the backup began."""
    sent_during: int
    hosts: Restored


@pytest.fixture(scope="module")
def story(cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("restored")
    traffic = Traffic(cluster)
    before = traffic.prepare()
    target = folder / "backup"
    hosts = cluster.parts.cluster().hosts
    with traffic.running():
        eventually(lambda: traffic.crossed > 50)
        said("backup", target, "--url", hosts["b"], variables=cluster.exports())
    restored = Restored(cluster, folder)
    with ThreadPoolExecutor(len(HOSTS) + 1) as pool:
        verified = pool.submit(said, "verify", target)
        texts = [
            pool.submit(said, "restore", target, "--data", restored.data(name)) for name in HOSTS
        ]
    assert f"{2 * PAIRS + 1} queues" in verified.result()
    assert all("on each founding host of a new cluster" in text.result() for text in texts)
    with pytest.raises(AssertionError, match="the data folder was restored from backup"):
        restored.node("a", cluster="holdfast").start()
    try:
        restored.start()
        yield Story(target, before, traffic.sent, restored)
    finally:
        restored.close()


def said(*words: object, variables: dict[str, str] | None = None) -> str:
    """The output of a command, which must succeed."""
    done = run_command(*map(str, words), variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_message_of_a_backup_made_under_traffic_is_there_once(story: Story) -> None:
    found = drained(story.hosts.client("a"), story.before)

    assert {body: found[body] for body in story.before} == dict.fromkeys(story.before, 1)
    during = {body: times for body, times in found.items() if body not in story.before}
    assert set(during.values()) <= {1}
    assert during.keys() <= {f"during {number}" for number in range(story.sent_during)}
    assert not (story.hosts.data("a") / "records.json").exists()


def test_hosts_of_two_versions_are_one_cluster_until_the_formats_are_raised(story: Story) -> None:
    """The later one begins with an empty disk, and gets rows that no log reaches back to."""
    hosts = story.hosts
    hosts.restart("c", newest_format=2, has_new_disk=True)
    eventually(hosts.are_whole)
    url = hosts.client("a").create_queue(QueueName="later")["QueueUrl"]
    for name in HOSTS:
        hosts.client(name).send_message(QueueUrl=url, MessageBody="mixed")
    refused = run_command("cluster", "upgrade", "--data", str(hosts.data("c")))
    assert refused.returncode == 2
    assert "the cluster writes formats 1, the newest that a, b can read" in refused.stderr

    for name in ("a", "b"):
        hosts.restart(name, newest_format=2)
    text = said("cluster", "upgrade", "--data", hosts.data("a"))

    assert text == "the cluster writes formats 2\n"
    for name in HOSTS:
        hosts.client(name).send_message(QueueUrl=url, MessageBody="upgraded")
    with pytest.raises(AssertionError, match="the cluster writes formats 2, and this version"):
        hosts.restart("c", newest_format=1)
    found = drained(hosts.client("a"), {"upgraded"})
    assert {body: found[body] for body in ("mixed", "upgraded")} == {"mixed": 3, "upgraded": 3}


@pytest.fixture
def single(story: Story, cluster: ClusterProcess, tmp_path: Path) -> Iterator[NodeProcess]:
    """A single host on the backup, with the first access key of the cluster."""
    given = ("--master-key-file", str(cluster.data / "master.key"))
    text = said("restore", "--single", story.backup, "--data", tmp_path / "one", *given)
    assert "Start it with the master key of cluster holdfast and no etcd." in text
    assert "nothing found" in said("verify", tmp_path / "one")
    host = NodeProcess(
        tmp_path / "log", *given, data=tmp_path / "one", credentials=cluster.credentials
    )
    yield host.start()
    host.close()


def test_a_backup_of_a_cluster_becomes_a_single_host(
    story: Story, cluster: ClusterProcess, single: NodeProcess
) -> None:
    """All messages are there once, in the order of their groups, also those that were on their way
    between shards; users and the ways of dead letters work on."""
    client = connect(single.url, single.credentials)
    url = client.get_queue_url(QueueName=ORDERED)["QueueUrl"]
    found = in_order(client, url)
    assert found == {group: [f"{group}-{number:02}" for number in range(10)] for group in GROUPS}

    other = drained(client, story.before - {body for bodies in found.values() for body in bodies})

    key = {"HOLDFAST_MASTER_KEY_FILE": str(cluster.data / "master.key")}
    assert "ann" in said("users", "--data", single.data, "list", variables=key)
    assert set(other.values()) == {1}
    during = other.keys() - story.before
    assert during <= {f"during {number}" for number in range(story.sent_during)}
    source, dead = (client.get_queue_url(QueueName=name)["QueueUrl"] for name in PAIR)
    client.send_message(QueueUrl=source, MessageBody="again")
    for _ in range(2):
        client.receive_message(QueueUrl=source, VisibilityTimeout=0)
    assert (
        client.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"][0]["Body"] == "again"
    )
    sent = client.send_message(
        QueueUrl=url, MessageBody="x", MessageGroupId="red", MessageDeduplicationId="x"
    )
    single.stop()
    single.start()
    client = connect(single.url, single.credentials)
    (kept,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert kept["MessageId"] == sent["MessageId"]


def in_order(client: Any, url: str) -> dict[str, list[str]]:
    """The bodies of a FIFO queue by group, as they are received and deleted."""
    found: dict[str, list[str]] = {}
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=EMPTY_S
    ).get("Messages"):
        for message in messages:
            found.setdefault(message["Body"].partition("-")[0], []).append(message["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_a_single_host_says_what_a_cluster_s_backup_needs(
    story: Story, cluster: ClusterProcess, tmp_path: Path
) -> None:
    said("restore", story.backup, "--data", tmp_path / "a")

    for folder, reason in (
        (tmp_path / "a", "or restore the backup for a single host with holdfast restore --single"),
        (story.backup, "is a backup: make a data folder of it with holdfast restore"),
    ):
        started = run_command("serve", "--port", "0", "--data", str(folder))
        assert started.returncode == 1
        assert reason in started.stderr
    words = ("restore", "--single", str(story.backup), "--data", str(tmp_path / "one"))
    keyless = run_command(*words)
    assert keyless.returncode == 2
    assert "--single: needs the cluster's master key" in keyless.stderr
    wrong = tmp_path / "wrong.key"
    wrong.write_text(base64.b64encode(bytes(32)).decode())
    wrong.chmod(0o600)
    other = run_command(*words, "--master-key-file", str(wrong))
    assert other.returncode == 2
    assert "are not under this master key: give that of cluster holdfast" in other.stderr
    assert not (tmp_path / "one").exists() or not list((tmp_path / "one").iterdir())


def drained(client: Any, awaited: set[str]) -> Counter[str]:
    """Deliveries of each body, until the awaited ones are there and nothing else arrives."""
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
