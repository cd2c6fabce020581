"""The console's archive in a real browser: search, one message, replay; light, dark, phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab
from compat_tests.console_world import XSS, count, sqs
from compat_tests.facade import Credentials, eventually
from compat_tests.lake_files import ask
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.test_console_accessible import AXE, FIND

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
ANY_KEY = Credentials("AKIAOPEN", "secret", "us-east-1")
WAIT_MS = 120_000
"""A search starts a process: it takes a second, or many on a machine that does other things."""
BODIES = ['{"order": 1, "error": "card"}', '{"order": 2, "error": "tax"}', XSS]
TENANT = {"tenant": {"DataType": "String", "StringValue": XSS}}


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service in open mode with three messages of `shop` in its lake, which is deleted, and an
    empty queue `again`."""
    folder = tmp_path_factory.mktemp("archived")
    options = ("--lake", str(folder / "lake"), "--archive-seal-s", "3600")
    more = ("--snapshot-every-s", "0", "--auth", "open")
    node = NodeProcess(folder, *options, *more, variables={"HOLDFAST_AWS_WAITS": "off"}).start()
    client = sqs(node)
    client.create_queue(QueueName="shop", tags={"holdfast:archive": "all"})
    client.create_queue(QueueName="again")
    for body in BODIES:
        client.send_message(QueueUrl="shop", MessageBody=body, MessageAttributes=TENANT)
    eventually(lambda: _emptied(client))
    assert ask(node, "/seal", {}, credentials=ANY_KEY)[0] == 200
    client.delete_queue(QueueUrl="shop")
    yield node
    node.close()


def _emptied(client: Any) -> bool:
    found = client.receive_message(QueueUrl="shop", MaxNumberOfMessages=10).get("Messages", [])
    for message in found:
        client.delete_message(QueueUrl="shop", ReceiptHandle=message["ReceiptHandle"])
    return count(client, "shop") == 0


def tab_at(browser: Any, node: NodeProcess, place: str, **options: Any) -> Tab:
    tab = Tab(browser, node.url, **options)
    tab.page.set_default_timeout(WAIT_MS)
    tab.go(place)
    return tab


def test_a_deleted_queues_messages_are_searched_and_replayed(
    browser: Any, archived: NodeProcess
) -> None:
    client = sqs(archived)
    tab = tab_at(browser, archived, "/archive")
    lines = tab.page.locator("tbody tr")
    tab.fill("Queue", "shop")
    tab.press("Search")
    tab.see("3 messages looked at")
    assert lines.count() == 3
    tab.fill("JSON field: items[0].sku=A1", "error=tax")
    tab.press("Search")
    lines.first.wait_for()
    assert lines.count() == 1
    assert "json=error" in tab.page.url
    tab.page.get_by_text("As a command").click()
    said = run_command(*tab.page.locator("details pre").inner_text().split()[1:])
    assert (said.returncode, said.stdout.count('"tax"')) == (0, 1), said.stderr

    tab.page.locator("tbody a").click()
    tab.see('"order": 2')
    tab.press("Replay")
    tab.see("1 selected message")
    tab.fill("To", "again")
    tab.press("Dry run")
    tab.see("Copies that would be sent")
    assert count(client, "again") == 0
    tab.press("Send copies")
    tab.see("1 sent to")
    assert count(client, "again") == 1
    (copy,) = client.receive_message(QueueUrl="again", MessageAttributeNames=["All"])["Messages"]
    assert (copy["Body"], copy["MessageAttributes"]) == (BODIES[1], TENANT)
    eventually(lambda: copy["MessageId"] in (archived.data / "audit.log").read_text())
    client.purge_queue(QueueUrl="again")
    assert tab.faults == []


def test_all_that_match_are_replayed(browser: Any, archived: NodeProcess) -> None:
    tab = tab_at(browser, archived, "/archive/shop?text=order&reason=deleted")
    tab.see("3 messages looked at")
    tab.press("Replay all that match")
    tab.fill("To", "again")
    tab.press("Dry run")
    tab.see("Copies that would be sent")
    tab.press("Send copies")
    tab.see("2 sent to")

    found = sqs(archived).receive_message(QueueUrl="again", MaxNumberOfMessages=10)["Messages"]
    assert sorted(each["Body"] for each in found) == BODIES[:2]
    assert tab.faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_screens_have_no_findings_and_fit_a_phone(
    browser: Any, archived: NodeProcess, scheme: str
) -> None:
    tab = tab_at(browser, archived, "/archive", color_scheme=scheme, viewport=PHONE)
    tab.see("Messages that left their queues")
    found = {"choose": _findings(tab)}
    tab.fill("Queue", "shop")
    tab.press("Search")
    tab.see("3 messages looked at")
    found["search"] = _findings(tab)
    tab.page.locator("tbody a").first.click()
    tab.see("Message attributes")
    found["message"] = _findings(tab)
    tab.press("Replay")
    tab.press("Dry run")
    tab.see("The specified queue does not exist")  # shop
    tab.fill("To", "again")
    tab.press("Dry run")
    tab.see("Copies that would be sent")
    found["replay"] = _findings(tab)

    assert not any(found.values()), found
    assert tab.faults == []


def _findings(tab: Tab) -> list[str]:
    """Findings of axe-core, and the screen's width if it does not fit."""
    tab.page.evaluate(AXE.read_text())
    findings: list[str] = tab.page.evaluate(FIND)
    width = tab.page.evaluate("document.documentElement.scrollWidth")
    if width > PHONE["width"]:
        findings.append(f"{width} wide")
    return findings
