"""The chart of results: for each kind of work a mark at the CPU per message of each service."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from compat_tests.benchmarks.report import CPU, Group
from compat_tests.benchmarks.scenarios import SCENARIOS

_WIDTH = 860
_LEFT, _RIGHT, _TOP = 270, 40, 118
_LINE = 34


class _Mark(NamedTuple):
    service: str
    shape: str
    """An SVG element of about 12 pixels round 0,0."""


_MARKS = (
    _Mark("holdfast-fsync", '<circle class="ours" r="6"/>'),
    _Mark("holdfast-fsync-python", '<circle class="ours hollow" r="5"/>'),
    _Mark("goaws", '<path class="theirs hollow" d="M-6 5 0-6 6 5Z"/>'),
    _Mark("elasticmq", '<rect class="theirs hollow" x="-5" y="-5" width="10" height="10"/>'),
    _Mark("elasticmq-h2", '<rect class="theirs" x="-5" y="-5" width="10" height="10"/>'),
    _Mark("granian-static", '<path class="others" d="M-6 0H6M0-6V6"/>'),
    _Mark("uvicorn-static", '<path class="others" d="M-5-5 5 5M-5 5 5-5"/>'),
    _Mark("moto", '<path class="others hollow" d="M0-7 7 0 0 7-7 0Z"/>'),
)
"""The services shown; the table has all. Services with a filled mark store messages on disk."""

_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 15px }
.small { font-size: 12px; fill: #57606a }
.page { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d0d7de }
.ours { fill: #0969da; stroke: #0969da; stroke-width: 2 }
.theirs { fill: #bc4c00; stroke: #bc4c00; stroke-width: 2 }
.others { fill: #6e7781; stroke: #6e7781; stroke-width: 2 }
.hollow { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .page { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #3d444d }
  .ours { fill: #58a6ff; stroke: #58a6ff }
  .theirs { fill: #f0883e; stroke: #f0883e }
  .others { fill: #9198a1; stroke: #9198a1 }
  .hollow { fill: #0d1117 }
}"""


def draw(groups: Sequence[Group]) -> str:
    """The chart as SVG, readable on light and dark pages."""
    figures: dict[str, dict[str, float]] = {}
    for one in groups:
        value = CPU.median(one.runs)
        if not math.isnan(value) and any(mark.service == one.endpoint for mark in _MARKS):
            label = f"{SCENARIOS[one.scenario].title} · {one.connections}"
            figures.setdefault(label, {})[one.endpoint] = value
    scale = _Scale([value for row in figures.values() for value in row.values()])
    height = _TOP + _LINE * len(figures) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
        '<text class="title" x="20" y="30">Processor time of the server for each message</text>',
        *_legend(),
        *_grid(scale, height),
    ]
    for number, (label, row) in enumerate(figures.items()):
        parts += _line(label, row, scale, _TOP + _LINE * number + _LINE // 2)
    return "\n".join([*parts, "</svg>\n"])


class _Scale:
    """A logarithmic axis from one of the steps 1, 3, 10, 30 ... to another."""

    def __init__(self, values: Sequence[float]) -> None:
        least, most = min(values, default=1.0), max(values, default=10.0)
        steps = [base * 10**power for power in range(-1, 7) for base in (1, 3)]
        first = max((step for step in steps if step <= least), default=steps[0])
        last = min((step for step in steps if step >= most), default=steps[-1])
        self.steps = [step for step in steps if first <= step <= last]

    def x(self, value: float) -> float:
        """The place of the value in the drawing."""
        first, last = math.log(self.steps[0]), math.log(self.steps[-1])
        share = (math.log(value) - first) / (last - first)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _legend() -> list[str]:
    parts = []
    x, y = 30, 54
    for mark in _MARKS:
        width = 50 + 8 * len(mark.service)
        if x + width > _WIDTH:
            x, y = 30, y + 22
        parts.append(f'<g transform="translate({x},{y})">{mark.shape}</g>')
        parts.append(f'<text x="{x + 12}" y="{y + 4}">{mark.service}</text>')
        x += width
    return parts


def _grid(scale: _Scale, height: int) -> list[str]:
    parts = []
    for step in scale.steps:
        x = scale.x(step)
        parts.append(f'<path class="grid" d="M{x} {_TOP - 4}V{height - 28}"/>')
        parts.append(
            f'<text class="small" x="{x}" y="{height - 12}" text-anchor="middle">{step:,g}</text>'
        )
    parts.append(
        f'<text class="small" x="20" y="{height - 12}">µs, logarithmic; left is better</text>'
        f'<text class="small" x="20" y="106">work · connections</text>'
    )
    return parts


def _line(label: str, row: dict[str, float], scale: _Scale, y: int) -> list[str]:
    marks = [
        f'<g transform="translate({scale.x(row[mark.service])},{y})">{mark.shape}'
        f"<title>{mark.service}: {row[mark.service]:,.1f} µs</title></g>"
        for mark in reversed(_MARKS)
        if mark.service in row
    ]
    return [
        f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>',
        f'<text x="20" y="{y + 4}">{label}</text>',
        *marks,
    ]
