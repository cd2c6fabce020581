"""HTML report of queue-age: two days, the worst queues first."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jobs.ages.age_statistics import QUEUE
from spark_jobs.lib.charts import amounts_chart, times_chart
from spark_jobs.lib.job_report import (
    Html,
    badge,
    duration,
    figures,
    html,
    joined,
    number,
    page,
    plural,
    signed,
    table,
)

REPORT_HOURS = 48
_GROWTH = 0.1
_WAIT_S = 60.0
"""A queue falls behind if it grew by 10 % in this hour while messages wait longer than a minute."""
_CARDS_MAX = 24
_ROWS_MAX = 500
_CLASSES = ("never", "once", "twice", "3 times", "4 to 9 times", "10 times or more")
_SHADES = ("f3", "f1", "f1", "f1", "f2", "f2")
_OPACITY = (0.45, 0.45, 0.7, 1, 0.6, 1)

REPORT_COLUMNS = [
    "age_p50_s",
    "age_p90_s",
    "age_p99_s",
    "age_max_s",
    "time_in_queue_p50_s",
    "time_in_queue_p99_s",
    "stored",
    "in_flight",
    "backlog",
    "sent",
    "moved_in",
    "deleted",
    "expired",
    "purged",
    "moved_out",
    "watched_s",
    "arrivals_per_s",
    "departures_per_s",
    "oldest_stored_s",
    "oldest_receivable_s",
    "receive_counts",
    "snapshots",
]
"""Columns that the report reads from the table, besides queue and hour."""

Row = dict[str, Any]


class _Moved(NamedTuple):
    """Messages that came and went in the part of the hour that flows cover; 0 without flows."""

    arrived: int
    left: int

    @classmethod
    def of(cls, row: Row) -> _Moved:
        arrived = (row["sent"] or 0) + (row["moved_in"] or 0)
        gone = (row[name] or 0 for name in ("deleted", "expired", "purged", "moved_out"))
        return cls(arrived, sum(gone))

    @property
    def growth(self) -> int:
        return self.arrived - self.left


class _History:
    """A queue over the report's hours; None for hours without a row."""

    def __init__(self, rows: list[Row], hours: list[datetime]) -> None:
        by_hour = {row["hour"]: row for row in rows}
        self.rows: list[Row | None] = [by_hour.get(hour) for hour in hours]
        self.latest: Row = by_hour[max(by_hour)]
        self.is_current = self.rows[-1] is not None
        self.moved = _Moved.of(self.latest)
        self.is_empty = not self.latest["backlog"]

    def line(self, column: str) -> list[float | None]:
        """A column over time."""
        return [None if row is None else row[column] for row in self.rows]

    @property
    def badness(self) -> tuple[bool, float, float]:
        """Sort key: age of the oldest receivable message, doubled if the backlog grows."""
        oldest_s = self.latest["oldest_receivable_s"] or 0.0
        growth = self.moved.growth
        return self.is_current, oldest_s * (2 if growth > 0 else 1), growth


def queue_age_report(rows: pa.Table, newest: datetime, now: datetime) -> str:
    """The page on the two days up to the hour `newest`, from the table's rows of at least these."""
    all_rows: list[Row] = rows.to_pylist()
    hours = [newest - timedelta(hours=back) for back in reversed(range(REPORT_HOURS))]
    by_queue: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in all_rows:
        if hours[0] <= row["hour"] <= newest:
            by_queue[tuple(row[name] for name in QUEUE)].append(row)
    histories = sorted(
        (_History(found, hours) for found in by_queue.values()),
        key=lambda history: history.badness,
        reverse=True,
    )
    labels = f"{hours[0]:%d %b %H:%M}", f"{newest + timedelta(hours=1):%d %b %H:%M} UTC"
    subtitle = (
        f"The hour from {newest:%d %B %Y, %H:%M} UTC, and the {REPORT_HOURS} hours up to its end."
    )
    return page(
        "Queue ages",
        subtitle,
        now,
        [_figures(histories), *_worst(histories, labels), *_numbers(histories)],
    )


def _figures(histories: list[_History]) -> Html:
    current = [history for history in histories if history.is_current]
    rows = [history.latest for history in current]
    oldest_s = max((row["oldest_receivable_s"] or 0.0 for row in rows), default=0.0)
    growing = sum(history.moved.growth > 0 for history in current)
    per_s = [sum(row[name] or 0 for row in rows) for name in ("arrivals_per_s", "departures_per_s")]
    arrived, left = (sum(getattr(h.moved, name) for h in current) for name in _Moved._fields)
    return figures(
        [
            (number(len(rows)), "queues with messages in this hour"),
            (number(sum(row["backlog"] or 0 for row in rows)), "messages stored at its end"),
            (duration(oldest_s), "age of the oldest receivable message"),
            (number(growing), "queues grow" if growing != 1 else "queue grows"),
            (
                f"{number(arrived)} / {number(left)}",
                f"messages in / out, {number(per_s[0])} / {number(per_s[1])} a second",
            ),
        ]
    )


def _worst(histories: list[_History], labels: tuple[str, str]) -> list[Html]:
    filled = [history for history in histories if not history.is_empty]
    shown = filled[:_CARDS_MAX]
    rest = len(filled) - len(shown)
    left_out = f" {rest} more are in the table only." if rest else ""
    return [
        html("<h2>Worst queues</h2>\n"),
        html(
            '<p class="soft small">By the age of the oldest receivable message, doubled if the '
            'backlog grows. Ages: <i class="key k1"></i>half of the messages are younger (p50)'
            '<i class="key k2"></i>99 % are (p99). '
            'Backlog:<i class="key k3"></i>messages at each hour’s end.{}</p>\n',
            left_out,
        ),
        html(
            '<div class="cards">\n{}</div>\n', joined(_card(history, labels) for history in shown)
        ),
        _folded(len(histories) - len(filled), ""),
    ]


