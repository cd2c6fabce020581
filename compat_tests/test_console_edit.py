"""The editor of a message in a real browser: what the service would refuse is said before it is
sent, with its place; attributes are edited, too."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import SENT, count, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess

pytestmark = pytest.mark.slow


def editor(browser: Any, node: NodeProcess, name: str, **options: Any) -> Tab:
    tab = tab_of(browser, node, f"/queues/{name}-dead/messages/1/resend", **options)
    tab.see("The body is unchanged.")
    return tab


def check(tab: Tab) -> Any:
    return tab.page.locator("#body-check")


def test_broken_json_is_told_with_its_place(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "broken-json", '{"sku":"A-1","n":1}')
    tab = editor(browser, opened, "broken-json")
    tab.press("Format")
    body = tab.page.get_by_label("Body")
    expect(body).to_have_value('{\n  "sku": "A-1",\n  "n": 1\n}')
    tab.fill("Body", '{\n  "sku": "A-1"\n  "n": 1\n}')
    check(tab).get_by_text("line 3, column 3. A comma or } is expected.").wait_for()
    expect(body).to_have_attribute("aria-invalid", "true")
    tab.press("Show the place")
    expect(tab.page.locator(":focus")).to_have_js_property(
        "selectionStart", len('{\n  "sku": "A-1"\n  ')
    )
    tab.fill("Body", '{\n  "sku": "A-1",\n  "n": 1\n}')
    check(tab).locator("p").wait_for(state="detached")

    expect(body).to_have_attribute("aria-invalid", "false")
    assert tab.faults == []


def test_what_the_service_refuses_is_told_before_and_refused(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "refusing", "a")
    small = {"MaximumMessageSize": "1024"}
    client.set_queue_attributes(QueueUrl="refusing", Attributes=small)
    tab = editor(browser, opened, "refusing")
    for body, told, said in (
        ("é" * 600, "176 bytes more than the 1,024", "must be shorter than 1024 bytes"),
        ("a\x01b", "line 1, column 2. The character U+0001", "Invalid binary character"),
    ):
        tab.fill("Body", body)
        check(tab).get_by_text(told).wait_for()
        tab.press("Send the copy")
        tab.page.locator("#notices").get_by_text(said).wait_for()
    refused = count(client, "refusing")
    tab.fill("Body", "b")
    tab.press("Send the copy")
    tab.see(SENT)

    assert refused == 0
    assert (count(client, "refusing"), count(client, "refusing-dead")) == (1, 0)
    assert tab.faults == []


def test_attributes_are_edited(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    sent = {
        "tenant": {"DataType": "String", "StringValue": "shop"},
        "trace": {"DataType": "String", "StringValue": "x"},
    }
    make_dead_letters(client, "attributed", "a", MessageAttributes=sent)
    tab = editor(browser, opened, "attributed")
    tab.page.get_by_text("Message attributes: 2").click()
    tab.page.get_by_label("Value, of a binary one base64").first.fill("bank")
    tab.press("Remove attribute trace")
    tab.press("Add an attribute")
    tab.page.keyboard.type("level")
    tab.page.get_by_label("Type").last.fill("Number")
    tab.page.get_by_label("Value, of a binary one base64").last.fill("seven")
    tab.press("Send the copy")
    tab.page.locator("#notices").get_by_text("level").wait_for()
    tab.page.get_by_label("Value, of a binary one base64").last.fill("7")
    tab.press("Send the copy")
    tab.see(SENT)

    names = {"QueueUrl": "attributed", "MessageAttributeNames": ["All"]}
    (message,) = client.receive_message(**names)["Messages"]
    found = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    assert found == {"tenant": "bank", "level": "7"}
    assert tab.faults == []


def test_a_text_is_found_in_the_body(browser: Any, opened: NodeProcess) -> None:
    body = "\n".join(f'"sku": "A-{number}", "note": "..."' for number in range(60))
    make_dead_letters(sqs(opened), "searched", body)
    tab = editor(browser, opened, "searched")
    found, shown = tab.page.locator(".found"), tab.page.locator(".hits mark")
    tab.page.keyboard.press("Escape")
    tab.page.get_by_label("Find a text").press_sequentially("a-5")
    expect(found).to_have_text("1 of 11")
    expect(shown).to_have_count(11)
    expect(shown.first).to_have_attribute("class", "here")
    for _ in range(4):
        tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Shift+Enter")
    expect(found).to_have_text("4 of 11")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("textarea:focus")).to_have_count(1)
    selected = tab.page.evaluate(
        "(({value, selectionStart: from, selectionEnd: to, scrollTop}) =>"
        " [value.slice(from - 4, to + 1), scrollTop > 0])(document.activeElement)"
    )
    tab.fill("Find a text", "a+5")
    expect(found).to_have_text("not there")
    expect(shown).to_have_count(0)
    tab.fill("Find a text", "a-59")
    tab.fill("Body", "a-59 A-59")
    expect(found).to_have_text("1 of 2")
    expect(shown).to_have_count(2)

    assert selected == ['": "A-52', True]
    assert tab.faults == []


def test_a_new_message_has_attributes_and_its_json_is_checked(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="composed")
    tab = tab_of(browser, opened, "/queues/composed/send")
    tab.fill("Body", '{"n": 1,}')
    check(tab).get_by_text("line 1, column 9. A comma before } is one too many.").wait_for()
    tab.fill("Body", '{"n": 1}')
    tab.page.get_by_text("Message attributes").click()
    tab.press("Add an attribute")
    tab.page.keyboard.type("tenant")
    tab.fill("Value, of a binary one base64", "shop's")
    tab.page.get_by_text("As a command").click()
    shown = tab.page.locator("details pre")
    expect(shown).to_contain_text('"tenant":{"DataType":"String","StringValue":"shop\'\\\'\'s')
    tab.press("Send")
    tab.see(SENT)

    names = {"QueueUrl": "composed", "MessageAttributeNames": ["All"]}
    (message,) = client.receive_message(**names)["Messages"]
    assert (message["Body"], message["MessageAttributes"]["tenant"]["StringValue"]) == (
        '{"n": 1}',
        "shop's",
    )
    assert tab.faults == []


def test_the_editor_has_no_findings_and_fits_a_phone(browser: Any, opened: NodeProcess) -> None:
    sent = {"tenant": {"DataType": "String", "StringValue": "shop"}}
    make_dead_letters(sqs(opened), "edits", '{"a": 1}', MessageAttributes=sent)
    tab = editor(browser, opened, "edits")
    tab.page.get_by_text("Message attributes: 1").click()
    tab.fill("Body", '{"a": 1')
    check(tab).get_by_text("A comma or } is expected.").wait_for()

    tab.check_looks(390, height=800)
    assert tab.faults == []


def test_a_refused_target_leaves_what_was_typed(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "mistyped", "a")
    tab = editor(browser, opened, "mistyped")
    refusal = tab.page.locator("#notices").get_by_text("queue does not exist")
    tab.fill("Body", "a long text")
    tab.fill("To the queue", "mistypde")
    tab.press("Send the copy")
    refusal.wait_for()
    expect(tab.page.get_by_label("Body")).to_have_value("a long text")
    tab.fill("To the queue", "mistyped")
    tab.press("Send the copy")
    tab.see(SENT)

    tab.go("/queues/mistyped-dead/redrive")
    tab.fill("Reason", "the reason")
    tab.fill("To", "mistypde")
    tab.press("Dry run")
    refusal.wait_for()
    expect(tab.page.get_by_label("Reason")).to_have_value("the reason")
    assert tab.faults == []


def test_what_is_not_seen_in_a_body_is_named_before_it_is_sent(
    browser: Any, opened: NodeProcess
) -> None:
    make_dead_letters(sqs(opened), "unseen", "abc\u202egnp.exe" + " long" * 2_000)
    tab = editor(browser, opened, "unseen")
    check(tab).get_by_text("line 1, column 4. U+202E (right-to-left override).").wait_for()
    body = tab.page.get_by_label("Body")
    expect(body).to_have_js_property("scrollTop", 0)
    tab.press("Show the place")
    expect(body).to_have_js_property("selectionStart", 3)
    findings = tab.findings()
    tab.fill("Body", "abcexe.png")
    check(tab).locator("p").wait_for(state="detached")

    assert findings == []
    assert tab.faults == []
