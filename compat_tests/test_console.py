"""The console in a real browser: queues, messages and redrives."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from compat_tests.chromium import Kept, Tab, expect
from compat_tests.console_world import (
    LASTING,
    XSS,
    Held,
    count,
    make_dead_letters,
    sqs,
    start_slowly,
    tab_of,
)
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

NOTHING_LATER = """{
    const begin = setTimeout;
    window.setTimeout = (work, ms, ...more) => (ms >= 3000 ? 0 : begin(work, ms, ...more));
}"""
"""Leaves away all that a page does seconds after its first view."""
ORDER = {"order": 12345678901234567890, "items": [{"sku": "anvil"}], "note": XSS}


# -- queues ----------------------------------------------------------------------------------------


def test_queues_are_searched_by_keyboard_sorted_and_paged(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    for number in range(130):
        client.create_queue(QueueName=f"many-{number:03}")
    client.create_queue(QueueName="another")
    client.send_message(QueueUrl="many-077", MessageBody="x")
    tab = tab_of(browser, opened)
    tab.page.locator("tbody td.name").nth(99).wait_for()
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("MANY-")
    tab.see("130 queues")
    names = tab.page.locator("tbody td.name")

    tab.press("Next page")
    tab.page.locator("tbody").get_by_text("many-129").wait_for()
    expect(names).to_have_count(30)
    tab.press("Visible")
    tab.answered()
    tab.page.locator("tbody tr").first.get_by_text("many-077").wait_for()
    expect(names).to_have_count(100)
    expect(tab.page).to_have_url(re.compile("sort=visible"))


def test_the_depths_of_the_shown_queues_are_drawn_from_one_request(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    for number in range(3):
        client.create_queue(QueueName=f"drawn-{number}")
    client.send_message(QueueUrl="drawn-1", MessageBody="x", DelaySeconds=900)
    tab = tab_of(browser, opened, "/queues?search=drawn")
    line = tab.page.get_by_role("img", name="messages in the last hour: at most 1, lately 1")
    line.wait_for()
    answered = [each for each in tab.requests if each.failure is None]
    asked = [each.url for each in answered if "/api/depths" in each.url]

    expect(tab.page.locator("tbody tr").filter(has=line)).to_have_text(re.compile("^drawn-1"))
    assert len(asked) == 1
    assert "search=drawn" in asked[0]
    assert tab.faults == []


def test_the_first_page_is_small_and_asks_this_service_only(
    browser: Kept, opened: NodeProcess
) -> None:
    tab = Tab(browser.alone, opened.url)
    tab.page.add_init_script(NOTHING_LATER)
    modules = Held(tab, "**/*.js", "GET")
    shown = tab.page.goto(f"{opened.url}/_holdfast/console", wait_until="commit")
    wave = {f"{opened.url}{each}" for each in re.findall(r'"([^"]+[.]js)"', shown.text())}
    modules.wait(len(wave))
    modules.end()
    tab.page.get_by_role("heading", name="Queues").wait_for()
    tab.settle()

    sizes = [each.sizes()["responseBodySize"] for each in tab.requests]
    assert 0 < sum(sizes) < 120_000
    started = {each.url for each in tab.requests if each.url.endswith(".js")}
    assert started == wave, "no module waits for another"
    assert all(request.url.startswith(opened.url) for request in tab.requests)


# -- messages --------------------------------------------------------------------------------------


def test_a_search_goes_on_to_the_first_match_and_can_be_stopped(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    url = client.create_queue(QueueName="long")["QueueUrl"]
    for begin in range(0, 100, 10):
        bodies = [json.dumps({"n": number}) for number in range(begin, begin + 10)]
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
        client.send_message_batch(QueueUrl=url, Entries=entries)
    tab = tab_of(browser, opened, "/queues/long/messages")
    tab.page.get_by_role("button", name="Next page").wait_for()

    def look_at_some(route: Any) -> None:
        """Answer that none of the next 40 messages match, as of a queue that takes longer."""
        place, _, query = route.request.url.partition("?")
        token = "".join(f"&{each}" for each in query.split("&") if each.startswith("token="))
        some = route.fetch(url=f"{place}?limit=40{token}").json()
        route.fulfill(json={**some, "messages": []})

    def look_first(route: Any) -> None:
        if "token=" in route.request.url:
            route.fallback()
        else:
            look_at_some(route)

    tab.page.route("**/messages?*json=*", look_first)
    tab.fill("Filter", "n=99")
    tab.press("Search")
    tab.see("100 messages looked at")

    expect(tab.page.locator("tbody tr")).to_have_count(1)
    assert sum("json=" in each.url for each in tab.requests) == 2

    held = Held(tab, "**/messages?*token=*", "GET")
    tab.press("Search")
    held.wait()
    tab.see("40 of about 100 messages looked at")
    stop = tab.page.get_by_role("button", name="Stop")
    stop.click()
    look_at_some(held.routes.pop())
    tab.see("Nothing so far.")
    held.end()
    tab.press("Search on")
    tab.page.locator("tbody tr").wait_for()
    assert tab.faults == []


def test_messages_are_searched_and_one_has_an_address_of_its_own(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "found", json.dumps(ORDER), '{"items": []}', "plain")
    tab = tab_of(browser, opened, "/queues/found-dead/messages")
    tab.see("3 messages looked at")
    tab.fill("Filter", "items[0].sku=anvil")
    tab.press("Search")
    tab.page.locator("tbody tr").nth(1).wait_for(state="detached")
    tab.page.locator("tbody a").first.click()
    body = tab.page.locator("pre.body")
    body.wait_for()

    expect(body).to_contain_text('"order": 12345678901234567890,')
    other = tab_of(browser, opened, tab.page.url.partition("#")[2])
    other.page.locator("pre.body").wait_for()
    other.press("Raw")
    expect(other.page.locator("pre.body")).to_have_text(json.dumps(ORDER))
    assert (
        client.receive_message(QueueUrl="found-dead", AttributeNames=["All"])["Messages"][0][
            "Attributes"
        ]["ApproximateReceiveCount"]
        == "2"
    )  # one of the source, and this


def test_a_long_attribute_has_a_box_with_letters_of_one_width(
    browser: Any, opened: NodeProcess
) -> None:
    """Without it, a browser takes many seconds to lay out 100 KiB of base64."""
    client = sqs(opened)
    client.create_queue(QueueName="binaries")
    short, long = b"\x00\x01", bytes(100_000)
    attributes = {
        name: {"DataType": "Binary.gif", "BinaryValue": value}
        for name, value in (("short", short), ("long", long))
    }
    client.send_message(QueueUrl="binaries", MessageBody="x", MessageAttributes=attributes)
    tab = tab_of(browser, opened, "/queues/binaries/messages/1")
    values = tab.page.locator(
        "dt:text-is('long') + dd pre, dt:text-is('short') + dd code:last-child"
    )
    values.last.wait_for()
    looks = (
        """each => [each.textContent, getComputedStyle(each).fontFamily.includes("monospace")]"""
    )
    shown = [each.evaluate(looks) for each in values.all()]
    is_small = values.first.evaluate("each => each.clientHeight < innerHeight")

    assert sorted(map(tuple, shown)) == sorted(
        (base64.b64encode(value).decode(), True) for value in (short, long)
    )
    assert is_small
    assert tab.fits(1024, 390)
    assert tab.findings() == []
    assert tab.faults == []


def test_a_message_is_edited_and_resent_in_place_of_the_original(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "edited", '{"a": 1, "b": 2}')
    tab = tab_of(browser, opened, "/queues/edited-dead/messages")
    tab.page.locator("tbody a").first.click()
    tab.press("Edit and resend")
    tab.see("The body is unchanged.")
    tab.fill("Body", '{"a": 1, "b": 3}')
    gone, new = tab.page.locator(".diff .gone"), tab.page.locator(".diff .new")
    eventually(lambda: gone.inner_text().strip() == '−   "b": 2')
    eventually(lambda: new.inner_text().strip() == '+   "b": 3')
    tab.page.get_by_label("Remove the original in the same step").check()
    tab.press("Send the copy")
    tab.see("The queue is empty.")

    (received,) = client.receive_message(QueueUrl="edited")["Messages"]
    assert received["Body"] == '{"a": 1, "b": 3}'


# -- redrives --------------------------------------------------------------------------------------


def test_dead_letters_are_planned_and_redriven(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "moved", "a", "b")
    tab = tab_of(browser, opened, "/dead-letters")
    line = tab.page.locator("tr").filter(has_text="moved-dead")
    line.get_by_role("link", name="Redrive").click()
    start = tab.page.get_by_role("button", name="Start")
    start.wait_for()
    expect(start).to_be_disabled()
    tab.press("Dry run")
    planned = tab.page.get_by_role("region", name="What would move")
    planned.wait_for()
    moves = planned.locator("tbody tr").first
    eventually(lambda: moves.inner_text().split()[:2] == ["moved", "2"])
    assert count(client, "moved-dead") == 2
    start.click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("moved-dead")
    dialog.get_by_role("button", name="Redrive all").click()
    tab.page.get_by_role("region", name="Latest redrives").get_by_text("completed").wait_for()

    assert (count(client, "moved-dead"), count(client, "moved")) == (0, 2)
    assert tab.faults == []


def test_the_focus_and_open_details_stay_while_a_screen_reads_again(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "watched", *LASTING)
    tab = tab_of(browser, opened, "/queues/watched-dead/redrive")
    tab.page.get_by_text("There was none so far.").wait_for()
    start_slowly(client, "watched")
    tab.page.locator("details.command summary").first.click()
    before = len(tab.requests)
    tab.page.wait_for_event("response", lambda response: len(tab.requests) > before + 1)

    expect(tab.page.locator("details.command[open]")).to_have_count(1)
    expect(tab.page.locator(":focus")).to_have_js_property("tagName", "SUMMARY")
