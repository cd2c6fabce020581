"""The console's screens of users, access keys and policies in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.clients.boto3_client import connect
from compat_tests.console_world import XSS, Held, sqs, tab_of
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_security import signed_in

pytestmark = pytest.mark.slow

ROOT = "/users/000000000000"
NASTY = "=,.@_+-"
"""All that a user's name may have beside letters and digits."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service that checks signatures."""
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    node = NodeProcess(tmp_path_factory.mktemp("people"), variables=variables).start()
    sqs(node).create_queue(QueueName="orders")
    yield node
    node.close()


def as_root(browser: Any, node: NodeProcess, place: str = "/users") -> Tab:
    tab = signed_in(browser, node, place, node.exports())
    tab.page.get_by_role("heading", level=1, name="User").wait_for()
    return tab


def add_user(tab: Tab, name: str) -> None:
    form = tab.page.get_by_role("form", name="Add a user")
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Add user").click()
    tab.page.get_by_role("heading", level=1, name=f"User {name}").wait_for()


def make_key(tab: Tab) -> Credentials:
    tab.press("New key")
    tab.press("Make key")
    return shown_key(tab)


def shown_key(tab: Tab) -> Credentials:
    """The new key, as the panel shows it once."""
    panel = tab.page.get_by_role("region", name="The new access key")
    lines = panel.locator("pre").inner_text().splitlines()
    key_id, secret = (line.partition("=")[2] for line in lines)
    panel.get_by_role("button", name="I have it").click()
    expect(tab.page.get_by_text(secret)).to_have_count(0)
    return Credentials(key_id, secret, "us-east-1")


def save_policy(tab: Tab, form: str, document: object) -> None:
    policy = tab.page.get_by_role("form", name=form, exact=True)
    policy.get_by_label("Document").fill(json.dumps(document))
    policy.get_by_role("button", name="Save policy").click()


def allow(action: str) -> dict[str, Any]:
    statement = {"Sid": "it", "Effect": "Allow", "Action": action, "Resource": "*"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def test_a_user_gets_a_key_and_a_policy_and_can_send(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "sender")
    key = make_key(tab)
    form = tab.page.get_by_role("form", name="Add a policy")
    form.get_by_label("Name of the policy").fill("send")
    save_policy(tab, "Add a policy", allow("sqs:Send*"))
    tab.page.get_by_role("form", name="Policy send").wait_for()
    client = connect(closed.url, key)
    client.send_message(QueueUrl="/000000000000/orders", MessageBody="x")
    # The notice of the first save may still be shown.
    with tab.page.expect_response(lambda answer: answer.request.method != "GET"):
        save_policy(tab, "Policy send", allow("sqs:Receive*"))

    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.send_message(QueueUrl="/000000000000/orders", MessageBody="x")
    assert tab.faults == []


def test_three_clicks_make_one_user_and_one_key(browser: Any, closed: NodeProcess) -> None:
    thrice = "button => { button.click(); button.click(); button.click(); }"
    tab = as_root(browser, closed)
    form = tab.page.get_by_role("form", name="Add a user")
    form.get_by_label("Name").fill("hasty")
    form.get_by_role("button", name="Add user").evaluate(thrice)
    tab.page.get_by_role("heading", level=1, name="User hasty").wait_for()
    tab.press("New key")
    held = Held(tab, "**/access-keys")
    tab.page.get_by_role("button", name="Make key").evaluate(thrice)
    tab.page.get_by_role("button", name="Making it …").wait_for()
    held.end()
    shown_key(tab)

    assert sum(each.url.endswith("/users") and each.method == "POST" for each in tab.requests) == 1
    keys = tab.page.get_by_role("region", name="Access keys")
    expect(keys.locator("tbody tr")).to_have_count(1)
    assert tab.faults == []


def test_a_refused_policy_stays_in_the_form_with_the_reason(
    browser: Any, closed: NodeProcess
) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "refused")
    form = tab.page.get_by_role("form", name="Add a policy")
    form.get_by_label("Name of the policy").fill("p")
    save_policy(tab, "Add a policy", {"Statement": [{"Effect": "Perhaps"}]})
    form.get_by_role("alert").get_by_text("Effect").wait_for()

    expect(form.get_by_label("Document")).to_have_value(re.compile("Perhaps"))
    expect(tab.page.get_by_role("form", name="Policy p", exact=True)).to_have_count(0)


