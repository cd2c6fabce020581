"""An operator's jobs in a real browser: how many clicks and fields each takes, and that a click
made three times over a slow connection does everything once."""

from __future__ import annotations

import json
import re
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from compat_tests.chromium import Tab, expect
from compat_tests.console_world import (
    LASTING,
    SENT,
    count,
    make_dead_letters,
    slow_down,
    sqs,
    start_slowly,
    tab_of,
)
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_security import signed_in

pytestmark = pytest.mark.slow

CLICK_THRICE = "element => { element.click(); element.click(); element.click(); }"


class Operator:
    """Someone in a hurry: counts what is done, and clicks three times where the line is slow."""

    def __init__(self, tab: Tab, *, slow: bool) -> None:
        self.tab = tab
        self.done = 0
        self._slow = slow
        if slow:
            slow_down(tab)

    def click(self, name: str, within: Any = None) -> None:
        """Press a button, follow a link, or choose a radio button."""
        place = self.tab.page if within is None else within
        found = [
            place.get_by_role(role, name=name, exact=True) for role in ("link", "button", "radio")
        ]
        target = found[0].or_(found[1]).or_(found[2]).first
        if self._slow:
            target.click(trial=True)  # it is enabled then
            target.evaluate(CLICK_THRICE)
        else:
            target.click()
        self.done += 1

    def fill(self, label: str, text: str) -> None:
        """Fill in a field."""
        self.tab.fill(label, text)
        self.done += 1

    def select(self, label: str, option: str) -> None:
        """Choose from a list."""
        self.tab.page.get_by_role("combobox", name=label).select_option(option)
        self.done += 1

    def posted(self) -> list[str]:
        """The paths of the changes that were asked for; plans and counts change
        nothing."""
        sent = [each for each in self.tab.requests if each.method == "POST"]
        paths = [each.url.partition("/_holdfast/api/")[2] for each in sent]
        return [path for path in paths if not path.endswith(("/plan", "/count", "/export"))]


