"""A fleet's backup, made under traffic between its clusters, and restored as a new fleet: the
rehearsal of a region's recovery in another one."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.ports import free_ports
from compat_tests.test_backup_of_cluster import Traffic, drained, said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
CLUSTERS = {1: HOSTS, 2: SECOND}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    folder = tmp_path_factory.mktemp("fleet")
    process = FleetProcess(folder, "--aws-waits", "off")
    yield process.start()
    process.close()


class Recovered:
    """The hosts of a new fleet beside the old one's etcd."""

    def __init__(self, fleet: FleetProcess, folder: Path) -> None:
        self._fleet = fleet
        self._folder = folder
        names = (*HOSTS, *SECOND)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.nodes: dict[str, NodeProcess] = {}

    def data(self, name: str) -> Path:
        """The data folder of a host."""
        return self._folder / name

    def node(self, name: str, number: int) -> NodeProcess:
        """The process of a host of cluster `number`."""
        old = tomllib.loads((self._fleet.data / f"{name}.toml").read_text())
        of_etcd = ("etcd", "etcd_ca", "etcd_certificate", "etcd_key")
        kept = (*of_etcd, "peer_ca", "peer_certificate", "peer_key", "master_key_file")
        given = {each.replace("_", "-"): old[each] for each in kept} | {
            "cluster": "again",
            "cluster-number": number,
            "cluster-hosts": ",".join(CLUSTERS[number]),
            "host-name": name,
            "peer-address": f"127.0.0.1:{self._ports[name]}",
        }
        return NodeProcess(
            self._folder / f"{name}.log",
            *(str(word) for flag, value in given.items() for word in (f"--{flag}", value)),
            data=self.data(name),
            credentials=self._fleet.credentials,
            variables={"HOLDFAST_AWS_WAITS": "off"},
        )

    def start(self) -> None:
        """Start all at once: the second cluster waits for the first one."""
        for number, names in CLUSTERS.items():
            self.nodes |= {name: self.node(name, number) for name in names}
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(), self.nodes.values()))

    def client(self, name: str) -> Any:
        """A client of a host."""
        retries = {"total_max_attempts": 5}
        return connect(self.nodes[name].url, self._fleet.credentials, retries=retries)

    def close(self) -> None:
        """End all processes."""
        for node in self.nodes.values():
            node.close()


class Story(NamedTuple):
    """A backup that was made and restored."""

    backup: Path
    before: set[str]
    """Bodies that were acknowledged before the backup began."""
    during: set[str]
    fleet: Recovered
    seconds: dict[str, float]


@pytest.fixture(scope="module")
def story(fleet: FleetProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("recovered")
    traffic, target, seconds = Traffic(fleet), folder / "backup", {}
    before = traffic.prepare()
    begun_s = time.monotonic()

    def took(step: str) -> None:
        nonlocal begun_s
        seconds[step], begun_s = round(time.monotonic() - begun_s, 1), time.monotonic()

    with traffic.running():
        eventually(lambda: traffic.crossed > 50)
        begun_s = time.monotonic()
        hosts = fleet.parts.cluster().hosts
        said("backup", target, "--url", hosts["e"], variables=fleet.exports())
        took("backup")
    begun_s = time.monotonic()
    recovered = Recovered(fleet, folder)
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda place: said(
                    *("restore", "--fleet", target, "--cluster-number", place[0]),
                    *("--data", recovered.data(place[1])),
                ),
                [(number, name) for number, names in CLUSTERS.items() for name in names],
            )
        )
    took("restore")
    during = {f"during {number}" for number in range(traffic.sent)}
    try:
        recovered.start()
        took("start")
        yield Story(target, before, during, recovered, seconds)
    finally:
        recovered.close()


def test_each_message_of_a_fleet_is_there_once_after_its_restore(story: Story) -> None:
    for number in CLUSTERS:
        text = said("verify", story.backup / f"cluster-{number}")
        assert "3 shards, 7 queues" in text
        assert "nothing found" in text

    found = drained(story.fleet.client("f"), story.before)

    assert {body: found[body] for body in story.before} == dict.fromkeys(story.before, 1)
    assert set(found.values()) == {1}
    assert found.keys() - story.before <= story.during
    took = ", ".join(f"{step} {seconds} s" for step, seconds in story.seconds.items())
    lost = len(story.during - found.keys())
    sys.stdout.write(f"{took}; {len(found)} messages back, {lost} sent later lost\n")


def test_the_recovered_fleet_takes_queues_on_both_clusters(story: Story) -> None:
    client = story.fleet.client("b")
    for number in range(12):
        url = client.create_queue(QueueName=f"later{number}")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody=f"later {number}")
    other = story.fleet.client("d")
    found = drained(other, {f"later {number}" for number in range(12)})
    assert set(found.values()) == {1}
    assert not (story.fleet.data("d") / "records.json").exists()


def test_a_part_of_a_fleets_backup_is_not_restored_by_itself(story: Story, tmp_path: Path) -> None:
    alone = run_command("restore", str(story.backup / "cluster-2"), "--data", str(tmp_path / "x"))
    assert alone.returncode == 2
    assert "has cluster 2 of a fleet, whose clusters are restored together" in alone.stderr
    away = ("--fleet", str(story.backup), "--cluster-number", "3", "--data", str(tmp_path / "x"))
    missing = run_command("restore", *away)
    assert missing.returncode == 2
    assert "it is no backup" in missing.stderr


def test_without_one_cluster_there_is_no_backup_and_nothing_is_left(
    fleet: FleetProcess, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    hosts = fleet.parts.cluster().hosts
    with fleet.stopped(*SECOND):
        refused = run_command("backup", str(target), "--url", hosts["a"], variables=fleet.exports())
    assert refused.returncode == 2
    assert "cluster 2: no host of it answers" in refused.stderr
    assert not [path for path in target.rglob("*") if path.is_file()]
    eventually(lambda: not fleet.seen_by("a")["problems"])
    said("backup", target, "--url", hosts["a"], variables=fleet.exports())
    assert (target / "cluster-2" / "backup.json").exists()
