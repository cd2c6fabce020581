"""The console's records in a real browser: the audit log."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow


def test_the_audit_log_is_searched(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    for name in ("audited", "other"):
        client.create_queue(QueueName=name)
    client.purge_queue(QueueUrl="audited")
    tab = tab_of(browser, opened, "/audit")
    lines = tab.page.get_by_role("region", name="Audit log").locator("tbody tr")
    eventually(lambda: (opened.data / "audit.log").read_text().count("audited") == 2)
    tab.fill("Queue", "audited")
    tab.fill("Part of the action", "purge")
    tab.press("Search")
    tab.answered()
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("PurgeQueue")
    expect(tab.page).to_have_url(re.compile("queue=audited"))
    tab.page.get_by_text("As a command").click()
    command = tab.page.locator("details pre")
    expect(command).to_contain_text("holdfast audit")
    expect(command).to_contain_text("--action purge --queue audited")
    shown = command.inner_text()
    said = run_command(*shown.split()[1:])
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("PurgeQueue") == 1
    tab.page.get_by_label("Refused calls only").check()
    tab.press("Search")
    tab.see("No line matches.")
    assert tab.faults == []


def test_calls_of_the_root_are_found_by_that_word(browser: Any, opened: NodeProcess) -> None:
    sqs(opened).create_queue(QueueName="rooted")
    tab = tab_of(browser, opened, "/audit?queue=rooted&user=root")
    lines = tab.page.get_by_role("region", name="Audit log").locator("tbody tr")
    eventually(lambda: "rooted" in (opened.data / "audit.log").read_text())
    tab.press("Search")
    tab.answered()
    expect(lines).to_have_count(1)
    expect(lines.locator("td.who")).to_have_text("root")
    lines.get_by_role("button", name="Show all of CreateQueue").click()
    tab.see("AKIAOPEN")

    assert tab.faults == []
