"""The console in a real browser: one sign-in for all its tabs, and sessions that end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import SENT, count, sqs, tab_of
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask, signed
from compat_tests.test_console_once import click_three_times, click_unnoticed, posted

pytestmark = pytest.mark.slow

LATENCY_MS = 400


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service that checks signatures, with a queue."""
    node = NodeProcess(tmp_path_factory.mktemp("closed")).start()
    sqs(node).create_queue(QueueName="first")
    yield node
    node.close()


def sign_in(tab: Tab, node: NodeProcess) -> None:
    exports = node.exports()
    tab.sign_in(exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"])


@pytest.fixture
def tab(browser: Any, closed: NodeProcess) -> Tab:
    """A tab of the root, which is signed in."""
    tab = tab_of(browser, closed)
    sign_in(tab, closed)
    tab.see("first")
    return tab


def another_tab(tab: Tab) -> Tab:
    """A second tab of the same browser."""
    other = Tab.__new__(Tab)
    other.url, other.context, other.page = tab.url, tab.context, tab.context.new_page()
    return other


def test_one_sign_in_is_for_all_tabs_and_reloads(tab: Tab) -> None:
    (cookie,) = tab.context.cookies()
    other = another_tab(tab)
    other.go("/queues")
    other.see("first")
    tab.page.reload()
    tab.see("first")

    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert tab.page.evaluate("[document.cookie, sessionStorage.length, localStorage.length]") == [
        "", 0, 0
    ]  # fmt: skip
    assert len(posted(tab, "/api/sessions")) == 1
    assert "authorization" not in tab.requests[-1].headers
    assert tab.faults == []


def test_a_session_that_is_ended_elsewhere_keeps_what_was_typed(
    tab: Tab, browser: Any, closed: NodeProcess
) -> None:
    tab.go("/queues/first/send")
    tab.fill("Body", "typed before the end")
    elsewhere = tab_of(browser, closed, "/sessions")
    sign_in(elsewhere, closed)
    elsewhere.see("this one")
    elsewhere.press("End all")
    elsewhere.page.get_by_role("dialog").get_by_role("button", name="End all").click()
    elsewhere.page.get_by_role("heading", name="Sign in").wait_for()
    before = count(sqs(closed), "first")

    click_three_times(tab, "Send")
    tab.see("What you typed is kept.")
    expect(tab.page.get_by_label("Body", exact=True)).to_have_value("typed before the end")
    sign_in(tab, closed)
    tab.see(SENT)

    assert count(sqs(closed), "first") == before + 1
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert tab.faults == []


def test_signing_in_again_in_one_tab_goes_on_in_the_others(tab: Tab, closed: NodeProcess) -> None:
    other = another_tab(tab)
    other.go("/queues/first/send")
    other.fill("Body", "kept")
    tab.press("Sign out")
    tab.page.get_by_role("heading", name="Sign in").wait_for()
    click_unnoticed(other, "Send")
    other.see("What you typed is kept.")
    sign_in(tab, closed)
    tab.see("first")
    other.see(SENT)

    expect(other.page.get_by_role("dialog")).to_have_count(0)
    assert tab.faults == []


def test_leaving_a_screen_whose_session_has_ended_signs_out(tab: Tab) -> None:
    tab.context.clear_cookies()
    tab.page.get_by_role("dialog").get_by_text("Your session has ended").wait_for()
    tab.press("Leave this screen")
    tab.page.get_by_role("heading", name="Sign in", exact=True).wait_for()

    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    expect(tab.page.get_by_role("link", name="Queues", exact=True)).to_have_count(0)
    assert tab.faults == []


def test_another_user_who_signs_in_begins_anew(tab: Tab, browser: Any, closed: NodeProcess) -> None:
    from compat_tests.test_console_security import VIEWER, user_key

    key = user_key(closed, "other", *VIEWER)
    tab.go("/queues/first/send")
    tab.fill("Body", "of the root")
    tab.context.clear_cookies()
    click_unnoticed(tab, "Send")
    tab.see("What you typed is kept.")
    tab.sign_in(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
    tab.page.get_by_role("link", name="other", exact=True).wait_for()

    expect(tab.page.get_by_label("Body", exact=True)).to_have_count(0)
    assert posted(tab, "/messages")[1:] == []


def test_clicks_of_the_impatient_sign_in_and_out_once(browser: Any, closed: NodeProcess) -> None:
    tab = tab_of(browser, closed)

    def late(route: Any) -> None:
        tab.page.wait_for_timeout(LATENCY_MS)
        route.continue_()

    tab.page.route("**/api/**", late)
    exports = closed.exports()
    tab.fill("Access key id", exports["AWS_ACCESS_KEY_ID"])
    tab.fill("Secret access key", exports["AWS_SECRET_ACCESS_KEY"])
    click_three_times(tab, "Sign in")
    tab.see("first")
    click_three_times(tab, "Sign out")
    tab.page.get_by_role("heading", name="Sign in").wait_for()

    assert len(posted(tab, "/api/sessions")) == 1
    assert len(posted(tab, "/api/sessions/end")) == 1
    assert tab.faults == []


@pytest.mark.parametrize("width", [390, 900, 1600])
def test_the_screens_fit_the_width(
    browser: Any, closed: NodeProcess, width: int, tmp_path: Any
) -> None:
    tab = tab_of(browser, closed, "/sessions", viewport={"width": width, "height": 800})
    pages = tab.page.locator("html")
    fits = "node => node.scrollWidth <= node.clientWidth"
    tab.page.get_by_role("heading", name="Sign in").wait_for()
    tab.page.screenshot(path=tmp_path / f"sign-in-{width}.png")
    assert pages.evaluate(fits)
    sign_in(tab, closed)
    tab.see("this one")
    tab.page.screenshot(path=tmp_path / f"sessions-{width}.png")
    assert pages.evaluate(fits)
    tab.context.clear_cookies()
    tab.see("What you typed is kept.")
    tab.page.screenshot(path=tmp_path / f"again-{width}.png")

    assert pages.evaluate(fits)
    assert tab.faults == []


def test_a_session_is_good_for_the_next_request_at_any_worker(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    node = NodeProcess(tmp_path_factory.mktemp("workers"), "--workers", "2").start()
    statuses: list[int] = []
    try:
        for _ in range(20):  # each request has a connection of its own
            _, challenged = ask(node.url, node.credentials, "api/sessions/challenge")
            body = json.dumps({"challenge": challenged["challenge"]}).encode()
            target = f"{node.url}/_holdfast/api/sessions"
            sent = signed("POST", target, body, node.credentials)
            with urlopen(Request(target, body, sent)) as begun:
                cookie = begun.headers["Set-Cookie"].partition(";")[0]
            headers = {"Cookie": cookie, "X-Holdfast-Console": "1"}
            for _ in range(3):
                try:
                    with urlopen(Request(f"{target[:-8]}caller", headers=headers)) as answer:
                        statuses.append(answer.status)
                except HTTPError as refusal:
                    statuses.append(refusal.code)
    finally:
        node.close()

    assert statuses == [200] * 60
