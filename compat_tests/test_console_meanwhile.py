"""Two operators who change the same queue at the same time, each in a browser of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_screens import attributes

pytestmark = pytest.mark.slow


def form_of(tab: Tab, title: str) -> Any:
    return tab.page.get_by_role("form", name=title)


def save(tab: Tab, title: str) -> None:
    form_of(tab, title).get_by_role("button", name="Save", exact=True).click()


@pytest.fixture
def both(browser: Any, opened: NodeProcess) -> tuple[Tab, Tab]:
    """Two tabs that edit the same queue."""
    client = sqs(opened)
    client.create_queue(QueueName="shared-dead")
    client.create_queue(QueueName="shared")
    client.set_queue_attributes(
        QueueUrl="shared",
        Attributes={"VisibilityTimeout": "30", "RedrivePolicy": "", "Policy": ""},
    )
    client.untag_queue(QueueUrl="shared", TagKeys=["team"])
    one = tab_of(browser, opened, "/queues/shared/edit")
    other = tab_of(browser.alone, opened, "/queues/shared/edit")
    for tab in (one, other):
        form_of(tab, "Tags").wait_for()
    return one, other


def test_an_attribute_that_somebody_else_changed_is_not_overwritten_unseen(
    both: tuple[Tab, Tab], opened: NodeProcess
) -> None:
    one, other = both
    one.fill("VisibilityTimeout", "50s")
    save(one, "Attributes")
    one.see("Attributes: saved.")
    other.fill("VisibilityTimeout", "70s")
    other.fill("DelaySeconds", "5s")
    save(other, "Attributes")
    form = form_of(other, "Attributes")
    said = form.get_by_role("alert")
    expect(said).to_contain_text("Nothing was saved: this was changed meanwhile by somebody at ")
    expect(form.locator("dl")).to_have_text("VisibilityTimeoutnow 50s, yours 1m 10s")
    kept = attributes(sqs(opened), "shared")

    assert (kept["VisibilityTimeout"], kept["DelaySeconds"]) == ("50", "0")
    assert other.findings() == []
    save(other, "Attributes")
    other.see("Attributes: saved.")
    expect(said).to_be_hidden()
    kept = attributes(sqs(opened), "shared")
    assert (kept["VisibilityTimeout"], kept["DelaySeconds"]) == ("70", "5")
    one.fill("DelaySeconds", "6s")  # that the other one has changed, too
    save(one, "Attributes")
    expect(form_of(one, "Attributes").locator("dl")).to_have_text("DelaySecondsnow 5s, yours 6s")
    assert one.faults == other.faults == []


def test_dead_letters_policies_and_tags_are_kept_from_each_other_too(
    both: tuple[Tab, Tab], opened: NodeProcess
) -> None:
    one, other = both
    for tab, receives, value, action in ((one, "3", "a", "Send"), (other, "4", "b", "Receive")):
        policy = form_of(tab, "Policy").get_by_role("textbox")
        grant = {"Effect": "Allow", "Principal": "*", "Resource": "*"}
        policy.fill(json.dumps({"Statement": [{**grant, "Action": f"sqs:{action}Message"}]}))
        tab.fill("Dead-letter queue", "shared-dead")
        tab.fill("Receives until a message goes there", receives)
        tab.press("Add a tag")
        form_of(tab, "Tags").get_by_label("Key", exact=True).fill("team")
        form_of(tab, "Tags").get_by_label("Value", exact=True).fill(value)
    titles = ("Policy", "Dead letters", "Tags")
    for title in titles:
        save(one, title)
        one.see(f"{title}: saved.")
        save(other, title)
        expect(form_of(other, title).get_by_role("alert")).to_contain_text("Nothing was saved")
    expect(form_of(other, "Tags").locator("dl").last).to_have_text("teamnow a, yours b")
    expect(form_of(other, "Policy").locator("dl")).to_contain_text('+       "Action": "sqs:Receive')
    for title in titles:
        save(other, title)
        other.see(f"{title}: saved.")
    client = sqs(opened)
    kept = attributes(client, "shared")

    assert json.loads(kept["RedrivePolicy"])["maxReceiveCount"] == 4
    assert "ReceiveMessage" in kept["Policy"]
    assert client.list_queue_tags(QueueUrl="shared")["Tags"] == {"team": "b"}
    assert one.faults == other.faults == []