def _folded(count: int, more: str) -> Html:
    """One line for the queues that are left out since they are empty."""
    if not count:
        return Html("")
    text = f"and {plural(count, 'queue')} without messages{more}"
    return html('<p class="soft small">{}</p>\n', text)


def _card(history: _History, labels: tuple[str, str]) -> Html:
    row, moved = history.latest, history.moved
    oldest_s = row["oldest_receivable_s"] or 0.0
    falls_behind = moved.growth > _GROWTH * (row["backlog"] or 0) and oldest_s > _WAIT_S
    badges = [badge(f"oldest {duration(oldest_s)}", "bad" if falls_behind else "")]
    if moved.growth:
        kind = "bad" if falls_behind else "good" if moved.growth < 0 else ""
        badges.append(badge(f"{signed(moved.growth)} in {duration(row['watched_s'])}", kind))
    badges.append(badge(f"{number(row['backlog'])} stored"))
    if row["watched_s"]:
        badges.append(
            badge(
                f"{number(moved.arrived)} in, {number(moved.left)} out "
                f"({number(row['arrivals_per_s'])} in, "
                f"{number(row['departures_per_s'])} out a second)"
            )
        )
    if row["expired"]:
        badges.append(badge(f"{number(row['expired'])} expired", "bad"))
    if not history.is_current:
        badges.append(badge(f"last seen {row['hour']:%d %b %H:%M}"))
    ages = [("s2", history.line("age_p99_s")), ("s1", history.line("age_p50_s"))]
    return html(
        '<section class="card"><div class="head"><h3>{}</h3>'
        '<span class="soft small">{} · {}</span></div>\n'
        '<div class="badges">{}</div>\n{}{}{}</section>\n',
        row["queue"],
        row["account"],
        row["region"],
        joined(badges),
        times_chart(f"Ages of messages in {row['queue']}", ages, labels),
        amounts_chart(f"Backlog of {row['queue']}", history.line("backlog"), labels),
        _receives(row["receive_counts"]),
    )


def _receives(counts: list[int]) -> Html:
    """A bar with the shares of messages by receive count."""
    total = sum(counts)
    if not total:
        return Html("")
    shares = joined(
        html(
            '<i style="flex:{};background:var(--{});opacity:{}" title="{}: {}"></i>',
            count,
            {"f1": "first", "f2": "second", "f3": "third"}[shade],
            opacity,
            name,
            number(count),
        )
        for count, name, shade, opacity in zip(counts, _CLASSES, _SHADES, _OPACITY, strict=True)
        if count
    )
    labels = [f"never {counts[0] / total:.0%}", f"1–3 times {sum(counts[1:4]) / total:.0%}"]
    if often := sum(counts[4:]):
        labels.append(f"more {often / total:.1%}")
    return html(
        '<div class="shares" style="margin:8px 0 4px">{}</div>'
        '<div class="soft small">received: {}</div>\n',
        shares,
        ", ".join(labels),
    )


def _numbers(histories: list[_History]) -> list[Html]:
    columns = [
        ("Queue", "text long"),
        ("Oldest", ""),
        ("receivable", ""),
        ("Age p50", ""),
        ("p90", ""),
        ("p99", ""),
        ("Stay p50", ""),
        ("p99", ""),
        ("Backlog", ""),
        ("In flight", ""),
        ("Watched", ""),
        ("Growth", ""),
        ("In", ""),
        ("a second", ""),
        ("Out", ""),
        ("a second", ""),
    ]
    current = [history for history in histories if history.is_current]
    told = [history for history in current if not history.is_empty or any(history.moved)]
    cells = [
        [
            _named(row),
            *map(duration, (row["oldest_stored_s"], row["oldest_receivable_s"])),
            *map(duration, (row["age_p50_s"], row["age_p90_s"], row["age_p99_s"])),
            *map(duration, (row["time_in_queue_p50_s"], row["time_in_queue_p99_s"])),
            *map(number, (row["backlog"], row["in_flight"])),
            *_moved_cells(history),
        ]
        for history in told[:_ROWS_MAX]
        for row in [history.latest]
    ]
    caption = (
        "Of the part of this hour that was watched. Stay: time in the queue of deleted messages. "
        "Percentiles are at most 9.1 % too high."
    )
    if len(told) > _ROWS_MAX:
        caption = f"The worst {_ROWS_MAX} of {len(told):,} queues. " + caption
    return [
        html('<h2>Numbers</h2>\n<p class="soft small">{}</p>\n', caption),
        table(columns, cells),
        _folded(len(current) - len(told), ", in or out"),
    ]


def _moved_cells(history: _History) -> list[str]:
    """Time watched, growth, and arrivals and departures as counts and rates."""
    row, moved = history.latest, history.moved
    if row["watched_s"] is None:
        return [number(None)] * 6
    return [
        duration(row["watched_s"]),
        signed(moved.growth),
        number(moved.arrived),
        number(row["arrivals_per_s"]),
        number(moved.left),
        number(row["departures_per_s"]),
    ]


def _named(row: Row) -> Html:
    return html(
        '{}<br><span class="soft small">{} · {}</span>', row["queue"], row["account"], row["region"]
    )
