"""The manager of a fleet as its operator meets it, and what goes on while nobody plans."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from compat_tests.chromium import Tab, installed
from compat_tests.cluster_process import GATEWAY, HOSTS, MEMBERS, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import run_command
from compat_tests.pages import ask
from compat_tests.test_fleet import bodies, made, url_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
RECORDS = "holdfast/holdfast/manager/"
DEPLOY = Path(__file__).parent.parent / "deploy"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    process = FleetProcess(
        tmp_path_factory.mktemp("fleet"), "--aws-waits", "off", "--load-report-s", "4"
    )
    yield process.start()
    process.close()


def wait_for_plan(fleet: FleetProcess, host: str) -> None:
    """Wait until somebody plans, as this host sees it."""
    eventually(lambda: planned(fleet, host).get("at_ms") is not None)


def planned(fleet: FleetProcess, host: str) -> dict[str, Any]:
    """The plan as a host has it, without a command a look; nothing while it cannot say."""
    url = fleet.parts.cluster().hosts[host]
    status, found = ask(url, fleet.credentials, "api/fleet/plan")
    return dict(found) if status == 200 else {}


def asked(fleet: FleetProcess, host: str, *words: str) -> Any:
    """The answer of `holdfast fleet`; the text of a refusal."""
    done = run_command("fleet", *words, "--json", "--data", str(fleet.data / host))
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def etcd(fleet: FleetProcess, verb: str, key: str, value: bytes | None = None) -> Any:
    """Ask etcd itself about a record of the manager."""
    said = {"key": base64.b64encode((RECORDS + key).encode()).decode()}
    if value is not None:
        said["value"] = base64.b64encode(value).decode()
    url = f"{fleet.parts.etcd_url(MEMBERS[0])}/v3/kv/{verb}"
    with urlopen(
        Request(url, json.dumps(said).encode()), timeout=10, context=fleet.parts.etcd_tls()
    ) as answer:
        return json.load(answer)


@contextmanager
def reported_hot(fleet: FleetProcess, queue_id: int, shard: int) -> Iterator[None]:
    """A host reports that a queue asks for most of a loop, in place of the one that leads it: on a
    machine that others use no load is certain to."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(1.0):
            part = [str(queue_id), 0, 0.7]
            load = {
                "host": "a",
                "cluster": "1",
                "at_ms": int(time.time() * 1000) + 9_000,
                "loop": 0.5,
                "shards": [[shard, 0.75, 0, 1.0, False, [part]]],
            }
            etcd(fleet, "put", "load/pretended", json.dumps(load).encode())

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        etcd(fleet, "deleterange", "load/pretended")


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Any:
    """None on a machine without Chromium."""
    return request.getfixturevalue("chromium_process") if installed() else None


def look_at_page(fleet: FleetProcess, browser: Any) -> None:
    """The console shows the plan at three widths; a preview changes nothing."""
    for scheme, width in (("light", 1280), ("dark", 768), ("light", 390)):
        size = {"width": width, "height": 900}
        url = fleet.parts.cluster().hosts["b"]
        tab = Tab(browser, url, color_scheme=scheme, viewport=size)
        tab.go("/hosts")
        tab.sign_in(fleet.credentials.access_key_id, fleet.credentials.secret_access_key)
        tab.press("All clusters of the fleet, and the manager's plan")
        tab.see("cluster-2")
        tab.press("Preview split of hot")
        tab.see("A new part on shard")
        assert tab.findings() == []
        tab.press("Keep everything as it is")
        assert tab.findings() == []
        assert tab.fits()
        assert tab.faults == []
        tab.context.close()


def made_as_planned(fleet: FleetProcess, made: dict[str, Any]) -> bool:
    """Make the only change of a new plan: the next one, four seconds later, may open its part on
    another shard, or be without it until the next load is there."""
    before = planned(fleet, "f").get("at_ms")

    def is_new() -> bool:
        return planned(fleet, "f").get("at_ms") not in (None, before)

    eventually(is_new)
    changes = planned(fleet, "f").get("changes")
    if not changes:
        return False
    said = asked(fleet, "f", "apply", changes[0]["id"])
    if isinstance(said, str):
        assert "look at the plan again" in said
        return False
    assert (said["opens"], len(changes)) == (changes[0]["opens"], 1)
    made.update(said)
    return True


