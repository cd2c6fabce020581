"""Hosts of a cluster with several workers each: all take all requests, each worker's shards have
leaders of their own, and a worker that is killed comes back."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import run_command
from compat_tests.pages import ask
from compat_tests.workers import worker_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
WORKERS = 2
QUEUES = 12
SECOND = "worker-2"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("hosts")
    process = ClusterProcess(folder, "--aws-waits", "off", "--workers", str(WORKERS))
    yield process.start()
    process.close()


def status(hosts: ClusterProcess, host: str) -> dict[str, Any]:
    """`holdfast fleet status --json` of a host."""
    done = run_command("fleet", "status", "--json", "--data", str(hosts.data / host))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seen_clusters(hosts: ClusterProcess, host: str) -> Any:
    """The clusters on the page that `fleet status` shows, without a command a look."""
    code, found = ask(hosts.parts.cluster().hosts[host], hosts.credentials, "fleet")
    return found["clusters"] if code == 200 else []


def wait_until_all_lead(hosts: ClusterProcess) -> None:
    """Wait until the workers of all hosts have founded their clusters, and each shard is led."""

    def are_led() -> bool:
        clusters = seen_clusters(hosts, "a")
        shards = [shard for each in clusters for shard in each["shards"]]
        return len(clusters) == WORKERS and all(shard["leader"] for shard in shards)

    eventually(are_led)


def second_worker(hosts: ClusterProcess, host: str) -> int:
    """The process of a host's second worker; 0 while there is none."""
    return worker_in(hosts.data / host / SECOND, hosts.parts.cluster().processes[host])


def is_replaced(hosts: ClusterProcess, host: str, killed: int) -> bool:
    """True once another process is its second worker."""
    return second_worker(hosts, host) not in (0, killed)


def test_every_worker_takes_a_share_and_all_requests(hosts: ClusterProcess) -> None:
    wait_until_all_lead(hosts)
    clients = [Boto3Client(url, hosts.credentials) for url in hosts.parts.cluster().hosts.values()]
    urls = [
        clients[number % 3].call("CreateQueue", QueueName=f"q{number}")["QueueUrl"]
        for number in range(QUEUES)
    ]
    for url in urls:
        for number, client in enumerate(clients):
            client.call("SendMessage", QueueUrl=url, MessageBody=str(number))
    for url in urls:
        found: set[str] = set()
        for client in clients * 2:
            answer = client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
            for each in answer.get("Messages", []):
                found.add(each["Body"])
                client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        assert found == {"0", "1", "2"}

    clusters = status(hosts, "b")["clusters"]
    assert [sorted(host["name"] for host in each["hosts"]) for each in clusters] == [
        [*HOSTS],
        [f"{host}.{SECOND}" for host in HOSTS],
    ]
    queues = [sum(shard["queues"] for shard in each["shards"]) for each in clusters]
    assert sum(queues) == QUEUES
    assert min(queues) >= 3, "each worker has some"


def test_a_host_is_drained_with_its_workers_and_shows_the_metrics_of_all(
    hosts: ClusterProcess,
) -> None:
    wait_until_all_lead(hosts)

    def leaders() -> set[str]:
        clusters = seen_clusters(hosts, "b")
        return {shard["leader"] for each in clusters for shard in each["shards"]}

    # Any worker may be asked.
    asked = ("--data", str(hosts.data / "b" / SECOND))
    for verb in ("drain", "undrain"):
        done = run_command("cluster", verb, "a", *asked)
        assert done.returncode == 0, done.stderr
        is_drained = verb == "drain"
        eventually(lambda: is_drained != bool({"a", f"a.{SECOND}"} & leaders()))  # noqa: B023
    page = f"{hosts.parts.cluster().hosts['a']}/_holdfast/metrics"
    with urlopen(page, timeout=10) as answer:
        found = re.findall(rb'^holdfast_connections\{worker="(\d)"', answer.read(), re.MULTILINE)
    assert sorted(found) == [b"0", b"1"]


def test_a_worker_that_is_killed_comes_back_with_everything(hosts: ClusterProcess) -> None:
    wait_until_all_lead(hosts)
    client = connect(hosts.url, hosts.credentials, retries={"mode": "standard", "max_attempts": 10})
    urls = [client.create_queue(QueueName=f"kept{number}")["QueueUrl"] for number in range(QUEUES)]
    for url in urls:
        client.send_message(QueueUrl=url, MessageBody="kept")
    for host in HOSTS:
        killed = second_worker(hosts, host)
        assert killed
        os.kill(killed, signal.SIGKILL)
        for url in urls:
            client.send_message(QueueUrl=url, MessageBody=host)
        eventually(partial(is_replaced, hosts, host, killed))
        wait_until_all_lead(hosts)
    for url in urls:
        found: set[str] = set()
        while answer := client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
        ).get("Messages"):
            found |= {each["Body"] for each in answer}
        assert found == {"kept", *HOSTS}
