"""The console in a real browser: editing a queue, charts of its past, failures, hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import make_dead_letters, slow_down, sqs, tab_of
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow


def attributes(client: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = client.get_queue_attributes(QueueUrl=name, AttributeNames=["All"])[
        "Attributes"
    ]
    return found


def test_attributes_are_edited_and_a_refusal_stands_beside_them(
    browser: Any, opened: NodeProcess
) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="edited")
    tab = tab_of(browser, opened, "/queues/edited")
    tab.press("Edit")
    form = tab.page.get_by_role("form", name="Attributes")
    timeout = form.get_by_label("VisibilityTimeout")
    timeout.fill("43201")
    form.get_by_role("button", name="Save").click()
    refusal = form.get_by_role("alert")
    refusal.get_by_text("Invalid value for the parameter VisibilityTimeout").wait_for()
    timeout.fill("77")
    form.get_by_text("As a command").click()
    shown = form.locator("pre")
    expect(shown).to_contain_text("set-queue-attributes")
    expect(shown).to_contain_text("""--attributes '{"VisibilityTimeout":"77"}'""")
    form.get_by_role("button", name="Save").click()
    refusal.wait_for(state="hidden")

    assert attributes(client, "edited")["VisibilityTimeout"] == "77"
    assert tab.faults == []


def test_times_are_written_with_units(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="timed")
    tab = tab_of(browser, opened, "/queues/timed/edit")
    form = tab.page.get_by_role("form", name="Attributes")
    timeout = form.get_by_label("VisibilityTimeout")
    timeout.fill("13h")
    form.get_by_text("must be 0s to 12h").wait_for()
    timeout.fill("2h 5m")
    form.get_by_text("2h 5m; 0s to 12h").wait_for()
    form.get_by_role("button", name="Save").click()
    tab.see("Attributes: saved.")
    found = attributes(client, "timed")

    assert found["VisibilityTimeout"] == "7500"
    assert tab.findings() == []
    assert tab.faults == []


def test_a_policy_is_set_refused_and_removed(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="policed")
    everyone = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [everyone]}
    tab = tab_of(browser, opened, "/queues/policed/edit")
    form = tab.page.get_by_role("form", name="Policy", exact=True)
    save, text = form.get_by_role("button", name="Save"), form.get_by_role("textbox")
    text.fill("{")
    save.click()
    form.get_by_text("Invalid value for the parameter Policy.").wait_for()
    text.fill(json.dumps(policy, indent=2))
    save.click()
    form.get_by_role("alert").wait_for(state="hidden")
    stored = json.loads(attributes(client, "policed")["Policy"])
    text.fill("")
    save.click()
    form.locator("details").wait_for(state="detached")

    assert stored == policy
    assert "Policy" not in attributes(client, "policed")


def test_a_policy_about_another_queue_is_warned_of(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    url = client.create_queue(QueueName="warned")["QueueUrl"]
    grant = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    elsewhere = {**grant, "Sid": "typo", "Resource": "arn:aws:sqs:us-east-1:000000000000:other"}
    policy = json.dumps({"Statement": [elsewhere, {**grant, "Resource": "*"}]})
    client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    tab = tab_of(browser, opened, "/queues/warned")

    tab.see("have no effect, since their Resource is not this queue: typo")
    assert tab.faults == []


def test_tags_are_added_changed_and_removed(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="tagged", tags={"team": "a", "cost": "1"})
    tab = tab_of(browser, opened, "/queues/tagged/edit")
    form = tab.page.get_by_role("form", name="Tags")
    form.get_by_label("Value").nth(0).fill("b")
    form.get_by_role("button", name="Remove tag cost").click()
    form.get_by_text("Tags that change how the queue works").click()
    form.get_by_role("button", name="Add tag holdfast:ttl").click()
    tab.page.keyboard.type("600")
    form.get_by_role("button", name="Add a tag").click()
    form.get_by_label("Key").last.fill("stage")
    form.get_by_label("Value").last.fill("it's live")
    form.get_by_text("As a command").click()
    shown = form.locator("pre")
    expect(shown).to_contain_text("tag-queue")
    expect(shown).to_contain_text("--tag-keys cost")
    form.get_by_role("button", name="Save").click()
    tab.see("Tags: saved.")

    assert client.list_queue_tags(QueueUrl="tagged")["Tags"] == {
        "team": "b",
        "stage": "it's live",
        "holdfast:ttl": "600",
    }


def test_charts_have_a_text_and_a_table_of_their_numbers(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="charted")
    for _ in range(3):
        client.send_message(QueueUrl="charted", MessageBody="x")
    tab = tab_of(browser, opened, "/queues/charted")
    tab.page.get_by_role("img", name="Depth: visible 3, in flight 0, delayed 0").wait_for()
    tab.page.get_by_text("The numbers").click()
    newest = tab.page.get_by_role("region", name="Numbers of the charts").locator("tbody tr").first

    expect(newest.locator("td").nth(1)).to_have_text("3")
    with tab.page.expect_response(lambda each: "hours=168&period_s=1800" in each.url):
        tab.press("1 week")
    expect(tab.page.locator("svg.plot path")).to_have_count(8)
    expect(tab.page).to_have_url(re.compile("range=1w"))
    assert tab.faults == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service with two weeks of history of the queue `busy`, which is older than its folder."""
    folder = tmp_path_factory.mktemp("measured")
    options = ("--auth", "open")
    node = NodeProcess(folder, *options, variables={"HOLDFAST_AWS_WAITS": "off"}).start()
    sqs(node).create_queue(QueueName="busy")
    node.stop()
    filler = [sys.executable, "-m", "sqs_api.tests.filled_history", str(node.data), "busy"]
    subprocess.run(filler, check=True, timeout=120)
    yield node.start()
    node.close()


