"""queue-age: writes ages of messages, by queue and hour, to the Delta table LAKE/queue_age.

An hour with new files is computed again from all its files and replaced in one commit. So a rerun
changes nothing, a killed run has replaced whole hours or none, and one of two overlapping runs
starts over. An hour that has lost files stays as it is. Hours in which no queue had messages have
no rows; LAKE/queue_age_empty.json has their files. The newest hour is also written to
LAKE/queue_age_latest.json, which the service reads, and two days to LAKE/reports/queue-age.html. An
hour with a damaged file is left out and reported; the others are computed.
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

from spark_jobs.ages.age_statistics import AGE, QUEUE, queue_hours
from spark_jobs.ages.lake_snapshots import (
    HOUR_MS,
    Hour,
    count_cells,
    find_hours,
    hour_of,
    movements,
)
from spark_jobs.ages.queue_age_report import REPORT_COLUMNS, REPORT_HOURS, queue_age_report
from spark_jobs.lib.delta import NotCommitted, open_table, read, replace
from spark_jobs.lib.job_failures import JobFailed, spark_failures
from spark_jobs.lib.job_options import Instant, lake_option, master_option, unused_place_option
from spark_jobs.lib.job_report import duration, plural
from spark_jobs.lib.live_count import LiveCount
from spark_jobs.lib.progress import query_progress
from spark_jobs.lib.spark import OpenSession, spark_session
from storage.lake.archive_schema import QUEUE_AGE, QUEUE_AGE_LATEST, REPORTS, Columns, arrow_schema
from storage.lake.table import Lake

HOURLY: Columns = AGE | {"day": "date", "files": "int64", "files_checksum": "int64"}
"""Columns of the table: AGE, the hour's day, and number and checksum of the files of the hour."""
REPORT = f"{REPORTS}/queue-age.html"
EMPTY = "queue_age_empty.json"
"""{"hours": {start in epoch ms: [files, checksum]}}: hours without rows, as `Used`."""
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
    "watched_s",
    "growth_per_hour",
    "arrivals_per_s",
    "departures_per_s",
]
_EMPTY_MAX = 24 * 400
"""Hours for which it is remembered that they are empty, counted from the newest."""
_PORTION_BYTES = 256 << 20
_TRIES = 5
_FAILED_MAX = 4
"""Hours that may be left out since they cannot be read."""


class Used(NamedTuple):
    """The files from which an hour of the table was computed."""

    files: int
    checksum: int


@dataclass(slots=True)
class Computed:
    """Totals of a run."""

    queues: set[tuple[str, ...]] = field(default_factory=set)
    hours: set[int] = field(default_factory=set)
    messages: int = 0


# -- steps -----------------------------------------------------------------------------------------


def plan(lake: Lake, table: DeltaTable, since: datetime | None = None) -> dict[int, Hour]:
    """The hours to compute, in order. Raises LakeUnusable."""
    hours = find_hours(lake)
    if since is not None:
        first_ms = hour_of(int(since.timestamp() * 1000) + 1)
        hours = {hour_ms: hour for hour_ms, hour in hours.items() if hour_ms >= first_ms}
    if not hours:
        return {}
    used = empty_hours(lake) | _used(table, min(hours))
    return {
        hour_ms: hour for hour_ms, hour in sorted(hours.items()) if _is_due(hour, used.get(hour_ms))
    }


def _is_due(hour: Hour, used: Used | None) -> bool:
    """True if the hour has new files; with fewer files than before, it has only lost old ones."""
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


