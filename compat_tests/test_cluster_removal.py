"""A host is replaced: another one joins, and the one that is gone is removed."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.ports import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path_factory.mktemp("cluster")).start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def fourth(cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a host that has joined."""
    authority = cluster.data / "certificates"
    made = run_command("cluster", "certificates", "--hosts", "d", "--out", str(authority))
    assert made.returncode == 0, made.stderr
    given = tomllib.loads((cluster.data / "a.toml").read_text())
    given |= {"host_name": "d", "peer_address": f"127.0.0.1:{free_ports(1)[0]}"}
    given |= {
        name: given[name].replace("/a/", "/d/") for name in given if name.startswith("peer_c")
    }
    given["peer_key"] = given["peer_key"].replace("/a/", "/d/")
    taken = {"host", "port", "data"}
    options = [
        word
        for name, value in given.items()
        if name not in taken
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    host = NodeProcess(
        tmp_path_factory.mktemp("fourth"), *options, credentials=cluster.credentials
    ).start()
    yield host.data
    host.close()


def asked(cluster: ClusterProcess, *arguments: str) -> CompletedProcess[str]:
    """Ask the first host."""
    return run_command("cluster", *arguments, "--data", str(cluster.data / "a"))


def voters(cluster: ClusterProcess) -> list[list[str]]:
    """Of each shard."""
    found = json.loads(asked(cluster, "status", "--json").stdout)
    return [shard["voters"] for shard in found["shards"]]


def test_a_host_that_joins_is_waited_for(cluster: ClusterProcess, fourth: Path) -> None:
    waited = asked(cluster, "wait", "d", "--timeout", "2m")

    assert waited.returncode == 0, waited.stdout + waited.stderr
    assert waited.stdout.endswith("host d counts in all shards\n")
    assert voters(cluster) == [["a", "b", "c", "d"]] * 3


def test_a_host_that_never_comes_is_waited_for_in_vain(cluster: ClusterProcess) -> None:
    waited = asked(cluster, "wait", "nobody", "--timeout", "1s")

    assert waited.returncode == 4
    assert waited.stdout == "waits: host nobody is no member\n"
    assert waited.stderr == "holdfast: host nobody does not count yet\n"


def test_once_a_host_is_removed_another_may_be_lost(cluster: ClusterProcess, fourth: Path) -> None:
    """The two that are left are a majority of the three that remained."""
    client = connect(cluster.parts.cluster().hosts["a"], cluster.credentials, read_timeout=60)
    urls = [client.create_queue(QueueName=f"q{shard}")["QueueUrl"] for shard in range(3)]
    asked(cluster, "wait", "d", "--timeout", "2m")
    with cluster.parts.not_starting(cluster.pid):
        cluster.parts.signal("b", signal.SIGKILL)
        eventually(lambda: "is running" not in asked(cluster, "remove", "b").stderr)
        cluster.parts.signal("c", signal.SIGKILL)

        assert voters(cluster) == [["a", "c", "d"]] * 3
        for url in urls:
            client.send_message(QueueUrl=url, MessageBody="x")
        again = asked(cluster, "remove", "b")
        assert (again.returncode, again.stdout) == (0, "host b is removed\n")
    client.close()
