"""The console in a real browser: holds with owner and reference, deletes that are undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import XSS, make_dead_letters, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service of its own, since a test restarts it."""
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    folder = tmp_path_factory.mktemp("holds")
    service = NodeProcess(folder, "--auth", "open", variables=variables).start()
    yield service
    service.close()


def dead_letters(browser: Any, node: NodeProcess, name: str, *bodies: str) -> Tab:
    """The messages of a dead-letter queue with these."""
    make_dead_letters(sqs(node), name, *bodies)
    tab = tab_of(browser, node, f"/queues/{name}-dead/messages")
    rows(tab).first.wait_for()
    return tab


def rows(tab: Tab) -> Any:
    return tab.page.get_by_role("region", name="Messages").locator("tbody tr")


def pick(tab: Tab, *sequences: int) -> None:
    for sequence in sequences:
        tab.page.get_by_label(f"Select message {sequence}", exact=True).check()


def hold(tab: Tab, owner: str, reference: str) -> str:
    """Hold the selected messages; returns the command that the dialog shows."""
    tab.press("Hold")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Owner").fill(owner)
    dialog.get_by_label("Reference").fill(reference)
    dialog.get_by_text("As a command").click()
    command: str = dialog.locator("pre").inner_text()
    dialog.get_by_role("button", name="Hold").click()
    dialog.wait_for(state="detached")
    return command


def delete(tab: Tab) -> None:
    tab.press("Delete")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    tab.see("deleted.")


def see_states(tab: Tab, *expected: str) -> None:
    expect(tab.page.locator("td .state")).to_have_text(expected)


def received(client: Any, queue: str) -> list[str]:
    """Bodies of the messages that a consumer gets."""
    found = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=0)
    return sorted(message["Body"] for message in found.get("Messages", []))


def test_a_held_message_is_passed_by_until_it_is_released(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "parked", "a", "b", "c")
    pick(tab, 2)
    command = hold(tab, "ann", "TICKET-1")
    see_states(tab, "visible", "held", "visible")
    tab.see("ann: TICKET-1")
    others = received(sqs(node), "parked-dead")
    tab.go("/queues/parked-dead/redrive")
    tab.press("Dry run")
    tab.see("held, or about to be deleted")
    tab.go("/queues/parked-dead/messages?state=held")
    see_states(tab, "held")
    pick(tab, 2)
    expect(tab.page.get_by_role("button", name="Release", exact=True)).to_be_visible()
    expect(tab.page.get_by_role("button", name="Delete")).to_have_count(0)
    tab.press("Release")
    tab.see("No message matches.")

    assert others == ["a", "c"]
    assert "messages hold parked-dead 2" in command
    assert command.endswith("--owner ann --reference TICKET-1")
    eventually(lambda: received(sqs(node), "parked-dead") == ["a", "b", "c"])
    assert tab.faults == []


def test_a_hold_that_is_not_made_gives_the_focus_back(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "focused", "a")
    pick(tab, 1)
    opener = tab.page.locator("main").get_by_role("button", name="Hold", exact=True)
    opener.focus()
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("dialog").wait_for()
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("dialog").wait_for(state="detached")

    expect(opener).to_be_focused()
    assert tab.faults == []


def test_what_was_typed_for_a_hold_that_failed_is_kept(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "failing", "a", "b")

    def away(route: Any) -> None:
        route.abort()

    tab.page.route("**/hold", away)
    pick(tab, 1)
    tab.page.locator("main").get_by_role("button", name="Hold", exact=True).click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Owner, empty: you").fill("ann")
    dialog.get_by_role("button", name="Hold", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("The service does not answer.")
    tab.page.unroute("**/hold", away)
    dialog.get_by_role("button", name="Hold", exact=True).click()
    tab.see("1 held.")

    tab.go("/queues/failing-dead/messages?text=b")
    tab.page.route("**/hold", away)
    tab.press("Hold all that match")
    tab.fill("Owner, empty: you", "ben")
    tab.press("Hold 1")
    tab.see("The service does not answer.")
    tab.page.unroute("**/hold", away)
    tab.press("Hold 1")
    see_states(tab, "held")
    owner = tab.page.get_by_role("region", name="Messages").locator("tbody .hint")
    expect(owner.first).to_have_text("ben")


def test_a_delete_is_undone_by_its_notice(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "undone", "a", "b")
    pick(tab, 1, 2)
    delete(tab)
    see_states(tab, "deleting", "deleting")
    nothing = received(sqs(node), "undone-dead")
    tab.press("Undo")
    see_states(tab, "visible", "visible")

    assert nothing == []
    eventually(lambda: received(sqs(node), "undone-dead") == ["a", "b"])
    assert tab.faults == []


def test_both_survive_a_restart_and_are_ended_after_it(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "restarted", "a", "b", "c")
    pick(tab, 1)
    hold(tab, "ann", "TICKET-2")
    see_states(tab, "held", "visible", "visible")
    said = run_command(
        *("messages", "delete", "restarted-dead", "2", "--undo", "1h"),
        *("--data", str(node.data), "--region", "us-east-1"),
    )
    node.kill()
    node.start()
    tab = tab_of(browser, node, "/queues/restarted-dead/messages")
    see_states(tab, "held", "deleting", "visible")
    tab.see("ann: TICKET-2")
    pick(tab, 1, 2)
    tab.press("Undo delete")
    see_states(tab, "held", "visible", "visible")
    pick(tab, 1)
    tab.press("Release")
    see_states(tab, "visible", "visible", "visible")

    assert said.stdout == "deleted 1\n"
    assert received(sqs(node), "restarted-dead") == ["a", "b", "c"]
    assert tab.faults == []


def test_one_message_is_held_on_its_own_page(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "single", "a")
    tab.go("/queues/single-dead/messages/1")
    hold(tab, "", "TICKET-3")
    facts = tab.page.locator("main dl").first
    for text in ("TICKET-3", "held", "root"):
        expect(facts).to_contain_text(text)
    expect(tab.page.locator("main").get_by_role("link", name="Redrive")).to_have_count(0)
    tab.press("Release")
    tab.page.get_by_role("button", name="Hold").wait_for()

    assert tab.faults == []


def test_owners_and_references_are_shown_as_text(browser: Any, node: NodeProcess) -> None:
    tab = dead_letters(browser, node, "nasty", "a")
    pick(tab, 1)
    hold(tab, XSS, XSS)
    tab.see(f"{XSS}: {XSS}")
    tab.go("/queues/nasty-dead/messages/1")
    tab.page.get_by_text(XSS).first.wait_for()

    tab.settle()
    expect(tab.page.locator("main img, main script")).to_have_count(0)
    assert tab.faults == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_dialog_and_the_notice_have_no_findings(
    browser: Any, node: NodeProcess, scheme: str, width: int
) -> None:
    name = f"axe-{scheme}-{width}"
    make_dead_letters(sqs(node), name, "a", "b", "c")
    size = {"width": width, "height": 900}
    tab = Tab(browser, node.url, color_scheme=scheme, viewport=size)
    tab.go(f"/queues/{name}-dead/messages")
    rows(tab).first.wait_for()
    pick(tab, 1)
    delete(tab)
    rows(tab).nth(2).wait_for()
    pick(tab, 2)
    hold(tab, "ann", "TICKET-4")
    rows(tab).nth(2).wait_for()
    pick(tab, 3)
    found = tab.findings()
    tab.press("Hold")
    tab.page.get_by_role("dialog").wait_for()
    found += tab.findings()

    assert found == []
    assert tab.fits()