def empty_hours(lake: Lake) -> dict[int, Used]:
    """The hours that were computed and have no rows; none if the file is not as it should be.
    Raises LakeUnusable."""
    try:
        said = json.loads(lake.read(EMPTY) or b"{}")
        return {int(hour_ms): Used(*map(int, used)) for hour_ms, used in said["hours"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def note_empty(lake: Lake, hours: dict[int, Hour], rows: pa.Table) -> None:
    """Remember which of these hours have no rows, so that no run computes them again. Raises
    LakeUnusable."""
    filled = {hour_ms // 1000 for hour_ms in rows["hour"].cast(pa.int64()).unique().to_pylist()}
    known = empty_hours(lake)
    new = {
        hour_ms: Used(len(hour.files), hour.checksum)
        for hour_ms, hour in hours.items()
        if hour_ms not in filled
    }
    oldest_ms = max(known | new, default=0) - _EMPTY_MAX * HOUR_MS
    kept = {ms: used for ms, used in known.items() if ms not in hours and ms >= oldest_ms}
    if kept | new != known:
        content = {"hours": {str(hour_ms): used for hour_ms, used in (kept | new).items()}}
        lake.write(EMPTY, json.dumps(content, separators=(",", ":")).encode())


def portions(hours: dict[int, Hour]) -> Iterator[dict[int, Hour]]:
    """Split the hours into portions, each computed and committed at once.

    A portion has whole days, to rewrite few files of the table, and a result that fits into memory.
    """
    some: dict[int, Hour] = {}
    size = 0
    for hour_ms, hour in hours.items():
        if size >= _PORTION_BYTES and _day(hour_ms) != _day(max(some)):
            yield some
            some, size = {}, 0
        some[hour_ms] = hour
        size += sum(file.size for file in hour.files)
    if some:
        yield some


def compute(session: SparkSession, lake: Lake, hours: dict[int, Hour]) -> pa.Table:
    """Rows of HOURLY for these hours. Raises JobFailed."""
    wanted = list(hours.values())
    sizes = [file.size for hour in wanted for file in hour.files]
    with spark_failures("cannot compute queue ages"), LiveCount(session) as read:
        frame = queue_hours(
            count_cells(session, lake, wanted, read.add),
            movements(session, lake, wanted, read.add),
        )
        with query_progress(session, "queue-age", len(sizes), sum(sizes), read):
            ages = frame.toArrow()
    hour_ms = pc.divide(ages["hour"].cast(pa.int64()), 1000).to_pylist()
    ages = ages.append_column("day", ages["hour"].cast(pa.date32()))
    ages = ages.append_column("files", pa.array([len(hours[ms].files) for ms in hour_ms]))
    ages = ages.append_column("files_checksum", pa.array([hours[ms].checksum for ms in hour_ms]))
    return ages.select(list(HOURLY)).cast(arrow_schema(HOURLY))


def readable(
    session: SparkSession, lake: Lake, hours: dict[int, Hour], failed: dict[int, JobFailed]
) -> Iterator[tuple[dict[int, Hour], pa.Table]]:
    """The hours with their rows, at once if all files can be read, else in parts without the hours
    that fail, which are added to `failed`. Raises JobFailed if many fail: then it is not a file."""
    try:
        yield hours, compute(session, lake, hours)
    except JobFailed as error:
        if len(hours) == 1:
            failed[next(iter(hours))] = error
            if len(failed) > _FAILED_MAX:
                raise
            return
        some = list(hours.items())
        middle = len(some) // 2
        for half in (some[:middle], some[middle:]):
            yield from readable(session, lake, dict(half), failed)


def commit(table: DeltaTable, hours: dict[int, Hour], rows: pa.Table) -> None:
    """Replace the rows of the hours. Raises NotCommitted, LakeUnusable."""
    days = ", ".join(f"'{day}'" for day in sorted({_day(hour_ms) for hour_ms in hours}))
    listed = ", ".join(f"'{_instant(hour_ms):%Y-%m-%dT%H:%M:%SZ}'" for hour_ms in hours)
    replace(table, rows, f"day in ({days}) and hour in ({listed})")


def publish(lake: Lake, table: DeltaTable, now: datetime) -> dict[str, Any] | None:
    """Write the newest hour for the service, and the report.

    The newest hour has no queues if all were empty. Hours that have not begun are from a clock that
    was ahead, and left out. Returns the content for the service; None if the table is empty. Raises
    LakeUnusable.
    """
    days = [datetime.fromisoformat(day["day"]).replace(tzinfo=UTC) for day in table.partitions()]
    if not days:
        return None
    since = _newest(days, now) - timedelta(hours=REPORT_HOURS)
    columns = list(dict.fromkeys(["hour", *_LATEST, *REPORT_COLUMNS]))
    rows = read(table, columns, since.date())
    newest = _newest([*rows["hour"].unique().to_pylist(), *map(_instant, empty_hours(lake))], now)
    latest = rows.filter(pc.equal(rows["hour"], pa.scalar(newest, rows["hour"].type)))
    latest = latest.select(_LATEST).sort_by([(name, "ascending") for name in QUEUE])
    content = {"hour": newest.isoformat().replace("+00:00", "Z"), "queues": latest.to_pylist()}
    lake.write(QUEUE_AGE_LATEST, json.dumps(content, separators=(",", ":")).encode())
    lake.write(REPORT, queue_age_report(rows, newest, now).encode())
    return content


def _newest(begins: list[datetime], now: datetime) -> datetime:
    """The latest of some days or hours that have begun; of all, if this clock is behind them."""
    return max([begin for begin in begins if begin <= now] or begins)


# -- the job ---------------------------------------------------------------------------------------


def run_queue_age(lake: Lake, open_session: OpenSession, since: datetime | None = None) -> str:
    """Run the job; its summary. Raises JobFailed, also if it left hours out, LakeUnusable,
    SparkUnusable."""
    done = Computed()
    failed: dict[int, JobFailed] = {}
    with ExitStack() as stack:
        session: SparkSession | None = None
        for _ in range(_TRIES):
            table = open_table(lake, QUEUE_AGE, HOURLY)
            planned = plan(lake, table, since)
            hours = {at_ms: hour for at_ms, hour in planned.items() if at_ms not in failed}
            try:
                for portion in portions(hours):
                    session = session or stack.enter_context(open_session())
                    click.echo(_heading(portion), err=True)
                    for some, rows in readable(session, lake, portion, failed):
                        commit(table, some, rows)
                        note_empty(lake, some, rows)
                        _add(done, some, rows)
                        table = open_table(lake, QUEUE_AGE, HOURLY)
                break
            except NotCommitted:  # another run was faster: plan again
                click.echo("queue-age: another run has changed the table, starting over", err=True)
        else:
            raise JobFailed(f"{lake.uri(QUEUE_AGE)} changes faster than ages can be computed")
    text = _summary(done, publish(lake, open_table(lake, QUEUE_AGE, HOURLY), datetime.now(UTC)))
    for error in failed.values():
        raise JobFailed(f"{plural(len(failed), 'hour')} left out: {error}") from error
    return text


def _heading(hours: dict[int, Hour]) -> str:
    sizes = [file.size for hour in hours.values() for file in hour.files]
    begin, end = (f"{_instant(each):%Y-%m-%d %H:%M}" for each in (min(hours), max(hours) + HOUR_MS))
    size = f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB"
    return f"queue-age: {begin} to {end} UTC: {size}"


def _add(done: Computed, hours: dict[int, Hour], rows: pa.Table) -> None:
    names = rows.select(QUEUE).group_by(QUEUE).aggregate([])
    done.queues |= set(zip(*(names[name].to_pylist() for name in QUEUE), strict=True))
    done.hours |= set(hours)
    done.messages += pc.sum(rows["messages"]).as_py() or 0


def _summary(done: Computed, latest: dict[str, Any] | None) -> str:
    parts = ["nothing new"]
    if done.hours:
        parts = [
            plural(len(done.queues), "queue"),
            plural(len(done.hours), "hour"),
            f"{plural(done.messages, 'message')} counted",
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
@click.option("--since", type=Instant(), help="Skip earlier hours; a time, or 2h or 3d for ago.")
@click.option("--hours", type=click.IntRange(1), help="Compute only this many hours up to now.")
def command(lake: Lake, master: str | None, since: datetime | None, hours: int | None) -> None:
    """Compute the ages of messages by queue and hour: a table, metrics and a report.

    Sends no requests to the service: --url and --data are accepted and ignored.
    """
    if since is not None and hours is not None:
        raise click.UsageError("--since and --hours exclude each other")
    if hours is not None:
        since = datetime.now(UTC) - timedelta(milliseconds=hours * HOUR_MS)
    click.echo(run_queue_age(lake, partial(spark_session, "queue-age", master), since))
