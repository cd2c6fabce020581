"""One Chromium serves all files of a process, and no other test notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from compat_tests.chromium import Kept, Tab

pytestmark = pytest.mark.slow


def test_between_its_uses_a_test_may_have_an_event_loop(chromium_of_run: Any) -> None:
    async def answer() -> int:
        return 1

    for text in ("one", "two"):
        with chromium_of_run() as browser:
            page = browser.new_page()
            page.set_content(f"<p>{text}")
            assert page.inner_text("p") == text
            with pytest.raises(RuntimeError):
                asyncio.run(unrun := answer())
            unrun.close()

        assert asyncio.run(answer()) == 1


def test_a_use_leaves_no_tab_behind(chromium_of_run: Any) -> None:
    with chromium_of_run() as browser:
        browser.new_page()
        assert browser.contexts
    with chromium_of_run() as browser:
        assert not browser.contexts


def test_one_that_has_ended_is_started_anew(chromium_of_run: Any) -> None:
    with chromium_of_run() as browser:
        browser.close()
    with chromium_of_run() as browser:
        assert browser.new_page().evaluate("1 + 1") == 2


def shown(browser: Any, **options: Any) -> Tab:
    """A tab with a page that asks nobody."""
    tab = Tab(browser, "http://127.0.0.1:9", **options)
    tab.context.route("**", lambda route: route.fulfill(body="<p>shown", content_type="text/html"))
    tab.go()
    return tab


KEEPS = "localStorage.setItem('a', 'b'); document.cookie = 'c=d'; sessionStorage.setItem('e', 'f')"
LEFT = "localStorage.length + document.cookie + sessionStorage.length"


def test_a_test_finds_nothing_of_the_one_before_in_its_context(chromium_process: Any) -> None:
    kept = Kept(chromium_process)
    kept.begin()
    first = shown(kept)
    first.page.evaluate(KEEPS)
    first.page.reload()
    assert first.page.evaluate(LEFT) == "1c=d1"
    kept.end()
    kept.begin()

    second = shown(kept)

    assert second.context is first.context
    assert first.page.is_closed()
    assert second.page.evaluate(LEFT) == "00"
    kept.end()


def test_second_tabs_and_those_with_options_share_nothing(chromium_process: Any) -> None:
    kept = Kept(chromium_process)
    kept.begin()
    first = shown(kept)
    first.page.evaluate(KEEPS)

    others = [shown(kept), shown(kept, color_scheme="dark"), shown(kept.alone)]

    assert [each.page.evaluate(LEFT) for each in others] == ["00"] * 3
    kept.end()
    assert chromium_process.contexts == [first.context]


def test_a_context_that_a_test_closed_is_made_anew(chromium_process: Any) -> None:
    kept = Kept(chromium_process)
    for _ in range(2):
        kept.begin()
        tab = shown(kept)
        assert tab.page.evaluate(LEFT) == "00"
        tab.context.close()
        kept.end()


def test_a_clock_that_a_test_set_ends_with_its_context(chromium_process: Any) -> None:
    kept = Kept(chromium_process)
    kept.begin()
    first = shown(kept)
    first.page.clock.set_fixed_time(1)
    assert first.page.evaluate("Date.now()") == 1000
    kept.end()
    kept.begin()

    assert shown(kept).page.evaluate("Date.now()") > 1_000_000
    kept.end()