def test_a_key_is_disabled_enabled_and_deleted(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "keyed")
    key = make_key(tab)
    tab.see("no use known")
    dialog = tab.page.get_by_role("dialog")
    tab.press(f"Disable {key.access_key_id}")
    dialog.get_by_role("button", name="Disable").click()
    enable = tab.page.get_by_role("button", name=f"Enable {key.access_key_id}")
    enable.wait_for()
    refused = tab_of(browser, closed)
    refused.sign_in(key.access_key_id, key.secret_access_key)
    refused.page.get_by_role("alert").wait_for()
    enable.click()
    tab.press(f"Disable {key.access_key_id}")
    dialog.get_by_role("button", name="Keep everything as it is").click()
    tab.press(f"Delete {key.access_key_id}")
    dialog.get_by_role("textbox").fill(key.access_key_id)
    dialog.get_by_role("button", name="Delete").click()
    tab.see("There are no keys.")

    assert tab.faults == []


def test_a_key_is_replaced_while_both_are_valid_and_then_deleted(
    browser: Any, closed: NodeProcess
) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "replaced")
    form = tab.page.get_by_role("form", name="Add a policy")
    form.get_by_label("Name of the policy").fill("send")
    save_policy(tab, "Add a policy", allow("sqs:*"))
    tab.page.get_by_role("form", name="Policy send").wait_for()
    old = make_key(tab)
    tab.press(f"Replace {old.access_key_id}")
    form = tab.page.get_by_role("form", name=f"Replace {old.access_key_id}")
    form.get_by_label("The old key stays valid for hours").fill("2")
    form.get_by_text("As a command").click()
    command = f"holdfast credentials rotate {old.access_key_id} --overlap 2h"
    expect(form.locator("pre")).to_have_text(command)
    form.get_by_role("button", name="Make successor").click()
    new = shown_key(tab)

    for key in (old, new):
        connect(closed.url, key).get_queue_url(QueueName="orders")
    states = tab.page.get_by_role("region", name="Access keys").get_by_role("row")
    states.filter(has_text=old.access_key_id).get_by_text("expires").wait_for()
    states.filter(has_text=new.access_key_id).get_by_text("enabled").wait_for()
    tab.press(f"Delete {old.access_key_id}")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(old.access_key_id)
    dialog.get_by_role("button", name="Delete").click()
    tab.see(f"{old.access_key_id} is deleted.")
    connect(closed.url, new).get_queue_url(QueueName="orders")
    client = connect(closed.url, old)
    with pytest.raises(client.exceptions.ClientError, match="InvalidClientTokenId"):
        client.get_queue_url(QueueName="orders")
    assert tab.faults == []


def test_a_key_that_may_have_leaked_is_replaced_at_once(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "leaked")
    old = make_key(tab)
    tab.press(f"Replace {old.access_key_id}")
    form = tab.page.get_by_role("form", name=f"Replace {old.access_key_id}")
    form.get_by_label("The old key stays valid for hours").fill("0")
    form.get_by_role("button", name="Make successor").click()
    new = shown_key(tab)

    tab.page.get_by_role("button", name=f"Enable {old.access_key_id}").wait_for()
    tab.page.get_by_role("button", name=f"Disable {new.access_key_id}").wait_for()
    assert tab.faults == []


def test_the_console_says_who_may_do_what_and_why(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "asked")
    tab.page.get_by_role("form", name="Add a policy").get_by_label("Name of the policy").fill("p")
    save_policy(tab, "Add a policy", allow("sqs:Send*"))
    tab.page.get_by_role("form", name="Policy p", exact=True).wait_for()
    form = tab.page.get_by_role("form", name="May this user do that?")
    form.get_by_label("Queue, by name or ARN").fill("orders")
    for action, answer, why in (
        ("SendMessage", "Yes", "p, it"),
        ("PurgeQueue", "No", "no identity-based policy allows"),
    ):
        form.get_by_label("Action").fill(action)
        form.get_by_role("button", name="Ask").click()
        form.get_by_text(answer, exact=True).wait_for()
        expect(form.get_by_role("status")).to_contain_text(why)
    form.get_by_text("As a command").click()

    command = "holdfast policy check --user asked --account 000000000000"
    expect(form.locator("pre")).to_contain_text(command)
    assert tab.faults == []


