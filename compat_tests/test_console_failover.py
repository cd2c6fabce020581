"""The console of a fleet while the leader of a dead-letter queue is killed, in a real browser: the
failure inbox is open, and a redrive runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab
from compat_tests.cluster_process import GATEWAY, HOSTS, SECOND
from compat_tests.facade import eventually
from compat_tests.fleet_process import FleetProcess
from compat_tests.pages import ask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]

RATE = 10
"""Messages of the redrive in a second."""


def failed(kind: str, number: int) -> str:
    return json.dumps({"order": number, "error": {"type": kind}})


TAX = [failed("Tax", number) for number in range(120)]
CARD = [failed("Card", number) for number in range(60)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    process = FleetProcess(tmp_path_factory.mktemp("fleet"), "--aws-waits", "off")
    yield process.start(seconds=180)
    process.close()


def signed_in(browser: Any, fleet: FleetProcess, host: str, place: str) -> Tab:
    key = fleet.exports()
    tab = Tab(browser, fleet.parts.cluster().hosts[host])
    tab.go(place)
    tab.sign_in(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
    return tab


class Letters:
    """A dead-letter queue with messages of two failures."""

    def __init__(self, fleet: FleetProcess) -> None:
        self._fleet = fleet
        self._url = fleet.parts.cluster().hosts[GATEWAY]
        self._client = fleet.client(GATEWAY)
        letters = self._made("letters")
        self._rescued = self._made("rescued")
        arn = "arn:aws:sqs:us-east-1:000000000000:letters"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        self._made("source", RedrivePolicy=policy)
        bodies = [*TAX, *CARD]
        for begin in range(0, len(bodies), 10):
            some = enumerate(bodies[begin : begin + 10])
            entries = [{"Id": str(at), "MessageBody": body} for at, body in some]
            self._client.call("SendMessageBatch", QueueUrl=letters, Entries=entries)

    def _made(self, name: str, **attributes: str) -> str:
        made = self._client.call("CreateQueue", QueueName=name, Attributes=attributes)
        return str(made["QueueUrl"])

    def ask(self, page: str, content: object = None) -> Any:
        """The answer of a page of the queue."""
        path = f"api/queues/letters/{page}"
        status, said = ask(self._url, self._fleet.credentials, path, content)
        assert status == 200, said
        return said

    def counts(self) -> dict[str, int]:
        """Messages by what they failed for."""
        return {
            each["signs"][0]["value"]: each["messages"] for each in self.ask("failures")["failures"]
        }

    def redrive(self, kind: str, messages: int) -> None:
        """Redrive the messages of one failure, slowly."""
        found = self.ask("failures")["failures"]
        chosen = next(each for each in found if each["signs"][0]["value"] == kind)
        to = {"destination": "rescued", "rate": RATE, "planned": messages}
        self.ask("redrives", {"filter": {"failure": chosen["id"]}, **to})

    def latest_redrive(self) -> Any:
        """The redrive, as it is now."""
        return self.ask("redrives")["redrives"][0]

    def hosts(self) -> list[str]:
        """The leader of the queue's shard, and the two other hosts of its cluster."""
        (part,) = self.ask("parts")["parts"]
        clusters = self._fleet.seen_by(GATEWAY)["clusters"]
        shards = [shard for cluster in clusters for shard in cluster["shards"]]
        (leader,) = [each["leader"] for each in shards if each["shard"] == part["shard"]]
        return sorted(HOSTS if leader in HOSTS else SECOND, key=lambda host: host != leader)

    def rescued(self) -> list[str]:
        """The bodies of all messages that were redriven, in order."""
        found: list[str] = []
        asked = {"QueueUrl": self._rescued, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 2}
        while some := self._client.call("ReceiveMessage", **asked).get("Messages"):
            found += [each["Body"] for each in some]
        return sorted(found)


def test_inbox_and_redrive_go_on_after_kill_9_of_their_leader(
    browser: Any, fleet: FleetProcess
) -> None:
    """First with a second host of the cluster away, so that nobody can lead: the page says so."""
    letters = Letters(fleet)
    leader, second, third = letters.hosts()
    inbox = signed_in(browser, fleet, GATEWAY, "/queues/letters")
    hosts = signed_in(browser, fleet, third, "/hosts")
    inbox.see("All 180 messages, 2 failures.")
    letters.redrive("Tax", len(TAX))
    eventually(lambda: letters.latest_redrive()["moved"] > 0)

    with fleet.parts.not_starting(fleet.pid):
        fleet.parts.signal(leader, signal.SIGKILL)
        with fleet.stopped(second):
            inbox.see("The failures cannot be read: no host that leads letters answers now.")
            assert inbox.page.get_by_role("article", name="Card").is_visible(), "as it was"
        named = hosts.page.get_by_role("cell", name=leader, exact=True)
        rows = hosts.page.get_by_role("region", name="Hosts").get_by_role("row")
        killed = rows.filter(has=named)
        killed.get_by_text("away").wait_for()
        inbox.page.get_by_role("alert").first.wait_for(state="detached")
        inbox.page.get_by_role("article", name="Card").get_by_text(
            "60", exact=True
        ).first.wait_for()
    inbox.see("All 60 messages, 1 failure.")

    assert letters.counts() == {"Card": len(CARD)}
    redrive = letters.latest_redrive()
    assert (redrive["status"], redrive["moved"]) == ("COMPLETED", len(TAX))
    inbox.go("/queues/letters/redrive")
    inbox.see("120 of 120")
    assert letters.rescued() == sorted(TAX), "each once"
    killed.get_by_text("runs").wait_for()
    for place in ("/dead-letters", "/queues"):
        hosts.go(place)
        row = hosts.page.get_by_role("row", name="letters").first
        row.get_by_text("60", exact=True).first.wait_for()
    assert (inbox.faults, hosts.faults) == ([], [])