@pytest.fixture(params=[False, True], ids=["quick", "slow"])
def slow(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def name_for(job: str, slow: bool) -> str:
    return f"{job}-slow" if slow else job


def test_most_failures_of_a_kind_are_redriven_carefully(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("taxes", slow)
    kinds = ["TaxLookup"] * 42 + ["CardDeclined"] * 8
    bodies = [json.dumps({"id": at, "error": {"type": kind}}) for at, kind in enumerate(kinds)]
    make_dead_letters(client, name, *bodies)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead"), slow=slow)
    operator.click("Redrive TaxLookup")
    operator.tab.see("What would move")
    operator.tab.see("The failure TaxLookup.")
    operator.click("Carefully: a few first, and wait for me")
    operator.click("Start")
    live = operator.tab.page.get_by_role("region", name="Running redrive")
    live.get_by_role("heading", name="waits for you after its canary").wait_for()
    after_canary = count(client, name)
    operator.click("Go on")
    operator.tab.see("42 of 42 moved.")

    assert operator.done <= 8, "16 before"
    assert operator.done == 4
    assert after_canary == 10
    assert (count(client, name), count(client, f"{name}-dead")) == (42, 8)
    of = f"queues/{name}-dead/redrives"
    assert operator.posted() == [of, f"{of}/resume"]
    assert operator.tab.faults == []


def test_all_messages_of_a_failure_are_deleted_and_the_delete_is_undone(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("doomed", slow)
    kinds = ["NoSuchUser"] * 12 + ["CardDeclined"] * 8
    bodies = [json.dumps({"id": at, "error": {"type": kind}}) for at, kind in enumerate(kinds)]
    make_dead_letters(client, name, *bodies)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead"), slow=slow)
    operator.click("Delete NoSuchUser")
    operator.tab.see("12 match. 12 would be deleted. It can be undone for 60 seconds.")
    operator.click("Delete 12")
    operator.tab.see("12 deleted.")
    deleted = count(client, f"{name}-dead")
    operator.click("Undo")
    operator.tab.see("12 are back.")

    assert operator.done == 3
    assert deleted == 20, "held until it cannot be undone any more"
    assert operator.posted() == [
        f"queues/{name}-dead/messages/{what}" for what in ("matching/delete", "undelete")
    ]
    assert operator.tab.faults == []


def test_all_messages_of_a_failure_are_exported_and_held(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("kept", slow)
    kinds = ["NoSuchUser"] * 12 + ["CardDeclined"] * 8
    bodies = [json.dumps({"id": at, "error": {"type": kind}}) for at, kind in enumerate(kinds)]
    make_dead_letters(client, name, *bodies)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead"), slow=slow)
    operator.click("Export NoSuchUser")
    with operator.tab.page.expect_download() as download:
        operator.click("Export 12")
    lines = Path(download.value.path()).read_text().splitlines()
    operator.click("Hold NoSuchUser")
    operator.fill("Reference, such as a ticket", "T-4711")
    operator.click("Hold 12")
    operator.tab.see("12 held.")
    operator.tab.go(f"/queues/{name}-dead/messages?state=held")
    operator.tab.see("T-4711")

    assert operator.done == 5
    assert download.value.suggested_filename == f"{name}-dead.ndjson"
    assert {json.loads(json.loads(line)["body"])["error"]["type"] for line in lines} == {
        "NoSuchUser"
    }
    assert len(lines) == 12
    assert operator.posted() == [f"queues/{name}-dead/messages/matching/hold"]
    assert operator.tab.faults == []


def test_a_field_of_a_whole_group_is_changed(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("edited", slow)
    kinds = ["NoCountry"] * 430 + ["CardDeclined"] * 8
    bodies = [
        f'{{"id": {at}, "sum": 1.10, "error": {{"type": "{kind}"}}}}'
        for at, kind in enumerate(kinds)
    ]
    make_dead_letters(client, name, *bodies)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead"), slow=slow)
    operator.click("Edit NoCountry")
    operator.fill("Field", "address.country")
    operator.fill("New value", "SE")
    operator.click("Dry run")
    operator.tab.see("The first 10 messages, before and after")
    diffs = operator.tab.page.locator("pre.diff")
    expect(diffs).to_have_count(10)
    shown = diffs.first.inner_text()
    operator.click("Start")
    operator.tab.see("430 of 430 moved.")

    assert operator.done <= 8
    assert operator.done == 5
    assert '+     "country": "SE"' in shown
    assert "1.10" in shown
    assert (count(client, name), count(client, f"{name}-dead")) == (430, 8)
    assert operator.posted() == [f"queues/{name}-dead/redrives"]
    (message,) = client.receive_message(QueueUrl=name, MaxNumberOfMessages=1)["Messages"]
    assert message["Body"].endswith(
        '"sum":1.10,"error":{"type": "NoCountry"},"address":{"country":"SE"}}'
    )
    assert operator.tab.faults == []


def test_the_rate_of_a_running_redrive_is_changed(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("hurried", slow)
    make_dead_letters(client, name, *LASTING)
    start_slowly(client, name)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead/redrive"), slow=slow)
    operator.tab.page.get_by_text("Change the rate or the stop").click()
    operator.done += 1
    operator.fill("New rate, messages a second", "500")
    operator.fill("New stop, when … came back", "50%")
    operator.tab.page.wait_for_timeout(1_500)  # the panel is read again meanwhile
    operator.click("Change")
    operator.tab.see("90 of 90 moved")

    assert operator.done == 4
    assert operator.posted() == [f"queues/{name}-dead/redrives/pace"]
    (asked,) = [each for each in operator.tab.requests if each.url.endswith("/pace")]
    assert (asked.post_data_json["rate"], asked.post_data_json["stop_after"]) == (500, 45)
    assert operator.tab.faults == []


def test_one_dead_letter_is_redriven(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("one", slow)
    make_dead_letters(client, name, "a", "b")
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead/messages/1"), slow=slow)
    operator.click("Redrive")
    operator.tab.see(re.compile("1 selected message$"))
    operator.click("Start")
    operator.tab.see("1 of 1 moved")

    assert operator.done == 2, "3 before: its dry run had to be asked for"
    assert operator.posted() == [f"queues/{name}-dead/redrives"]
    assert (count(client, name), count(client, f"{name}-dead")) == (1, 1)
    assert operator.tab.faults == []


def test_a_purge_of_the_wrong_queue_is_undone(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("wrong", slow)
    client.create_queue(QueueName=name)
    client.send_message(QueueUrl=name, MessageBody="kept")
    client.purge_queue(QueueUrl=name)
    operator = Operator(tab_of(browser, opened), slow=slow)
    operator.click(f"Restore {name}")
    operator.tab.see(f"{name} has its messages back.")

    assert operator.done <= 3, "impossible before without a command line"
    assert operator.done == 1
    assert operator.posted() == ["deleted-queues/restore"]
    assert count(client, name) == 1
    assert operator.tab.faults == []


def test_a_queue_is_created_with_its_dead_letter_queue(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), name_for("made", slow)
    operator = Operator(tab_of(browser, opened), slow=slow)
    operator.click("Create a queue")
    operator.fill("Name", name)
    operator.click("Create")
    operator.tab.page.get_by_role("heading", name=name, exact=True).wait_for()

    assert operator.done <= 6, "impossible before without a command line"
    assert operator.done == 3
    assert operator.posted() == ["queues"]
    asked = {"QueueUrl": name, "AttributeNames": ["RedrivePolicy"]}
    policy = json.loads(client.get_queue_attributes(**asked)["Attributes"]["RedrivePolicy"])
    assert policy["deadLetterTargetArn"].endswith(f":{name}-dead")
    assert policy["maxReceiveCount"] in (3, "3")
    assert operator.tab.faults == []


def test_a_dead_letter_queue_is_picked(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("picks", slow)
    for each in (name, f"{name}-failures"):
        client.create_queue(QueueName=each)
    operator = Operator(tab_of(browser, opened, f"/queues/{name}"), slow=slow)
    operator.click("Edit")
    operator.fill("Dead-letter queue", f"{name}-failures")
    offered = operator.tab.page.locator(f"datalist option[value={name}-failures]")
    offered.wait_for(state="attached")
    form = operator.tab.page.get_by_role("form", name="Dead letters")
    operator.click("Save", form)
    operator.tab.see("Dead letters: saved.")

    asked = {"QueueUrl": name, "AttributeNames": ["RedrivePolicy"]}
    policy = json.loads(client.get_queue_attributes(**asked)["Attributes"]["RedrivePolicy"])
    assert policy["deadLetterTargetArn"].endswith(f":{name}-failures")
    assert operator.done == 3
    assert operator.posted() == [f"queues/{name}/attributes"]
    assert operator.tab.faults == []


def test_a_queue_is_deleted_and_restored(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("removed", slow)
    client.create_queue(QueueName=name)
    client.send_message(QueueUrl=name, MessageBody="kept")
    operator = Operator(tab_of(browser, opened, f"/queues/{name}"), slow=slow)
    operator.click("Delete queue")
    dialog = operator.tab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill(name)
    operator.done += 1
    operator.click("Delete queue", dialog)
    operator.tab.see(f"{name} is deleted.")
    operator.click(f"Restore {name}")
    operator.tab.see(f"{name} has its messages back.")

    assert operator.done == 4
    assert operator.posted() == [f"queues/{name}/delete", "deleted-queues/restore"]
    assert count(client, name) == 1
    assert operator.tab.faults == []


def test_who_deleted_a_queue(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("vanished", slow)
    client.create_queue(QueueName=name)
    client.delete_queue(QueueUrl=name)
    for place in ("/queues", f"/queues/{name}"):
        operator = Operator(tab_of(browser, opened, place), slow=slow)
        page = operator.tab.page
        if place == "/queues":
            gone = page.get_by_role("region", name="Recently deleted")
            operator.click("deleted", gone.get_by_role("row").filter(has_text=name))
        else:
            operator.click("Who deleted it?")
        line = page.get_by_role("region", name="Audit log").locator("tbody tr")
        expect(line).to_have_count(1)
        expect(line).to_contain_text(re.compile("root.*DeleteQueue"))

        assert operator.done == 1, "4 before: Audit, queue, action, Search"
        assert operator.tab.faults == []


def test_who_redrove_how_many_yesterday(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("yesterday", slow)
    make_dead_letters(client, name, "a", "b")
    client.start_message_move_task(SourceArn=f"arn:aws:sqs:us-east-1:000000000000:{name}-dead")
    eventually(lambda: count(client, name) == 2)
    tab = tab_of(browser, opened)
    tab.see("Create a queue")
    tomorrow = tab.page.evaluate("Date.now() + 86400000")
    date = formatdate(tomorrow / 1000, usegmt=True)

    def answer(route: Any) -> None:
        found = route.fetch()
        route.fulfill(response=found, headers={**found.headers, "date": date})

    tab.page.route("**/api/**", answer)  # so that today is yesterday, for the service, too
    tab.page.clock.set_fixed_time(tomorrow / 1000)
    operator = Operator(tab, slow=slow)
    operator.click("Redrives")
    operator.click("Yesterday")
    history = tab.page.get_by_role("region", name="History")
    history.locator("tbody tr").filter(has_text=f"{name}-dead").wait_for()
    by = tab.page.get_by_role("region", name="Who redrove how much").locator("tbody tr").first

    assert operator.done <= 2
    eventually(lambda: by.inner_text().split()[0] == "root")
    expect(history).to_contain_text("2 of 2 moved")
    assert tab.faults == []


def test_the_body_of_a_dead_letter_is_fixed(browser: Any, opened: NodeProcess, slow: bool) -> None:
    client, name = sqs(opened), name_for("broken", slow)
    make_dead_letters(client, name, '{"error": "sku", "sku": "A-!"}', '{"error": "tax"}')
    operator = Operator(tab_of(browser, opened, f"/queues/{name}-dead"), slow=slow)
    operator.click("Messages of sku")
    link = operator.tab.page.locator("tbody tr").filter(has_text="A-!").get_by_role("link").first
    link.click()
    operator.done += 1
    operator.click("Edit and resend")
    operator.fill("Body", '{"sku": "A-1"}')
    operator.click("Send the copy")
    operator.tab.see(SENT)

    assert operator.done <= 5
    assert operator.posted() == [f"queues/{name}-dead/messages/1/resend"]
    assert (count(client, name), count(client, f"{name}-dead")) == (1, 1)
    assert operator.tab.faults == []


@pytest.fixture(scope="module")
def last_of_many(opened: NodeProcess) -> str:
    """The id of the last of 11,000 messages of the queue `needle`."""
    client = sqs(opened)
    client.create_queue(QueueName="needle")
    for first in range(0, 11_000, 10):
        entries = [{"Id": str(at), "MessageBody": str(first + at)} for at in range(10)]
        sent = client.send_message_batch(QueueUrl="needle", Entries=entries)["Successful"]
    return str(sent[-1]["MessageId"])


def test_one_id_is_found(browser: Any, opened: NodeProcess, last_of_many: str, slow: bool) -> None:
    operator = Operator(tab_of(browser, opened), slow=slow)
    operator.click("needle")
    operator.click("Messages")
    operator.fill("Filter", last_of_many)
    operator.click("Search")
    row = operator.tab.page.locator("tbody tr").filter(has_text="10999")
    row.wait_for()
    operator.tab.page.locator(".matches", has_text="1 match").wait_for()

    assert operator.done <= 4
    expect(operator.tab.page.locator("tbody tr")).to_have_count(1)
    assert operator.posted() == []
    assert operator.tab.faults == []


def test_a_viewer_gets_a_key_without_json(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    node = NodeProcess(tmp_path_factory.mktemp("roles"), variables=variables).start()
    try:
        _viewers(browser, node)
    finally:
        node.close()


def _viewers(browser: Any, node: NodeProcess) -> None:
    root = node.exports()
    make_dead_letters(sqs(node), "shop", '{"a": 1}')
    for slow in (False, True):
        tab = signed_in(browser, node, "/queues", root)
        tab.see("2 queues")
        operator = Operator(tab, slow=slow)
        name = name_for("ann", slow)
        operator.click("Users")
        operator.fill("Name", name)
        operator.select("Role", "viewer")
        operator.click("Add user")
        shown = tab.page.get_by_role("region", name="The new access key").locator("pre")
        key = dict(re.findall(r"export (AWS_\w+)=(\S+)", shown.inner_text()))

        assert operator.done <= 5, "11 before"
        assert operator.done == 4
        assert operator.posted() == ["sessions", "users"]
        assert tab.faults == []
        seen = signed_in(browser, node, "/queues/shop-dead/messages", key)
        seen.page.locator("td code").get_by_text('{"a": 1}').wait_for()
        seen.settle()
        expect(seen.page.get_by_role("link", name="Users", exact=True)).to_have_count(0)
        expect(seen.page.get_by_role("button", name="Delete")).to_have_count(0)


# -- every new screen ------------------------------------------------------------------------------

SCREENS = {
    "/queues": "Queues",
    "/dead-letters": "Dead letters",
    "/redrives": "Redrives",
    "/new-queue": "Create a queue",
    "/queues/checked-dead": "checked-dead",
    "/queues/checked/edit": "Edit checked",
    "/queues/checked-dead/redrive": "Redrive",
    "/queues/checked-dead/redrive?json=error&edit=": "Redrive",
    "/queues/checked-dead/messages": "Messages of checked-dead",
    "/queues/checked-dead/tail": "Live tail of checked-dead",
}


@pytest.fixture(scope="module")
def checked(opened: NodeProcess) -> NodeProcess:
    """The service with something on each screen."""
    client = sqs(opened)
    make_dead_letters(client, "checked", '{"error": "card"}', "b")
    client.create_queue(QueueName="checked-gone")
    client.delete_queue(QueueUrl="checked-gone")
    start_slowly(client, "checked")
    return opened


def test_screens_have_no_findings_of_axe_and_fit_a_phone(
    browser: Any, checked: NodeProcess
) -> None:
    tab = Tab(browser, checked.url)
    for place, heading in SCREENS.items():
        tab.go(place)
        tab.page.get_by_role("heading", level=1, name=heading).wait_for()
        tab.settle()
        tab.check_looks(1280)
        assert tab.fits(390), place


def test_a_queue_is_created_by_keyboard_alone(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    tab = tab_of(browser, opened)
    tab.page.get_by_role("link", name="Create a queue").focus()
    tab.page.keyboard.press("Enter")
    tab.page.get_by_label("Name", exact=True).wait_for()
    tab.page.keyboard.type("typed")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("heading", name="typed", exact=True).wait_for()
    tab.page.keyboard.press("Tab")

    expect(tab.page.locator(":focus")).to_have_text("Messages")
    expect(tab.page).to_have_title("typed · Holdfast")
    assert "QueueUrl" in client.get_queue_url(QueueName="typed-dead")
    assert tab.faults == []
