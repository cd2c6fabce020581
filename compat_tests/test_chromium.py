"""One Chromium serves all files of a process, and no other test notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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
