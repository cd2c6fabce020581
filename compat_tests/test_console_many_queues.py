"""The list of 10,001 queues in a real browser: first page, tags as filters and columns, order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

QUEUES = 10_001
PAGE = 100
_CONNECTIONS = 4
_CREATE_QUEUE = {
    "X-Amz-Target": "AmazonSQS.CreateQueue",
    "Content-Type": "application/x-amz-json-1.0",
}
ELEMENTS_MAX = 3_500
"""Of the screen with a page of queues, however many there are."""


def tags_of(number: int) -> dict[str, str]:
    """Teams of a tenth each; one queue in a thousand is of the environment `test`."""
    tags = {"team": f"team-{number % 10}"}
    return tags if number % 1_000 else {**tags, "env": "test"}


def make_some(node: NodeProcess, first: int) -> None:
    """Make every fourth queue: for so many an SDK would take longer than the service."""
    with closing(HTTPConnection(urlsplit(node.url).netloc)) as connection:
        for number in range(first, QUEUES, _CONNECTIONS):
            asked = {"QueueName": f"q-{number:05}", "tags": tags_of(number)}
            connection.request("POST", "/", json.dumps(asked), _CREATE_QUEUE)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service with so many queues, one of which has messages."""
    options = ("--auth", "open", "--durability", "memory")
    node = NodeProcess(tmp_path_factory.mktemp("many"), *options).start()
    try:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            list(pool.map(partial(make_some, node), range(_CONNECTIONS)))
        for number in range(3):
            sqs(node).send_message(QueueUrl="q-07777", MessageBody=str(number))
        yield node
    finally:
        node.close()


def rows(tab: Tab) -> Any:
    return tab.page.get_by_role("region", name="Queues").locator("tbody tr")


def elements(tab: Tab) -> int:
    found: int = tab.page.evaluate("document.querySelectorAll('*').length")
    return found


def test_a_page_is_shown_and_no_more(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many)
    tab.see("10,001 queues")

    expect(rows(tab)).to_have_count(PAGE)
    assert elements(tab) < ELEMENTS_MAX
    assert len({each.url for each in tab.requests if "/api/queues?" in each.url}) == 1
    tab.press("Visible")
    rows(tab).first.get_by_role("link", name="q-07777").wait_for()
    expect(rows(tab)).to_have_count(PAGE)
    tab.answered()
    tab.press("Next page")
    rows(tab).first.get_by_role("link", name="q-00099").wait_for()
    assert elements(tab) < ELEMENTS_MAX
    assert tab.faults == []


def test_queues_are_chosen_by_tag_and_name(browser: Any, many: NodeProcess) -> None:
    of_name = [number for number in range(QUEUES) if "777" in f"{number:05}"]
    of_both = len([number for number in of_name if number % 10 == 7])
    tab = tab_of(browser, many)
    tab.see("10,001 queues")
    box = tab.page.get_by_role("combobox", name="Search queues by name")

    def total(queues: int) -> None:
        tab.page.get_by_text(f"{queues:,} queues", exact=True).wait_for()

    box.fill("env = te")
    tab.page.get_by_role("option", name='env = "test"').click()
    total(11)
    box.fill("team = team-3")
    box.press("Enter")
    total(0)
    box.press("Backspace")
    total(11)
    box.press("Backspace")
    total(QUEUES)
    box.fill("team = team-7")
    box.press("Enter")
    total(1_000)
    box.press_sequentially("777")
    total(of_both)
    expect(rows(tab)).to_have_count(of_both)
    tab.page.reload()
    total(of_both)
    expect(tab.page.locator(".chip")).to_have_text(['team = "team-7"'])
    expect(box).to_have_value("777")
    tab.press('Remove team = "team-7"')
    total(len(of_name))

    assert of_both < len(of_name)
    assert tab.faults == []


def test_tags_are_columns_that_this_browser_keeps(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many, "/queues?search=q-0000")
    tab.see("10 queues")
    tab.page.get_by_text("Columns of tags").click()
    tab.page.get_by_label("team", exact=True).check()
    rows(tab).first.get_by_role("link", name="team-0", exact=True).wait_for()
    tab.page.get_by_label("env", exact=True).check()
    rows(tab).first.get_by_role("link", name="test", exact=True).wait_for()
    tab.page.reload()
    rows(tab).first.get_by_role("link", name="test", exact=True).wait_for()
    head = tab.page.locator("thead th").all_inner_texts()
    rows(tab).nth(3).get_by_role("link", name="team-3", exact=True).click()
    tab.page.get_by_text("1 queue", exact=True).wait_for()
    expect(tab.page.locator(".chip")).to_have_text(['team = "team-3"'])
    tab.page.go_back()
    tab.see("10 queues")

    assert head[:4] == ["Queue", "team", "env", "Visible"]
    assert tab.faults == []


def test_the_list_has_no_findings_and_fits_a_phone(browser: Any, many: NodeProcess) -> None:
    tab = tab_of(browser, many, "/queues?tags=env%3Dtest")
    tab.see("11 queues")
    tab.page.get_by_text("Columns of tags").click()
    tab.page.get_by_label("team", exact=True).check()
    rows(tab).first.get_by_role("link", name="team-0", exact=True).wait_for()

    tab.check_looks(390, height=800)
    assert tab.faults == []
