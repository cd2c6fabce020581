"""Times on the browser's clock, with those of UTC on hover."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import make_dead_letters, sqs
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask
from compat_tests.screen_sheets import ANY_KEY

pytestmark = pytest.mark.slow

ZONE = "Asia/Kolkata"  # five and a half hours ahead, all year
PLACES = (
    "/queues",
    "/queues/timely",
    "/queues/timely-dead",
    "/queues/timely-dead/messages",
    "/queues/timely-dead/messages/1",
    "/queues/timely-dead/redrive",
    "/queues/timely-dead/tail",
    "/dead-letters",
    "/redrives",
    "/audit",
    "/users",
    "/users/000000000000/timely",
    "/hosts",
    "/fleet",
    "/sessions",
)


@pytest.fixture(scope="module")
def timely(opened: NodeProcess) -> NodeProcess:
    """A service with a time on each screen."""
    client = sqs(opened)
    make_dead_letters(client, "timely", '{"error": "card"}', '{"error": "tax"}')
    arn = "arn:aws:sqs:us-east-1:000000000000:timely-dead"
    client.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)
    client.create_queue(QueueName="timely-gone")
    client.delete_queue(QueueUrl="timely-gone")
    client.create_queue(QueueName="timely-purged")
    client.purge_queue(QueueUrl="timely-purged")
    user = {"account": "000000000000", "name": "timely"}
    for page, content in (
        ("users", user),
        ("access-keys", {"account": "000000000000", "user": "timely", "expires_in_s": 3600}),
        ("marks", {"text": "deploy 4711"}),
    ):
        status, said = ask(opened.url, ANY_KEY, f"api/{page}", content)
        assert status == 200, said
    return opened


def test_no_screen_shows_a_time_of_utc(browser: Any, timely: NodeProcess) -> None:
    tab = Tab(browser, timely.url, timezone_id=ZONE)
    for place in (*PLACES, "/queues/timely-purged"):
        tab.go(place)
        tab.page.get_by_role("heading", level=1).first.wait_for()
        tab.settle()
        expect(tab.page.locator("main"), place).not_to_contain_text("UTC")
        wrong = tab.page.locator("main time:not([title*=' UTC'])")
        expect(wrong, place).to_have_count(0)

    assert tab.faults == []


def test_a_time_is_of_this_clock_and_of_utc_on_hover(browser: Any, timely: NodeProcess) -> None:
    tab = Tab(browser, timely.url, timezone_id=ZONE)
    tab.go("/users/000000000000/timely")
    shown = tab.page.locator("main time").first
    expect(shown).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$"))
    expect(shown).to_have_attribute("title", re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    ahead_ms = shown.evaluate(
        "({textContent: told, title}) => Date.parse(`${told}Z`) - Date.parse(title)"
    )

    assert ahead_ms == 5.5 * 3_600_000


def test_a_time_of_the_audit_log_is_typed_on_this_clock_and_kept_in_utc(
    browser: Any, timely: NodeProcess
) -> None:
    tab = Tab(browser, timely.url, timezone_id=ZONE)
    tab.go("/audit")
    since = tab.page.get_by_label("Since")
    since.fill("2026-01-02T03:30")
    with tab.page.expect_request("**/api/audit?*since_ms*") as asked:
        tab.press("Search")
    expect(tab.page).to_have_url(re.compile("since=2026-01-01T22%3A00"))
    tab.page.reload()
    expect(since).to_have_value("2026-01-02T03:30")

    assert "since_ms=1767304800000" in asked.value.url
    assert tab.faults == []


def test_a_browser_whose_clock_is_wrong_tells_the_services_times(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="clocked")
    client.send_message(QueueUrl="clocked", MessageBody="x")
    client.create_queue(QueueName="clocked-gone")
    client.delete_queue(QueueUrl="clocked-gone")
    for hours in (-5, 5):
        tab = Tab(browser, opened.url)
        tab.page.clock.install(time=time.time() + hours * 3600)
        tab.go("/queues/clocked/messages/1")
        tab.see(re.compile("^(3d 23h|4d), "))
        tab.go("/queues")
        gone = tab.page.get_by_role("region", name="Recently deleted").locator("tbody tr")
        expect(gone.filter(has_text="clocked-gone")).to_contain_text(re.compile("[0-9]+m [0-9]+s"))

        assert tab.faults == []


def test_today_is_the_services_day_on_a_browser_whose_clock_is_wrong(
    browser: Any, timely: NodeProcess
) -> None:
    tab = Tab(browser, timely.url)
    tab.page.clock.set_fixed_time(time.time() - 2 * 86400)
    tab.go("/redrives?during=today")
    live = tab.page.locator("tbody tr").filter(has_text="timely-dead")
    expect(live.first).to_be_visible()
    tab.go("/audit")
    expect(
        tab.page.get_by_text(re.compile("redrives? of [0-9]+ messages? by 1 user"))
    ).to_have_count(1)
    assert tab.faults == []
