"""The console in a real browser that is slow: clicks, and connections that break."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import Tab
from compat_tests.console_world import SENT, Held, count, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow

LATENCY_MS = 200


def click_three_times(tab: Tab, name: str) -> None:
    """As an impatient user does: all before the first answer."""
    tab.page.get_by_role("button", name=name, exact=True).evaluate(
        "button => { button.click(); button.click(); button.click(); }"
    )


def click_unnoticed(tab: Tab, name: str) -> None:
    """Click as one does before the page notices that its session has ended: it asks for news now
    and then, and the dialog that opens covers the button."""
    tab.page.get_by_role("button", name=name, exact=True).evaluate("button => button.click()")


def posted(tab: Tab, path: str) -> list[Any]:
    return [each for each in tab.requests if each.method == "POST" and each.url.endswith(path)]


def test_three_clicks_send_one_message(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="clicked")
    tab = tab_of(browser, opened, "/queues/clicked/send")
    tab.fill("Body", "once")
    held = Held(tab, "**/messages")
    button = tab.page.get_by_role("button", name="Send", exact=True)
    width = button.bounding_box()["width"]
    click_three_times(tab, "Send")
    busy = tab.page.get_by_role("button", name="Sending …")
    busy.wait_for()
    seen = (busy.is_disabled(), busy.get_attribute("aria-busy"), busy.bounding_box()["width"])
    held.wait()
    tab.page.wait_for_timeout(LATENCY_MS)  # for the other clicks
    held.let_go()
    tab.see(SENT)
    tab.page.get_by_role("button", name="Send", exact=True).wait_for()

    assert seen == (True, "true", width)
    assert len(posted(tab, "/messages")) == 1
    assert count(client, "clicked") == 1
    assert tab.faults == []


def test_three_clicks_send_one_copy(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "copied", "a")
    tab = tab_of(browser, opened, "/queues/copied-dead/messages/1/resend")
    tab.see("The body is unchanged.")
    held = Held(tab, "**/resend")
    click_three_times(tab, "Send the copy")
    held.wait()
    tab.page.wait_for_timeout(LATENCY_MS)
    held.let_go()
    tab.see("messages looked at")

    assert count(client, "copied") == 1
    assert tab.faults == []


def test_a_send_whose_answer_is_lost_is_repeated_with_the_same_id(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="broken")
    tab = tab_of(browser, opened, "/queues/broken/send")

    def lose(route: Any) -> None:
        route.fetch()
        route.abort("connectionreset")

    tab.page.route("**/messages", lose)
    tab.fill("Body", "once")
    tab.press("Send")
    tab.see("The service does not answer.")
    tab.page.unroute("**/messages")
    tab.press("Send")
    tab.see(SENT)
    tab.fill("Body", "once")
    with tab.page.expect_response("**/messages"):
        tab.press("Send")

    first, again, other = [each.headers for each in posted(tab, "/messages")]
    assert first["idempotency-key"] == again["idempotency-key"] != other["idempotency-key"]
    assert int(again["idempotency-age"]) > 0
    assert "idempotency-age" not in first
    assert count(client, "broken") == 2, "the third was sent on purpose"
    assert [fault for fault in tab.faults if "ERR_CONNECTION_RESET" not in fault] == []
