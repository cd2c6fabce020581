"""Tables and short forms of numbers for terminals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def show_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table with columns as wide as they need to be."""
    rows = [head, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def plain(text: str, characters_max: int | None = None) -> str:
    """Text of a user in one line, without anything that a terminal would act on."""
    if characters_max is not None and len(text) > characters_max:
        text = text[: characters_max - 1] + "…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def json_text(value: object, indent: int | None = None) -> str:
    """JSON without anything that a terminal would act on: ASCII, and all else escaped."""
    return json.dumps(value, indent=indent).replace("\x7f", r"\u007f")


def span(seconds: float | None) -> str:
    """A duration by its two largest units, such as 3d 4h; empty for None."""
    if seconds is None:
        return ""
    left, parts = int(seconds), list[str]()
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2]) or "0s"


def instant(at_ms: int | None) -> str:
    """A time in UTC; empty for none."""
    if not at_ms:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(count: int | None) -> str:
    """A number, or a mark that it is not known."""
    return "?" if count is None else str(count)
