"""The policy of a queue by template, in a real browser against the service's own decision."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import Operator

pytestmark = pytest.mark.slow


def policy_of(node: NodeProcess, name: str) -> Any:
    found = sqs(node).get_queue_attributes(QueueUrl=name, AttributeNames=["Policy"])
    return json.loads(found.get("Attributes", {}).get("Policy", "{}"))


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_another_account_may_send_by_a_template_and_one_is_told_so(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    name = f"templated-{slow}".lower()
    sqs(opened).create_queue(QueueName=name)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}/edit"), slow=slow)
    page = operator.tab.page
    form = page.get_by_role("form", name="Policy", exact=True)
    operator.fill("Account, or the ARN of a user", "111122223333")
    operator.click("Add to the policy")
    operator.tab.see("It holds once you save it.")
    before = policy_of(opened, name)
    operator.click("Save", form)
    form.get_by_role("button", name="Save").and_(page.locator(":not([aria-busy])")).wait_for()
    operator.tab.see("Policy: saved.")
    asks = page.get_by_role("form", name="May this user do that?")
    asks.get_by_label("Who").select_option("the account itself")
    asks.get_by_label("Account", exact=True).fill("111122223333")
    for action, answer in (("sqs:SendMessage", "Yes"), ("sqs:PurgeQueue", "No")):
        asks.get_by_label("Action").fill(action)
        operator.click("Ask", asks)
        asks.get_by_role("status").get_by_text(answer, exact=True).wait_for()
        expect(asks.get_by_role("status")).to_have_text(re.compile(f"^{answer}"))

    (statement,) = policy_of(opened, name)["Statement"]
    assert before == {}
    assert statement["Principal"] == {"AWS": "arn:aws:iam::111122223333:root"}
    assert statement["Resource"].endswith(f":{name}")
    assert operator.posted() == [f"queues/{name}/attributes"]
    assert operator.tab.faults == []


def test_a_template_is_added_to_what_is_there_and_not_to_what_is_no_policy(
    browser: Any, opened: NodeProcess
) -> None:
    sqs(opened).create_queue(QueueName="templated-more")
    tab = tab_of(browser, opened, "/queues/templated-more/edit")
    form = tab.page.get_by_role("form", name="Policy", exact=True)
    templates = tab.page.get_by_role("form", name="A statement by template")
    templates.get_by_label("What").select_option("Nobody may do anything without TLS")
    tab.press("Add to the policy")
    templates.get_by_label("What").select_option("Anyone may send from certain addresses")
    templates.get_by_label("Addresses", exact=True).fill("10.0.0.0/8")
    tab.press("Add to the policy")
    box = form.get_by_role("textbox")
    expect(box).to_have_value(re.compile('"SendFrom100008"'))
    policy = json.loads(box.input_value())
    box.fill("{")
    tab.press("Add to the policy")
    tab.see("mend or empty it first")

    assert [each["Sid"] for each in policy["Statement"]] == ["OnlyTls", "SendFrom100008"]
    expect(box).to_have_value("{")
    assert policy_of(opened, "templated-more") == {}
    assert tab.faults == []


def test_the_screen_fits_and_has_no_findings(browser: Any, opened: NodeProcess) -> None:
    sqs(opened).create_queue(QueueName="templated-shown")
    tab = tab_of(browser, opened, "/queues/templated-shown/edit")
    tab.page.get_by_role("form", name="A statement by template").wait_for()

    tab.check_looks()
