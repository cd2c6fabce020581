"""The filter box of the console in a real browser: conditions are typed or picked, stand as chips
and in the address, and choose the same messages everywhere."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import Held, make_dead_letters, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

KINDS = ["TaxLookup", "TaxRate", "CardDeclined"]
WIDE = {"width": 1000, "height": 900}


@pytest.fixture(scope="module")
def failed(opened: NodeProcess) -> NodeProcess:
    """A service with 30 dead letters of three kinds."""
    bodies = [
        json.dumps({"n": at, "error": {"type": KINDS[at % 3]}, "note": "x" * 350 + f" end-{at}"})
        for at in range(30)
    ]
    shop = {"tenant": {"DataType": "String", "StringValue": "shop"}}
    make_dead_letters(sqs(opened), "failed", *bodies, MessageAttributes=shop)
    return opened


def messages_of(browser: Any, node: NodeProcess, query: str = "", **options: Any) -> Tab:
    tab = tab_of(browser, node, f"/queues/failed-dead/messages{query}", **options)
    tab.see("messages looked at")
    return tab


def box(tab: Tab) -> Any:
    return tab.page.get_by_role("combobox", name="Filter")


def see_chips(tab: Tab, *texts: str) -> None:
    expect(tab.page.locator(".chip")).to_have_text(texts)


def matches(tab: Tab, text: str) -> None:
    """Wait until so many match."""
    tab.page.locator(".matches", has_text=text).wait_for()


def test_conditions_are_typed_and_stand_in_the_address(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed, viewport=WIDE)
    box(tab).fill('error.type = "Tax…"')
    box(tab).press("Enter")
    matches(tab, "20 match")
    box(tab).fill("n ^= 1")
    box(tab).press("Enter")
    matches(tab, "8 match")
    both = ('error.type = "Tax…"', 'n = "1…"')
    see_chips(tab, *both)
    expect(tab.page.locator("td mark").first).to_have_text("1")
    address = tab.page.url
    tab.page.locator("tbody a[title]").first.click()
    expect(tab.page.locator("pre.body mark")).to_have_text(["1", '"Tax'])
    tab.page.go_back()
    matches(tab, "8 match")
    see_chips(tab, *both)
    tab.page.reload()
    matches(tab, "8 match")
    other = tab_of(browser, failed, address.partition("#")[2])
    matches(other, "8 match")

    see_chips(tab, *both)
    see_chips(other, *both)
    assert tab.faults == other.faults == []


def test_chips_are_removed_by_click_and_backspace(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed, "?json=error.type%5E%3DTax&text=end-1&state=visible")
    matches(tab, "8 match")
    tab.press('Remove "end-1"')
    matches(tab, "20 match")
    expect(tab.page.locator(":focus")).to_have_js_property("role", "combobox")
    tab.page.keyboard.press("Backspace")
    see_chips(tab, 'error.type = "Tax…"')
    tab.page.keyboard.press("Backspace")
    tab.see("30 messages looked at")
    tab.page.locator(".matches").wait_for(state="hidden")

    see_chips(tab)
    expect(tab.page).to_have_url(re.compile("/messages$"))
    assert tab.faults == []


def test_conditions_are_picked_by_keyboard_alone(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed)
    box(tab).focus()
    tab.page.keyboard.press("ArrowDown")
    options = tab.page.get_by_role("option")
    options.filter(has_text='attribute.tenant = "shop"').first.wait_for()
    options.filter(has_text="state =").first.wait_for()
    tab.page.keyboard.type("declined")
    expect(options.filter(has_text="error.type")).to_have_count(1)
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    expect(box(tab)).to_have_attribute("aria-activedescendant", re.compile("."))
    active = box(tab).get_attribute("aria-activedescendant")
    chosen = tab.page.locator(f"#{active}").inner_text()
    tab.page.keyboard.press("Enter")
    matches(tab, "10 match")
    see_chips(tab, 'error.type = "CardDeclined"')
    tab.page.keyboard.type("stat")
    tab.page.keyboard.press("Escape")
    expect(box(tab)).to_have_attribute("aria-expanded", "false")
    expect(box(tab)).to_have_value("stat")

    assert chosen.strip() == 'error.type = "CardDeclined"'
    assert tab.faults == []


def test_a_suggestion_is_picked_by_click_and_typed_on(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed)
    box(tab).click()
    tab.page.get_by_role("option", name="state =").first.click()
    tab.page.get_by_role("option", name="state = visible").click()
    matches(tab, "30 match")

    see_chips(tab, "state = visible")
    assert tab.faults == []


def test_what_is_no_condition_is_said(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed)
    for typed, said in (
        ("n > 3", "Only sent and receives are compared by >"),
        ("sent < soon", "Write sent < 14h for the last 14 hours"),
    ):
        box(tab).fill(typed)
        box(tab).press("Enter")
        tab.page.get_by_role("alert").filter(has_text=said).wait_for()
    box(tab).fill("items[ = 3")
    box(tab).press("Enter")
    tab.see("is no path such as order.items[0].sku")

    assert tab.faults == []


def test_the_same_filter_is_that_of_what_is_done(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed)
    box(tab).fill("error.type = CardDeclined")
    box(tab).press("Enter")
    box(tab).fill("end-2")
    box(tab).press("Enter")
    matches(tab, "5 match")
    tab.press("Export all that match")
    tab.see("5 match. 5 would be exported.")
    tab.press("Edit all that match")
    tab.page.get_by_role("heading", name="Redrive failed-dead").wait_for()
    see_chips(tab, 'error.type = "CardDeclined"', '"end-2"')
    tab.page.go_back()
    tab.press("Redrive all that match")
    moves = tab.page.get_by_role("region", name="What would move").locator("tbody tr").first
    eventually(lambda: moves.inner_text().split()[:2] == ["failed", "5"])
    assert tab.faults == []


def test_only_those_in_a_state_are_exported(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed, "?state=held")
    matches(tab, "0 match")

    expect(tab.page.get_by_role("button", name="Export all that match")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Delete all that match")).to_have_count(0)
    assert tab.faults == []


def test_a_hit_far_into_a_body_is_shown_in_its_row(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed, "?text=END-17")
    matches(tab, "1 match")

    expect(tab.page.locator("td code mark")).to_have_text(["end-17"])
    assert tab.faults == []


def test_a_search_and_a_hold_wait_for_their_turn(browser: Any, opened: NodeProcess) -> None:
    """The service refuses them while others search."""
    make_dead_letters(sqs(opened), "waiting", "TaxLookup", "TaxRate", "CardDeclined")
    tab = tab_of(browser, opened, "/queues/waiting-dead/messages")
    tab.see("messages looked at")
    refused: list[str] = []

    def refuse(route: Any) -> None:
        path = route.request.url.partition("/queues/")[2]
        if refused.count(path) == 6:
            route.continue_()
            return
        refused.append(path)
        headers = {"retry-after": "0.01"}
        route.fulfill(status=503, headers=headers, json={"error": "Searches run 4 at a time."})

    tab.page.route(re.compile("messages[?].*text=|matching/"), refuse)
    box(tab).fill("Tax")
    box(tab).press("Enter")
    tab.see("this waits for its turn")
    expect(tab.page.get_by_role("region", name="Messages").locator("tbody tr")).to_have_count(2)
    tab.press("Hold all that match")
    tab.fill("Owner, empty: you", "ann")
    tab.press("Hold 2")
    tab.see("2 held.")

    assert {path.partition("?")[0].rpartition("/")[2] for path in refused} == {
        "messages",
        "count",
        "hold",
    }
    expect(tab.page.locator("#notices .error")).to_have_count(0)
    assert tab.faults == []


def test_a_count_says_that_it_is_not_of_all(browser: Any, failed: NodeProcess) -> None:
    tab = tab_of(browser, failed)
    asked: list[int] = []

    def bounded(route: Any) -> None:  # as for a queue of a million messages
        asked.append(len(asked))
        is_last = len(asked) > 15
        answer = {"states": {"visible": 42}, "scanned": 5000, "next": None if is_last else "WzBd"}
        route.fulfill(json=answer)

    tab.page.route("**/matching/count", bounded)
    tab.page.route(
        "**/messages?*",
        lambda route: (
            route.fulfill(json={"messages": [], "scanned": 5000, "next": None})
            if "text=" not in route.request.url
            else route.fallback()
        ),
    )
    tab.go("/queues/failed-dead/messages?state=visible&newer_s=9000")
    matches(tab, "0 match")
    tab.page.unroute("**/messages?*")
    tab.page.route(
        "**/messages?*",
        lambda route: route.fulfill(
            json={**json.loads(route.fetch().text()), "next": "WzAsMCwzMCwwXQ=="}
        ),
    )
    tab.go("/queues/failed-dead/messages?newer_s=9001")
    matches(tab, "At least 420 match")
    tab.see("50,000 messages counted so far")
    after_ten = len(asked)
    tab.press("Count on")
    matches(tab, "672 match")

    assert (after_ten, len(asked)) == (10, 16)
    expect(tab.page.get_by_text("At least")).to_have_count(0)
    assert tab.faults == []


def test_the_box_has_no_findings_and_fits(browser: Any, failed: NodeProcess) -> None:
    query = "?json=error.type%5E%3DTax&text=end-1"
    tab = messages_of(browser, failed, query, viewport=WIDE)
    matches(tab, "8 match")
    tab.check_looks(1000, 390)
    box(tab).click()
    tab.page.get_by_role("option").first.wait_for()
    tab.check_looks(1000, 390)
    tab.press("Search")
    tab.page.get_by_role("option").first.wait_for(state="detached")
    tab.page.locator("tbody a[title]").first.click()
    tab.page.locator("pre.body mark").first.wait_for()
    tab.check_looks(1000, 390)

    assert tab.faults == []


def test_characters_that_are_not_seen_are_named_and_groups_of_a_fifo_queue_are_a_column(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(
        QueueName="unseen.fifo",
        Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
    )
    attribute = {"DataType": "String", "StringValue": "adm\u200bin"}
    client.send_message(
        QueueUrl="unseen.fifo",
        MessageBody='{"user": "adm\u200bin\u202e"}',
        MessageGroupId="customer-7",
        MessageAttributes={"user": attribute},
    )
    tab = tab_of(browser, opened, "/queues/unseen.fifo/messages")
    rows = tab.page.get_by_role("region", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(tab.page.get_by_role("columnheader", name="Group")).to_be_visible()
    expect(rows.get_by_text("customer-7")).to_be_visible()
    expect(rows.locator("code .unseen-character")).to_have_text(["U+200B", "U+202E"])
    assert tab.findings() == []
    assert tab.fits(390)

    tab.go("/queues/unseen.fifo/messages/1")
    body = tab.page.locator("pre.body")
    expect(body).to_have_text('{\n  "user": "admU+200BinU+202E"\n}')
    named = body.locator(".unseen-character")
    expect(named.last).to_have_attribute("title", "right-to-left override")
    value = tab.page.locator("dd").filter(has_text="admU+200Bin").locator(".unseen-character")
    expect(value).to_have_attribute("title", "zero-width space")
    assert tab.findings() == []
    assert tab.faults == []


def test_nothing_is_done_to_what_matched_an_older_filter(browser: Any, failed: NodeProcess) -> None:
    tab = messages_of(browser, failed, "?json=error.type%3DTaxRate", viewport=WIDE)
    matches(tab, "10 match")
    remove = tab.page.get_by_role("button", name="Delete all that match")
    remove.wait_for()
    held = Held(tab, "**/api/queues/failed-dead/messages?*", "GET")
    box(tab).fill("n = 1")
    box(tab).press("Enter")
    held.wait()
    tab.page.locator(".resource[aria-busy=true]").wait_for()
    place = tab.page.locator(".actions button", has_text="Delete").bounding_box()
    asked = len(tab.requests)
    tab.page.mouse.click(place["x"] + 5, place["y"] + 5)
    held.end()
    matches(tab, "1 match")
    tab.answered()
    remove.click()
    tab.see("1 would be deleted")

    counts = [each for each in tab.requests[asked:] if each.url.endswith("/matching/count")]
    assert {each.post_data_json["filter"]["json"] for each in counts} == {"error.type=TaxRate\nn=1"}
    assert tab.faults == []
