"""The reference of the operators' API in a real browser."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


def test_every_call_of_the_document_is_shown_and_found_by_words(
    browser: Any, opened: NodeProcess
) -> None:
    with urlopen(f"{opened.url}/_holdfast/api/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    tab = tab_of(browser, opened, "/queues")
    tab.press("API")
    calls = tab.page.locator("details.operation")
    expect(calls).to_have_count(sum(map(len, paths.values())))
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("post redrives undo")
    expect(calls).to_have_count(1)
    calls.locator("summary").click()
    for text in ("POST /_holdfast/api/queues/{queue}/redrives/undo", "holdfast:RedriveMessages"):
        expect(calls).to_contain_text(text, use_inner_text=True)
    expect(calls).to_contain_text("handle", use_inner_text=True)
    tab.page.reload()
    calls.first.wait_for()

    expect(calls).to_have_count(1)  # the search is in the address
    assert tab.faults == []


def test_the_reference_fits_and_has_no_findings(browser: Any, opened: NodeProcess) -> None:
    tab = tab_of(browser, opened, "/api?search=failures")
    tab.page.locator("details.operation summary").first.click()

    tab.check_looks()
