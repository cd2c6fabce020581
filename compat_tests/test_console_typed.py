"""The console in a real browser: what was typed or chosen outlasts a late answer, another form, and
a look at another screen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import SENT, Held, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.test_console_security import signed_in

pytestmark = pytest.mark.slow

BODIES = [json.dumps({"n": number, "kind": "ab"[number % 2]}) for number in range(6)]


def test_a_message_that_is_typed_while_another_is_sent_stays(
    browser: Any, opened: NodeProcess
) -> None:
    sqs(opened).create_queue(QueueName="next")
    tab = tab_of(browser, opened, "/queues/next/send")
    tab.fill("Body", "first")
    held = Held(tab, "**/queues/next/messages")
    tab.press("Send")
    held.wait()
    tab.fill("Body", "second, typed meanwhile")
    held.end()
    tab.see(SENT)

    expect(tab.page.get_by_label("Body", exact=True)).to_have_value("second, typed meanwhile")
    tab.fill("Body", "third")
    tab.press("Send")
    expect(tab.page.get_by_label("Body", exact=True)).to_have_value("")
    assert tab.faults == []


def test_what_was_typed_is_there_after_a_look_at_another_screen(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="drafts")
    client.send_message(QueueUrl="drafts", MessageBody="stored")
    tab = tab_of(browser, opened, "/queues/drafts")
    body = tab.page.get_by_label("Body", exact=True)
    for place, sends in (("send", "Send"), ("messages/1/resend", "Send the copy")):
        tab.go(f"/queues/drafts/{place}")
        body.fill("typed")
        tab.page.go_back()
        body.wait_for(state="detached")
        tab.page.go_forward()
        expect(body).to_have_value("typed")
        tab.press(sends)
        tab.see(SENT)
        tab.go("/queues/drafts")
        tab.page.get_by_role("heading", name="drafts", exact=True).wait_for()
        tab.go(f"/queues/drafts/{place}")
        expect(body).to_have_value("" if place == "send" else "stored")
        tab.page.reload()
        tab.settle()
        tab.go("/queues/drafts")  # Back of the next round leads here, where no Body is
        body.wait_for(state="detached")

    assert tab.faults == []


def test_a_new_message_in_the_place_of_a_former_one_is_shown_as_it_is(
    browser: Any, opened: NodeProcess
) -> None:
    """A queue that is made anew numbers its messages from 1 on again."""
    client = sqs(opened)
    body = None
    for stored in ("former", "new"):
        client.create_queue(QueueName="anew")
        client.send_message(QueueUrl="anew", MessageBody=stored)
        if body is None:
            tab = tab_of(browser, opened, "/queues/anew/messages/1/resend")
            body = tab.page.get_by_label("Body", exact=True)
        else:
            tab.go("/queues/anew/messages/1/resend")
        expect(body).to_have_value(stored)
        body.fill("typed")
        tab.go("/queues")
        body.wait_for(state="detached")
        client.delete_queue(QueueUrl="anew")

    assert tab.faults == []


def test_a_late_delete_leaves_the_screen_that_was_opened_since(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    for name in ("leaves", "stays"):
        client.create_queue(QueueName=name)
    tab = tab_of(browser, opened, "/queues/leaves")
    held = Held(tab, "**/queues/leaves/delete")
    tab.press("Delete queue")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("leaves")
    dialog.get_by_role("button", name="Delete queue").click()
    held.wait()
    tab.go("/queues/stays/send")
    tab.fill("Body", "typed meanwhile")
    held.end()
    tab.see("leaves is deleted.")

    expect(tab.page.get_by_label("Body", exact=True)).to_have_value("typed meanwhile")
    assert tab.faults == []


def test_back_and_reload_find_the_redrive_as_it_was_chosen(
    browser: Any, opened: NodeProcess
) -> None:
    make_dead_letters(sqs(opened), "chosen", *BODIES)
    tab = tab_of(browser, opened, "/queues/chosen-dead/redrive")
    tab.fill("Only messages that match", "kind = a")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_text("Edit the bodies that move").click()
    tab.fill("Field", "kind")
    tab.fill("New value", "c")
    tab.fill("To", "chosen")
    tab.fill("Reason", "ticket 4711")
    tab.page.get_by_label("Carefully").check()
    tab.page.get_by_text("Rate, canary and stop in numbers").click()
    tab.fill("Messages a second", "7")
    tab.press("Dry run")
    dry_run = tab.page.get_by_role("region", name="What would move")

    def is_as_chosen() -> None:
        expect(tab.page.get_by_role("button", name='Remove kind = "a"')).to_have_count(1)
        for label, value in (("Field", "kind"), ("New value", "c"), ("To", "chosen")):
            expect(tab.page.get_by_label(label, exact=True)).to_have_value(value)
        expect(tab.page.get_by_label("Reason", exact=True)).to_have_value("ticket 4711")
        expect(tab.page.get_by_label("Messages a second")).to_have_value("7")

    dry_run.get_by_role("link", name="chosen").click()
    tab.page.get_by_role("heading", level=1, name="chosen", exact=True).wait_for()
    tab.page.go_back()
    is_as_chosen()
    tab.page.reload()
    is_as_chosen()
    tab.press("Dry run")
    expect(dry_run.locator("tbody tr").first).to_contain_text("chosen3")
    assert tab.faults == []


def test_a_selection_is_said_and_changed_as_far_as_it_is_known(
    browser: Any, opened: NodeProcess
) -> None:
    """Of messages on another page a reloaded screen knows no state: it reads them again."""
    client = sqs(opened)
    client.create_queue(QueueName="pages")
    for first in range(0, 60, 10):
        entries = [{"Id": str(at), "MessageBody": f"body {first + at:02}"} for at in range(10)]
        client.send_message_batch(QueueUrl="pages", Entries=entries)
    tab = tab_of(browser, opened, "/queues/pages/messages")
    boxes = tab.page.locator("tbody input")
    boxes.nth(0).check()
    tab.press("Next page")
    tab.see("body 59")
    boxes.nth(0).check()
    tab.see("2 selected")
    tab.page.reload()
    tab.see("body 59")
    tab.press("Delete")

    expect(tab.page.get_by_role("dialog")).to_contain_text("2 messages of pages")
    assert tab.faults == []


# -- policies --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("typed")).start()
    yield node
    node.close()


def test_a_policy_that_is_being_written_stays_while_another_is_saved(
    browser: Any, people: NodeProcess
) -> None:
    done = run_command("users", "--data", str(people.data), "add", "ann")
    assert done.returncode == 0, done.stderr
    tab: Tab = signed_in(browser, people, "/users/000000000000/ann", people.exports())
    adding = tab.page.get_by_role("form", name="Add a policy")
    written = '{"Version": "2012-10-17", "Statement": []}'
    adding.get_by_label("Name of the policy").fill("mine")
    adding.get_by_label("Document").fill(written)
    tab.press("viewer")
    tab.see("ann is viewer.")
    tab.page.get_by_role("form", name="Policy viewer").wait_for()

    expect(adding.get_by_label("Document")).to_have_value(written)
    expect(adding.get_by_label("Name of the policy")).to_have_value("mine")
    adding.get_by_label("Document").fill(
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sqs:SendMessage",'
        ' "Resource": "*"}]}'
    )
    adding.get_by_role("button", name="Save policy").click()
    tab.see("Policy mine: saved.")
    tab.page.get_by_role("form", name="Policy mine").wait_for()
    expect(adding.get_by_label("Name of the policy")).to_have_value("")
    expect(adding.get_by_label("Document")).to_have_value(re.compile('"Sid": ""'))
    assert tab.faults == []


def test_a_secret_that_nobody_saw_is_told(browser: Any, people: NodeProcess) -> None:
    tab: Tab = signed_in(browser, people, "/users", people.exports())
    tab.press("New key of the account")
    held = Held(tab, "**/api/access-keys")
    tab.press("Make key")
    held.wait()
    tab.go("/queues")
    tab.page.get_by_role("heading", level=1, name="Queues").wait_for()
    held.end()
    tab.see(re.compile("AKIA[A-Z0-9]+ is made, and its secret was not seen"))
    assert tab.faults == []
