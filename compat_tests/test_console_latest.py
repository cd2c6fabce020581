"""The console in a real browser whose answers come late: no older one replaces a newer one. And
what was removed is brought back where that was done."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import (
    SENT,
    Held,
    count,
    make_dead_letters,
    sqs,
    tab_of,
)
from compat_tests.facade import Credentials, eventually
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask

pytestmark = pytest.mark.slow

BODIES = [json.dumps({"n": number, "kind": "ab"[number % 2]}) for number in range(6)]


# -- answers ---------------------------------------------------------------------------------------


def test_a_search_shows_what_was_asked_for_last(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "late", *BODIES)
    tab = tab_of(browser, opened, "/queues/late-dead/messages")
    tab.see("6 messages looked at")
    held = Held(tab, "**/messages?*", "GET")
    for number, text in enumerate(("kind=a", "n=4"), 1):
        tab.fill("Filter", text)
        tab.press("Search")
        held.wait(number)
    held.let_go(1)
    tab.page.locator("tbody tr").nth(1).wait_for(state="detached")
    held.let_go(0)
    tab.page.wait_for_timeout(200)
    tab.fill("Filter", "kind=b")

    expect(tab.page.locator("td code")).to_have_text([BODIES[4]])
    redrive = tab.page.get_by_role("link", name="Redrive all that match")
    expect(redrive).to_have_attribute("href", re.compile("n%3D4"))  # of what is shown
    assert tab.faults == []


def test_the_next_page_is_of_the_order_that_is_shown(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    for number in range(101):
        client.create_queue(QueueName=f"paged-{number:03}")
    client.send_message(QueueUrl="paged-100", MessageBody="x")
    tab = tab_of(browser, opened, "/queues?search=paged-")
    rows = tab.page.locator("tbody tr")
    expect(rows).to_have_count(100)
    held = Held(tab, "**/api/queues?*", "GET")
    tab.press("Visible")
    held.wait()
    tab.press("Next page")
    held.end()

    expect(rows.first).to_contain_text("paged-100")
    expect(tab.page).not_to_have_url(re.compile("after="))
    assert tab.faults == []


def test_failures_and_the_audit_log_show_what_was_asked_for_last(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "grouped", *BODIES)
    client.purge_queue(QueueUrl="grouped")
    tab = tab_of(browser, opened, "/queues/grouped-dead")
    tab.see("All 6 messages, 2 failures.")
    held = Held(tab, "**/failures?*", "GET")
    for number, order in enumerate(("last", "first"), 1):
        tab.page.get_by_label("Order of the failures").select_option(order)
        held.wait(number)  # one that is given up at once is never sent
    held.let_go(1)
    tab.page.locator(".failures [aria-busy=false]").wait_for()
    held.let_go(0)
    tab.page.wait_for_timeout(200)
    expect(tab.page.get_by_role("article")).to_have_count(2)

    tab.go("/audit")
    tab.page.get_by_role("region", name="Audit log").wait_for()
    held = Held(tab, "**/audit?*", "GET")
    for number, action in enumerate(("PurgeQueue", "NoSuchThing"), 1):
        tab.fill("Part of the action", action)
        tab.press("Search")
        held.wait(number)
    held.let_go(1)
    tab.see("No line matches.")
    held.let_go(0)
    tab.page.wait_for_timeout(200)

    expect(tab.page.get_by_text("No line matches.")).to_be_visible()
    assert tab.faults == []


def test_a_dry_run_is_not_that_of_another_choice(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "planned", *BODIES)
    tab = tab_of(browser, opened, "/queues")
    held = Held(tab, "**/redrives/plan")
    tab.go("/queues/planned-dead/redrive?json=kind%3Db")
    held.wait()
    tab.fill("Only messages that match", "kind=a")
    held.let_go()
    tab.page.wait_for_timeout(200)
    start = tab.page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_disabled()
    held.end()
    tab.press("Dry run")
    tab.page.get_by_role("region", name="What would move").wait_for()

    expect(start).to_be_enabled()
    assert tab.faults == []


def test_a_late_answer_does_not_leave_the_screen_that_was_opened_since(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "left", "a")
    tab = tab_of(browser, opened, "/queues/left-dead/messages/1/resend")
    tab.see("The body is unchanged.")
    held = Held(tab, "**/resend")
    tab.press("Send the copy")
    held.wait()
    tab.go("/dead-letters")
    tab.page.get_by_role("heading", name="Dead letters").wait_for()
    held.let_go()
    tab.see(SENT)

    expect(tab.page).to_have_url(re.compile("#/dead-letters$"))
    assert count(client, "left") == 1
    assert tab.faults == []


# -- undo ------------------------------------------------------------------------------------------


def test_a_purge_is_undone_on_its_page(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="emptied")
    for body in "ab":
        client.send_message(QueueUrl="emptied", MessageBody=body)
    tab = tab_of(browser, opened, "/queues/emptied")
    tab.press("Purge")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("emptied")
    held = Held(tab, "**/purge")
    dialog.get_by_role("button", name="Purge").evaluate(
        "button => { button.click(); button.click() }"
    )
    tab.page.get_by_role("button", name="Purging …").wait_for()
    held.wait()
    held.end()
    undo = tab.page.get_by_role("button", name="Undo the purge")
    undo.wait_for()
    emptied = count(client, "emptied")
    restores = Held(tab, "**/restore")
    undo.evaluate("button => { button.click(); button.click(); button.click() }")
    tab.page.get_by_role("button", name="Restoring …").wait_for()
    restores.wait()
    restores.end()
    tab.see("The messages are back in emptied.")
    undo.wait_for(state="detached")

    assert emptied == 0
    assert count(client, "emptied") == 2
    assert (len(held.routes), len(restores.routes)) == (1, 1)
    assert tab.faults == []


def test_a_purge_that_comes_back_is_counted_and_undone_once(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="leased", Attributes={"VisibilityTimeout": "3600"})
    for body in "abc":
        client.send_message(QueueUrl="leased", MessageBody=body)
    client.receive_message(QueueUrl="leased")
    client.purge_queue(QueueUrl="leased")
    tab, other = (tab_of(browser, opened, "/queues/leased") for _ in range(2))
    for each in (tab, other):
        each.see("its 3 messages can be restored.")
    late = Held(other, "**/restore")
    other.press("Undo the purge")
    late.wait()
    tab.press("Undo the purge")
    tab.see("Coming back, 1 left.")
    late.end()
    other.see("The messages of queue leased come back already.")
    other.see("Coming back, 1 left.")
    tab.page.reload()
    tab.see("Coming back, 1 left.")

    assert count(client, "leased") == 2
    tab.go("/queues")
    tab.page.set_viewport_size({"width": 390, "height": 900})
    gone = tab.page.get_by_role("region", name="Recently deleted")
    expect(gone.locator("tbody tr").filter(has_text="leased")).to_contain_text("coming back")
    assert tab.faults == other.faults == []


def test_a_purge_of_a_split_queue_comes_back_part_by_part_also_with_its_queue(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="cut", Attributes={"VisibilityTimeout": "3600"})
    key = Credentials("AKIAOPEN", "secret", "us-east-1")
    assert ask(opened.url, key, "api/queues/cut/parts/split", {"parts": 3})[0] == 200
    sent: list[Any] = []

    def each_part_has_some() -> bool:
        sent.append(client.send_message(QueueUrl="cut", MessageBody="x"))
        parts = ask(opened.url, key, "api/queues/cut/parts")[1]["parts"]
        return all(part["visible"] for part in parts)

    eventually(each_part_has_some)
    received: list[Any] = []

    def takes_all() -> bool:
        found = client.receive_message(QueueUrl="cut", MaxNumberOfMessages=10)
        received.extend(found.get("Messages", []))
        return len(received) == len(sent)

    eventually(takes_all)
    client.purge_queue(QueueUrl="cut")
    tab = tab_of(browser, opened, "/queues")
    gone = tab.page.get_by_role("region", name="Recently deleted")
    rows = gone.locator("tbody tr").filter(has_text="cut purged")
    rows.get_by_role("button", name="Restore cut").click()
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="coming back")).to_have_count(3)
    left = [row.locator("td").nth(1).inner_text() for row in rows.all()]
    client.delete_queue(QueueUrl="cut")
    tab.see("Queue cut was deleted after this purge; restore it first.")
    expect(rows.filter(has_text="coming back with its queue")).to_have_count(3)
    gone.get_by_role("button", name="Restore cut").click()
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="with its queue")).to_have_count(0)

    assert sum(map(int, left)) == len(sent)
    assert tab.faults == []


def test_a_phone_shows_the_button_that_restores_a_queue(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="lost-on-a-phone")
    client.delete_queue(QueueUrl="lost-on-a-phone")
    tab = tab_of(browser, opened, viewport={"width": 390, "height": 900})
    restore = tab.page.get_by_role("button", name="Restore lost-on-a-phone")
    restore.wait_for()
    tab.settle()
    box = restore.bounding_box()

    assert box is not None
    assert box["x"] + box["width"] <= 378, "as wide as the table"
    assert tab.faults == []


def test_a_tablet_shows_where_dead_letters_go(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "tablet", "x")
    tab = tab_of(browser, opened, "/queues?search=tablet", viewport={"width": 820, "height": 900})
    to = tab.page.get_by_text("to tablet-dead")
    to.wait_for()
    tab.settle()
    box = to.bounding_box()

    assert box is not None
    assert box["x"] + box["width"] <= 801, "as wide as the table"
    assert tab.faults == []


# -- progress --------------------------------------------------------------------------------------


def test_progress_counts_what_the_plan_counted(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "counted", *BODIES)
    tab = tab_of(browser, opened, "/queues/counted-dead/redrive?json=kind%3Db")
    tab.page.get_by_text("Rate, canary and stop in numbers").click()
    tab.fill("Wait for me after", "1")
    tab.press("Dry run")
    tab.page.get_by_role("region", name="What would move").wait_for()
    start = tab.page.get_by_role("button", name="Start", exact=True)
    start.evaluate("button => { button.click(); button.click(); button.click() }")
    live = tab.page.get_by_role("region", name="Running redrive")
    live.get_by_text("1 of 3 messages moved").wait_for()
    bar = tab.page.get_by_role("progressbar")
    for name, number in (("value", "1"), ("max", "3")):
        expect(bar).to_have_attribute(name, number)
    tab.press("Go on")
    line = tab.page.get_by_role("region", name="Latest redrives").locator("tbody tr").first
    line.get_by_text("completed").wait_for()

    expect(line).to_contain_text("3 of 3")
    expect(start).to_be_disabled()  # another redrive begins with a dry run of its own
    assert tab.faults == []


def test_a_field_offers_the_queues_of_what_was_typed_last(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    for each in ("offers", "offers-failures"):
        client.create_queue(QueueName=each)
    for number in range(20):
        client.create_queue(QueueName=f"a-before-{number:02}")
    tab = tab_of(browser, opened, "/queues/offers/edit")
    held = Held(tab, "**/api/queues?*", "GET")
    tab.fill("Dead-letter queue", "a-before")
    held.wait()
    tab.fill("Dead-letter queue", "offers-failures")
    offered = tab.page.locator("datalist option[value=offers-failures]")
    held.let_go(held.wait_for("offers-failures"))
    expect(offered).to_have_count(1)
    held.let_go(0)
    tab.page.wait_for_timeout(500)  # its answer, if the page still waits for it

    expect(offered).to_have_count(1)
    assert tab.faults == []
