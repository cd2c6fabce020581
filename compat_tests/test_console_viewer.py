"""The console for those who may only read, in a real browser: each link that they see works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import make_dead_letters, sqs
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_security import VIEWER, signed_in, user_key

pytestmark = pytest.mark.slow

USERS = {
    "lists": ("holdfast:ListQueues",),
    "views": VIEWER,
    "reads": (*VIEWER, "holdfast:ReadMessageBodies"),
}
CHANGES = ("Purge", "Delete", "Hold", "Redrive", "Send", "Edit", "Edit and resend", "New key")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service that checks signatures, with dead letters."""
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    node = NodeProcess(tmp_path_factory.mktemp("viewed"), variables=variables).start()
    make_dead_letters(sqs(node), "shop", '{"a": 1}', '{"a": 2}')
    yield node
    node.close()


@pytest.fixture(scope="module")
def keys(closed: NodeProcess) -> dict[str, dict[str, str]]:
    """The access keys of users, by what they may do."""
    return {name: user_key(closed, name, *actions) for name, actions in USERS.items()}


def visited(tab: Tab) -> dict[str, list[str]]:
    """Follow all links from screen to screen; the refusals of each."""
    found: dict[str, list[str]] = {}
    refused: list[str] = []
    tab.page.on("response", lambda said: refused.extend([said.url] if said.status >= 400 else []))
    places = ["#/queues"]
    while places:
        place = places.pop()
        if place in found:
            continue
        tab.go(place[1:])
        tab.page.locator("main h1").wait_for()
        tab.settle()
        found[place], refused[:] = [*refused], []
        links = tab.page.locator("a[href^='#/']:visible").all()
        places += [link.get_attribute("href") for link in links]
        names = tab.page.locator("main :is(a, button):visible").all_inner_texts()
        assert not set(names) & set(CHANGES), (place, names)
    return found


@pytest.mark.parametrize("user", USERS)
def test_each_link_that_a_viewer_sees_works(
    browser: Any, closed: NodeProcess, keys: dict[str, dict[str, str]], user: str
) -> None:
    tab = signed_in(browser, closed, "/queues", keys[user])
    tab.see("2 queues")
    found = visited(tab)

    assert not any(found.values()), found
    assert tab.faults == []
    screens = {"#/queues", "#/dead-letters"}
    if user != "lists":
        screens |= {"#/queues/shop", "#/queues/shop-dead/messages", "#/queues/shop-dead/messages/1"}
    assert screens <= set(found)
    assert not any(place.startswith(("#/audit", "#/users", "#/hosts")) for place in found)


@pytest.mark.parametrize("user", ["views", "reads"])
def test_a_screen_that_changes_something_says_what_it_needs(
    browser: Any, closed: NodeProcess, keys: dict[str, dict[str, str]], user: str
) -> None:
    tab = signed_in(browser, closed, "/queues", keys[user])
    tab.see("2 queues")
    for screen in ("messages/1/resend", "send", "redrive", "edit"):
        tab.go(f"/queues/shop-dead/{screen}")
        tab.page.get_by_role("heading", name="This cannot be shown").wait_for()
        refusal = re.compile("your policies", re.IGNORECASE)
        expect(tab.page.get_by_role("alert")).to_have_text(refusal)

    assert tab.faults == []


def test_a_filter_on_masked_bodies_says_what_can_be_asked(
    browser: Any, closed: NodeProcess, keys: dict[str, dict[str, str]]
) -> None:
    tab = signed_in(browser, closed, "/queues/shop-dead/messages", keys["views"])
    tab.see("Bodies are masked")
    box = tab.page.get_by_role("combobox", name="Filter")
    box.fill("error.type = Tax")
    tab.press("Search")
    tab.see("ask for an id, a state")
    wrong = box.input_value()
    box.fill("state = visible")
    tab.press("Search")
    tab.see("2 match")

    assert wrong == "error.type = Tax"
    expect(tab.page.locator(".wrong")).to_have_text("")
    assert not any("json=" in each.url for each in tab.requests)
    assert tab.faults == []
