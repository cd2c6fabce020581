"""The screenshots of the guides show the console as it is: made anew, they look like those there.

The comparison is of blocks of the picture, since times and ids differ from run to run. Where it
fails, look at what changed, and run `python -m compat_tests.screenshots`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from compat_tests.console_world import sqs
from compat_tests.node_process import NodeProcess
from compat_tests.screenshots import FOLDER, fill, looks

pytestmark = pytest.mark.slow

COLUMNS, ROWS = 36, 20
NEAR = 8
"""Blocks whose mean brightness (0 to 255) differs by less look alike."""
OTHER_MAX = 0.05
"""The share of blocks that may look otherwise."""
BRIGHTNESS = """async ([picture, columns, rows]) => {
    const image = new Image();
    image.src = `data:image/png;base64,${picture}`;
    await image.decode();
    const canvas = new OffscreenCanvas(columns, rows).getContext("2d");
    canvas.imageSmoothingQuality = "high";
    canvas.drawImage(image, 0, 0, columns, rows);
    const { data } = canvas.getImageData(0, 0, columns, rows);
    const means = [];
    for (let at = 0; at < data.length; at += 4)
        means.push((data[at] + data[at + 1] + data[at + 2]) / 3);
    return [image.width, image.height, means];
}"""


@pytest.fixture
def pictures(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """All made anew."""
    node = NodeProcess(tmp_path_factory.mktemp("shop"), "--auth", "open").start()
    fill(sqs(node))
    yield dict(looks(browser, node.url))
    node.close()


def brightness(page: Any, picture: bytes) -> Any:
    encoded = base64.b64encode(picture).decode()
    return page.evaluate(BRIGHTNESS, [encoded, COLUMNS, ROWS])


def share_of_others(one: list[float], other: list[float]) -> float:
    pairs = list(zip(one, other, strict=True))
    return sum(abs(mine - theirs) >= NEAR for mine, theirs in pairs) / len(pairs)


def test_the_guides_show_the_console_as_it_is(browser: Any, pictures: dict[str, bytes]) -> None:
    page = browser.new_page()
    shown = {path.stem: path.read_bytes() for path in FOLDER.glob("console-*.png")}
    seen = {name: brightness(page, picture) for name, picture in pictures.items()}
    known = {name: brightness(page, picture) for name, picture in shown.items()}

    assert seen.keys() == known.keys()
    for name in seen:
        assert seen[name][:2] == known[name][:2], name
        assert share_of_others(seen[name][2], known[name][2]) <= OTHER_MAX, name


def test_one_screen_does_not_look_like_another(browser: Any) -> None:
    page = browser.new_page()
    known = [brightness(page, path.read_bytes())[2] for path in FOLDER.glob("console-*.png")]

    assert len(known) == 4
    for one, other in combinations(known, 2):
        assert share_of_others(one, other) > OTHER_MAX
