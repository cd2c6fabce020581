"""A real Chromium for the tests of the console: the machine's own, on loopback only."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.facade import PATIENCE_S

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # for the tabs of a kept context
)


def installed() -> str | None:
    """The path of Chromium, None on a machine without one. Without its windows a tab takes a third
    of the time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)


def executable() -> str:
    """The path of Chromium; skips the test on a machine without one."""
    found = installed()
    if found is None:
        pytest.skip("there is no chromium on this machine: install chromium-headless-shell")
    return found


_AXE = Path(__file__).parent / "axe" / "axe.min.js"
_FIND = """async () => (await axe.run({ resultTypes: ["violations"] })).violations.map(
    (each) => `${each.impact}: ${each.id} at ${each.nodes[0].html}`)"""
_FADED = """
for (const each of document.getAnimations())
    if (Number.isFinite(each.effect.getComputedTiming().endTime)) each.finish();
"""
"""Ends what fades or moves: text that is half faded in has too little contrast. To wait for its end
takes frames, which a browser without a window need not draw."""
WIDTHS = (1440, 900, 390)
"""Of windows on a large screen, a small one and a phone."""
_QUIET = 3
"""Frames one after the other without an open request, after which a page has settled: what an
answer shows may ask for more."""


_SITE = "http://127.0.0.1/"
"""That of all services of the tests, whatever their port."""
_REAL_CLOCK = "String(Date.now).includes('[native code]')"


@contextmanager
def running() -> Iterator[Any]:
    """A browser."""
    path = executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = _launched(playwright.chromium, path)
        try:
            yield browser
        finally:
            browser.close()


def _launched(kind: Any, path: str) -> Any:
    return kind.launch(executable_path=path, args=list(_ARGUMENTS))


@contextmanager
def set_aside(browser: Any) -> Iterator[Any]:
    """A browser that runs on, as a context manager of each of its uses; one that has ended is
    started anew. In between this thread has no running event loop: Playwright leaves its own
    behind, and then no test may have another."""
    loop = asyncio.get_running_loop()

    @contextmanager
    def used() -> Iterator[Any]:
        nonlocal browser
        asyncio._set_running_loop(loop)
        if not browser.is_connected():
            browser = _launched(browser.browser_type, executable())
        try:
            yield browser
        finally:
            for context in browser.contexts:
                context.close()
            asyncio._set_running_loop(None)

    asyncio._set_running_loop(None)
    yield used
    asyncio._set_running_loop(loop)


class Kept:
    """A browser for the tests of a file that have a tab after the other: all begin in the same
    context, emptied in between, except those with options of their own and second tabs of a test.

    A page stays open in it, and with it the process that has compiled the console: a tab takes two
    thirds of the time.
    """

    def __init__(self, alone: Any) -> None:
        self.alone = alone
        """The browser itself, for tabs that find nothing in its cache."""
        self._context: Any = None
        self._is_free = False

    def new_context(self, **options: Any) -> Any:
        """The kept context once a test, others that end with it."""
        if options or not self._is_free:
            return self.alone.new_context(**options)
        self._is_free = False
        return self._context

    def new_page(self) -> Any:
        """A page of a context that ends with the test."""
        return self.alone.new_page()

    def begin(self) -> None:
        """Begin a test."""
        if self._context is None or self._context not in self.alone.contexts:
            self._context = self.alone.new_context()
            page = self._context.new_page()
            page.route(_SITE, lambda route: route.fulfill(body=""))
            page.goto(_SITE)
        self._is_free = True

    def end(self) -> None:
        """Close the tabs: open ones go on asking the service for news."""
        for context in self.alone.contexts:
            if context is not self._context:
                context.close()
        if self._is_free or self._context not in self.alone.contexts:
            return
        first, *others = self._context.pages
        if not first.evaluate(_REAL_CLOCK):  # Playwright sets that of a context, once and for all
            self._context.close()
            return
        origins = {"/".join(page.url.split("/")[:3]) for page in others if "://" in page.url}
        for page in others:
            page.close()
        self._context.unroute_all()
        self._context.clear_cookies()
        session = self._context.new_cdp_session(first)
        for origin in origins:
            stored = {"origin": origin, "storageTypes": "local_storage"}
            session.send("Storage.clearDataForOrigin", stored)
        session.detach()


