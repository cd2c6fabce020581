"""Redrives in a real browser: filtered, cancelled midway, undone; a canary that stops itself."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import LASTING, XSS, count, make_dead_letters, sqs, tab_of
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow

BODIES = [json.dumps({"n": number, "kind": "ab"[number % 2]}) for number in range(6)]


def latest_of(tab: Tab, text: str) -> Any:
    """Wait until the latest redrive of the screen has this text; returns its line."""
    line = tab.page.get_by_role("region", name="Latest redrives").locator("tbody tr").first
    line.filter(has_text=text).wait_for()
    return line


def command_of(tab: Tab) -> str:
    """The first command that the screen shows."""
    tab.page.locator("details.command summary").first.click()
    return str(tab.page.locator("details.command pre").first.inner_text())


def in_numbers(tab: Tab, **numbers: str) -> None:
    """Choose the pace of a redrive in numbers."""
    tab.page.get_by_text("Rate, canary and stop in numbers").click()
    for name, number in numbers.items():
        tab.page.locator(f"input[name={name}]").fill(number)


def start(tab: Tab, whole: str) -> None:
    """Plan and start a redrive of a whole queue, whose name is typed."""
    tab.press("Dry run")
    tab.page.get_by_role("region", name="What would move").wait_for()
    tab.press("Start")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(whole)
    dialog.get_by_role("button", name="Redrive all").click()


def test_a_filtered_redrive_is_planned_run_and_finished(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "sorted", *BODIES)
    tab = tab_of(browser, opened, "/queues/sorted-dead/messages")
    tab.see("6 messages looked at")
    tab.fill("Filter", "kind=b")
    tab.press("Search")
    tab.press("Redrive all that match")
    tab.fill("Reason", "kind b works again")
    tab.press("Dry run")
    planned = tab.page.get_by_role("region", name="What would move").locator("tbody tr")
    expect(planned).to_have_count(2)

    moves, stays = planned.all_inner_texts()
    assert moves.split()[:2] == ["sorted", "3"]
    assert "back here after 1 failed receive" in moves
    assert stays.split() == ["they", "stay", "3", "do", "not", "match"]
    assert (count(client, "sorted-dead"), count(client, "sorted")) == (6, 0)
    shown = command_of(tab)
    assert "holdfast redrive plan sorted-dead" in shown
    assert "holdfast redrive start sorted-dead" in shown
    assert shown.count("--field kind=b") == 2
    assert "--reason 'kind b works again'" in shown

    tab.press("Start")
    ended = latest_of(tab, "completed")
    expect(ended).to_contain_text('kind = "b"; kind b works again')
    for at, text in ((2, "3 of 3"), (3, "3 of 6 looked at")):
        expect(ended.locator("td").nth(at)).to_have_text(text)
    received = client.receive_message(QueueUrl="sorted", MaxNumberOfMessages=10)["Messages"]
    assert sorted(message["Body"] for message in received) == BODIES[1::2]
    assert count(client, "sorted-dead") == 3
    assert tab.faults == []


def test_a_redrive_is_paused_and_cancelled_midway(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "half", *BODIES)
    tab = tab_of(browser, opened, "/queues/half-dead/redrive")
    in_numbers(tab, rate="1", ramp_s="86400")  # the second message is minutes away
    tab.fill("Reason", XSS)
    start(tab, "half-dead")
    live = tab.page.get_by_role("region", name="Running redrive")
    tab.press("Pause")
    live.get_by_role("heading", name="paused").wait_for()
    tab.press("Cancel")
    line = latest_of(tab, "cancelled")

    expect(line).to_contain_text(XSS)
    moved = int(line.locator("td").nth(2).inner_text().split()[0])
    assert (moved, count(client, "half"), count(client, "half-dead")) == (1, 1, 5)
    expect(line.locator("td").nth(3)).to_have_text("0 of 1 looked at")
    assert tab.faults == []


def test_a_redrive_is_undone(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "undone", *BODIES)
    client.create_queue(QueueName="undone-elsewhere")
    tab = tab_of(browser, opened, "/queues/undone-dead/redrive")
    tab.fill("To", "undone-elsewhere")
    start(tab, "undone-dead")
    latest_of(tab, "completed")
    (taken,) = client.receive_message(QueueUrl="undone-elsewhere")["Messages"]
    tab.press("Undo")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Return them").click()
    line = latest_of(tab, "undone: 5 returned")
    undo = line.get_by_role("button", name="Undo")
    expect(undo).to_have_count(1)  # one did not return

    assert (count(client, "undone-elsewhere"), count(client, "undone-dead")) == (1, 5)
    tab.fill("To", "")
    start(tab, "undone-dead")
    latest_of(tab, "5 of 5")
    received = client.receive_message(QueueUrl="undone", MaxNumberOfMessages=10)["Messages"]
    bodies = sorted([taken["Body"], *(message["Body"] for message in received)])
    assert bodies == BODIES
    assert tab.faults == []


def test_a_start_that_was_not_answered_is_pressed_again(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "unanswered", *BODIES)
    tab = tab_of(browser, opened, "/queues/unanswered-dead/redrive?text=a")
    begin = tab.page.get_by_role("button", name="Start", exact=True)
    expect(begin).to_be_enabled()

    def lose(route: Any) -> None:
        if route.request.method == "POST":
            route.fetch()  # it is done
            route.abort()
        else:
            route.continue_()

    tab.page.route("**/redrives", lose)
    begin.click()
    tab.see("Press again once it does: even if it was done, it is done once.")
    tab.page.unroute("**/redrives", lose)
    begin.click()
    tab.see("The redrive has begun.")
    latest_of(tab, "completed")

    expect(
        tab.page.get_by_role("region", name="Latest redrives").locator("tbody tr")
    ).to_have_count(1)
    assert count(client, "unanswered") == 3


def test_what_is_undone_whole_is_not_offered_to_be_undone(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "returned", "a")
    client.create_queue(QueueName="returned-elsewhere")
    tab = tab_of(browser, opened, "/queues/returned-dead/redrive")
    tab.fill("To", "returned-elsewhere")
    start(tab, "returned-dead")
    latest_of(tab, "completed")
    tab.press("Undo")
    tab.page.get_by_role("dialog").get_by_role("button", name="Return them").click()
    line = latest_of(tab, "undone: 1 returned")

    expect(line.get_by_role("button", name="Undo")).to_have_count(0)
    assert tab.faults == []


def test_nothing_starts_with_a_stop_that_is_no_number_or_share(
    browser: Any, opened: NodeProcess
) -> None:
    make_dead_letters(sqs(opened), "unlimited", *BODIES)
    tab = tab_of(browser, opened, "/queues/unlimited-dead/redrive")
    tab.press("Dry run")
    begin = tab.page.get_by_role("button", name="Start", exact=True)
    expect(begin).to_be_enabled()
    in_numbers(tab, stop_after="a few")

    expect(begin).to_be_disabled()
    assert tab.faults == []


def test_a_canary_stops_itself_when_its_messages_come_back(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "canary", *BODIES)
    tab = tab_of(browser, opened, "/queues/canary-dead/redrive")
    in_numbers(tab, canary="2", stop_after="1%")
    start(tab, "canary-dead")
    live = tab.page.get_by_role("region", name="Running redrive")
    live.get_by_role("heading", name="waits for you after its canary").wait_for()
    for _ in range(2):  # a consumer that still fails
        client.receive_message(QueueUrl="canary", MaxNumberOfMessages=10)
    live.get_by_role("heading", name="stopped: messages came back").wait_for()

    assert (count(client, "canary"), count(client, "canary-dead")) == (0, 6)
    (task,) = client.list_message_move_tasks(
        SourceArn="arn:aws:sqs:us-east-1:000000000000:canary-dead"
    )["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("RUNNING", 2)
    tab.press("Those that came back")
    tab.see("6 messages looked at")
    expect(tab.page.locator("tbody tr")).to_have_count(2)
    tab.page.go_back()
    tab.press("Go on")
    latest_of(tab, "completed")
    assert (count(client, "canary"), count(client, "canary-dead")) == (4, 2)
    assert tab.faults == []


def test_a_redrive_that_waits_is_seen_first_and_a_mark_once(
    browser: Any, opened: NodeProcess
) -> None:
    run_command("mark", "deploy 4712", "--url", opened.url)
    make_dead_letters(sqs(opened), "waits-first", *BODIES)
    tab = tab_of(browser, opened, "/queues/waits-first-dead/redrive")
    in_numbers(tab, canary="1")
    start(tab, "waits-first-dead")
    tab.see("waits for you after its canary")

    tab.go("/queues/waits-first-dead")
    first = tab.page.locator("#view .content").first.locator("> *").first
    expect(first).to_contain_text("The redrive waits for you after its canary. 1 of 6 moved.")
    marks = tab.page.locator(".marks li").filter(has_text="deploy 4712")
    expect(tab.page.get_by_role("figure").filter(has_text="Depth")).to_be_visible()
    tab.settle()
    expect(marks).to_have_count(1)
    assert tab.findings() == []
    tab.press("Look and decide")
    panel = tab.page.locator("#view h1 + div").get_by_role("region", name="Running redrive")
    panel.get_by_role("button", name="Go on").click()
    expect(tab.page.locator("#view h1 + div")).to_contain_text("Completed: 6 of 6 moved")
    latest_of(tab, "completed")

    tab.go("/queues/waits-first-dead")
    tab.see("There are no messages.")
    expect(tab.page.locator("#view").get_by_text("waits for you")).to_have_count(0)
    assert tab.faults == []


def test_a_redrive_whose_target_is_deleted_says_why_it_failed(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "astray", *BODIES)
    client.create_queue(QueueName="astray-target")
    arn = "arn:aws:sqs:us-east-1:000000000000:astray-"
    client.start_message_move_task(
        SourceArn=f"{arn}dead", DestinationArn=f"{arn}target", MaxNumberOfMessagesPerSecond=1
    )
    client.delete_queue(QueueUrl="astray-target")
    tab = tab_of(browser, opened, "/queues/astray-dead/redrive")
    tab.see(re.compile("Failed.*: the queue they go to is gone or of another type"))
    tab.go("/redrives")
    line = tab.page.locator("tbody tr").filter(has_text="astray-dead")
    line.get_by_text("the queue they go to is gone").wait_for()

    assert tab.faults == []


def test_of_two_operators_the_slower_one_sees_the_redrive_of_the_other(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    make_dead_letters(client, "raced", *LASTING)
    tabs = [tab_of(browser, opened, "/queues/raced-dead/redrive") for _ in range(2)]
    for tab in tabs:
        tab.press("Dry run")
        tab.see("What would move")
        tab.page.get_by_label("Carefully").check()
        tab.press("Start")
        tab.page.get_by_label("Type raced-dead").fill("raced-dead")
    tabs[0].press("Redrive all")
    tabs[0].page.get_by_role("region", name="Running redrive").wait_for()
    tabs[1].press("Redrive all")
    tabs[1].see("Not started: another redrive of this queue is")
    tabs[1].page.get_by_role("region", name="Running redrive").wait_for()

    expect(tabs[1].page.locator("#notices")).to_contain_text("begun by root")
    assert count(client, "raced") + count(client, "raced-dead") == len(LASTING)
    assert [tab.faults for tab in tabs] == [[], []]


def test_what_one_does_not_see_in_a_reason_is_named(browser: Any, opened: NodeProcess) -> None:
    """A character that turns the direction of writing would show another reason."""
    client = sqs(opened)
    make_dead_letters(client, "turned", "a")
    tab = tab_of(browser, opened, "/queues/turned-dead/redrive")
    tab.fill("Reason", "not \u202edevorppa")
    tab.press("Dry run")
    tab.press("Start")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("turned-dead")
    dialog.get_by_role("button", name="Redrive all").click()
    for place, region in (
        ("/queues/turned-dead/redrive", "Latest redrives"),
        ("/redrives", "History"),
        ("/audit?queue=turned-dead&action=StartRedrive", "Audit log"),
    ):
        tab.go(place)
        row = tab.page.get_by_role("region", name=region, exact=True).locator("tbody tr")
        shown = row.filter(has_text="devorppa").locator(".unseen-character")
        expect(shown.first).to_have_text("U+202E")
    assert tab.faults == []
