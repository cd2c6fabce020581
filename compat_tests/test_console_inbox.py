"""The failures of a dead-letter queue in a real browser: marks, counts under way, large deletes,
the keyboard, a phone, and axe's rules while a dry run is shown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import count, make_dead_letters, sqs, tab_of
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask

pytestmark = pytest.mark.slow

ANY_KEY = Credentials("AKIAOPEN", "secret", "us-east-1")
INBOX = "/queues/inbox-dead"
LONG = "NoSuchAddressOfAnyCustomerInAnyCountryThatWeEverHeardOf" * 2


def failed(kind: str) -> str:
    return json.dumps({"error": {"type": kind, "message": f"{kind} for order 4711"}})


@pytest.fixture(scope="module")
def inbox(opened: NodeProcess) -> NodeProcess:
    """A service with failures and a mark."""
    make_dead_letters(sqs(opened), "inbox", *map(failed, ["Tax", "Tax", "Tax", "Card", LONG]))
    assert ask(opened.url, ANY_KEY, "api/marks", {"text": "deploy 4711"})[0] == 200
    return opened


def test_marks_are_drawn_and_told(browser: Any, inbox: NodeProcess) -> None:
    tab = tab_of(browser, inbox, INBOX)
    tab.see("All 5 messages, 3 failures.")
    tab.see("deploy 4711, by root")

    expect(tab.page.locator("svg.histogram line.mark")).to_have_count(3)  # in each histogram
    chart = tab.page.locator("article").first.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile("."))
    figure = tab.page.locator("article figure").first
    expect(figure.locator(".scale text")).to_have_text([re.compile("^[1-9]"), "0"])
    expect(figure.locator("figcaption")).to_contain_text("messages in 1m each")
    assert tab.faults == []


def test_queues_and_hosts_link_to_their_dashboards(browser: Any, inbox: NodeProcess) -> None:
    tab = Tab(browser, inbox.url)
    known: dict[str, object] = {"grafana_url": "https://grafana.example/g/"}
    tab.page.route(
        "**/api/caller", lambda route: route.fulfill(json={**route.fetch().json(), **known})
    )

    dashboard = tab.page.get_by_role("link", name="Grafana")
    for place, name in ((INBOX, "owners?var-queue=inbox-dead"), ("/hosts", "operators")):
        tab.go(place)
        to = f"https://grafana.example/g/d/holdfast-{name}"
        expect(dashboard).to_have_attribute("href", to)
    known["grafana_url"] = None
    tab.page.reload()
    tab.go("/hosts")
    tab.see("single host")

    expect(dashboard).to_have_count(0)
    assert tab.faults == []


def test_a_count_under_way_says_how_far_it_is(browser: Any, inbox: NodeProcess) -> None:
    tab = tab_of(browser, inbox, "/hosts")
    answers = [{"messages": 2, "is_exact": False}, {}]

    def answer(route: Any) -> None:
        real = route.fetch()
        route.fulfill(response=real, json={**real.json(), **(answers.pop(0) if answers else {})})

    tab.page.route("**/failures?*", answer)
    tab.go(INBOX)
    tab.see("Counted 2 of 5 messages so far.")
    tab.see("All 5 messages, 3 failures.")

    assert tab.faults == []


def test_while_no_host_leads_it_says_so_and_comes_back_by_itself(
    browser: Any, inbox: NodeProcess
) -> None:
    tab = tab_of(browser, inbox, INBOX)
    tab.see("All 5 messages, 3 failures.")
    unknown = dict.fromkeys(("visible", "in_flight", "delayed"))
    away = {"error": "No host that leads inbox-dead answers now.", "code": "ServiceUnavailable"}

    def leaderless(route: Any) -> None:
        real = route.fetch()
        route.fulfill(response=real, json={**real.json(), **unknown})

    tab.page.route("**/queues/inbox-dead", leaderless)
    tab.page.route("**/failures?*", lambda route: route.fulfill(status=503, json=away))
    tab.see("The failures cannot be read: no host that leads inbox-dead answers now.")
    expect(tab.page.get_by_role("article")).to_have_count(3)  # as they were
    tab.page.unroute("**/failures?*")
    tab.page.unroute("**/queues/inbox-dead")
    tab.page.get_by_role("alert").wait_for(state="detached")

    tab.see("All 5 messages, 3 failures.")
    assert tab.faults == []


def test_a_dry_run_has_no_findings_of_axe(browser: Any, inbox: NodeProcess) -> None:
    tab = Tab(browser, inbox.url)
    tab.go(INBOX)
    for what in ("Hold", "Delete", "Export"):
        tab.page.get_by_role("article").first.get_by_role("button", name=f"{what} Tax").click()
        tab.see("3 match.")
        tab.check_looks(1280)
    assert tab.fits(390)


def test_a_failure_is_deleted_by_keyboard_alone(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "typed", *map(failed, ["Tax", "Card"]))
    tab = tab_of(browser, opened, "/queues/typed-dead")
    tab.page.get_by_role("article").first.wait_for()
    tab.page.get_by_role("button", name="Read again").focus()

    def press_until(label: str) -> None:
        for _ in range(30):
            tab.page.keyboard.press("Tab")
            focused = "document.activeElement.getAttribute('aria-label')"
            text = "document.activeElement.innerText"
            if label in (tab.page.evaluate(focused), tab.page.evaluate(text).split("\n")[0]):
                tab.page.keyboard.press("Enter")
                return
        raise AssertionError(f"{label} was not reached")

    first = tab.page.get_by_role("article").first.get_attribute("aria-label")
    press_until(f"Delete {first}")
    tab.see("1 match.")
    press_until("Delete 1")
    tab.see("1 deleted.")

    assert tab.faults == []


def test_more_than_can_be_undone_are_deleted_after_the_name_was_typed(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "many", failed("Card"))
    for _ in range(101):
        entries = [{"Id": str(at), "MessageBody": failed("Tax")} for at in range(10)]
        client.send_message_batch(QueueUrl="many-dead", Entries=entries)
    tab = tab_of(browser, opened, "/queues/many-dead")
    tab.see("All 1,011 messages, 2 failures.")
    tab.page.get_by_role("article").first.get_by_role("button", name="Delete Tax").click()
    tab.see("This cannot be undone")
    tab.press("Delete 1,010")
    tab.fill("Type many-dead", "many-dead")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    tab.see("1,010 deleted.")
    tab.see("The only message, 1 failure.")

    assert count(client, "many-dead") == 1
    assert tab.faults == []