def expect(seen: Any, place: str | None = None) -> Any:
    """Playwright's claims of a page or of elements. They wait until they hold, for as long as all
    other waits; what a page is asked for directly, such as `count()`, is answered at once. The
    message of one that fails begins with `place`."""
    from playwright.sync_api import expect as claim

    claim.set_options(timeout=PATIENCE_S * 1000)
    return claim(seen, place)


class Tab:
    """A page of the console, and what it asked for, said and ran into."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.page = self.context.new_page()
        self.requests: list[Any] = []
        self.faults: list[str] = []
        """Uncaught errors, violations of the content security policy, dialogs of scripts."""
        self._open: list[Any] = []
        """Requests that are not answered yet."""
        self.page.on("request", self._asked)
        self.page.on("requestfinished", lambda request: self._open.remove(request))
        self.page.on("requestfailed", lambda request: self._open.remove(request))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("dialog", self._dialog)

    def _asked(self, request: Any) -> None:
        self.requests.append(request)
        self._open.append(request)

    def _heard(self, message: Any) -> None:
        if message.type == "error" and "the server responded with a status of" not in message.text:
            self.faults.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, place: str = "/queues") -> Any:
        """Open a screen by its address."""
        self.page.goto(f"{self.url}/_holdfast/console#{place}")
        return self.page

    def settle(self) -> None:
        """Wait until all that the page asked for is answered and shown, also after a step to
        another screen: Playwright's "networkidle" is of the page's first load."""
        self.page.wait_for_load_state()
        quiet, begun_s = 0, time.monotonic()
        while quiet < _QUIET:
            assert time.monotonic() < begun_s + PATIENCE_S, [each.url for each in self._open]
            self.page.evaluate(
                "new Promise((shown) => {"
                " requestAnimationFrame(() => setTimeout(shown)); setTimeout(shown, 1000); })"
            )
            quiet = 0 if self._open else quiet + 1

    def answered(self) -> None:
        """Wait until no part of the screen shows the answer to an older question. A part is busy
        from the click or the letter on that asks another one."""
        expect(self.page.locator(".resource[aria-busy=true]")).to_have_count(0)

    def findings(self) -> list[str]:
        """Findings of axe-core on the settled screen: impact, rule and element of each."""
        self.settle()
        self.page.evaluate(_FADED)
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE.read_text())
        found: list[str] = self.page.evaluate(_FIND)
        return found

    def fits(self, *widths: int) -> bool:
        """True if the settled screen is not wider than the window, by default as that is."""
        for width in widths:
            self.page.set_viewport_size({"width": width, "height": 900})
            if not self.fits():
                return False
        self.settle()
        return not self.page.evaluate("document.documentElement.scrollWidth > innerWidth")

    def check_looks(
        self, *widths: int, height: int = 900, schemes: tuple[str, ...] = ("light", "dark")
    ) -> None:
        """Insist that the screen has no findings and fits, in each scheme at each of these
        widths."""
        for scheme in schemes:
            self.page.emulate_media(color_scheme=scheme)
            for width in widths or WIDTHS:
                self.page.set_viewport_size({"width": width, "height": height})
                assert self.findings() == [], (scheme, width)
                assert self.fits(), (scheme, width)

    def see(self, text: str | re.Pattern[str]) -> None:
        """Wait until the screen has this text, in any case of its letters unless it is a
        pattern."""
        self.page.locator("body").get_by_text(text).first.wait_for()

    def press(self, name: str) -> None:
        """Press the button, or follow the link, of this name."""
        found = self.page.get_by_role("button", name=name, exact=True)
        self.page.get_by_role("link", name=name, exact=True).or_(found).first.click()

    def fill(self, label: str, text: str) -> None:
        """Fill in a field."""
        self.page.get_by_label(label, exact=True).fill(text)

    def sign_in(self, key_id: str, secret: str) -> None:
        """Sign in with an access key."""
        self.fill("Access key id", key_id)
        self.fill("Secret access key", secret)
        self.press("Sign in")
