"""The console's archive in a real browser: search, one message, replay; light, dark, phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import XSS, Held, count, sqs
from compat_tests.facade import Credentials, eventually
from compat_tests.lake_files import ask
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.test_console_jobs import Operator

pytestmark = pytest.mark.slow

ANY_KEY = Credentials("AKIAOPEN", "secret", "us-east-1")
WAIT_MS = 120_000
"""A search starts a process: it takes a second, or many on a machine that does other things."""
BODIES = ['{"order": 1, "error": "card"}', '{"order": 2, "error": "tax"}', XSS]
BULK = 120
"""More than a step of a replay sends."""
TENANT = {"tenant": {"DataType": "String", "StringValue": XSS}}


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service in open mode with three messages of `shop` in its lake and 120 of `bulk`, which are
    deleted, and an empty queue `again`."""
    folder = tmp_path_factory.mktemp("archived")
    options = ("--lake", str(folder / "lake"), "--archive-seal-s", "3600")
    more = ("--snapshot-every-s", "0", "--auth", "open")
    node = NodeProcess(folder, *options, *more, variables={"HOLDFAST_AWS_WAITS": "off"}).start()
    client = sqs(node)
    client.create_queue(QueueName="shop", tags={"holdfast:archive": "all"})
    client.create_queue(QueueName="again")
    client.create_queue(QueueName="bulk", tags={"holdfast:archive": "all"})
    for body in BODIES:
        client.send_message(QueueUrl="shop", MessageBody=body, MessageAttributes=TENANT)
    for batch in range(BULK // 10):
        entries = [{"Id": str(n), "MessageBody": f"{batch}{n}"} for n in range(10)]
        client.send_message_batch(QueueUrl="bulk", Entries=entries)
    for name in ("shop", "bulk"):
        eventually(partial(_emptied, client, name))
    assert ask(node, "/seal", {}, credentials=ANY_KEY)[0] == 200
    for name in ("shop", "bulk"):
        client.delete_queue(QueueUrl=name)
    yield node
    node.close()


def _emptied(client: Any, name: str) -> bool:
    """Delete ten messages; true once none is left."""
    found = client.receive_message(QueueUrl=name, MaxNumberOfMessages=10).get("Messages", [])
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(found)
    ]
    if entries:
        client.delete_message_batch(QueueUrl=name, Entries=entries)
    return count(client, name) == 0


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
    expect(lines).to_have_count(3)
    tab.fill("Filter", "error=tax")
    tab.press("Search")
    lines.nth(1).wait_for(state="detached")
    expect(lines).to_have_count(1)
    expect(tab.page).to_have_url(re.compile("json=error"))
    tab.page.get_by_text("As a command").click()
    command = tab.page.locator("details pre")
    expect(command).to_contain_text("error")
    said = run_command(*command.inner_text().split()[1:])
    assert (said.returncode, said.stdout.count('"tax"')) == (0, 1), said.stderr

    tab.page.locator("tbody a[title]").click()
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


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_message_known_by_its_id_is_replayed_in_six_steps(
    browser: Any, archived: NodeProcess, slow: bool
) -> None:
    client = sqs(archived)
    client.create_queue(QueueName="shop")
    tab = tab_at(browser, archived, "/archive/shop")
    message_id = tab.page.locator("tbody a[title]").first.get_attribute("title")
    tab.go("/queues")
    operator = Operator(tab, slow=slow)
    operator.click("Archive")
    operator.fill("Queue", "shop")
    operator.fill("Message id", message_id)
    operator.click("Search")
    operator.click(f"Replay {message_id}")
    operator.click("Send copies")
    tab.see("1 sent to shop")

    assert operator.done == 6, "9 before"
    assert operator.posted() == ["archive/shop/replays"]
    assert count(client, "shop") == 1
    assert tab.faults == []
    client.delete_queue(QueueUrl="shop")


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


def test_a_slow_older_search_is_not_shown_above_replay_all_that_match(
    browser: Any, archived: NodeProcess
) -> None:
    tab = tab_at(browser, archived, "/archive/bulk")
    lines = tab.page.locator("tbody tr")
    lines.nth(49).wait_for()
    held = Held(tab, "**/messages?*", "GET")
    for number, text in enumerate(("1", "no such text"), 1):
        tab.fill("Filter", text)
        tab.press("Search")
        held.wait(number)
    expect(tab.page.get_by_role("link", name="Replay all")).to_have_count(0)  # nobody knows yet
    held.let_go(1)
    tab.see("No archived message matches.")
    held.let_go(0)
    tab.page.wait_for_timeout(5_000)  # a search takes a second
    tab.fill("Filter", "something else")
    link = tab.page.get_by_role("link", name="Replay all that match").get_attribute("href")

    expect(lines).to_have_count(0)
    assert "text=no+such+text" in str(link), "of the messages that are shown"
    assert tab.faults == []


