"""The console by keyboard in a real browser: the command palette, keys for rows, places above."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import count, make_dead_letters, slow_down, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

FOCUSED = """at => document.querySelectorAll("tbody tr")[at].contains(document.activeElement)"""


@pytest.fixture(scope="module")
def filled(opened: NodeProcess) -> NodeProcess:
    """A service with a few queues and dead letters."""
    make_dead_letters(sqs(opened), "found", '{"error": {"type": "Tax"}}', "b", "c")
    return opened


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_queue_is_found_by_a_few_letters_from_any_screen(
    browser: Any, filled: NodeProcess, slow: bool
) -> None:
    tab = tab_of(browser, filled, "/audit")
    tab.page.get_by_role("button", name="Go to").wait_for()
    if slow:
        slow_down(tab)
    for _ in range(3):
        tab.page.keyboard.press("Control+k")
    box = tab.page.get_by_role("combobox", name="Go to, or do")
    box.fill("found-dead mess")
    chosen = tab.page.get_by_role("option", selected=True)
    chosen.filter(has_text="found-dead Messages").wait_for()
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Messages of found-dead").wait_for()

    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert tab.faults == []


def test_a_message_is_found_by_its_id_in_whatever_queue_it_is(
    browser: Any, filled: NodeProcess
) -> None:
    client = sqs(filled)
    client.create_queue(QueueName="somewhere")
    sent = client.send_message(QueueUrl="somewhere", MessageBody="here", DelaySeconds=900)
    tab = tab_of(browser, filled)
    tab.page.get_by_role("button", name="Go to").wait_for()
    tab.page.keyboard.press("Control+k")
    box = tab.page.get_by_role("combobox", name="Go to, or do")
    box.fill("ddfbce41-46e3-4160-ac15-6704b54c0c08")
    tab.page.keyboard.press("Enter")
    tab.see("messages has this id.")
    box.fill("ddfbce41")
    tab.see("Nothing has this name.")
    box.fill(sent["MessageId"])
    tab.see("Find message")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Message in somewhere").wait_for()

    tab.see("here")
    assert tab.faults == []


def test_a_search_that_failed_is_tried_again_by_the_same_key(
    browser: Any, filled: NodeProcess
) -> None:
    tab = tab_of(browser, filled)
    tab.page.get_by_role("button", name="Go to").wait_for()
    tab.page.route("**/api/messages?*", lambda route: route.abort())
    tab.page.keyboard.press("Control+k")
    box = tab.page.get_by_role("combobox", name="Go to, or do")
    box.fill("ddfbce41-46e3-4160-ac15-6704b54c0c08")
    tab.page.keyboard.press("Enter")
    option = tab.page.get_by_role("option", selected=True)
    expect(option).to_contain_text("Try again: find message ddfbce41")
    expect(option).to_contain_text("The service does not answer.")
    tab.page.unroute("**/api/messages?*")
    tab.page.keyboard.press("Enter")
    tab.see("messages has this id.")


def test_what_a_screen_does_is_done_from_the_palette_after_its_question(
    browser: Any, filled: NodeProcess
) -> None:
    client = sqs(filled)
    client.create_queue(QueueName="emptied")
    client.send_message(QueueUrl="emptied", MessageBody="a")
    tab = tab_of(browser, filled, "/queues/emptied")
    tab.page.get_by_role("button", name="Purge").wait_for()
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_role("combobox", name="Go to, or do").wait_for()
    tab.page.keyboard.type("purge")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_label("Type emptied", exact=True).fill("emptied")
    before = count(client, "emptied")
    tab.page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    tab.see("emptied is purged.")

    assert (before, count(client, "emptied")) == (1, 0)
    assert tab.faults == []


def test_a_delete_is_undone_from_the_palette(browser: Any, filled: NodeProcess) -> None:
    client = sqs(filled)
    make_dead_letters(client, "undeleted", "a", "b")
    tab = tab_of(browser, filled, "/queues/undeleted-dead/messages")
    tab.page.locator("tbody tr").nth(1).wait_for()
    tab.page.keyboard.press("j")
    tab.page.wait_for_function(FOCUSED, arg=0)
    tab.page.keyboard.press("x")
    tab.press("Delete")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    tab.page.locator("#notices").get_by_role("button", name="Undo").wait_for()
    tab.page.locator("tbody tr").filter(has_text="deleting").wait_for()
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_role("combobox", name="Go to, or do").wait_for()
    tab.page.keyboard.type("undo")
    tab.page.keyboard.press("Enter")
    tab.page.locator("tbody tr").filter(has_text="deleting").wait_for(state="detached")

    assert count(client, "undeleted-dead") == 2
    expect(tab.page.locator("tbody tr")).to_have_count(2)
    assert tab.faults == []


def test_rows_are_walked_selected_and_opened_by_keys(browser: Any, filled: NodeProcess) -> None:
    tab = tab_of(browser, filled, "/queues/found-dead/messages")
    rows = tab.page.locator("tbody tr")
    rows.nth(2).wait_for()
    for key, place in zip("jjjjk", (0, 1, 2, 2, 1), strict=True):
        tab.page.keyboard.press(key)
        tab.page.wait_for_function(FOCUSED, arg=place)
    tab.page.keyboard.press("x")
    tab.see("1 selected")
    for at in range(3):
        expect(rows.nth(at).get_by_role("checkbox")).to_be_checked(checked=at == 1)
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="Message in found-dead").wait_for()

    assert tab.faults == []


def test_letters_that_are_typed_into_a_field_are_text(browser: Any, filled: NodeProcess) -> None:
    tab = tab_of(browser, filled, "/queues")
    tab.settle()  # before, nobody listens to the keys
    tab.page.keyboard.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keys")
    dialog.wait_for()
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("jk?x")

    expect(tab.page.get_by_role("combobox")).to_have_value("jk?x")
    expect(dialog).to_have_count(0)
    assert tab.faults == []


def test_the_places_above_a_screen_are_links(browser: Any, filled: NodeProcess) -> None:
    tab = tab_of(browser, filled, "/queues/found-dead/messages")
    places = tab.page.get_by_role("navigation", name="Places above this one")
    expect(places.get_by_role("listitem")).to_have_text(["Queues", "found-dead", "Messages"])
    places.get_by_role("link", name="found-dead").click()
    tab.page.get_by_role("heading", name="Failures").wait_for()
    places.get_by_role("link", name="Queues").click()
    tab.page.get_by_role("heading", name="Queues").wait_for()

    expect(places).to_have_count(0)
    assert tab.faults == []


def test_the_palette_has_no_findings_and_fits(browser: Any, filled: NodeProcess) -> None:
    tab = tab_of(browser, filled, "/queues/found-dead")
    tab.page.get_by_role("heading", name="Failures").wait_for()
    tab.page.get_by_role("button", name="Go to").click()
    tab.page.get_by_role("listbox", name="Found").get_by_role("option").first.wait_for()

    tab.check_looks(1440, 390)
