"""Scheduled messages in a real browser: listed with their time, delivered now, canceled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from compat_tests.console_world import count, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


def test_scheduled_messages_are_delivered_now_and_canceled(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="later", tags={"holdfast:deliver-at": "on"})
    at_ms = int((time.time() + 86_400) * 1000)
    for body in ("first", "second", "third"):
        at = {"DataType": "Number", "StringValue": str(at_ms)}
        attributes = {"holdfast.deliver-at": at}
        client.send_message(QueueUrl="later", MessageBody=body, MessageAttributes=attributes)
    tab = tab_of(browser, opened, "/queues/later/messages?state=delayed")
    rows = tab.page.locator("tbody tr")
    rows.nth(2).wait_for()

    rows.filter(has_text="first").get_by_role("checkbox").check()
    tab.press("Deliver now")
    tab.see("1 delivered")
    rows.nth(2).wait_for(state="detached")
    assert count(client, "later") == 1
    rows.filter(has_text="second").get_by_role("link").click()
    tab.see("delayed, until ")
    tab.press("Cancel delivery")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel delivery").click()
    tab.see("1 canceled")

    page = client.get_queue_attributes(QueueUrl="later", AttributeNames=["All"])["Attributes"]
    assert page["ApproximateNumberOfMessagesDelayed"] == "1"
    assert tab.faults == []
