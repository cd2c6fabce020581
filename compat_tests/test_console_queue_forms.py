"""The forms of a queue's editor that stand for JSON: who may redrive to it, and encryption."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import Operator
from compat_tests.test_console_screens import attributes

pytestmark = pytest.mark.slow

TAKES = "Allowed sources"
ARN = "arn:aws:sqs:us-east-1:000000000000"


def test_a_queue_takes_dead_letters_of_those_that_are_picked(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="taken-dead")
    policy = json.dumps({"deadLetterTargetArn": f"{ARN}:taken-dead", "maxReceiveCount": 2})
    for name, given in (("taken", {"RedrivePolicy": policy}), ("taken-too", {})):
        client.create_queue(QueueName=name, Attributes=given)
    operator = Operator(tab_of(browser, opened, "/queues/taken-dead/edit"), slow=False)
    form = operator.tab.page.get_by_role("form", name=TAKES)
    expect(form).to_contain_text("so it is without a RedriveAllowPolicy")
    operator.click("No queue", form)
    expect(form).to_contain_text("takes no dead letters of any queue.")
    expect(form).to_contain_text("taken names it now. What fails there would stay there")
    operator.click("Only these queues, 10 at most", form)
    expect(form.get_by_label("Queue", exact=True)).to_have_value("taken")
    operator.click("Add a queue", form)
    operator.tab.page.keyboard.type("taken-to")
    offered = form.locator("datalist option[value=taken-too]")
    expect(offered).to_have_count(1)
    operator.tab.page.keyboard.type("o")
    expect(form).to_contain_text("Only taken and taken-too may name taken-dead.")
    operator.click("Save", form)
    operator.tab.see(f"{TAKES}: saved.")
    stored = json.loads(attributes(client, "taken-dead")["RedriveAllowPolicy"])
    operator.click("Any queue", form)
    expect(form).to_contain_text("so it is without a RedriveAllowPolicy")
    operator.click("Save", form)
    expect(form.locator("details")).to_have_count(0)

    arns = [f"{ARN}:taken", f"{ARN}:taken-too"]
    assert stored == {"redrivePermission": "byQueue", "sourceQueueArns": arns}
    assert "RedriveAllowPolicy" not in attributes(client, "taken-dead")
    assert operator.posted() == ["queues/taken-dead/attributes"] * 2
    assert operator.tab.faults == []


def test_at_most_ten_queues_are_picked_and_one_at_least(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    arns = [f"{ARN}:other-{at}" for at in range(9)]
    allowed = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": arns})
    client.create_queue(QueueName="many-dead", Attributes={"RedriveAllowPolicy": allowed})
    tab = tab_of(browser, opened, "/queues/many-dead/edit")
    form = tab.page.get_by_role("form", name=TAKES)
    more, rows = (
        form.get_by_role("button", name="Add a queue"),
        form.get_by_label("Queue", exact=True),
    )
    more.click()
    expect(rows).to_have_count(10)
    expect(more).to_be_disabled()
    form.get_by_role("button", name="Remove queue other-3").click()
    expect(rows).to_have_count(9)
    expect(more).to_be_enabled()
    for _ in range(9):
        form.get_by_role("button", name="Remove").first.click()
    expect(form).to_contain_text("Name one queue at least.")


def test_a_queue_that_denies_is_told_of_before_saving(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    deny = {"RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'}
    client.create_queue(QueueName="denies-dead", Attributes=deny)
    client.create_queue(QueueName="lets-dead")
    client.create_queue(QueueName="asks")
    tab = tab_of(browser, opened, "/queues/asks/edit")
    form = tab.page.get_by_role("form", name="Dead letters")
    said, dead = form.get_by_role("status"), form.get_by_label("Dead-letter queue")
    dead.fill("denies-dead")
    expect(said).to_contain_text("denies-dead does not let this queue name it")
    expect(said.get_by_role("link")).to_have_attribute("href", "#/queues/denies-dead/edit")
    dead.fill("asks")
    expect(said).to_have_text("asks cannot be its own dead-letter queue.")
    dead.fill("nowhere-dead")
    expect(said).to_have_text("There is no queue nowhere-dead.")
    dead.fill("lets-dead")
    expect(said).to_be_hidden()
    form.get_by_role("button", name="Save").click()
    tab.see("Dead letters: saved.")
    tab.go("/new-queue")
    tab.fill("Name", "asks-new")
    tab.fill("Dead-letter queue", "denies-dead")
    made = tab.page.get_by_role("form", name="Create a queue")
    expect(made.get_by_role("status")).to_contain_text("saving would be refused")
    tab.page.get_by_label("FIFO").check()
    expect(made.get_by_role("status")).to_contain_text("denies-dead is a standard queue")

    assert "lets-dead" in attributes(client, "asks")["RedrivePolicy"]
    assert tab.faults == []


def test_the_encryption_of_a_queue_is_chosen(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="sealed", Attributes={"KmsMasterKeyId": "alias/first"})
    client.send_message(QueueUrl="sealed", MessageBody="makes the key")
    client.create_queue(QueueName="chooses")
    tab = tab_of(browser, opened, "/queues/chooses/edit")
    form = tab.page.get_by_role("form", name="Encryption")
    kind, save = form.get_by_label("sealed under"), form.get_by_role("button", name="Save")
    expect(form).to_contain_text("need no permission for the key")
    kind.select_option("kms")
    expect(form).to_contain_text("receivers kms:Decrypt")
    expect(form.locator("datalist option[value='alias/first']")).to_have_count(1)
    form.get_by_label("Key", exact=True).fill("alias/first")
    form.get_by_label("A data key is used for").fill("10m")
    save.click()
    expect(form.locator("details")).to_have_count(0)
    named = attributes(client, "chooses")
    kind.select_option("none")
    expect(form).to_contain_text("whoever has the disk, or a backup, can read them")
    save.click()
    expect(form.locator("details")).to_have_count(0)
    bare = attributes(client, "chooses")

    assert named["KmsMasterKeyId"] == "alias/first"
    assert named["KmsDataKeyReusePeriodSeconds"] == "600"
    assert bare["SqsManagedSseEnabled"] == "false"
    assert "KmsMasterKeyId" not in bare
    assert tab.findings() == []
    assert tab.faults == []


def test_a_tag_with_a_meaning_says_which_values_it_takes(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="meant", tags={"holdfast:protect": "off"})
    tab = tab_of(browser, opened, "/queues/meant/edit")
    form = tab.page.get_by_role("form", name="Tags")
    expect(form.locator(".search .hint").first).to_have_text(
        "The queue is protected from being deleted or purged. Value: on, off."
    )
    form.get_by_role("button", name="Add a tag").click()
    form.get_by_label("Key").last.fill("holdfast:expired")
    values = form.locator(".search").last.locator("option")
    expect(values).to_have_count(3)
    form.get_by_label("Value").last.fill("discard")
    form.get_by_role("button", name="Save").click()
    tab.see("Tags: saved.")

    assert client.list_queue_tags(QueueUrl="meant")["Tags"]["holdfast:expired"] == "discard"
    assert tab.faults == []
