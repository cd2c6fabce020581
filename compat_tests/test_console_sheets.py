"""All screens of the console look as they did: made anew, the sheets look like those in
`compat_tests/screens`.

Where it fails, look at the sheets that it left behind; if they are as they should be, run
`python -m compat_tests.screen_sheets`.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from compat_tests.brightness import brightness, share_of_drawn
from compat_tests.node_process import NodeProcess
from compat_tests.screen_sheets import COLUMNS, FOLDER, LOOKS, SCREENS, Look, fill, sheets, size_of
from compat_tests.test_dashboards import SCREENS as MAIN

pytestmark = pytest.mark.slow

BLOCK = 8
"""Pixels of a block's side on a sheet."""
OF_A_LAKE = "/archive/"
"""Screens of messages that were archived, which takes minutes."""
OTHER_MAX = 0.1
"""The share of a screen's blocks with something in them that may look otherwise."""


def screens_of(page: Any, look: Look, sheet: bytes) -> dict[str, list[float]]:
    """The blocks of each screen of a sheet."""
    width, height = size_of(look)
    across, down = width // BLOCK, height // BLOCK
    rows = -(-len(SCREENS) // COLUMNS)
    size = brightness(page, sheet, 1, 1)[:2]
    assert size == [width * COLUMNS, height * rows], look.name
    _, _, means = brightness(page, sheet, across * COLUMNS, down * rows)
    found = {}
    for at, name in enumerate(SCREENS):
        top, left = at // COLUMNS * down, at % COLUMNS * across
        lines = range(top, top + down)
        found[name] = [
            mean for line in lines for mean in means[line * across * COLUMNS + left :][:across]
        ]
    return found


@pytest.fixture
def known(browser: Any) -> dict[str, dict[str, list[float]]]:
    """The screens of the sheets that are kept, by sheet."""
    page = browser.new_page()
    return {
        look.name: screens_of(page, look, (FOLDER / f"{look.name}.png").read_bytes())
        for look in LOOKS
    }


def test_all_screens_look_as_they_did(
    browser: Any, known: dict[str, dict[str, list[float]]], tmp_path: Path
) -> None:
    node = NodeProcess(tmp_path / "shop", "--auth", "open").start()
    fill(node)
    made = sheets(browser, node.url)
    node.close()
    page = browser.new_page()
    others = {}
    for look in LOOKS:
        (tmp_path / f"{look.name}.png").write_bytes(made[look.name])
        for name, blocks in screens_of(page, look, made[look.name]).items():
            others[f"{name}, {look.name}"] = share_of_drawn(blocks, known[look.name][name])

    assert {name: share for name, share in others.items() if share > OTHER_MAX} == {}, tmp_path


def test_one_screen_does_not_look_like_another(
    known: dict[str, dict[str, list[float]]],
) -> None:
    alike = [
        (name, one, other)
        for name, screens in known.items()
        for one, other in combinations(screens, 2)
        if share_of_drawn(screens[one], screens[other]) <= OTHER_MAX
    ]

    assert alike == []


def test_no_screen_is_left_out() -> None:
    patterns = re.findall(r'^  \[["`](/[^"`]+)["`], "(\w+)"', MAIN, re.MULTILINE)
    shown = [re.compile(f"^{path.replace('${NAME}', '[^/]+')}$") for path, _ in patterns]
    places = [place.partition("?")[0] for place, _ in SCREENS.values()]
    missing = [each.pattern[1:] for each in shown if not any(each.match(place) for place in places)]

    assert [each for each in missing if not each.startswith(OF_A_LAKE)] == []
    assert len(missing) == 3