def test_a_user_is_deleted_by_its_name(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "gone")
    tab.press("Delete user")
    dialog = tab.page.get_by_role("dialog")
    yes = dialog.get_by_role("button", name="Delete user")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill("gone")
    yes.click()
    tab.page.get_by_role("heading", level=1, name="Users and keys").wait_for()

    tab.page.get_by_role("region", name="Access keys").wait_for()
    expect(tab.page.get_by_role("link", name="gone", exact=True)).to_have_count(0)


def test_names_and_policies_are_shown_as_text(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, NASTY)
    form = tab.page.get_by_role("form", name="Add a policy")
    form.get_by_label("Name of the policy").fill(XSS)
    save_policy(tab, "Add a policy", {**allow("sqs:*"), "Id": XSS})
    tab.see(f"Policy {XSS}: saved.")
    tab.page.get_by_role("heading", name=f"Policy {XSS}").wait_for()
    tab.go("/users")
    tab.see(XSS)
    tab.page.get_by_role("link", name=NASTY, exact=True).click()
    tab.page.get_by_role("heading", level=1, name=f"User {NASTY}").wait_for()

    tab.settle()
    expect(tab.page.locator("main img, main script")).to_have_count(0)
    assert tab.faults == []


def test_a_user_without_the_right_sees_no_one(browser: Any, closed: NodeProcess) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "viewer")
    key = make_key(tab)
    other = tab_of(browser, closed, "/users")
    other.sign_in(key.access_key_id, key.secret_access_key)
    other.see("This cannot be shown")

    expect(other.page.get_by_role("table")).to_have_count(0)
    other.see("This needs holdfast:ReadUsers: your policies do not allow it.")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_screens_have_no_findings(
    browser: Any, closed: NodeProcess, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    tab = Tab(browser, closed.url, color_scheme=scheme, viewport=size)
    tab.go("/users")
    exports = closed.exports()
    tab.sign_in(exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"])
    tab.page.get_by_role("heading", name="Users and keys").wait_for()
    add_user(tab, f"axe-{scheme}-{width}")
    tab.press("New key")
    tab.press("Make key")
    tab.page.get_by_role("region", name="The new access key").wait_for()
    found = []
    for place in (None, "/users"):
        if place is not None:
            tab.go(place)
            tab.page.get_by_role("heading", name="Users and keys").wait_for()
        tab.page.get_by_role("region", name="Access keys").wait_for()
        tab.settle()
        found += tab.findings()
        assert tab.fits(), place

    assert found == []


def test_a_role_is_given_on_one_click_and_navigation_follows_it(
    browser: Any, closed: NodeProcess
) -> None:
    tab = as_root(browser, closed)
    add_user(tab, "climber")
    key = make_key(tab)
    names = {"AWS_ACCESS_KEY_ID": key.access_key_id, "AWS_SECRET_ACCESS_KEY": key.secret_access_key}
    mine: Tab | None = None
    for role, links in (
        ("watcher", ["Queues", "Dead letters", "Redrives", "Hosts"]),
        ("operator", ["Queues", "Dead letters", "Redrives", "Audit", "Hosts"]),
    ):
        tab.press(role)
        tab.see(f"climber is {role}.")
        pressed = tab.page.get_by_role("group", name="Role").locator("[aria-pressed=true]")
        expect(pressed).to_have_text(re.compile(f"^{role}"))
        if mine is None:
            mine = signed_in(browser, closed, "/queues", names)
        else:  # the session of the watcher has ended
            mine.see("Your rights have changed")
            mine.press("Leave this screen")
            mine.sign_in(key.access_key_id, key.secret_access_key)
        mine.see("orders")
        expect(mine.page.locator("nav a:visible")).to_have_text(links)

    assert tab.faults == []
