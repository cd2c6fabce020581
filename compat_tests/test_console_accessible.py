"""The console's screens against axe-core's rules, light and dark."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import Tab
from compat_tests.console_world import make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

SCREENS = {
    "/hosts": "Hosts",
    "/sessions": "Your sessions",
    "/queues/axe": "axe",
    "/queues/axe/send": "Send to axe",
    "/queues/axe-dead/messages/1": "Message",
    "/queues/axe-dead/messages/1/resend": "resend",
}
"""A part of each screen's heading, by its place; those of a job are in `test_console_jobs.py`."""


@pytest.fixture(scope="module")
def filled(opened: NodeProcess) -> NodeProcess:
    """The service with a message on each screen."""
    make_dead_letters(sqs(opened), "axe", '{"error": "card"}')
    make_dead_letters(sqs(opened), "named", '{"error": "tax"}', '{"error": "card"}')
    return opened


def test_screens_have_no_findings(browser: Any, filled: NodeProcess) -> None:
    tab = Tab(browser, filled.url)
    found: dict[tuple[str, str], list[str]] = {}
    for place, heading in SCREENS.items():
        tab.go(place)
        tab.page.get_by_role("heading", level=1, name=heading).wait_for()
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            found[place, scheme] = tab.findings()

    assert not any(found.values()), found


@pytest.mark.parametrize("place", ["/queues", "/queues/named-dead"])
def test_links_to_different_places_have_different_names(
    browser: Any, filled: NodeProcess, place: str
) -> None:
    """Screen readers list them without what stands beside them."""
    tab = tab_of(browser, filled, place)
    tab.see("named")
    tab.settle()
    named: list[list[str]] = tab.page.evaluate(
        """[...document.querySelectorAll("main a")].filter((each) => each.checkVisibility())
            .map((each) => [each.getAttribute("aria-label") ?? each.textContent, each.href])"""
    )
    places: dict[str, set[str]] = {}
    for name, address in named:
        places.setdefault(name, set()).add(address)

    assert len(places) > 3
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_finding_would_be_seen(browser: Any, filled: NodeProcess) -> None:
    tab = Tab(browser, filled.url)
    tab.go("/queues")
    tab.page.get_by_role("heading", name="Queues").wait_for()
    tab.page.evaluate("document.querySelector('input[type=search]').removeAttribute('aria-label')")
    tab.page.evaluate("document.querySelector('input[type=search]').placeholder = ''")

    assert any("label" in each for each in tab.findings())
