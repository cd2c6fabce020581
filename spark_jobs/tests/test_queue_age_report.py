"""The page of queue-age says what was counted, in the time that was watched, and no more."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_jobs.ages.queue_age import HOURLY
from spark_jobs.ages.queue_age_report import queue_age_report
from storage.lake.archive_schema import arrow_schema

Row = dict[str, Any]

HOUR = datetime(2026, 11, 20, 8, tzinfo=UTC)
COUNTS = ["sent", "received", "deleted", "expired", "purged", "moved_in", "moved_out"]


def row(queue: str, *, watched_s: float = 300, backlog: int = 0, **columns: Any) -> Row:
    """A queue in the hour; counts are 0 unless given."""
    counts: Row = dict.fromkeys(COUNTS, 0)
    given = counts | columns
    arrived = given["sent"] + given["moved_in"]
    left = given["deleted"] + given["expired"] + given["purged"] + given["moved_out"]
    return {
        **dict.fromkeys(HOURLY),
        "account": "000000000001",
        "region": "us-east-1",
        "queue": queue,
        "hour": HOUR,
        "watched_s": watched_s,
        "backlog": backlog,
        "stored": backlog,
        "receive_counts": [0] * 6,
        "arrivals_per_s": arrived / watched_s,
        "departures_per_s": left / watched_s,
        "oldest_receivable_s": 90.0 if backlog else None,
        **given,
    }


def text_of(rows: list[Row]) -> str:
    """The text of the report, without its tags."""
    page = queue_age_report(pa.Table.from_pylist(rows, schema=arrow_schema(HOURLY)), HOUR, HOUR)
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page))


def cards_of(rows: list[Row]) -> list[str]:
    """The queues that have a card."""
    page = queue_age_report(pa.Table.from_pylist(rows, schema=arrow_schema(HOURLY)), HOUR, HOUR)
    return re.findall(r"<h3>(.*?)</h3>", page)


def test_five_minutes_are_not_said_to_be_an_hour() -> None:
    text = text_of([row("orders", sent=300, deleted=66, expired=1, backlog=233)])

    assert "+233 in 5 min" in text
    assert "300 in, 67 out (1 in, 0.22 out a second)" in text
    assert "1 expired" in text
    assert "2,796" not in text
    assert "an hour" not in text


def test_a_whole_hour_is_told_as_one() -> None:
    text = text_of([row("orders", watched_s=3600.2, sent=3600, deleted=600, backlog=3000)])

    assert "+3,000 in 1 h" in text
    assert "3,600 in, 600 out (1 in, 0.17 out a second)" in text


def test_a_queue_without_flows_has_neither_counts_nor_rates() -> None:
    unknown = dict.fromkeys([*COUNTS, "watched_s", "arrivals_per_s", "departures_per_s"])
    text = text_of([row("orders", backlog=3) | unknown])

    assert "3 stored" in text
    assert "a second)" not in text


def test_a_deleted_queue_does_not_grow() -> None:
    rows = [row("gone", sent=2802, purged=2802), row("orders", sent=1, backlog=1)]

    text = text_of(rows)

    assert cards_of(rows) == ["orders"]
    assert "+2,802" not in text
    assert "2,802" in text


def test_empty_queues_are_one_line() -> None:
    idle = [row(f"idle-{number}") for number in range(41)]
    drained = [row(f"drained-{number}", sent=2, deleted=2) for number in range(2)]
    rows = [*idle, *drained, row("orders", sent=9, backlog=9)]

    text = text_of(rows)

    assert cards_of(rows) == ["orders"]
    assert "and 43 queues without messages" in text
    assert "and 41 queues without messages, in or out" in text
    assert "idle-" not in text
    assert "drained-0" in text


def test_a_single_empty_queue_is_one_and_none_is_no_line() -> None:
    orders = row("orders", sent=9, backlog=9)

    assert "and 1 queue without messages" in text_of([row("idle"), orders])
    assert "without messages" not in text_of([orders])


def test_a_queue_that_is_gone_and_was_empty_has_no_card() -> None:
    before = HOUR - timedelta(hours=1)
    rows = [row("orders", backlog=9), row("was", backlog=4) | {"hour": before}]

    assert cards_of([*rows, row("empty") | {"hour": before}]) == ["orders", "was"]
