"""Columns of the message list from the bodies, in a real browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compat_tests.chromium import WIDTHS, expect
from compat_tests.console_world import XSS, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

LABEL = "Columns from the body"


def test_columns_are_chosen_by_path_and_kept_for_the_queue(
    browser: Any, opened: NodeProcess
) -> None:
    bodies = [
        {"tenant": "shop in the north", "v": 1, "n": at, "error": {"type": kind}}
        for at, kind in enumerate(("Tax", XSS))
    ]
    make_dead_letters(sqs(opened), "columned", *map(json.dumps, bodies))
    tab = tab_of(browser, opened, "/queues/columned-dead/messages")
    tab.page.get_by_text("Columns", exact=True).click()
    tab.fill(LABEL, "error.type, n")
    rows = tab.page.locator("tbody tr")
    rows.first.get_by_text("Tax", exact=True).wait_for()
    for row, values in zip(range(2), (["Tax", "0"], [XSS, "1"]), strict=True):
        expect(rows.nth(row).locator("td.value")).to_have_text(values)
    heads = tab.page.get_by_role("columnheader").all_inner_texts()
    previews = rows.locator("td.body").all_inner_texts()
    tab.page.reload()
    rows.first.get_by_text("Tax", exact=True).wait_for()

    assert heads[-3:] == ["error.type", "n", "Body"]
    assert [each.startswith('… "n": ') for each in previews] == [True, True]
    expect(tab.page.get_by_label(LABEL)).to_have_value("error.type, n")
    assert tab.findings() == []
    tab.go("/queues/columned/messages")
    tab.see("The queue is empty.")
    expect(tab.page.get_by_label(LABEL)).to_have_value("")
    assert tab.faults == []


def test_columns_are_ticked_where_the_bodies_have_them(browser: Any, opened: NodeProcess) -> None:
    bodies = [json.dumps({"v": 1, "n": at, "error": {"type": "Tax"}}) for at in range(3)]
    make_dead_letters(sqs(opened), "ticked", *bodies)
    tab = tab_of(browser, opened, "/queues/ticked-dead/messages")
    values = tab.page.locator("td.value")
    expect(values).to_have_text(["Tax"] * 3)
    tab.page.get_by_text("Columns", exact=True).click()
    expect(tab.page.locator(".choices label")).to_have_text(["error.type", "n", "v"])
    tab.page.get_by_label("error.type", exact=True).uncheck()
    values.first.wait_for(state="detached")
    tab.page.reload()
    tab.page.locator("tbody tr").first.wait_for()
    expect(values).to_have_count(0)
    tab.page.get_by_text("Columns", exact=True).click()
    tab.page.get_by_label("n", exact=True).check()
    tab.page.get_by_label("error.type", exact=True).check()
    values.nth(5).wait_for()
    expect(tab.page.get_by_label(LABEL)).to_have_value("n, error.type")
    heads = tab.page.get_by_role("columnheader").all_inner_texts()
    tab.page.get_by_label("n", exact=True).uncheck()
    values.nth(3).wait_for(state="detached")

    assert heads[-3:] == ["n", "error.type", "Body"]
    expect(tab.page.get_by_label(LABEL)).to_have_value("error.type")
    assert tab.findings() == []
    assert tab.faults == []


def test_the_list_fits_with_columns(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "columned-wide", json.dumps({"a": "x" * 300, "b": 1}))
    tab = tab_of(browser, opened, "/queues/columned-wide-dead/messages")
    tab.page.get_by_text("Columns", exact=True).click()
    tab.fill(LABEL, "a, b")
    tab.page.locator("td.value").nth(1).wait_for()

    assert tab.fits(*WIDTHS)
    assert tab.faults == []
