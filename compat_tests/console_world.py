"""Queues with dead letters for the tests of the console, and tabs that show it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

from compat_tests.chromium import Tab
from compat_tests.clients.boto3_client import connect
from compat_tests.facade import Credentials, eventually
from compat_tests.node_process import NodeProcess

SENT = re.compile("Sent [0-9a-f]{8}-")
"""Words of a screen after a message was sent; before, it may say that one will be."""
LASTING = [str(number) for number in range(90)]
"""Bodies of so many messages that a redrive of one a second is not over before one sees it."""
XSS = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def make_dead_letters(client: Any, name: str, *bodies: str, **sent: Any) -> None:
    """Queues NAME and NAME-dead, with messages that were received too often."""
    client.create_queue(QueueName=f"{name}-dead")
    arn = f"arn:aws:sqs:us-east-1:000000000000:{name}-dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    client.create_queue(QueueName=name, Attributes=attributes)
    for body in bodies:
        client.send_message(QueueUrl=name, MessageBody=body, **sent)
    eventually(lambda: received_away(client, name, len(bodies)))


def start_slowly(client: Any, name: str) -> None:
    """Begin to redrive the dead letters of NAME, one a second."""
    arn = f"arn:aws:sqs:us-east-1:000000000000:{name}-dead"
    client.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)


def received_away(client: Any, name: str, messages: int) -> bool:
    """Receive; true once all are dead letters."""
    client.receive_message(QueueUrl=name, MaxNumberOfMessages=10)
    return count(client, f"{name}-dead") == messages


def count(client: Any, name: str) -> int:
    """Messages that wait or are in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=name, AttributeNames=names)["Attributes"]
    return sum(map(int, found.values()))


def sqs(node: NodeProcess) -> Any:
    """boto3's client, with the root's key or any."""
    key = Credentials("AKIAOPEN", "secret", "us-east-1")
    return connect(node.url, key if "--auth" in node.options else node.credentials)


def tab_of(browser: Any, node: NodeProcess, place: str = "/queues", **options: Any) -> Tab:
    """A tab that shows a screen."""
    tab = Tab(browser, node.url, **options)
    tab.go(place)
    return tab


def slow_down(tab: Tab, latency_ms: int = 400) -> None:
    """Let each answer come so much later."""
    session = tab.context.new_cdp_session(tab.page)
    session.send("Network.enable")
    unlimited = {"downloadThroughput": -1, "uploadThroughput": -1}
    line = {"offline": False, "latency": latency_ms, **unlimited}
    session.send("Network.emulateNetworkConditions", line)


class Held:
    """Requests of a tab that wait on their way to the service until they are let go."""

    def __init__(self, tab: Tab, path: str, method: str = "POST") -> None:
        """`path` is a pattern of addresses."""
        self.routes: list[Any] = []
        self._method = method
        self._tab = tab
        self._path = path
        tab.page.route(path, self._hold)

    def _hold(self, route: Any) -> None:
        if route.request.method == self._method:
            self.routes.append(route)
        else:
            route.continue_()

    def wait(self, number: int = 1) -> None:
        """Wait until so many were sent."""
        for _ in range(18_000):
            if len(self.routes) >= number:
                return
            self._tab.page.wait_for_timeout(10)
        raise AssertionError(f"{len(self.routes)} requests instead of {number}")

    def wait_for(self, part: str) -> int:
        """Wait until one was sent to an address with this part; its place."""
        place = 0
        while True:
            self.wait(place + 1)
            if part in self.routes[place].request.url:
                return place
            place += 1

    def let_go(self, at: int = 0) -> None:
        """Send one on. The page may have given it up."""
        with suppress(Exception):
            self.routes[at].continue_()

    def end(self) -> None:
        """Hold no more requests, and send on those that wait."""
        self._tab.page.unroute(self._path, self._hold)
        for at in range(len(self.routes)):
            self.let_go(at)
