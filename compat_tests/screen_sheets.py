"""Sheets of all screens of the console: `python -m compat_tests.screen_sheets`.

A sheet shows each screen, scaled down and grey, at one width and in one scheme; those in
`compat_tests/screens` are what `test_console_sheets.py` compares with. With a folder as argument
the screens are written there instead, in full size and colour, to be looked at.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from compat_tests.chromium import Tab, running
from compat_tests.console_world import sqs
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask
from compat_tests.screenshots import FONT
from compat_tests.screenshots import fill as make_shop

FOLDER = Path(__file__).parent / "screens"
ANY_KEY = Credentials("AKIAOPEN", "secret", "us-east-1")
SCREENS = {
    "empty queues": ("/queues?search=nothing-has-this-name", "Queues"),
    "queues": ("/queues", "Queues"),
    "dead letters": ("/dead-letters", "Dead letters"),
    "redrives": ("/redrives", "Redrives"),
    "new queue": ("/new-queue", "Create a queue"),
    "queue": ("/queues/payments", "payments"),
    "failures": ("/queues/orders-dead", "orders-dead"),
    "edit": ("/queues/orders/edit", "Edit orders"),
    "send": ("/queues/orders/send", None),
    "tail": ("/queues/orders-dead/tail", "Live tail of orders-dead"),
    "no messages": ("/queues/invoices/messages", "Messages of invoices"),
    "messages": ("/queues/orders-dead/messages", "Messages of orders-dead"),
    "message": ("/queues/orders-dead/messages/1", None),
    "resend": ("/queues/orders-dead/messages/1/resend", None),
    "redrive": ("/queues/orders-dead/redrive", "Redrive"),
    "archive": ("/archive", None),
    "audit": ("/audit", None),
    "hosts": ("/hosts", "Hosts"),
    "fleet": ("/fleet", None),
    "api": ("/api", None),
    "sessions": ("/sessions", None),
    "users": ("/users", None),
    "user": ("/users/000000000000/anna", None),
}
"""Places, and their headings where they have one that must be there."""


class Look(NamedTuple):
    """A width and a scheme, and how they are shown on a sheet."""

    scheme: str
    width: int
    height: int
    scale: float

    @property
    def name(self) -> str:
        """The sheet's."""
        return f"{self.scheme}-{self.width}"


LOOKS = (
    Look("light", 1440, 810, 0.2),
    Look("dark", 1440, 810, 0.2),
    Look("light", 1024, 768, 0.25),
    Look("light", 390, 844, 0.5),
)
COLUMNS = 6
"""Screens beside each other on a sheet."""
_COMPOSE = """async ([pictures, columns, width, height]) => {
    const rows = Math.ceil(pictures.length / columns);
    const canvas = new OffscreenCanvas(columns * width, rows * height);
    const drawing = canvas.getContext("2d");
    drawing.filter = "grayscale(1)";
    drawing.imageSmoothingQuality = "high";
    for (const [at, picture] of pictures.entries()) {
        const image = new Image();
        image.src = `data:image/png;base64,${picture}`;
        await image.decode();
        const left = at % columns * width, top = Math.floor(at / columns) * height;
        drawing.drawImage(image, left, top, width, height);
    }
    const bytes = new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer());
    return bytes.toBase64 ? bytes.toBase64() : btoa(String.fromCharCode.apply(null, bytes));
}"""


def fill(node: NodeProcess) -> None:
    """Make a small shop whose orders failed, with users."""
    make_shop(sqs(node))
    for page, content in (
        ("users", {"account": "000000000000", "name": "anna"}),
        ("marks", {"text": "deploy 4711"}),
    ):
        status, said = ask(node.url, ANY_KEY, f"api/{page}", content)
        assert status == 200, said


def pictures(browser: Any, url: str, *, scaled: bool = True) -> Iterator[tuple[str, Look, bytes]]:
    """A picture of each screen in each look. Each screen is opened once, and then looked at."""
    tab = Tab(browser, url, bypass_csp=True)
    session = tab.context.new_cdp_session(tab.page)
    for name, (place, heading) in SCREENS.items():
        tab.page.set_viewport_size({"width": LOOKS[0].width, "height": LOOKS[0].height})
        tab.go(place)
        tab.page.get_by_role("heading", level=1, name=heading or "").first.wait_for()
        tab.settle()
        tab.page.add_style_tag(content=FONT)
        for look in LOOKS:
            tab.page.emulate_media(color_scheme=look.scheme)
            tab.page.set_viewport_size({"width": look.width, "height": look.height})
            tab.settle()
            tab.page.evaluate("document.fonts.ready.then(() => scrollTo(0, 0))")
            clip = {"x": 0, "y": 0, "width": look.width, "height": look.height}
            taken = session.send(
                "Page.captureScreenshot", {"clip": {**clip, "scale": look.scale if scaled else 1}}
            )
            yield name, look, base64.b64decode(taken["data"])
    assert tab.faults == []
    tab.context.close()


def sheets(browser: Any, url: str) -> dict[str, bytes]:
    """The sheet of each look."""
    taken: dict[Look, list[str]] = {look: [] for look in LOOKS}
    for _, look, picture in pictures(browser, url):
        taken[look].append(base64.b64encode(picture).decode())
    page = browser.new_page()
    return {
        look.name: base64.b64decode(page.evaluate(_COMPOSE, [taken[look], COLUMNS, *size_of(look)]))
        for look in LOOKS
    }


def size_of(look: Look) -> tuple[int, int]:
    """Width and height of a screen on a sheet."""
    return round(look.width * look.scale), round(look.height * look.scale)


def main() -> None:
    """Make all anew."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, nargs="?", help="of pictures to be looked at")
    to = parser.parse_args().folder
    with TemporaryDirectory() as folder, running() as browser:
        node = NodeProcess(Path(folder), "--auth", "open").start()
        try:
            fill(node)
            if to is not None:
                to.mkdir(exist_ok=True)
                for name, look, picture in pictures(browser, node.url, scaled=False):
                    (to / f"{name.replace(' ', '-')}-{look.name}.png").write_bytes(picture)
            else:
                FOLDER.mkdir(exist_ok=True)
                for name, sheet in sheets(browser, node.url).items():
                    (FOLDER / f"{name}.png").write_bytes(sheet)
        finally:
            node.close()


if __name__ == "__main__":
    main()
