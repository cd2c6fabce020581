"""The console's records in a real browser: the audit log."""

from __future__ import annotations

from typing import Any

import pytest

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
    lines.nth(1).wait_for(state="detached")

    assert "PurgeQueue" in lines.first.inner_text()
    assert "queue=audited" in tab.page.url
    tab.page.get_by_text("As a command").click()
    shown = tab.page.locator("details pre").inner_text()
    assert "holdfast audit" in shown
    assert "--action purge --queue audited" in shown
    said = run_command(*shown.split()[1:])
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("PurgeQueue") == 1
    tab.page.get_by_label("Refused calls only").check()
    tab.press("Search")
    tab.see("No line matches.")
    assert tab.faults == []
