"""A dead-letter queue as somebody sees it in a browser: its first view, and one id found."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

from compat_tests.chromium import Tab, running
from compat_tests.console_world import slow_down

LATENCY_MS = 400
_VIEWS = 5
_LATEST_MS = 1_200_000


class Search(NamedTuple):
    """An id that was looked for in the message browser."""

    seconds: float
    requests: int
    looked_at: str


def first_view_s(url: str, queue: str, messages: int) -> tuple[float, float]:
    """Seconds from the address to the exact failures on the screen: with nothing in the browser's
    cache, and the median of further ones in the same browser."""
    with running() as browser:
        taken = []
        tab = Tab(browser, url)
        for _ in range(1 + _VIEWS):
            tab.page.goto("about:blank")
            begun_s = time.perf_counter()
            tab.go(f"/queues/{queue}")
            tab.see(f"All {messages:,} messages")
            tab.page.locator(".failure").first.wait_for()
            taken.append(time.perf_counter() - begun_s)
        return taken[0], statistics.median(taken[1:])


def find(url: str, queue: str, message_id: str, latency_ms: int = LATENCY_MS) -> Search:
    """Look for a message by its id, from the list of queues, over a slow connection: two clicks, a
    field and one more click. The seconds are those after the last click."""
    with running() as browser:
        tab = Tab(browser, url)
        tab.page.set_default_timeout(_LATEST_MS)
        if latency_ms:
            slow_down(tab, latency_ms)
        tab.go("/queues")
        tab.press(queue)
        tab.press("Messages")
        tab.page.locator("tbody tr").first.wait_for()
        tab.fill("Filter", message_id)
        before, begun_s = len(tab.requests), time.perf_counter()
        tab.press("Search")
        found: Any = tab.page.locator("tbody tr").filter(has_text=message_id[:8])
        found.first.wait_for()
        seconds = time.perf_counter() - begun_s
        asked = [each for each in tab.requests[before:] if "/messages?" in each.url]
        looked = tab.page.get_by_text("messages looked at").last.inner_text()
        assert tab.faults == [], tab.faults
        return Search(seconds, len(asked), looked)
