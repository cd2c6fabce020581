"""Groups of runs, paired ratios of two groups, one aligned table of medians, and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from compat_tests.benchmarks.measurement import Measurement


class Column(NamedTuple):
    """A figure of a run."""

    title: str
    value: Callable[[Measurement], float]
    decimals: int = 0
    compared: bool = True
    """Makes sense as a ratio."""

    base: Callable[[Measurement], float] | None = None
    """The other's figure that it is divided by, if not the same one."""

    def median(self, runs: Sequence[Measurement]) -> float:
        """The median over the runs that have the figure; not a number if none has."""
        return _median(self.value(run) for run in runs)

    def written(self, runs: Sequence[Measurement]) -> str:
        """The median as a text."""
        return written(self.median(runs), self.decimals)


CPU = Column("cpu us/message", lambda one: one.cpu_us_per_message, 1)
RATE = Column("messages/s", lambda one: one.messages_per_second)
P50 = Column("p50 ms", lambda one: one.p50_ms, 2)
P99 = Column("p99 ms", lambda one: one.p99_ms, 2)
FOLLOWER = Column(
    "follower us/message", lambda one: one.follower_cpu_us_per_message, 1, base=CPU.value
)
_COLUMNS = (
    CPU,
    FOLLOWER,
    RATE,
    P50,
    P99,
    Column("rss MiB", lambda one: one.resident_mib, compared=False),
    Column("client busy %", lambda one: 100 * one.client_busy, compared=False),
)
_TOTALS: tuple[tuple[str, Callable[[Measurement], int | None]], ...] = (
    ("errors", lambda one: one.errors),
    ("duplicates", lambda one: one.duplicates),
    ("lost", lambda one: one.lost),
)
_LEFT_ALIGNED = ("scenario", "connections", "endpoint", "latency of")
_LEGEND = """\
Figures are medians over the rounds. "A / B": A's figure divided by B's in the same round, the
median, and in brackets the number of rounds in which A's was lower."""


class Group(NamedTuple):
    """The runs of one scenario and number of connections on one endpoint, in order of rounds."""

    scenario: str
    connections: int
    endpoint: str
    runs: list[Measurement]


class Ratio(NamedTuple):
    """A figure of one endpoint divided by another's, taken round by round."""

    median: float
    lower: int
    """Rounds in which the first was lower."""

    rounds: int
    least: float
    greatest: float


def group(measurements: Sequence[Measurement]) -> list[Group]:
    """The runs by scenario, connections and endpoint, in the order in which they first appear."""
    groups: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.scenario, one.connections, one.endpoint), []).append(one)
    return [Group(*key, runs) for key, runs in groups.items()]


def paired(first: Group, second: Group, column: Column) -> Ratio:
    """The first's figure divided by the second's; rounds without one of them do not count."""
    base = column.base or column.value
    values = [column.value(run) for run in first.runs], [base(run) for run in second.runs]
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(*values, strict=True)
        if not math.isnan(ours) and theirs > 0
    ]
    ratios = [ours / theirs for ours, theirs in pairs] or [math.nan]
    lower = sum(ours < theirs for ours, theirs in pairs)
    return Ratio(_median(ratios), lower, len(pairs), min(ratios), max(ratios))


def table(measurements: Sequence[Measurement]) -> str:
    """Medians, sums of errors and losses, and the first's ratio to each further endpoint."""
    followed = any(not math.isnan(FOLLOWER.value(one)) for one in measurements)
    columns = [column for column in _COLUMNS if followed or column is not FOLLOWER]
    titles = (
        *_LEFT_ALIGNED,
        *(column.title for column in columns),
        *(name for name, _ in _TOTALS),
    )
    rows = [titles]
    first: Group | None = None
    for one in group(measurements):
        rows.append(_row(one, columns))
        if first is not None and first[:2] == one[:2]:
            rows.append(_ratios(first, one, columns))
        else:
            first = one
    return f"{_align(rows)}\n{_LEGEND}"


def write_json(path: Path, settings: dict[str, str], measurements: Sequence[Measurement]) -> None:
    """Every run; figures that could not be measured are null."""
    content = {"settings": settings, "runs": measurements}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def written(value: float, decimals: int) -> str:
    """The figure with this number of decimals; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:,.{decimals}f}"


def _row(one: Group, columns: Sequence[Column]) -> tuple[str, ...]:
    return (
        one.scenario,
        str(one.connections),
        one.endpoint,
        one.runs[0].latency_of,
        *(column.written(one.runs) for column in columns),
        *("?" if (total := _total(one, count)) is None else str(total) for _, count in _TOTALS),
    )


def _ratios(first: Group, second: Group, columns: Sequence[Column]) -> tuple[str, ...]:
    ratios = [_ratio(first, second, column) if column.compared else "" for column in columns]
    return ("", "", f"{first.endpoint} / {second.endpoint}", "", *ratios, *("" for _ in _TOTALS))


def _ratio(first: Group, second: Group, column: Column) -> str:
    ratio = paired(first, second, column)
    return f"{written(ratio.median, 2)} ({ratio.lower} of {ratio.rounds})"


def _median(values: Iterable[float]) -> float:
    """The median of the numbers; NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return median(numbers) if numbers else math.nan


def _total(one: Group, count: Callable[[Measurement], int | None]) -> int | None:
    """The sum over all runs; None if one of them is unknown."""
    total = 0
    for run in one.runs:
        counted = count(run)
        if counted is None:
            return None
        total += counted
    return total


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if title in _LEFT_ALIGNED else cell.rjust(width)
            for title, cell, width in zip(rows[0], row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
