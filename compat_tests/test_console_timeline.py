"""The console in a real browser: what happened to a message, links by an id that it had, and who
did what. Each on a quick line, and on a slow one where buttons are clicked three times."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import count, make_dead_letters, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.test_console_jobs import Operator, name_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=[False, True], ids=["quick", "slow"])
def slow(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def first_id(client: Any, name: str) -> str:
    """The id of the only dead letter of a queue, which is received and made visible again."""
    found = client.receive_message(QueueUrl=f"{name}-dead", VisibilityTimeout=0)["Messages"]
    return str(found[0]["MessageId"])


def redrive(node: NodeProcess, name: str, *arguments: str) -> None:
    """Redrive all dead letters of a queue."""
    said = run_command(
        "redrive", "start", f"{name}-dead", "--all", *arguments, "--data", str(node.data)
    )
    assert said.returncode == 0, said.stderr
    client = sqs(node)
    eventually(lambda: count(client, f"{name}-dead") == 0)


def test_a_redriven_message_is_found_by_its_first_id_and_tells_its_life(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("lived", slow)
    make_dead_letters(client, name, '{"error": "card"}')
    wanted = first_id(client, name)
    redrive(opened, name, "--reason", "card fixed")
    place = f"/queues/{name}-dead/messages?id={wanted}"
    operator = Operator(tab_of(browser, opened, place), slow=slow)
    operator.tab.see("No message matches.")
    operator.click(name, operator.tab.page.locator(".empty"))
    operator.click(
        operator.tab.page.get_by_role("region", name="Messages").get_by_role("link").inner_text()
    )
    events = operator.tab.page.locator(".timeline li")
    expect(events).to_have_count(5)

    assert operator.done == 2
    told = [each.split("\n")[-1] for each in events.all_inner_texts()]
    assert told[0] == f"Sent as {wanted}"
    assert told[1].startswith("Received ")
    assert told[2].startswith("Became a dead letter: received too often")
    assert told[3].startswith(f"Redriven from {name}-dead by ")
    assert "card fixed" in told[3]
    assert told[4] == "Lost"
    expect(operator.tab.page.get_by_text("before its last redrive or edit")).to_be_visible()
    assert operator.tab.faults == []


def test_a_link_to_a_message_follows_its_redrive_and_the_undo(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("followed", slow)
    make_dead_letters(client, name, "a")
    tab = Operator(tab_of(browser, opened, f"/queues/{name}-dead/messages/1"), slow=slow).tab
    tab.page.wait_for_url("**id=*")
    address = tab.page.url.partition("#")[2]
    redrive(opened, name)
    tab.go("/queues")
    tab.go(address)
    tab.page.wait_for_url(f"**/queues/{name}/messages/*")
    tab.page.locator(".timeline .redriven").wait_for()
    tab.page.wait_for_url("**id=*")
    redriven = tab.page.url.partition("#")[2]
    said = run_command("redrive", "undo", f"{name}-dead", "--data", str(opened.data))
    assert said.returncode == 0, said.stderr
    eventually(lambda: count(client, f"{name}-dead") == 1)
    for place in (redriven, address):
        tab.go("/queues")
        tab.go(place)
        tab.page.wait_for_url(f"**/queues/{name}-dead/messages/2*")
        tab.page.locator(".timeline .undone").wait_for()

    assert [each for each in tab.faults if "404" not in each] == []


def test_a_hold_appears_at_once_and_only_once(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("watched", slow)
    make_dead_letters(client, name, "a")
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead/messages/1"), slow=slow)
    operator.tab.page.locator(".timeline .died").wait_for()
    operator.click("Hold")
    operator.click("Hold", operator.tab.page.get_by_role("dialog"))
    operator.tab.page.locator(".timeline .held").wait_for()

    expect(operator.tab.page.locator(".timeline .held")).to_have_count(1)
    assert operator.posted() == [f"queues/{name}-dead/messages/hold"]
    assert operator.tab.faults == []


def test_the_audit_log_has_a_line_a_call_and_counts_redrives(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("counted", slow)
    make_dead_letters(client, name, "a", "b")
    redrive(opened, name, "--reason", "because")
    operator = Operator(tab_of(browser, opened, f"/audit?queue={name}-dead"), slow=slow)
    page = operator.tab.page
    log = page.get_by_role("region", name="Audit log")
    line = log.locator("tbody tr").first
    line.wait_for()
    heights = [each.bounding_box()["height"] for each in log.locator("tbody tr").all()]
    assert max(heights) < 2 * min(heights), "a line a call"
    expect(log.locator("dl")).to_have_count(0)
    line.get_by_role("button").click()
    expect(log.locator("dl")).to_contain_text("source_ip")
    page.get_by_text(", by day").click()
    row = page.get_by_role("region", name="Redrives by user and day").locator("tbody tr").first

    expect(row).to_contain_text("root")
    row.get_by_role("link").click()
    page.wait_for_url("**/audit?since=*")
    expect(page).to_have_url(re.compile("action=redrive"))
    line.wait_for()
    assert operator.tab.faults == []


def test_the_screens_fit_and_have_no_findings(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "wide", "a")
    tab = tab_of(browser, opened)
    for place in ("/queues/wide-dead/messages/1", "/audit"):
        tab.go(place)
        tab.page.locator(".timeline li, td.time").first.wait_for()
        tab.check_looks(schemes=("light",))
    assert tab.faults == []
