"""An emptied cluster is removed while clients use the other one: no call fails, and its hosts end
for good."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.cluster_process import GATEWAY, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import run_command
from compat_tests.test_emptied_cluster import asked, emptied
from compat_tests.test_fleet import bodies, made
from compat_tests.test_queue_parts import Load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    process = FleetProcess(
        tmp_path_factory.mktemp("fleet"), "--aws-waits", "off", "--restore-deleted-s", "0"
    )
    yield process.start()
    process.close()


class AtGateway:
    """The endpoint of clients whose host does not stop, so that they need no retries."""

    def __init__(self, fleet: FleetProcess) -> None:
        self.url = fleet.parts.cluster().hosts[GATEWAY]
        self.credentials = fleet.credentials


def refusal(fleet: FleetProcess, host: str, *words: str) -> str:
    done = run_command("fleet", *words, "--data", str(fleet.data / host))
    assert done.returncode == 2, done
    return done.stderr


def shard_of(fleet: FleetProcess, name: str) -> int:
    (part,) = fleet.parts_of(name)
    return int(part["shard"])


def runs(fleet: FleetProcess, name: str) -> bool:
    return name in fleet.parts.cluster().processes


def test_an_emptied_cluster_is_removed_while_the_other_is_used(fleet: FleetProcess) -> None:
    gateway = fleet.client(GATEWAY)
    urls: dict[str, str] = {}
    shards: dict[str, int] = {}
    while len({shard > 2 for shard in shards.values()}) < 2:
        name = f"q{len(urls)}"
        urls[name] = made(gateway, name)
        shards[name] = shard_of(fleet, name)
    (stays, *_) = [name for name, shard in shards.items() if shard <= 2]
    leaving = [name for name, shard in shards.items() if shard > 2]
    used = Load(AtGateway(fleet), urls[stays], pause_s=0.2)
    try:
        assert "cluster 1 stays" in refusal(fleet, "a", "remove-cluster", "1")
        assert "`holdfast fleet drain-cluster 2` empties it" in refusal(
            fleet, "a", "remove-cluster", "2"
        )
        asked(fleet, "a", "drain-cluster", "2")
        said = refusal(fleet, "a", "remove-cluster", "2")
        assert f"has 1 parts of queues, one of queue {leaving[0]}" in said
        for name in leaving:
            gateway.call("DeleteQueue", QueueUrl=urls.pop(name))
        eventually(lambda: emptied(fleet)["stays"] == "")
        assert "Ask a host of another cluster" in refusal(fleet, "d", "remove-cluster", "2")
        removed: Any = asked(fleet, "b", "remove-cluster", "2")
        assert removed == {"number": 2, "name": "cluster-2", "hosts": list(SECOND)}
        eventually(lambda: not any(runs(fleet, name) for name in SECOND))
        for number in range(4):
            name = f"later-{number}"
            url = made(gateway, name)
            assert shard_of(fleet, name) <= 2
            gateway.call("SendMessage", QueueUrl=url, MessageBody=name)
            assert bodies(gateway, url, WaitTimeSeconds=20) == [name]
    finally:
        used.end()
    assert used.failures == []
    assert used.received == used.sent, "each message once"
    eventually(lambda: [each["number"] for each in fleet.seen_by("a")["clusters"]] == [1])
    log = fleet.data / "e.log"
    eventually(lambda: "was removed from the fleet. Its hosts do not start" in log.read_text())
    found = audit(fleet, "removeCluster")
    assert [line["details"]["cluster"] for line in found if line["outcome"] == "ok"] == [2], found


def audit(fleet: FleetProcess, action: str) -> list[dict[str, Any]]:
    done = run_command("audit", "--action", action, "--json", "--data", str(fleet.data / "a"))
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)
    return lines
