"""The screen of all redrives in a real browser: what runs or waits is controlled there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.console_world import (
    LASTING,
    count,
    make_dead_letters,
    slow_down,
    sqs,
    start_slowly,
    tab_of,
)
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess
from compat_tests.test_console_jobs import Operator

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_redrive_is_paused_resumed_ended_and_undone_on_the_screen_of_all(
    browser: Any, opened: NodeProcess, slow: bool
) -> None:
    client, name = sqs(opened), f"steered-{slow}".lower()
    make_dead_letters(client, name, *LASTING)
    start_slowly(client, name)
    operator = Operator(tab_of(browser, opened, "/redrives"), slow=slow)
    line = operator.tab.page.locator("tbody tr").filter(has_text=f"{name}-dead")
    operator.click("Pause", line)
    line.get_by_text("paused", exact=True).wait_for()
    line.get_by_text(re.compile(r"\b(?!0 |90 )\d+ of 90 moved")).wait_for()
    operator.click("Go on", line)
    operator.click("Cancel", line)
    line.get_by_text("cancelled").wait_for()
    moved = count(client, name)
    operator.click("Undo", line)
    operator.click("Return them")
    eventually(lambda: count(client, f"{name}-dead") == len(LASTING))
    line.get_by_text("undone", exact=True).wait_for()

    of = f"queues/{name}-dead/redrives"
    assert operator.posted() == [f"{of}/{what}" for what in ("pause", "resume", "cancel", "undo")]
    assert 0 < moved < len(LASTING)
    assert operator.tab.faults == []


def test_a_running_redrive_fits_a_phone(browser: Any, opened: NodeProcess) -> None:
    client = sqs(opened)
    make_dead_letters(client, "steered-small", *LASTING)
    tab = tab_of(browser, opened, "/queues", viewport={"width": 390, "height": 800})
    slow_down(tab)
    start_slowly(client, "steered-small")
    tab.go("/redrives")
    line = tab.page.locator("tbody tr").filter(has_text="steered-small-dead")
    line.get_by_role("button", name="Pause", exact=True).click()
    line.get_by_role("button", name="Go on", exact=True).wait_for()
    for each in line.get_by_role("button").all():
        seen = each.bounding_box()
        assert seen["x"] + seen["width"] <= 390, each.inner_text()
    line.get_by_role("button", name="Cancel", exact=True).click()
    line.get_by_text("cancelled").wait_for()

    assert tab.fits()
    assert tab.faults == []
