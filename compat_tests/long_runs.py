"""The long runs of `runs.csv` as a table and a chart, and the simulated day of
`fleet_at_scale.csv`: `make runs` writes them into `RUNS.md`.

A row of `runs.csv` is one run, or a day's runs of one kind: `amount` in `unit`, messages
`acknowledged` (empty where the run does not count them), how many of these were `lost`, and what
was found.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Iterator
from pathlib import Path

from compat_tests.rooms import between

RUNS = Path(__file__).parent / "RUNS.md"
_DATA = Path(__file__).parent / "runs.csv"
_BEGIN, _END = "<!-- runs: written by `make runs` -->\n", "<!-- end of runs -->\n"
_DAY = Path(__file__).parent / "fleet_at_scale.csv"
_BEGIN_DAY = "<!-- fleet at scale: written by `make runs` -->\n"
_END_DAY = "<!-- end of fleet at scale -->\n"
_UNSYNCED = "--durability os"
_HOW_LONG = re.compile(r" --(rounds|changes|hours|calm) \d+")
_MEASURED = ("bench", "size")
"""Their runs acknowledge and lose nothing that is counted."""


def _rows() -> list[dict[str, str]]:
    with _DATA.open(newline="") as file:
        return list(csv.DictReader(file))


def _sum(rows: list[dict[str, str]], column: str) -> int:
    return sum(int(row[column] or 0) for row in rows)


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _by_command(rows: list[dict[str, str]]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Rows of faults and seeds by command, however long it ran, and apart those of folders that are
    not synced; by command."""
    by: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if not row["command"].startswith(_MEASURED):
            unit = row["unit"] if _UNSYNCED in row["unit"] else ""
            unit = "simulated hours" if "hour" in row["unit"] else unit
            by.setdefault((_HOW_LONG.sub("", row["command"]), unit), []).append(row)
    return dict(sorted(by.items()))


def _sums(rows: list[dict[str, str]]) -> Iterator[str]:
    yield "| command | runs | acknowledged | lost | last |"
    yield "|---|---|---|---|---|"
    for (command, unit), of in _by_command(rows).items():
        what = unit or max((row["unit"] for row in of), key=len)
        amount = f"{_sum(of, 'amount'):,} {what}"
        cells = command, amount, _number(_sum(of, "acknowledged")), f"{_sum(of, 'lost'):,}"
        yield f"| `{cells[0]}` | {' | '.join(cells[1:])} | {_day(of[-1]['date'])} |"


def _chart(rows: list[dict[str, str]]) -> Iterator[str]:
    counted = {
        command: _sum(of, "acknowledged") // 1000
        for (command, _), of in _by_command(rows).items()
        if _sum(of, "acknowledged") and not _sum(of, "lost")
    }
    yield "```mermaid"
    yield "xychart-beta"
    yield '    title "Messages acknowledged under faults, in thousands; none of them was lost"'
    yield f"    x-axis [{', '.join(counted)}]"
    yield f"    bar [{', '.join(map(str, counted.values()))}]"
    yield "```"


def _chart_of_day() -> Iterator[str]:
    """Mean and greatest load of the clusters of the simulated day, in percent by hour."""
    with _DAY.open(newline="") as file:
        hours = list(csv.DictReader(file))
    yield "```mermaid"
    yield "xychart-beta"
    yield '    title "Load of 100 clusters in a simulated day, percent: greatest and mean"'
    yield f"    x-axis [{', '.join(row['hour'] for row in hours)}]"
    yield '    y-axis "percent" 0 --> 120'
    for column in ("greatest", "mean"):
        yield f"    line [{', '.join(f'{float(row[column]):.0%}'[:-1] for row in hours)}]"
    yield "```"


def _day(date: str) -> str:
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B}"


def with_runs(text: str) -> str:
    """`RUNS.md` with the tables and the charts between its marks."""
    rows = _rows()
    parts = [*_sums(rows), "", *_chart(rows), ""]
    text = between(text, _BEGIN, "\n".join(parts), _END)
    return between(text, _BEGIN_DAY, "\n".join([*_chart_of_day(), ""]), _END_DAY)


if __name__ == "__main__":
    RUNS.write_text(with_runs(RUNS.read_text()))
