"""The rooms of each package as a drawing, made from the import contracts: `make rooms` writes it
into the README."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
README = CHECKOUT / "README.md"
_BEGIN, _END = "<!-- rooms: written by `make rooms` -->\n", "<!-- end of rooms -->\n"
_INDENT = 12


def drawing() -> str:
    """A paragraph a package, in Markdown. Each room may import those that are named behind it."""
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [each for each in contracts["contracts"] if each["type"] == "layers"]
    order = next(each["layers"] for each in layers if "containers" not in each)
    inside = {each["containers"][0]: each["layers"] for each in layers if "containers" in each}
    lines: list[str] = []
    for package in [*order, *(inside.keys() - set(order))]:
        rooms = " → ".join(layer.replace(" | ", ", ") for layer in inside.get(package, []))
        text = package.ljust(_INDENT) + rooms
        lines += textwrap.wrap(text, 100, subsequent_indent=" " * _INDENT)
    return "\n".join(["```", *lines, "```\n"])


def with_drawing(readme: str) -> str:
    """The README with the drawing between its marks."""
    return between(readme, _BEGIN, drawing(), _END)


def between(text: str, begin: str, content: str, end: str) -> str:
    """A text with other content between two marks."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + content + end + after


if __name__ == "__main__":
    README.write_text(with_drawing(README.read_text()))
