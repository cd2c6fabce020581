"""queue-age: how old the messages of each queue were, hour by hour, into the Delta table LAKE/queue_age.

Only hours with files that no run has seen are computed, from all their files, and one commit replaces them. So a rerun
changes nothing, a run that dies has changed nothing or whole hours, and of two runs at once one begins anew. An hour
some of whose files are gone stays as it is. The newest hour is also in LAKE/queue_age_latest.json, which the service reads,
and LAKE/reports/queue-age.html shows two days.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import click
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.ages.queue_age_report import REPORT_COLUMNS, REPORT_HOURS, queue_age_report
from spark_jobs.ages.snapshots import HOUR_MS, Hour, count_cells, find_hours, hour_of, movements
from spark_jobs.ages.statistics import AGE, QUEUE, queue_hours
from spark_jobs.lib.delta import NotCommitted, open_table, read, replace
from spark_jobs.lib.failures import JobFailed, spark_failures
from spark_jobs.lib.options import Instant, lake_option, master_option, unused_place_option
from spark_jobs.lib.progress import query_progress
from spark_jobs.lib.report import counted, duration
from spark_jobs.lib.spark import OpenSession, spark_session
from storage.archive_schema import QUEUE_AGE, QUEUE_AGE_LATEST, REPORTS, Columns, arrow_schema
from storage.lake import Lake

HOURLY: Columns = AGE | {"day": "date", "files": "int64", "files_checksum": "int64"}
"""The table: `ages.AGE`, the day of the hour, and from how many and which files the hour was computed (`Hour.checksum`)."""
REPORT = f"{REPORTS}/queue-age.html"
_LATEST = [
    *QUEUE,
    *(
        f"{name}_{part}_s"
        for name in ("age", "time_in_queue")
        for part in ("p50", "p90", "p99", "max")
    ),
    "stored",
    "oldest_stored_s",
    "oldest_receivable_s",
    "backlog",
    "growth_per_hour",
    "arrivals_per_s",
    "departures_per_s",
]
_LOAD_BYTES = 256 << 20
_TRIES = 5


class Used(NamedTuple):
    """The files that an hour of the table was computed from."""

    files: int
    checksum: int


@dataclass(slots=True)
class Done:
    """What a run has computed."""

    queues: set[tuple[str, ...]] = field(default_factory=set)
    hours: set[int] = field(default_factory=set)
    messages: int = 0


# -- the steps --------------------------------------------------------------------------------------------------------


def plan(lake: Lake, table: DeltaTable, since: datetime | None = None) -> dict[int, Hour]:
    """The hours to compute, in order. Raises LakeUnusable."""
    hours = find_hours(lake)
    if since is not None:
        first_ms = hour_of(int(since.timestamp() * 1000) + 1)
        hours = {hour_ms: hour for hour_ms, hour in hours.items() if hour_ms >= first_ms}
    if not hours:
        return {}
    used = _used(table, min(hours))
    return {
        hour_ms: hour for hour_ms, hour in sorted(hours.items()) if _is_due(hour, used.get(hour_ms))
    }


def _is_due(hour: Hour, used: Used | None) -> bool:
    """New files come one by one, and old ones go by age: where there are fewer than were used, nothing new can be learnt."""
    if used is None:
        return True
    return len(hour.files) >= used.files and hour.checksum != used.checksum


def _used(table: DeltaTable, since_ms: int) -> dict[int, Used]:
    columns = ["hour", "files", "files_checksum"]
    rows = read(table, columns, _instant(since_ms).date()).group_by(columns).aggregate([])
    return {
        int(row["hour"].timestamp() * 1000): Used(row["files"], row["files_checksum"])
        for row in rows.to_pylist()
    }


def loads(hours: dict[int, Hour]) -> Iterator[dict[int, Hour]]:
    """The hours in portions that are computed and committed one after the other: whole days, so that each rewrites few files
    of the table, and not too many, so that its result fits into memory."""
    some: dict[int, Hour] = {}
    size = 0
    for hour_ms, hour in hours.items():
        if size >= _LOAD_BYTES and _day(hour_ms) != _day(max(some)):
            yield some
            some, size = {}, 0
        some[hour_ms] = hour
        size += sum(file.size for file in hour.files)
    if some:
        yield some


def compute(session: SparkSession, lake: Lake, hours: dict[int, Hour]) -> pa.Table:
    """HOURLY of these hours. Raises JobFailed."""
    wanted = list(hours.values())
    sizes = [file.size for hour in wanted for file in hour.files]
    with spark_failures("cannot compute queue ages"):
        frame = queue_hours(count_cells(session, lake, wanted), movements(session, lake, wanted))
        with query_progress(session, "queue-age", len(sizes), sum(sizes)):
            ages = frame.toArrow()
    hour_ms = pc.divide(ages["hour"].cast(pa.int64()), 1000).to_pylist()
    ages = ages.append_column("day", ages["hour"].cast(pa.date32()))
    ages = ages.append_column("files", pa.array([len(hours[ms].files) for ms in hour_ms]))
    ages = ages.append_column("files_checksum", pa.array([hours[ms].checksum for ms in hour_ms]))
    return ages.select(list(HOURLY)).cast(arrow_schema(HOURLY))


def commit(table: DeltaTable, hours: dict[int, Hour], rows: pa.Table) -> None:
    """Have these rows for the hours. Raises NotCommitted, LakeUnusable."""
    days = ", ".join(f"'{day}'" for day in sorted({_day(hour_ms) for hour_ms in hours}))
    listed = ", ".join(f"'{_instant(hour_ms):%Y-%m-%dT%H:%M:%SZ}'" for hour_ms in hours)
    replace(table, rows, f"day in ({days}) and hour in ({listed})")


def publish(lake: Lake, table: DeltaTable, now: datetime) -> dict[str, Any] | None:
    """Write what shows the newest hour: the file for the service, and the report. What the former has, None where the table
    is empty. Raises LakeUnusable."""
    days = table.partitions()
    if not days:
        return None
    newest_day = max(day["day"] for day in days)
    since = datetime.fromisoformat(newest_day) - timedelta(hours=REPORT_HOURS)
    columns = list(dict.fromkeys(["hour", *_LATEST, *REPORT_COLUMNS]))
    rows = read(table, columns, since.date())
    newest: datetime = pc.max(rows["hour"]).as_py()
    latest = rows.filter(pc.equal(rows["hour"], pa.scalar(newest, rows["hour"].type)))
    latest = latest.select(_LATEST).sort_by([(name, "ascending") for name in QUEUE])
    shown = {"hour": newest.isoformat().replace("+00:00", "Z"), "queues": latest.to_pylist()}
    lake.write(QUEUE_AGE_LATEST, json.dumps(shown, separators=(",", ":")).encode())
    lake.write(REPORT, queue_age_report(rows, now).encode())
    return shown


# -- the job ----------------------------------------------------------------------------------------------------------


def run_queue_age(lake: Lake, open_session: OpenSession, since: datetime | None = None) -> str:
    """The summary. Raises JobFailed, LakeUnusable, SparkUnusable."""
    done = Done()
    with ExitStack() as stack:
        session: SparkSession | None = None
        for _ in range(_TRIES):
            table = open_table(lake, QUEUE_AGE, HOURLY)
            hours = plan(lake, table, since)
            try:
                for some in loads(hours):
                    session = session or stack.enter_context(open_session())
                    click.echo(_says(some), err=True)
                    rows = compute(session, lake, some)
                    commit(table, some, rows)
                    _note(done, some, rows)
                    table = open_table(lake, QUEUE_AGE, HOURLY)
                break
            except NotCommitted:  # another run was faster: see what is left
                click.echo("queue-age: another run has changed the table, beginning anew", err=True)
        else:
            raise JobFailed(f"{lake.uri(QUEUE_AGE)} changes faster than ages can be computed")
    return _summary(done, publish(lake, open_table(lake, QUEUE_AGE, HOURLY), datetime.now(UTC)))


def _says(hours: dict[int, Hour]) -> str:
    sizes = [file.size for hour in hours.values() for file in hour.files]
    begin, end = (f"{_instant(each):%Y-%m-%d %H:%M}" for each in (min(hours), max(hours) + HOUR_MS))
    size = f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB"
    return f"queue-age: {begin} to {end} UTC: {size}"


def _note(done: Done, hours: dict[int, Hour], rows: pa.Table) -> None:
    names = rows.select(QUEUE).group_by(QUEUE).aggregate([])
    done.queues |= set(zip(*(names[name].to_pylist() for name in QUEUE), strict=True))
    done.hours |= set(hours)
    done.messages += pc.sum(rows["messages"]).as_py() or 0


def _summary(done: Done, latest: dict[str, Any] | None) -> str:
    parts = ["nothing new"]
    if done.hours:
        parts = [
            counted(len(done.queues), "queue"),
            counted(len(done.hours), "hour"),
            f"{counted(done.messages, 'message')} looked at",
        ]
    text = f"queue-age: {', '.join(parts)}"
    waiting = [
        queue
        for queue in (latest or {}).get("queues", [])
        if queue["oldest_receivable_s"] is not None
    ]
    if not waiting:
        return text
    worst = max(waiting, key=lambda queue: float(queue["oldest_receivable_s"]))
    return f"{text}; worst {worst['queue']} (oldest {duration(worst['oldest_receivable_s'])})"


def _instant(hour_ms: int) -> datetime:
    return datetime.fromtimestamp(hour_ms / 1000, UTC)


def _day(hour_ms: int) -> str:
    return _instant(hour_ms).date().isoformat()


@click.command("queue-age")
@lake_option
@unused_place_option
@master_option
@click.option("--since", type=Instant(), help="Leave earlier hours alone; a time, or 2h or 3d ago.")
@click.option("--hours", type=click.IntRange(1), help="Look at this many hours up to now only.")
def command(lake: Lake, master: str | None, since: datetime | None, hours: int | None) -> None:
    """How old the messages of each queue were, hour by hour: table, metrics and a report.

    The service is not asked: --url and --data are there since all jobs have them.
    """
    if since is not None and hours is not None:
        raise click.UsageError("--since and --hours both say where to begin")
    if hours is not None:
        since = datetime.now(UTC) - timedelta(milliseconds=hours * HOUR_MS)
    click.echo(run_queue_age(lake, partial(spark_session, "queue-age", master), since))
