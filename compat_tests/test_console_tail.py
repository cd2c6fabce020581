"""The console in a real browser: live tail, notices of redrives, permissions beside a policy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import WIDTHS, expect
from compat_tests.console_world import make_dead_letters, slow_down, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


def test_messages_appear_as_they_come_and_are_not_received(
    browser: Any, opened: NodeProcess
) -> None:
    client, name = sqs(opened), "tailed"
    client.create_queue(QueueName=name)
    client.send_message(QueueUrl=name, MessageBody="an older one")
    tab = tab_of(browser, opened, f"/queues/{name}")
    tab.press("Live tail")
    tab.see("an older one")
    client.send_message(QueueUrl=name, MessageBody="card declined")
    client.send_message(QueueUrl=name, MessageBody="paid")
    rows = tab.page.locator("tbody tr")
    tab.page.get_by_text("2 came since this was opened.").wait_for()
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("paid")
    tab.fill("Only with this text", "CARD")

    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("card declined")
    expect(tab.page).to_have_url(re.compile("text=CARD"))
    assert tab.fits(*WIDTHS)
    received = client.receive_message(QueueUrl=name, AttributeNames=["ApproximateReceiveCount"])
    assert received["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"
    assert tab.faults == []


def test_a_paused_tail_goes_on_with_all_that_came_also_over_a_slow_line(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="paused-tail")
    tab = tab_of(browser, opened, "/queues/paused-tail/tail")
    tab.see("Nothing came so far.")
    slow_down(tab)
    tab.press("Pause")
    tab.see("Paused.")
    for number in range(3):
        client.send_message(QueueUrl="paused-tail", MessageBody=f"m{number}")
    tab.page.get_by_role("button", name="Go on").click()
    tab.page.locator("tbody tr").nth(2).wait_for()

    expect(tab.page.locator("tbody td.body")).to_have_text(["m2", "m1", "m0"])
    tab.page.get_by_role("button", name="Clear").dblclick()
    tab.see("Nothing came so far.")
    assert tab.faults == []


def test_a_redrive_that_waits_is_told_of_on_another_screen(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "told", "a", "b", "c")
    tab = tab_of(browser, opened, "/queues/told-dead/redrive")
    tab.press("Dry run")
    tab.page.get_by_text("Rate, canary and stop in numbers").click()
    tab.fill("Wait for me after", "1")
    tab.press("Start")
    tab.page.get_by_label("Type told-dead", exact=True).fill("told-dead")
    tab.press("Redrive all")
    tab.see("waits for you after its canary")
    tab.go("/hosts")
    told = tab.page.locator("#notices").get_by_text("told-dead: redrive waits for you")
    expect(told).to_contain_text("1 of 3 moved")
    tab.page.locator("#notices").get_by_role("link", name="Look").click()
    tab.page.get_by_role("heading", name="Redrive told-dead").wait_for()
    expect(told).to_have_count(0)

    tab.press("Cancel")
    assert tab.faults == []


def test_permissions_are_asked_beside_the_policy_of_a_queue(
    browser: Any, opened: NodeProcess
) -> None:
    sqs(opened).create_queue(QueueName="asked-about")
    tab = tab_of(browser, opened, "/queues/asked-about/edit")
    form = tab.page.get_by_role("form", name="May this user do that?")
    form.get_by_label("Who").select_option("an unsigned request")
    form.get_by_label("Action").fill("sqs:SendMessage")
    form.get_by_role("button", name="Ask").dblclick()
    form.get_by_text("Decided by").wait_for()

    expect(form.get_by_label("Queue, by name or ARN")).to_have_value("asked-about")
    expect(form.get_by_role("status")).to_have_text(re.compile("^No"))
    assert tab.faults == []
