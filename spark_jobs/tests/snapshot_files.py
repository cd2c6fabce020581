"""A lake with snapshots and flows as the service writes them, with the rows that a test wants."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.lake.archive_schema import FLOW, FLOWS, SNAPSHOT, SNAPSHOTS, Columns, arrow_schema
from storage.lake.table import Lake

Row = dict[str, Any]

ACCOUNT = "000000000001"
HOUR = datetime(2026, 11, 20, 8, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """The given number of minutes after the beginning of HOUR."""
    return HOUR + timedelta(minutes=minutes)


def stored(queue: str, age_s: float, **columns: Any) -> Row:
    """A waiting message, sent `age_s` ago."""
    return {
        "account": ACCOUNT,
        "region": "us-east-1",
        "queue": queue,
        "state": "visible",
        "receivable": True,
        "age": timedelta(seconds=age_s),
        "receive_count": 0,
        "size": 100,
    } | columns


def flow(queue: str, minutes: float, **columns: Any) -> Row:
    """A queue's flow of this many minutes; counts are 0 unless given."""
    counts: Row = {name: 0 for name, kind in FLOW.items() if kind == "int64"}
    return {
        **counts,
        "account": ACCOUNT,
        "region": "us-east-1",
        "queue": queue,
        "duration": timedelta(minutes=minutes),
        "time_in_queue_buckets": [],
        "time_in_queue_counts": [],
    } | columns


def write_snapshot(
    lake: Lake, taken_at: datetime, rows: Iterable[Row], *, source: str = "data-1", shard: int = 0
) -> str:
    """A snapshot of a shard; its path."""
    dated = [{**row, "taken_at": taken_at, "sent_at": taken_at - row["age"]} for row in rows]
    return _write(lake, SNAPSHOTS, SNAPSHOT, dated, f"{source}/shard-{shard}", taken_at)


def write_flows(
    lake: Lake, until_at: datetime, rows: Iterable[Row], *, source: str = "data-1", shard: int = 0
) -> str:
    """The flows of a shard until an instant; their path."""
    dated = [{**row, "until_at": until_at, "from_at": until_at - row["duration"]} for row in rows]
    return _write(lake, FLOWS, FLOW, dated, f"{source}/shard-{shard}", until_at)


def _write(
    lake: Lake, kind: str, columns: Columns, rows: list[Row], shard: str, instant: datetime
) -> str:
    at_ms = int(instant.timestamp() * 1000)
    path = f"{kind}/{shard}/{instant.date().isoformat()}/{at_ms}.parquet"
    schema = arrow_schema(columns)
    known = [{name: row[name] for name in schema.names} for row in rows]
    with lake.draft(path) as draft:
        table = pa.Table.from_pylist(known, schema=schema)
        pq.write_table(table, draft, row_group_size=1000, write_page_checksum=True)
    return path