def test_an_operator_previews_a_split_makes_it_and_undoes_it(
    fleet: FleetProcess, browser: Any
) -> None:
    gateway = fleet.client(GATEWAY)
    url = made(gateway, "hot")
    (part,) = fleet.parts_of("hot")
    plan: dict[str, Any] = {}
    applied: dict[str, Any] = {}

    def has_plan() -> bool:
        plan.clear()
        plan.update(planned(fleet, "e"))
        return bool(plan.get("changes"))

    with reported_hot(fleet, part["queue_id"], part["shard"]):
        eventually(has_plan)
        assert plan["mode"] == "shadow"
        (change,) = plan["changes"]
        assert (change["kind"], change["queue"]["name"], change["unavailable"]) == (
            "split",
            "hot",
            "",
        )
        assert "asked for 50%" in change["reason"]["text"]
        assert len(fleet.parts_of("hot", "b")) == 1, "shadow mode changes nothing"

        if browser is not None:
            look_at_page(fleet, browser)
        assert asked(fleet, "a", "pause")["mode"] == "paused"
        eventually(lambda: "paused" in asked(fleet, "a", "apply", change["id"]))
        assert asked(fleet, "d", "resume")["mode"] == "shadow"
        eventually(lambda: "no change 9.9" in asked(fleet, "f", "apply", "9.9"))
        eventually(lambda: made_as_planned(fleet, applied))
    assert applied["by"].startswith("arn:")

    shards = [part["shard"], *applied["opens"]]
    eventually(lambda: [each["shard"] for each in fleet.parts_of("hot", "b")] == shards)
    for number in range(20):
        gateway.call("SendMessage", QueueUrl=url, MessageBody=str(number))
    undone = asked(fleet, "c", "undo")
    assert (undone["kind"], len(undone["drains"])) == ("shrink", len(applied["opens"]))
    found: set[str] = set()

    def all_came() -> bool:
        got = gateway.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
        for message in got.get("Messages", []):
            found.add(message["Body"])
            gateway.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return len(found) == 20

    eventually(all_came)
    ids = [applied["id"], undone["id"]]
    eventually(lambda: [each["id"] for each in planned(fleet, "d").get("made", ())] == ids)
    assert [each["id"] for each in asked(fleet, "d", "plan")["made"]] == ids


def test_alerts_of_a_fleet_are_on_metrics_that_it_has(fleet: FleetProcess) -> None:
    rules = (DEPLOY / "prometheus/fleet.rules.yml").read_text()
    named = set(re.findall(r"\bholdfast_\w+", rules))
    assert len(named) >= 4

    def are_there() -> bool:
        time.sleep(1.0)  # loads are reported each four seconds
        pages: list[str] = []
        for name in (*HOSTS, *SECOND):
            with urlopen(f"{fleet.parts.cluster().hosts[name]}/_holdfast/metrics") as answer:
                pages.append(answer.read().decode())
        text = "\n".join(pages)
        return all(re.search(rf"^{name}\b.* ", text, re.MULTILINE) for name in named)

    eventually(are_there)


def test_a_fleet_without_anybody_who_plans_goes_on(fleet: FleetProcess) -> None:
    """Somebody has the key who never plans and never ends. Creates, sends, receives and failovers
    ask nobody; that lasts as long as it lasts."""
    gateway = fleet.client(GATEWAY)
    wait_for_plan(fleet, "a")
    holder = planned(fleet, "a")["holder"]
    assert holder in {*HOSTS, *SECOND}
    etcd(fleet, "put", "planner", b'{"host": "gone", "process_id": "of nobody"}')
    eventually(lambda: planned(fleet, holder).get("holder") == "gone")
    eventually(lambda: planned(fleet, "b").get("holder") == "gone")
    plan = asked(fleet, "b", "plan")
    assert (plan["at_ms"], plan["changes"]) == (None, [])

    urls = [made(gateway, f"alone{number}") for number in range(8)]
    for url in urls:
        gateway.call("SendMessage", QueueUrl=url, MessageBody="m")
    fleet.parts.signal(holder, signal.SIGSTOP)  # leaders elsewhere, without a planner
    try:
        for number, url in enumerate(urls):
            assert bodies(gateway, url, WaitTimeSeconds=20) == ["m"]
            gateway.call("SendMessage", QueueUrl=url, MessageBody=f"n{number}")
        made(gateway, "alone-later")
    finally:
        fleet.parts.signal(holder, signal.SIGCONT)
    split = asked(fleet, "e", "split", "alone0", "--parts", "2")
    assert len(split["parts"]) == 2

    etcd(fleet, "deleterange", "planner")
    wait_for_plan(fleet, "a")
    assert url_of(gateway, "alone-later")
