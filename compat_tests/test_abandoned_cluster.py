"""A cluster whose disks are lost for good is given up: its queues answer again, and a host of it
that comes back does not serve."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compat_tests.cluster_process import GATEWAY, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import freeze, wait_until_gone
from compat_tests.test_emptied_cluster import asked
from compat_tests.test_fleet import bodies, made
from compat_tests.test_removed_cluster import audit, refusal, shard_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
SHARDS = 3
SENT = 20
"""Messages for each queue."""


def lose(fleet: FleetProcess, kept: Path) -> None:
    """All disks of the second cluster are gone; that of `f` was only away, and comes back."""
    with fleet.parts.not_starting(fleet.pid):
        freeze(fleet.parts.cluster().processes["f"])  # its files come and go while it runs
        shutil.copytree(fleet.data / "f", kept)
        for name in SECOND:
            wait_until_gone(fleet.parts.signal(name, signal.SIGKILL))
            shutil.rmtree(fleet.data / name)
            (fleet.data / name).write_text("no disk")  # so that the launcher starts nothing there


def are_published(fleet: FleetProcess, after_ms: float) -> bool:
    """True once the second cluster has published the depths of all its shards since then."""
    said = [fleet.parts.record(f"depths/{host}") or [] for host in SECOND]
    shards = {each["shard"] for host in said for each in host if each["at_ms"] > after_ms}
    return len(shards) == SHARDS


def test_queues_of_a_lost_cluster_answer_again(fleet: FleetProcess, tmp_path: Path) -> None:
    gateway = fleet.client(GATEWAY)
    urls: dict[str, str] = {}
    shards: dict[str, int] = {}
    while len({shard > 2 for shard in shards.values()}) < 2 or len(shards) < 4:
        name = f"q{len(urls)}"
        urls[name] = made(gateway, name)
        shards[name] = shard_of(fleet, name)
    lost = [name for name, shard in shards.items() if shard > 2]
    stays = next(name for name, shard in shards.items() if shard <= 2)
    asked(fleet, "a", "split", stays, "--parts", "2")
    second = fleet.parts_of(stays)[1]["number"]
    done_once(fleet, "has no leader", "move", stays, "--part", str(second), "--shard", "4")
    for name, url in urls.items():
        for number in range(SENT):
            gateway.call("SendMessage", QueueUrl=url, MessageBody=f"{name}-{number}")
    (received,) = gateway.call("ReceiveMessage", QueueUrl=urls[lost[0]], WaitTimeSeconds=20)[
        "Messages"
    ]
    assert "host d of cluster 2 is running" in refusal(
        fleet, "a", "abandon", "2", "--confirm", "cluster-2"
    )
    eventually(partial(are_published, fleet, time.time() * 1000))
    lose(fleet, tmp_path / "f")
    assert "confirm its name, cluster-2" in refusal(fleet, "a", "abandon", "2", "--confirm", "2")

    while_present = "a cluster is given up only when nothing of it"
    done = done_once(fleet, while_present, "abandon", "2", "--confirm", "cluster-2")

    assert (done["number"], done["left"]) == (2, 0)
    told = {each["queue"]: each["messages"] for each in done["queues"]}
    assert {name: told[name] for name in lost} == dict.fromkeys(lost, SENT)
    assert 0 < told[stays] < SENT, "the parts that it had there"
    for name in lost:
        handle = received["ReceiptHandle"]
        if name == lost[0]:
            gateway.call("DeleteMessage", QueueUrl=urls[name], ReceiptHandle=handle)
        gateway.call("SendMessage", QueueUrl=urls[name], MessageBody="later")
        assert bodies(gateway, urls[name], WaitTimeSeconds=20) == ["later"]
    found: list[str] = []
    while len(found) < SENT - told[stays]:
        found += bodies(gateway, urls[stays], WaitTimeSeconds=20)
    assert len(set(found)) == SENT - told[stays]
    assert [each["number"] for each in fleet.status("a")["clusters"]] == [1]
    (line,) = [line for line in audit(fleet, "abandonCluster") if line["outcome"] == "ok"]
    assert line["details"]["queues"] == len(told)
    assert line["details"]["messages"] == sum(told.values())
    assert "was given up" in come_back(fleet, tmp_path / "f")


def done_once(fleet: FleetProcess, refusal: str, *words: str) -> Any:
    """The answer of a command of `holdfast fleet` that is refused with these words at first."""
    answers: list[Any] = []

    def is_done() -> bool:
        try:
            answers.append(asked(fleet, "a", *words))
        except AssertionError as refused:
            if refusal in str(refused):
                return False
            raise
        return True

    eventually(is_done)
    return answers[-1]


def come_back(fleet: FleetProcess, folder: Path) -> str:
    """The log of a host of the cluster whose disk was not lost."""
    with fleet.parts.not_starting(fleet.pid):
        (fleet.data / "f").unlink()
        shutil.copytree(folder, fleet.data / "f")
    log = fleet.data / "f.log"
    eventually(lambda: "was given up" in log.read_text())
    return log.read_text()
