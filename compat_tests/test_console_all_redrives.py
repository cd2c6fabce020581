"""The screen of all redrives in a real browser: what runs or waits is controlled there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.console_world import count, make_dead_letters, slow_down, sqs, tab_of
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import Operator

pytestmark = pytest.mark.slow

ARN = "arn:aws:sqs:us-east-1:000000000000:"


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_redrive_is_paused_resumed_ended_and_undone_on_the_screen_of_all(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), f"steered-{slow}".lower()
    make_dead_letters(client, name, *"abcdefgh")
    client.start_message_move_task(SourceArn=f"{ARN}{name}-dead", MaxNumberOfMessagesPerSecond=1)
    operator = Operator(tab_of(browser, opened, "/redrives"), slow=slow)
    line = operator.tab.page.locator("tbody tr").filter(has_text=f"{name}-dead")
    operator.click("Pause", line)
    line.get_by_text("paused", exact=True).wait_for()
    line.get_by_text(re.compile("[1-7] of 8 moved")).wait_for()
    operator.click("Go on", line)
    operator.click("Cancel", line)
    line.get_by_text("cancelled").wait_for()
    moved = count(client, name)
    operator.click("Undo", line)
    operator.click("Return them")
    eventually(lambda: count(client, f"{name}-dead") == 8)
    line.get_by_text("undone", exact=True).wait_for()

    of = f"queues/{name}-dead/redrives"
    assert operator.posted() == [f"{of}/{what}" for what in ("pause", "resume", "cancel", "undo")]
    assert 0 < moved < 8
    assert operator.tab.faults == []


def test_a_running_redrive_fits_a_phone(browser: Any, opened: NodeProcess) -> None:
    make_dead_letters(sqs(opened), "steered-small", "a", "b", "c")
    tab = tab_of(browser, opened, "/queues", viewport={"width": 390, "height": 800})
    slow_down(tab)
    of = f"{ARN}steered-small-dead"
    sqs(opened).start_message_move_task(SourceArn=of, MaxNumberOfMessagesPerSecond=1)
    tab.go("/redrives")
    line = tab.page.locator("tbody tr").filter(has_text="steered-small-dead")
    line.get_by_role("button", name="Cancel", exact=True).click()
    line.get_by_text("cancelled").wait_for()

    assert not tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert tab.faults == []
