"""The console on a phone: two lines of header, and tables whose rows are seen whole."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}
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
