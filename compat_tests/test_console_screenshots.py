"""The screenshots of the guides show the console as it is: made anew, they look like those there.

The comparison is of blocks of the picture, since times and ids differ from run to run. Where it
fails, look at what changed, and run `python -m compat_tests.screenshots`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from compat_tests.brightness import brightness, share_of_others
from compat_tests.console_world import sqs
from compat_tests.node_process import NodeProcess
from compat_tests.screenshots import FOLDER, fill, looks

pytestmark = pytest.mark.slow

COLUMNS, ROWS = 36, 20
OTHER_MAX = 0.05
"""The share of blocks that may look otherwise."""


@pytest.fixture
def pictures(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """All made anew."""
    node = NodeProcess(tmp_path_factory.mktemp("shop"), "--auth", "open").start()
    fill(sqs(node))
    yield dict(looks(browser, node.url))
    node.close()


def test_the_guides_show_the_console_as_it_is(browser: Any, pictures: dict[str, bytes]) -> None:
    page = browser.new_page()
    shown = {path.stem: path.read_bytes() for path in FOLDER.glob("console-*.png")}
    seen = {name: brightness(page, picture, COLUMNS, ROWS) for name, picture in pictures.items()}
    known = {name: brightness(page, picture, COLUMNS, ROWS) for name, picture in shown.items()}

    assert seen.keys() == known.keys()
    for name in seen:
        assert seen[name][:2] == known[name][:2], name
        assert share_of_others(seen[name][2], known[name][2]) <= OTHER_MAX, name


def test_one_screen_does_not_look_like_another(browser: Any) -> None:
    page = browser.new_page()
    known = [
        brightness(page, path.read_bytes(), COLUMNS, ROWS)[2]
        for path in FOLDER.glob("console-*.png")
    ]

    assert len(known) == 4
    for one, other in combinations(known, 2):
        assert share_of_others(one, other) > OTHER_MAX
