"""A cluster is emptied while clients use its queues: no call fails, and nothing is lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.cluster_process import GATEWAY
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import run_command
from compat_tests.pages import ask
from compat_tests.test_fleet import made
from compat_tests.test_queue_parts import Load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
EMPTIED_S = 600.0
RETRIES = "retries of the last sends"
"""All that an empty part waits for, some minutes."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    process = FleetProcess(
        tmp_path_factory.mktemp("fleet"), "--aws-waits", "off", "--load-report-s", "2"
    )
    yield process.start()
    process.close()


def asked(fleet: FleetProcess, host: str, *words: str) -> Any:
    """The answer of `holdfast fleet`."""
    done = run_command("fleet", *words, "--json", "--data", str(fleet.data / host))
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def emptied(fleet: FleetProcess) -> dict[str, Any]:
    """The cluster that is emptied, as `fleet status` has it. A host may hear of the order a moment
    later than the one that was asked."""
    host = fleet.parts.cluster().hosts["e"]
    found: dict[str, Any] = {}

    def is_known() -> bool:
        status, said = ask(host, fleet.credentials, "api/fleet/emptied")
        if status == 200 and said["clusters"]:
            (cluster,) = said["clusters"]
            found.update(cluster)
        return bool(found)

    eventually(is_known)
    return found


def test_a_cluster_is_emptied_while_its_queues_are_used(fleet: FleetProcess) -> None:
    gateway = fleet.client(GATEWAY)
    urls: dict[str, str] = {}
    of_second: list[str] = []
    while len(of_second) < 2:
        name = f"q{len(urls)}"
        urls[name] = made(gateway, name)
        if fleet.parts_of(name)[0]["shard"] > 2:
            of_second.append(name)
    used = Load(fleet, urls[of_second[0]], pause_s=0.2)
    others = [name for name in urls if name != of_second[0]]
    for name in others:
        gateway.call("SendMessage", QueueUrl=urls[name], MessageBody=f"in {name}")
    try:
        (begun,) = asked(fleet, "a", "drain-cluster", "2")["clusters"]
        assert begun["to_move"] == len(of_second)
        # a new fleet has nobody who plans for a moment
        eventually(lambda: "mode shadow" in emptied(fleet)["blocked"])
        made(gateway, "later")
        assert fleet.parts_of("later")[0]["shard"] <= 2
        assert asked(fleet, "b", "resume", "--mode", "on")["mode"] == "on"

        def is_empty() -> bool:
            time.sleep(0.5)  # a plan is made each two seconds
            found = emptied(fleet)
            waits = {each["waits_for"] for each in found["parts"]}
            return not (found["to_move"] or found["messages"]) and waits <= {RETRIES}

        eventually(is_empty, within=EMPTIED_S)
    finally:
        used.end()
    assert used.failures == []
    assert used.received == used.sent, "each message once"
    for name in others:
        answer = gateway.call("ReceiveMessage", QueueUrl=urls[name], WaitTimeSeconds=20)
        assert [message["Body"] for message in answer["Messages"]] == [f"in {name}"]
    open_parts = [
        part for name in urls for part in fleet.parts_of(name, "d") if part["state"] == "open"
    ]
    assert {part["shard"] for part in open_parts} <= {0, 1, 2}
    assert asked(fleet, "d", "drain-cluster", "2", "--cancel")["clusters"] == []
