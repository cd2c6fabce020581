"""A message beside its list in a real browser, where the screen has room for both."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import count, make_dead_letters, slow_down, sqs, tab_of
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import CLICK_THRICE

pytestmark = pytest.mark.slow

WIDE = {"width": 1440, "height": 900}
PLACE = "/queues/beside-dead/messages"


@pytest.fixture(scope="module")
def filled(opened: NodeProcess) -> NodeProcess:
    """A service with dead letters."""
    make_dead_letters(sqs(opened), "beside", *(json.dumps({"n": at}) for at in range(4)))
    return opened


def message_link(tab: Any, at: int) -> Any:
    return tab.page.locator("tbody tr").nth(at).get_by_role("link")


def opened_beside(browser: Any, filled: NodeProcess) -> tuple[Any, Any]:
    """A page with its second message open, and the place of that message."""
    tab = tab_of(browser, filled, PLACE, viewport=WIDE)
    beside = tab.page.get_by_role("complementary", name="Message")
    message_link(tab, 1).click()
    beside.locator("pre.body").filter(has_text='"n": 1').wait_for()
    return tab, beside


def test_a_message_opens_beside_its_list_and_the_next_by_a_key(
    browser: Any, filled: NodeProcess
) -> None:
    tab, beside = opened_beside(browser, filled)
    beside.get_by_role("heading", name="Timeline").wait_for()
    tab.page.keyboard.press("j")
    beside.locator("pre.body").filter(has_text='"n": 2').wait_for()
    expect(tab.page.locator("tbody tr")).to_have_count(4)
    tab.page.reload()
    beside.locator("pre.body").filter(has_text='"n": 2').wait_for()
    expect(tab.page).to_have_url(re.compile("open="))
    tab.page.keyboard.press("Escape")
    beside.wait_for(state="hidden")

    expect(tab.page).not_to_have_url(re.compile("open="))
    assert tab.faults == []


def test_the_keyboard_goes_into_what_is_open_beside_the_list_and_back(
    browser: Any, filled: NodeProcess
) -> None:
    tab = tab_of(browser, filled, PLACE, viewport=WIDE)
    beside = tab.page.get_by_role("complementary", name="Message")
    message_link(tab, 1).focus()
    tab.page.keyboard.press("Enter")
    beside.locator("pre.body").filter(has_text='"n": 1').wait_for()
    tab.page.keyboard.press("Enter")
    expect(beside.get_by_role("link", name="Open as a page")).to_be_focused()
    tab.page.keyboard.press("Escape")
    beside.wait_for(state="hidden")

    expect(message_link(tab, 1)).to_be_focused()
    assert tab.faults == []


def test_what_is_done_beside_the_list_is_seen_in_it_and_done_once(
    browser: Any, filled: NodeProcess
) -> None:
    make_dead_letters(sqs(filled), "beside-held", "a", "b")
    tab = tab_of(browser, filled, "/queues/beside-held-dead/messages", viewport=WIDE)
    message_link(tab, 0).wait_for()
    slow_down(tab)
    message_link(tab, 0).evaluate(CLICK_THRICE)
    beside = tab.page.get_by_role("complementary", name="Message")
    beside.get_by_role("button", name="Hold").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Hold").evaluate(CLICK_THRICE)
    tab.page.locator("tbody tr").first.get_by_text("held", exact=True).wait_for()
    beside.get_by_role("button", name="Release").wait_for()

    posted = [each.url.rpartition("/")[2] for each in tab.requests if each.method == "POST"]
    assert posted == ["hold"]
    assert tab.faults == []


def test_a_message_that_has_gone_is_said_and_the_list_stays(
    browser: Any, filled: NodeProcess
) -> None:
    client = sqs(filled)
    make_dead_letters(client, "beside-gone", "a", "b")
    tab = tab_of(browser, filled, "/queues/beside-gone-dead/messages", viewport=WIDE)
    message_link(tab, 1).wait_for()
    client.purge_queue(QueueUrl="beside-gone-dead")
    message_link(tab, 1).click()
    beside = tab.page.get_by_role("complementary", name="Message")
    beside.get_by_role("alert").wait_for()

    expect(tab.page.locator("tbody tr")).to_have_count(2)
    assert count(client, "beside-gone-dead") == 0
    beside.get_by_role("button", name="Close").click()
    beside.wait_for(state="hidden")
    assert tab.faults == []


@pytest.mark.parametrize("width", [900, 390])
def test_without_room_a_message_has_the_page_for_itself(
    browser: Any, filled: NodeProcess, width: int
) -> None:
    tab = tab_of(browser, filled, PLACE, viewport={"width": width, "height": 900})
    message_link(tab, 1).click()
    tab.page.get_by_role("heading", name="Message in beside-dead").wait_for()
    tab.page.get_by_role("heading", name="Timeline").wait_for()

    assert tab.fits()
    assert tab.faults == []


def test_the_list_and_its_message_have_no_findings(browser: Any, filled: NodeProcess) -> None:
    tab = tab_of(browser, filled, PLACE, viewport=WIDE)
    message_link(tab, 1).click()
    tab.page.get_by_role("heading", name="Timeline").wait_for()

    tab.check_looks(1440)


def test_an_open_message_stays_where_the_window_becomes_narrow(
    browser: Any, filled: NodeProcess
) -> None:
    tab, beside = opened_beside(browser, filled)

    assert tab.fits(1440, 1200, 900, 390)
    expect(beside).to_be_in_viewport()
    box = beside.bounding_box()
    assert box["width"] <= 390
    assert tab.page.locator("tbody tr").first.bounding_box()["y"] > box["y"] + box["height"]
    assert tab.faults == []


@pytest.mark.parametrize("has_clipboard", [True, False], ids=["refused", "without-tls"])
def test_a_body_is_copied_also_where_the_browser_has_no_clipboard(
    browser: Any, filled: NodeProcess, has_clipboard: bool
) -> None:
    tab = tab_of(browser, filled, "/queues/beside-dead/messages/2")
    if not has_clipboard:
        tab.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    body = tab.page.locator(".tabs").get_by_role("button", name="Copy")
    body.click()
    tab.see("Copied.")
    expect(body).to_be_focused()
    tab.go("/queues/beside-dead/messages")
    tab.page.get_by_role("combobox", name="Filter").focus()
    tab.page.keyboard.press("Control+V")

    expect(tab.page.get_by_role("combobox", name="Filter")).to_have_value('{"n": 1}')
    assert tab.faults == []