@pytest.mark.parametrize("width", [1440, 900, 390])
def test_a_chart_shows_two_weeks_with_axes_and_the_values_below_the_pointer(
    browser: Any, measured: NodeProcess, width: int
) -> None:
    tab = tab_of(
        browser, measured, "/queues/busy?range=2w", viewport={"width": width, "height": 900}
    )
    depth = tab.page.get_by_role("figure").filter(has_text="Depth")
    depth.get_by_role("img", name="at most 113 in this range").wait_for()
    canvas = depth.get_by_role("group")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.page.mouse.move(box["x"] + 2, box["y"] + 40)
    legend = depth.locator(".legend")
    legend.get_by_text("visible 113").wait_for()
    rates = tab.page.get_by_role("figure").filter(has_text="Messages a second").locator(".legend")
    scale = depth.locator(".scale text").all_text_contents()

    expect(rates).to_contain_text("sent 2.0")  # all charts show the same time
    expect(legend).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:00"))
    assert scale == ["150", "75", "0"]
    times = depth.locator(".times text").count()
    assert 6 <= times <= 8
    assert tab.fits()
    assert tab.faults == []


def test_a_chart_beside_that_of_the_week_before(browser: Any, measured: NodeProcess) -> None:
    tab = tab_of(browser, measured, "/queues/busy?range=6h")
    tab.page.get_by_label("Compare with the week before").check()
    depth = tab.page.get_by_role("figure").filter(has_text="Depth")
    depth.locator("path.before").first.wait_for(state="attached")  # a flat line has no height
    depth.get_by_role("group").focus()
    for _ in range(60):  # before the start of the service, an hour or less ago
        tab.page.keyboard.press("ArrowLeft")
    depth.get_by_text("visible 100 (107 a week before)").wait_for()
    tab.page.reload()
    depth.locator("path.before").first.wait_for(state="attached")  # a flat line has no height

    expect(tab.page).to_have_url(re.compile("week=1"))
    assert tab.faults == []


def test_marks_and_redrives_are_lines_in_the_charts(browser: Any, measured: NodeProcess) -> None:
    run_command("mark", "deploy 4711", "--url", measured.url)
    tab = tab_of(browser, measured, "/queues/busy")
    depth = tab.page.get_by_role("figure").filter(has_text="Depth")
    depth.locator("line.mark").wait_for(state="attached")
    depth.get_by_role("group").focus()
    tab.page.keyboard.press("ArrowLeft")
    said = depth.locator(".legend em")
    for _ in range(3):  # it may be a minute ago by now
        if said.count():
            break
        tab.page.keyboard.press("ArrowLeft")

    expect(said).to_have_text("Mark deploy 4711, by root")
    expect(tab.page.locator(".marks")).to_have_text(re.compile("^Mark deploy 4711, by root"))


def test_a_range_that_is_pressed_again_and_again_over_a_slow_line_is_shown_once(
    browser: Any, measured: NodeProcess
) -> None:
    tab = tab_of(browser, measured, "/queues/busy")
    depth = tab.page.get_by_role("figure").filter(has_text="Depth")
    times = depth.locator(".times text")
    expect(times).to_have_count(4)  # one each 15 minutes
    slow_down(tab)
    for name in ("1 week", "2 weeks", "1 day"):
        tab.page.get_by_role("button", name=name, exact=True).dblclick()
    tab.settle()

    expect(times).to_have_count(6)  # one each four hours
    expect(depth.get_by_role("img")).to_have_accessible_name(re.compile("at most 100 in"))
    expect(tab.page).to_have_url(re.compile("range=1d"))
    expect(tab.page.get_by_role("button", name="1 day")).to_have_attribute("aria-pressed", "true")
    assert tab.faults == []


def test_the_time_from_send_to_receive_is_charted(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    client.create_queue(QueueName="waited")
    client.send_message(QueueUrl="waited", MessageBody="x")
    tab = tab_of(browser, opened, "/queues/waited")
    chart = "Send to first receive, on average: to first receive"
    tab.page.get_by_role("img", name=f"{chart} unknown").wait_for()
    client.receive_message(QueueUrl="waited")
    tab.page.reload()
    tab.page.get_by_role("img", name=re.compile(rf"{chart} [0-9.]+ ?m?s")).wait_for()

    assert tab.faults == []


def test_a_single_host_says_that_it_is_one(browser: Any, opened: NodeProcess) -> None:
    tab = tab_of(browser, opened, "/hosts")
    tab.see("This is a single host")

    expect(tab.page.get_by_role("button", name="Drain")).to_have_count(0)
    assert tab.faults == []


def test_a_failure_opens_the_browser_with_its_filter(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    bodies = [json.dumps({"error": {"code": "card" if n % 3 else "time=out"}}) for n in range(5)]
    make_dead_letters(client, "grouped", *bodies, "no json")
    tab = tab_of(browser, opened, "/queues/grouped-dead")
    tab.see("All 6 messages, 3 failures.")
    shown = [each.inner_text().split()[:3] for each in tab.page.get_by_role("article").all()]
    tab.page.get_by_role("link", name="Messages of time=out", exact=True).click()
    rows = tab.page.get_by_role("region", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(2)
    client.send_message(QueueUrl="grouped-dead", MessageBody=bodies[1])
    tab.go("/queues/grouped-dead")
    tab.see("All 7 messages, 3 failures.")
    client.send_message(QueueUrl="grouped-dead", MessageBody=bodies[1])
    tab.see("All 8 messages, 3 failures.")

    assert shown == [
        ["card", "error.code", "3"],
        ["time=out", "error.code", "2"],
        ["no", "json", "text"],
    ]
    assert tab.faults == []
