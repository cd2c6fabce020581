"""A queue that several shards keep, in a real browser: its page says where its parts lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.console_world import sqs, tab_of
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow


def test_a_split_queue_shows_its_parts_and_a_whole_one_none(browser: Any, tmp_path: Path) -> None:
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    node = NodeProcess(tmp_path, "--shards", "3", "--auth", "open", variables=variables).start()
    try:
        for name in ("whole", "split"):
            sqs(node).create_queue(QueueName=name)
        split = ("fleet", "split", "split", "--parts", "3", "--url", node.url)
        done = run_command(*split, variables={"AWS_DEFAULT_REGION": "us-east-1"})
        assert done.returncode == 0, done.stderr
        tab = tab_of(browser, node, "/queues/split")
        parts = tab.page.get_by_role("region", name="Parts", exact=True)
        expect(parts.locator("tbody tr")).to_have_count(3)
        shards = [row.locator("td").nth(1).inner_text() for row in parts.locator("tbody tr").all()]
        assert sorted(shards) == ["0", "1", "2"]
        expect(parts.locator("tbody tr").first).to_contain_text("open, home")
        commands = tab.page.locator("details.command", has_text="fleet split split --parts 4")
        expect(commands).to_have_count(1)
        tab.check_looks(1440, 390)
        with tab.page.expect_response("**/queues/whole/parts"):
            tab.go("/queues/whole")
        tab.see("There are no tags.")
        tab.settle()
        expect(parts).to_have_count(0)
        assert tab.faults == []
    finally:
        node.close()