def stopped(tab: Tab) -> None:
    """Press Stop while the service is at the first step of a replay."""
    held = Held(tab, "**/replays")
    tab.press("Send copies")
    held.wait()
    tab.press("Stop")
    held.let_go()
    tab.see("then it was stopped")
    held.end()


@pytest.mark.parametrize("reloads", [False, True], ids=["at once", "after a reload"])
def test_a_replay_that_was_stopped_goes_on(
    browser: Any, archived: NodeProcess, reloads: bool
) -> None:
    client = sqs(archived)
    target = f"rest-{reloads}"
    client.create_queue(QueueName=target)
    tab = tab_at(browser, archived, "/archive/bulk/replay")
    tab.fill("To", target)
    go_on = tab.page.get_by_role("button", name="Go on")
    expect(go_on).to_be_hidden()
    tab.press("Dry run")
    tab.see("Copies that would be sent")
    stopped(tab)
    assert count(client, target) == 100
    expect(tab.page.locator("details.command pre")).to_contain_text("--token")
    if reloads:
        tab.page.reload()
        tab.see("A replay of these messages was stopped")
    go_on.click()
    tab.see(f"{20 if reloads else BULK} sent to")

    expect(go_on).to_be_hidden()
    expect(tab.page).not_to_have_url(re.compile("token"))
    assert count(client, target) == BULK
    assert tab.faults == []


def test_a_selection_and_a_replay_outlast_a_look_elsewhere_and_a_refusal(
    browser: Any, archived: NodeProcess
) -> None:
    client = sqs(archived)
    client.create_queue(QueueName="patient")
    tab = tab_at(browser, archived, "/archive/shop")
    tab.page.locator("tbody input").first.check()
    tab.see("1 selected")
    tab.page.locator("tbody td a").first.click()
    tab.see("Archived message of")
    tab.page.go_back()
    tab.see("1 selected")
    tab.press("Replay selected")
    tab.fill("To", "patient")
    tab.press("Dry run")
    tab.page.get_by_role("region", name="Copies that would be sent").get_by_role("link").click()
    tab.page.get_by_role("heading", level=1, name="patient").wait_for()
    tab.page.go_back()
    expect(tab.page.get_by_label("To", exact=True)).to_have_value("patient")
    replays = "**/archive/shop/replays"
    tab.page.route(replays, lambda route: route.fulfill(status=503, json={"error": "No room."}))
    tab.press("Send copies")
    tab.see("No room.")
    tab.page.unroute(replays)
    tab.press("Send copies")
    tab.see("1 sent to")

    assert count(client, "patient") == 1
    assert tab.faults == []


def test_another_choice_forgets_where_a_replay_was_stopped(
    browser: Any, archived: NodeProcess
) -> None:
    tab = tab_at(browser, archived, "/archive/bulk/replay?to=again&token=1:1.a.0.1")
    go_on = tab.page.get_by_role("button", name="Go on")
    go_on.wait_for()
    tab.fill("To", "shop")

    expect(go_on).to_be_hidden()
    expect(tab.page).not_to_have_url(re.compile("token"))


def test_the_screens_have_no_findings_and_fit_a_phone(browser: Any, archived: NodeProcess) -> None:
    tab = tab_at(browser, archived, "/archive")
    tab.see("Messages that left their queues")
    tab.check_looks(390)
    tab.fill("Queue", "shop")
    tab.press("Search")
    tab.see("3 messages looked at")
    tab.check_looks(390)
    tab.page.locator("tbody a[title]").first.click()
    tab.see("Message attributes")
    tab.check_looks(390)
    tab.press("Replay")
    tab.press("Dry run")
    tab.see("There is no queue shop: name another one, or create it.")
    tab.fill("To", "aga")
    tab.page.locator("datalist option[value=again]").wait_for(state="attached")
    tab.fill("To", "again")
    tab.press("Dry run")
    tab.see("Copies that would be sent")
    tab.check_looks(390)

    assert tab.faults == []
