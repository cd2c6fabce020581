"""What the runs showed, as one aligned table of medians and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from compat_tests.benchmarks.measurement import Measurement


class _Column(NamedTuple):
    title: str
    value: Callable[[Measurement], float]
    decimals: int = 0
    compared: bool = True
    """Has a meaning as a ratio."""


_COLUMNS = (
    _Column("requests/s", lambda one: one.requests_per_second),
    _Column("messages/s", lambda one: one.messages_per_second),
    _Column("p50 ms", lambda one: one.p50_ms, 2),
    _Column("p99 ms", lambda one: one.p99_ms, 2),
    _Column("cpu us/request", lambda one: one.cpu_us_per_request, 1),
    _Column("cpu us/message", lambda one: one.cpu_us_per_message, 1),
    _Column("rss MiB", lambda one: one.resident_mib),
    _Column("client busy %", lambda one: 100 * one.client_busy, compared=False),
)
_TOTALS: tuple[tuple[str, Callable[[Measurement], int | None]], ...] = (
    ("errors", lambda one: one.errors),
    ("duplicates", lambda one: one.duplicates),
    ("lost", lambda one: one.lost),
)
_LEFT_ALIGNED = ("scenario", "connections", "endpoint", "latency of")


class Group(NamedTuple):
    """The runs of one scenario with one number of connections on one endpoint."""

    scenario: str
    connections: int
    endpoint: str
    runs: list[Measurement]


def group(measurements: Sequence[Measurement]) -> list[Group]:
    """The runs by scenario, connections and endpoint, in the order in which they first appear."""
    groups: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.scenario, one.connections, one.endpoint), []).append(one)
    return [Group(*key, runs) for key, runs in groups.items()]


def table(measurements: Sequence[Measurement]) -> str:
    """Medians over the rounds, sums of errors, duplicates and losses, and below each pair of endpoints their ratio."""
    titles = (
        *_LEFT_ALIGNED,
        *(column.title for column in _COLUMNS),
        *(name for name, _ in _TOTALS),
    )
    rows = [titles]
    first: Group | None = None
    for one in group(measurements):
        rows.append(_row(one))
        if first is not None and first[:2] == one[:2]:
            rows.append(_ratios(first, one))
        else:
            first = one
    return _align(rows)


def write_json(path: Path, settings: dict[str, str], measurements: Sequence[Measurement]) -> None:
    """Every run and the medians; what could not be measured is null."""
    medians = [
        {
            "scenario": one.scenario,
            "connections": one.connections,
            "endpoint": one.endpoint,
            **{column.title: _median(one, column) for column in _COLUMNS},
            **{name: _total(one, count) for name, count in _TOTALS},
        }
        for one in group(measurements)
    ]
    content = {"settings": settings, "medians": medians, "runs": measurements}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def _row(one: Group) -> tuple[str, ...]:
    return (
        one.scenario,
        str(one.connections),
        one.endpoint,
        one.runs[0].latency_of,
        *(_written(_median(one, column), column.decimals) for column in _COLUMNS),
        *("?" if (total := _total(one, count)) is None else str(total) for _, count in _TOTALS),
    )


def _ratios(first: Group, second: Group) -> tuple[str, ...]:
    ratios = [
        _written(_median(first, column) / (_median(second, column) or math.nan), 2)
        if column.compared
        else ""
        for column in _COLUMNS
    ]
    return ("", "", f"{first.endpoint} / {second.endpoint}", "", *ratios, *("" for _ in _TOTALS))


def _median(one: Group, column: _Column) -> float:
    """Over the runs that have the figure; not a number if none has."""
    values = [value for run in one.runs if not math.isnan(value := column.value(run))]
    return median(values) if values else math.nan


def _total(one: Group, count: Callable[[Measurement], int | None]) -> int | None:
    """Over all runs; None when it is not known of one of them."""
    total = 0
    for run in one.runs:
        counted = count(run)
        if counted is None:
            return None
        total += counted
    return total


def _written(value: float, decimals: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{decimals}f}"


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
