"""The console on a phone: two lines of header, and tables whose rows are seen whole."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import make_dead_letters, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
WIDER = "(region) => region.scrollWidth - region.clientWidth"
SHOWN = """(element) => {
    const {left, right, width} = element.getBoundingClientRect();
    return width > 0 && left >= 0 && right <= innerWidth;
}"""


def test_a_message_is_a_block_with_its_whole_preview(browser: Any, opened: NodeProcess) -> None:
    body = '{"order": 4711, "customer": "anna", "error": {"type": "TaxLookupTimeout"}}'
    make_dead_letters(sqs(opened), "pocket", body, body)
    tab = tab_of(browser, opened, "/queues/pocket-dead/messages", viewport=PHONE)
    row = tab.page.locator("tbody tr").first
    row.wait_for()
    tab.page.get_by_text("Columns", exact=True).click()
    tab.fill("Columns from the body", "error.type")
    value = row.locator("td.value")
    value.get_by_text("TaxLookupTimeout").wait_for()
    tab.settle()
    cells = row.locator("td.pick, td.name, td.value, td.body").all()

    assert [each.evaluate(SHOWN) for each in cells] == [True] * 4
    assert row.locator("td.body").evaluate("(cell) => cell.clientWidth") > 300
    before = value.evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert "error.type" in before
    expect(tab.page.get_by_label("Select this page")).to_be_visible()
    assert tab.findings() == []
    assert tab.fits()
    assert tab.faults == []


@pytest.mark.parametrize("place", ["Queues", "Hosts"])
def test_the_header_is_two_lines_and_shows_where_one_is(
    browser: Any, opened: NodeProcess, place: str
) -> None:
    tab = tab_of(browser, opened, f"/{place.lower()}", viewport=PHONE)
    tab.page.get_by_role("heading", level=1, name=place).wait_for()
    tab.settle()
    current = tab.page.locator("header nav a[aria-current]")

    expect(current).to_have_text(place)
    assert current.evaluate(SHOWN)
    assert tab.page.locator("header").bounding_box()["height"] < 100
    expect(tab.page.get_by_role("link", name="Holdfast")).to_be_visible()
    assert tab.faults == []


@pytest.mark.parametrize("width", [1440, 390])
def test_a_host_without_a_fleet_says_what_there_is_instead(
    browser: Any, opened: NodeProcess, width: int
) -> None:
    size = {"width": width, "height": 844}
    tab = tab_of(browser, opened, "/fleet", viewport=size)
    tab.see("There is no fleet here")
    findings = tab.findings()
    tab.press("Look at the hosts")
    tab.see("This is a single host")

    assert findings == []
    assert tab.findings() == []
    assert tab.fits()
    assert tab.faults == []


def test_the_id_of_a_fifo_message_stands_beside_its_state(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="pocket.fifo", Attributes={"FifoQueue": "true"})
    for length in range(3, 20):
        sent = {
            "MessageBody": "x",
            "MessageGroupId": "g" * length,
            "MessageDeduplicationId": str(length),
        }
        client.send_message(QueueUrl="pocket.fifo", **sent)
    for _ in range(2):
        client.receive_message(QueueUrl="pocket.fifo", MaxNumberOfMessages=10)
    tab = tab_of(browser, opened, "/queues/pocket.fifo/messages", viewport=PHONE)
    expect(tab.page.locator("tbody tr .state.in-flight")).to_have_count(17)
    tab.settle()
    for row in tab.page.locator("tbody tr").all():
        message, state = (row.locator(each).bounding_box() for each in ("a[title]", ".state"))
        is_beside = message["x"] + message["width"] <= state["x"]
        assert is_beside or message["y"] + message["height"] <= state["y"], row.inner_text()

    assert tab.fits()
    assert tab.faults == []


def test_a_line_of_the_audit_log_is_seen_whole(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    name = "a-queue-with-a-name-as-long-as-a-name-may-be".ljust(80, "x")
    client.create_queue(QueueName=name)
    eventually(lambda: name in (opened.data / "audit.log").read_text())
    tab = tab_of(browser, opened, f"/audit?action=CreateQueue&queue={name}", viewport=PHONE)
    row = tab.page.locator("tbody tr").first
    expect(row.locator("td.who")).to_have_text("root")
    tab.settle()

    for cell in ("time", "who", "call", "brief", "ids"):
        assert row.locator(f"td.{cell}").evaluate(SHOWN), cell
    row.get_by_role("button", name="Show all of CreateQueue").click()
    tab.see("access_key_id")
    tab.page.set_viewport_size({"width": 1440, "height": 900})
    expect(row.locator("td.queue")).to_be_visible()
    assert row.locator("td.call").bounding_box()["width"] > 100
    tab.page.set_viewport_size(PHONE)
    assert tab.page.locator(".scroll").last.evaluate(WIDER) <= 0
    assert tab.findings() == []
    assert tab.fits()
    assert tab.faults == []


@pytest.mark.parametrize("place", ["/queues?search=long-", "/dead-letters?search=long-"])
def test_a_long_name_takes_room_and_short_ones_are_not_broken(
    browser: Any, opened: NodeProcess, place: str
) -> None:
    client = sqs(opened)
    if not client.list_queues(QueueNamePrefix="long-").get("QueueUrls"):
        make_dead_letters(client, "long-".ljust(75, "x"), "a")
        make_dead_letters(client, "long-short", "a")
    tab = tab_of(browser, opened, place, viewport={"width": 1440, "height": 900})
    short = tab.page.get_by_role("link", name="long-short-dead", exact=True).first
    short.wait_for()
    tab.settle()

    assert short.bounding_box()["height"] < 30
    assert tab.page.locator(".scroll").first.evaluate(WIDER) <= 0
    assert tab.fits(900, 390)
    assert tab.faults == []


def test_the_longest_name_fits_forms_dialogs_and_notices(browser: Any, opened: NodeProcess) -> None:
    name = "pocket".ljust(80, "w")
    sqs(opened).create_queue(QueueName=name)
    tab = tab_of(browser, opened, f"/queues/{name}/edit", viewport=PHONE)
    tab.page.get_by_text("Which queues may name").wait_for()
    assert tab.fits()
    tab.go(f"/queues/{name}")
    tab.press("Delete queue")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(name)
    assert dialog.evaluate(SHOWN)
    assert dialog.evaluate(WIDER) <= 0
    dialog.get_by_role("button", name="Delete queue").click()
    tab.see(f"{name} is deleted.")
    assert tab.page.locator("#notices").evaluate(WIDER) <= 0
    assert tab.faults == []
