"""HTML report of dead-letters: a card for each source queue with its most frequent errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_jobs.dead_letters.letter_groups import ALL, ATTRIBUTE, ERROR, FIELD
from spark_jobs.lib.charts import bars_chart
from spark_jobs.lib.job_report import Html, badge, bar, figures, html, joined, number, page, table

_CARDS_MAX = 30
_ERRORS_MAX = 12
_NAMES_MAX = 8
_VALUES_MAX = 8

Row = dict[str, Any]


class _Group:
    """A group summed over all days."""

    def __init__(self, row: Row) -> None:
        self.value: str = row["value"]
        self.count = 0
        self.first_sent_at: datetime = row["first_sent_at"]
        self.last_sent_at: datetime = row["last_sent_at"]
        self.message_id: str = row["message_id"]

    def add(self, row: Row) -> None:
        self.count += row["count"]
        self.first_sent_at = min(self.first_sent_at, row["first_sent_at"])
        if row["last_sent_at"] >= self.last_sent_at:
            self.last_sent_at = row["last_sent_at"]
            self.message_id = row["message_id"]


class _Source:
    """All groups of a source queue and its dead-letter queue."""

    def __init__(self) -> None:
        self.by_day: Counter[date] = Counter()
        self.groups: dict[tuple[str, str], dict[str, _Group]] = defaultdict(dict)

    def add(self, row: Row) -> None:
        if row["kind"] == ALL:
            self.by_day[row["day"]] += row["count"]
        values = self.groups[row["kind"], row["name"]]
        values.setdefault(row["value"], _Group(row)).add(row)

    @property
    def all(self) -> _Group:
        return self.groups[ALL, ""][""]

    def most(self, kind: str, name: str = "") -> list[_Group]:
        """The groups of this kind and name, the largest first."""
        found = self.groups.get((kind, name), {}).values()
        return sorted(found, key=lambda group: (-group.count, group.value))


def dead_letters_report(rows: pa.Table, now: datetime) -> str:
    """The page, from the rows of a run."""
    sources: dict[tuple[str, ...], _Source] = defaultdict(_Source)
    for row in rows.to_pylist():
        sources[row["source_queue"], row["queue"], row["account"], row["region"]].add(row)
    worst = sorted(sources.items(), key=lambda item: (-item[1].all.count, item[0]))
    days = sorted({day for _, source in worst for day in source.by_day})
    if not days:
        return page("Dead letters", "There are none.", now, [])
    subtitle = f"Messages sent from {days[0]:%d %B %Y} to {days[-1]:%d %B %Y} (UTC)."
    rest = len(worst) - _CARDS_MAX
    left_out = [html('<p class="soft small">{} more queues are in the table only.</p>\n', rest)]
    cards = joined(_card(names, source, days) for names, source in worst[:_CARDS_MAX])
    return page(
        "Dead letters",
        subtitle,
        now,
        [
            _figures(worst),
            html("<h2>Where they came from</h2>\n"),
            html('<div class="cards wide">\n{}</div>\n', cards),
            *(left_out if rest > 0 else []),
        ],
    )


def _figures(worst: list[tuple[tuple[str, ...], _Source]]) -> Html:
    letters = sum(source.all.count for _, source in worst)
    errors: Counter[str] = Counter()
    for _, source in worst:
        for group in source.most(ERROR):
            errors[group.value] += group.count
    _, often = errors.most_common(1)[0]
    latest = max(source.all.last_sent_at for _, source in worst)
    return figures(
        [
            (number(letters), "messages failed"),
            (number(len(worst)), "queues they came from"),
            (number(len(errors)), "kinds of error"),
            (f"{often / letters:.0%}", "of them are the most frequent one"),
            (f"{latest:%d %b %H:%M}", "UTC, sending time of the latest"),
        ]
    )


def _card(names: tuple[str, ...], source: _Source, days: list[date]) -> Html:
    source_queue, queue, account, region = names
    every_day = [days[0] + timedelta(days=day) for day in range((days[-1] - days[0]).days + 1)]
    labels = f"{every_day[0]:%d %b}", f"{every_day[-1]:%d %b}"
    amounts = [source.by_day[day] for day in every_day]
    return html(
        '<section class="card"><div class="head"><h3>{}</h3>'
        '<span class="soft small">{} · {}</span></div>\n'
        '<div class="badges">{}{}{}</div>\n<div class="chart">{}</div>\n'
        "<h4>Errors</h4>\n{}{}</section>\n",
        source_queue,
        account,
        region,
        badge(f"{number(source.all.count)} messages", "bad"),
        badge(f"to {queue}"),
        badge(f"latest {source.all.last_sent_at:%d %b %H:%M} UTC"),
        bars_chart(f"Dead letters of {source_queue} by day", amounts, labels),
        _errors(source),
        _commons(source),
    )


def _errors(source: _Source) -> Html:
    found = source.most(ERROR)
    columns = [
        ("Messages", ""),
        ("", "bar"),
        ("Shape", "text long"),
        ("First", "text"),
        ("Last", "text"),
        ("Example", "text"),
    ]
    rows = [
        [
            number(group.count),
            bar(group.count / source.all.count),
            group.value,
            f"{group.first_sent_at:%d %b %H:%M}",
            f"{group.last_sent_at:%d %b %H:%M}",
            html("<code>{}</code>", group.message_id),
        ]
        for group in found[:_ERRORS_MAX]
    ]
    rest = sum(group.count for group in found[_ERRORS_MAX:])
    more = html('<p class="soft small">and {} messages with other errors</p>', number(rest))
    return joined([table(columns, rows), more if rest else Html("")])


def _commons(source: _Source) -> Html:
    """Shared attributes and body fields, the most frequent names first."""
    names = [key for key in source.groups if key[0] in (ATTRIBUTE, FIELD)]
    names.sort(key=lambda key: (-sum(group.count for group in source.most(*key)), key))
    return html(
        '<div class="commons">{}</div>\n',
        joined(_common(source, *key) for key in names[:_NAMES_MAX]),
    )


def _common(source: _Source, kind: str, name: str) -> Html:
    found = source.most(kind, name)
    rows = [
        [number(group.count), bar(group.count / source.all.count), group.value]
        for group in found[:_VALUES_MAX]
    ]
    title = "Attribute" if kind == ATTRIBUTE else "Body field"
    return html(
        "<div><h4>{} <code>{}</code></h4>{}</div>\n",
        title,
        name,
        table([("Messages", ""), ("", "bar"), ("Value", "text long")], rows),
    )
