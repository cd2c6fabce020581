"""Charts as small inline SVG over equal steps of time; None leaves a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log10

from spark_jobs.lib.job_report import Html, html, joined

Series = Sequence[float | None]

_WIDTH, _HEIGHT = 360, 92
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 352, 8, 74
_TIMES = (
    (0.001, "1 ms"), (0.01, "10 ms"), (0.1, "0.1 s"), (1, "1 s"), (10, "10 s"), (60, "1 min"),
    (600, "10 min"), (3_600, "1 h"), (21_600, "6 h"), (86_400, "1 d"), (604_800, "7 d"),
    (2_419_200, "28 d"),
)  # fmt: skip


def times_chart(title: str, lines: Sequence[tuple[str, Series]], labels: tuple[str, str]) -> Html:
    """A chart of durations in seconds, on a logarithmic scale."""
    values = [value for _, line in lines for value in line if value is not None]
    low = max(min(values, default=0.1), 0.001)
    high = max(max(values, default=1), low * 10)
    below = max((at for at, _ in _TIMES if at <= low), default=0.001)
    above = min((at for at, _ in _TIMES if at >= high), default=high)
    ticks = [(at, text) for at, text in _TIMES if below <= at <= above]
    step = -(-len(ticks) // 4)
    kept = ticks[::-1][::step]

    def y(value: float) -> float:
        share = (log10(max(value, below)) - log10(below)) / (log10(above) - log10(below))
        return _BOTTOM - share * (_BOTTOM - _TOP)

    drawn = [
        _line(
            list(_places(line)), f"stroke {style}", [y(v) if v is not None else None for v in line]
        )
        for style, line in lines
    ]
    return _frame(title, [(y(at), text) for at, text in kept], drawn, labels)


def amounts_chart(title: str, line: Series, labels: tuple[str, str]) -> Html:
    """A chart of a number of messages, as an area from 0."""
    top = max((value for value in line if value is not None), default=0) or 1

    def y(value: float) -> float:
        return _BOTTOM - value / top * (_BOTTOM - _TOP)

    xs, ys = list(_places(line)), [y(v) if v is not None else None for v in line]
    drawn = [_area(xs, ys), _line(xs, "stroke s3", ys)]
    return _frame(title, [(y(top), _short(top)), (_BOTTOM, "0")], drawn, labels)


def bars_chart(title: str, amounts: Sequence[int], labels: tuple[str, str]) -> Html:
    """A bar chart with one bar for each step."""
    top = max(amounts, default=0) or 1
    step = (_RIGHT - _LEFT) / max(len(amounts), 1)
    width = max(min(step * 0.8, 18), 0.8)
    bars = [
        html(
            '<rect class="f1" x="{}" y="{}" width="{}" height="{}" rx="1"><title>{}</title></rect>',
            f"{_LEFT + (index + 0.5) * step - width / 2:.1f}",
            f"{_BOTTOM - height:.1f}",
            f"{width:.1f}",
            f"{height:.1f}",
            f"{amount:,}",
        )
        for index, amount in enumerate(amounts)
        if (height := max(amount / top * (_BOTTOM - _TOP), 1 if amount else 0))
    ]
    return _frame(title, [(_TOP, _short(top)), (_BOTTOM, "0")], bars, labels)


def _places(line: Sequence[object]) -> Iterator[float]:
    step = (_RIGHT - _LEFT) / max(len(line) - 1, 1)
    return (_LEFT + index * step for index in range(len(line)))


def _runs(xs: Sequence[float], ys: Series) -> Iterator[list[tuple[float, float]]]:
    """Runs of points without a gap."""
    run: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(xs: Sequence[float], style: str, ys: Series) -> Html:
    parts = []
    for run in _runs(xs, ys):
        (x, y), points = run[0], " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
        if len(run) == 1:
            points = f"{x - 1.5:.1f},{y:.1f} {x + 1.5:.1f},{y:.1f}"
        parts.append(html('<polyline class="{}" points="{}"/>', style, points))
    return joined(parts)


def _area(xs: Sequence[float], ys: Series) -> Html:
    parts = []
    for run in _runs(xs, ys):
        points = [(run[0][0], _BOTTOM), *run, (run[-1][0], _BOTTOM)]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(html('<polygon class="area" points="{}"/>', text))
    return joined(parts)


def _frame(
    title: str, ticks: Sequence[tuple[float, str]], drawn: Sequence[Html], labels: tuple[str, str]
) -> Html:
    grid = joined(
        html(
            '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text x="{}" y="{}" text-anchor="end">{}</text>',
            _LEFT,
            _RIGHT,
            f"{y:.1f}",
            f"{y:.1f}",
            _LEFT - 6,
            f"{y + 3.5:.1f}",
            text,
        )
        for y, text in ticks
    )
    ends = html(
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>',
        _LEFT,
        _HEIGHT - 4,
        labels[0],
        _RIGHT,
        _HEIGHT - 4,
        labels[1],
    )
    return html(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>\n',
        _WIDTH,
        _HEIGHT,
        title,
        grid,
        joined(drawn),
        ends,
    )


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
