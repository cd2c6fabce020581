"""Pictures compared by the brightness of their blocks, so that times and ids may differ."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

NEAR = 8
"""Blocks whose mean brightness (0 to 255) differs by less look alike."""
_BRIGHTNESS = """async ([picture, columns, rows]) => {
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


def brightness(page: Any, picture: bytes, columns: int, rows: int) -> Any:
    """Width and height of a picture, and the brightness of so many blocks, row by row."""
    encoded = base64.b64encode(picture).decode()
    return page.evaluate(_BRIGHTNESS, [encoded, columns, rows])


def share_of_others(one: list[float], other: list[float]) -> float:
    """The share of blocks that look otherwise."""
    return _others(one, other) / len(one)


def share_of_drawn(one: list[float], other: list[float]) -> float:
    """The share of blocks that look otherwise, of those that are not empty in both pictures."""
    ((empty, _),) = Counter(one).most_common(1)
    drawn = sum(
        abs(mine - empty) >= NEAR or abs(theirs - empty) >= NEAR
        for mine, theirs in zip(one, other, strict=True)
    )
    return _others(one, other) / max(1, drawn)


def _others(one: list[float], other: list[float]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(abs(mine - theirs) >= NEAR for mine, theirs in pairs)
