"""A dead-letter queue of a fleet with messages of two failures, and tabs of the console over it."""

from __future__ import annotations

import json
from typing import Any

from compat_tests.chromium import Tab
from compat_tests.cluster_process import GATEWAY, HOSTS, SECOND
from compat_tests.fleet_process import FleetProcess
from compat_tests.pages import ask

_RATE = 10
"""Messages of the redrive in a second."""


def _failed(kind: str, number: int) -> str:
    return json.dumps({"order": number, "error": {"type": kind}})


TAX = [_failed("Tax", number) for number in range(120)]
CARD = [_failed("Card", number) for number in range(60)]


def signed_in(browser: Any, fleet: FleetProcess, host: str, place: str) -> Tab:
    """A tab of the root that shows a screen of one host."""
    key = fleet.exports()
    tab = Tab(browser, fleet.parts.cluster().hosts[host])
    tab.go(place)
    tab.sign_in(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
    return tab


class Letters:
    """A dead-letter queue with messages of two failures."""

    def __init__(self, fleet: FleetProcess) -> None:
        self._fleet = fleet
        self.host = HOSTS[0]
        """The host that is asked."""
        self._client = fleet.client(GATEWAY)
        letters = self._made("inbox-letters")
        self._rescued = self._made("inbox-rescued")
        arn = "arn:aws:sqs:us-east-1:000000000000:inbox-letters"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        self._made("inbox-source", RedrivePolicy=policy)
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
        path = f"api/queues/inbox-letters/{page}"
        url = self._fleet.parts.cluster().hosts[self.host]
        status, said = ask(url, self._fleet.credentials, path, content)
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
        to = {"destination": "inbox-rescued", "rate": _RATE, "planned": messages}
        self.ask("redrives", {"filter": {"failure": chosen["id"]}, **to})

    def latest_redrive(self) -> Any:
        """The redrive, as it is now."""
        return self.ask("redrives")["redrives"][0]

    def hosts(self) -> list[str]:
        """The leader of the queue's shard, and the two other hosts of its cluster. From now on a
        host of the other cluster is asked."""
        (part,) = self.ask("parts")["parts"]
        leader = self._fleet.leader_of(part["shard"], self.host)
        own, other = (HOSTS, SECOND) if leader in HOSTS else (SECOND, HOSTS)
        self.host = other[0]
        return sorted(own, key=lambda host: host != leader)

    def rescued(self) -> list[str]:
        """The bodies of all messages that were redriven, in order."""
        found: list[str] = []
        asked = {"QueueUrl": self._rescued, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 2}
        asked["VisibilityTimeout"] = 3600  # each once, however long all of them take
        while some := self._client.call("ReceiveMessage", **asked).get("Messages"):
            found += [each["Body"] for each in some]
        return sorted(found)
