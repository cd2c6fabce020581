"""The console in a real browser: each place has an address that Back and reload return to, and what
is shown stays itself while it is read again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import Kept, Tab, expect
from compat_tests.console_world import make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

FILES = "x-holdfast-console-files"

REREAD = "**/api/queues?*"


@pytest.fixture(scope="module")
def many(opened: NodeProcess) -> NodeProcess:
    """A service with two pages of queues."""
    client = sqs(opened)
    for number in range(130):
        client.create_queue(QueueName=f"page-{number:03}")
    make_dead_letters(client, "kept", *"abcdef")
    return opened


def wait_for_scroll(tab: Tab, at_least: int) -> None:
    tab.page.wait_for_function(f"scrollY >= {at_least}")


def test_back_and_reload_return_to_page_filter_order_and_scroll(
    browser: Any, many: NodeProcess
) -> None:
    tab = tab_of(browser, many)
    tab.fill("Search queues by name", "page-")
    tab.see("130 queues")
    tab.press("Visible")
    tab.answered()
    tab.press("Next page")
    tab.see("page-129")
    tab.page.set_viewport_size({"width": 1000, "height": 400})
    tab.page.evaluate("scrollTo(0, 500)")
    wait_for_scroll(tab, 500)
    tab.page.wait_for_function("history.state?.scroll >= 500")
    tab.press("page-120")
    tab.page.get_by_role("heading", name="page-120").wait_for()
    at_top = tab.page.evaluate("scrollY")

    tab.page.go_back()
    tab.see("page-129")
    wait_for_scroll(tab, 500)
    tab.page.reload()
    tab.see("page-129")
    wait_for_scroll(tab, 500)
    expect(tab.page.get_by_role("button", name="Visible")).to_have_attribute("aria-pressed", "true")
    expect(tab.page.get_by_label("Search queues by name")).to_have_value("page-")
    tab.press("Previous page")
    tab.see("page-000")

    assert at_top == 0
    expect(tab.page).not_to_have_url(re.compile("after="))
    assert tab.faults == []


def test_the_selection_of_messages_survives_a_reload(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many, "/queues/kept-dead/messages?state=visible")
    for at in (1, 3):
        tab.page.locator("tbody input").nth(at).check()
    tab.see("2 selected")
    tab.page.reload()
    tab.see("2 selected")
    boxes = tab.page.locator("tbody input")

    for at in range(6):
        expect(boxes.nth(at)).to_be_checked(checked=at in (1, 3))
    expect(tab.page.get_by_role("button", name="Delete", exact=True)).to_have_count(1)
    assert tab.faults == []


def test_selected_text_and_rows_stay_while_numbers_change(browser: Any, many: NodeProcess) -> None:
    client = sqs(many)
    tab = tab_of(browser, many, "/queues?search=page-00")
    line = tab.page.locator("tbody tr").filter(has_text="page-001")
    line.wait_for()
    line.evaluate("row => { row.mine = true; getSelection().selectAllChildren(row.cells[0]) }")
    client.send_message(QueueUrl="page-001", MessageBody="x")
    line.locator("td").nth(1).get_by_text("1").wait_for()

    assert line.evaluate("row => row.mine") is True
    assert tab.page.evaluate("getSelection().toString()") == "page-001"


def test_what_fails_is_said_greyed_and_tried_again(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many, "/queues?search=page-00")
    tab.see("page-001")
    tab.page.route(REREAD, lambda route: route.abort("connectionrefused"))
    alert = tab.page.get_by_role("alert")
    said = "^The queues cannot be read: the service does not answer[.] This is from "
    expect(alert).to_have_text(re.compile(said))
    expect(tab.page.locator(".resource.stale")).to_have_count(1)
    tab.page.unroute(REREAD)
    tab.press("Try again")
    alert.wait_for(state="detached")

    expect(tab.page.locator(".resource.stale")).to_have_count(0)
    expect(tab.page.get_by_text("page-001")).to_have_count(1)


def test_title_focus_and_heading_follow_navigation(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many, "/queues?search=page-001")
    tab.press("page-001")
    tab.page.get_by_role("heading", name="page-001").wait_for()
    tab.page.wait_for_function("document.activeElement.tagName == 'H1'")

    expect(tab.page).to_have_title("page-001 · Holdfast")


def test_the_files_are_small_compressed_and_kept_by_their_hash(
    browser: Kept, many: NodeProcess
) -> None:
    tab = tab_of(browser.alone, many)
    tab.see("Create a queue")
    answers = [each.response() for each in tab.requests if "/_holdfast/console/" in each.url]
    headers = [each.headers for each in answers]

    assert all(each["cache-control"].endswith("immutable") for each in headers)
    assert {each.get("content-encoding") for each in headers} == {"gzip"}
    asked = tab.page.request.get(f"{many.url}/_holdfast/console/0123456789abcdef/main.js")
    assert asked.headers["cache-control"] == "no-cache", "of another version: not kept"
    assert tab.page.request.get(f"{many.url}/_holdfast/console/index.html").status == 404


def test_the_skip_link_leads_to_the_content_of_the_same_screen(
    browser: Any, opened: NodeProcess
) -> None:
    sqs(opened).create_queue(QueueName="skipped")
    tab = tab_of(browser, opened, "/queues/skipped/send")
    tab.fill("Body", "kept")
    tab.page.get_by_role("link", name="Skip to the content").focus()
    tab.page.keyboard.press("Enter")
    tab.settle()
    tab.page.keyboard.press("Tab")

    expect(tab.page.get_by_label("Body", exact=True)).to_have_value("kept")
    expect(tab.page.locator("main :focus")).to_have_count(1)
    expect(tab.page).to_have_url(re.compile("#/queues/skipped/send$"))
    assert tab.faults == []


def test_enter_confirms_once_the_name_is_typed(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="entered")
    tab = tab_of(browser, opened, "/queues/entered")
    tab.page.get_by_role("button", name="Delete queue").focus()
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_label("Type entered")).to_be_focused()
    tab.page.keyboard.type("enter")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("dialog")).to_have_count(1)
    tab.page.keyboard.type("ed")
    tab.page.keyboard.press("Enter")
    tab.see("entered is deleted.")

    assert tab.faults == []


def test_a_page_from_before_an_upgrade_loads_itself_anew_for_its_next_screen(
    browser: Any, many: NodeProcess
) -> None:
    tab = tab_of(browser, many)
    tab.settle()
    tab.page.evaluate("window.isOld = true")
    tab.press("Dead letters")
    tab.page.get_by_role("heading", name="Dead letters").wait_for()
    is_kept = tab.page.evaluate("window.isOld")

    def answer(route: Any) -> None:
        found = route.fetch()
        route.fulfill(response=found, headers={**found.headers, FILES: "0" * 16})

    tab.page.route("**/api/**", answer)
    tab.press("Redrives")
    tab.page.get_by_role("heading", name="Redrives").wait_for()
    tab.settle()
    tab.page.unroute("**/api/**", answer)
    tab.press("Audit")
    tab.page.get_by_role("heading", name="Audit log").wait_for()

    is_old = tab.page.evaluate("window.isOld")
    assert (is_kept, is_old) == (True, None)
    assert tab.faults == []


def test_a_screen_whose_files_do_not_come_says_so(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many)
    tab.settle()
    tab.page.route("**/hosts.js", lambda route: route.abort())
    tab.press("Hosts")
    tab.see("The service does not answer.")
    tab.page.unroute("**/hosts.js")
    tab.press("Try again")
    tab.page.get_by_role("heading", name="Hosts").wait_for()
