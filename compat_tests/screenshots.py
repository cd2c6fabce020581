"""The screenshots of the guides: `python -m compat_tests.screenshots` makes those in `deploy`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compat_tests.chromium import Tab, running
from compat_tests.console_world import make_dead_letters, sqs
from compat_tests.node_process import NodeProcess

FOLDER = Path(__file__).parent.parent / "deploy" / "screenshots"
SIZE = {"width": 1440, "height": 810}
FONT = """* {
    font-family: 'DejaVu Sans', sans-serif !important;
    animation: none !important;
    transition: none !important;
}"""
"""The same on each machine that has it; `pre` too, since widths count here."""
KINDS = ("TaxLookup", "CardDeclined", "TaxLookup", "NoSuchUser", "TaxLookup")


def fill(client: Any) -> None:
    """Make a small shop whose orders failed."""
    for at, name in enumerate(("invoices", "payments", "stock-updates", "mails")):
        client.create_queue(QueueName=name, tags={"team": "shop"})
        for number in range(at * 3):
            client.send_message(QueueUrl=name, MessageBody=json.dumps({"n": number}))
    bodies = [
        {"order": 4700 + at, "country": "SE", "error": {"type": kind, "message": f"order {at}"}}
        for at, kind in enumerate(KINDS * 2)
    ]
    make_dead_letters(client, "orders", *map(json.dumps, bodies))


def looks(browser: Any, url: str) -> Iterator[tuple[str, bytes]]:
    """Name and picture of each screenshot."""
    tab = Tab(browser, url, viewport=SIZE, bypass_csp=True)
    page = tab.page
    tab.go("/queues")
    page.get_by_role("link", name="stock-updates").wait_for()
    yield "console-queues", _picture(tab)
    tab.go("/queues/orders-dead/messages")
    page.locator("tbody tr").nth(1).get_by_role("link").click()
    page.get_by_role("heading", name="Timeline").wait_for()
    yield "console-messages", _picture(tab)
    tab.go("/queues/orders-dead")
    page.get_by_role("heading", name="Failures").wait_for()
    page.get_by_role("link", name="Redrive TaxLookup").wait_for()
    yield "console-failures", _picture(tab)
    page.get_by_role("link", name="Redrive TaxLookup").click()
    page.get_by_role("region", name="What would move").wait_for()
    yield "console-redrive", _picture(tab)
    tab.context.close()


def _picture(tab: Tab) -> bytes:
    tab.page.add_style_tag(content=FONT)
    tab.settle()
    tab.page.evaluate("document.fonts.ready.then(() => scrollTo(0, 0))")
    return bytes(tab.page.screenshot(animations="disabled"))


def main() -> None:
    """Make all anew."""
    with TemporaryDirectory() as folder, running() as browser:
        node = NodeProcess(Path(folder), "--auth", "open").start()
        try:
            fill(sqs(node))
            for name, picture in looks(browser, node.url):
                (FOLDER / f"{name}.png").write_bytes(picture)
        finally:
            node.close()


if __name__ == "__main__":
    main()
