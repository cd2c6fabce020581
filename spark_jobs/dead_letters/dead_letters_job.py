"""dead-letters: groups failed messages by error, attribute and body field.

Reads archived messages that a redrive policy moved to their queue. Writes the Delta table
LAKE/dead_letters and LAKE/reports/dead-letters.html. Days are those of sending. One commit replaces
all days of the range that the archive has; days no longer in the archive stay.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_jobs.archive.delta_archive import archived_files, read_archive
from spark_jobs.archive.parquet_reading import TableFile
from spark_jobs.dead_letters.dead_letters_report import dead_letters_report
from spark_jobs.dead_letters.letter_groups import ALL, ERROR, GROUPS, Grouping, dead_letter_groups
from spark_jobs.lib.delta import NotCommitted, open_table, replace
from spark_jobs.lib.job_failures import JobFailed, spark_failures
from spark_jobs.lib.job_options import Instant, lake_option, master_option, unused_place_option
from spark_jobs.lib.job_report import plural
from spark_jobs.lib.progress import query_progress
from spark_jobs.lib.spark import OpenSession, spark_session
from storage.lake.archive_schema import DEAD_LETTERS, REPORTS, arrow_schema
from storage.lake.table import Lake

REPORT = f"{REPORTS}/dead-letters.html"
_DAYS = 30
_TRIES = 5


def files_between(lake: Lake, since: datetime, until: datetime) -> list[TableFile]:
    """The archive's files of the days in the range. Raises JobFailed."""
    return [file for file in archived_files(lake) if since.date() <= file.day <= until.date()]


def compute(
    session: SparkSession, lake: Lake, files: list[TableFile], grouping: Grouping
) -> pa.Table:
    """Rows of GROUPS from these files. Raises JobFailed."""
    with spark_failures("cannot group dead letters"):
        frame = dead_letter_groups(read_archive(session, lake, files), grouping)
        size = sum(file.size for file in files)
        with query_progress(session, "dead-letters", len(files), size):
            groups = frame.toArrow()
    return groups.cast(arrow_schema(GROUPS)).sort_by(
        [
            (name, "ascending")
            for name in ("day", "hour", "account", "queue", "kind", "name", "value")
        ]
    )


def commit(lake: Lake, files: list[TableFile], rows: pa.Table) -> None:
    """Replace the rows of the files' days. Raises JobFailed, LakeUnusable."""
    days = ", ".join(f"'{day}'" for day in sorted({file.day.isoformat() for file in files}))
    for _ in range(_TRIES):
        try:
            replace(open_table(lake, DEAD_LETTERS, GROUPS), rows, f"day in ({days})")
            return
        except NotCommitted:  # another run was faster; the later one wins
            continue
    raise JobFailed(f"{lake.uri(DEAD_LETTERS)} changes faster than rows can be replaced")


def run_dead_letters(
    lake: Lake, open_session: OpenSession, grouping: Grouping, since: datetime, until: datetime
) -> str:
    """Run the job; its summary. Raises JobFailed, LakeUnusable, SparkUnusable."""
    files = files_between(lake, since, until)
    if not files:
        return "dead-letters: the archive has no messages of these days"
    click.echo(f"dead-letters: {len(files):,} files of the archive", err=True)
    with open_session() as session:
        rows = compute(session, lake, files, grouping)
    commit(lake, files, rows)
    lake.write(REPORT, dead_letters_report(rows, datetime.now(UTC)).encode())
    return _summary(rows)


def _summary(rows: pa.Table) -> str:
    everything = rows.filter(pc.equal(rows["kind"], ALL))
    letters = pc.sum(everything["count"]).as_py() or 0
    if not letters:
        return "dead-letters: none"
    sources = everything.group_by(["account", "region", "source_queue"]).aggregate([])
    errors = (
        rows.filter(pc.equal(rows["kind"], ERROR)).group_by("value").aggregate([("count", "sum")])
    )
    first = errors.sort_by([("count_sum", "descending"), ("value", "ascending")]).to_pylist()[0]
    return (
        f"dead-letters: {plural(letters, 'message')} of {plural(len(sources), 'queue')}, "
        f"{plural(len(errors), 'error shape')}; "
        f"most often {first['value']} ({first['count_sum']:,})"
    )


@click.command("dead-letters")
@lake_option
@unused_place_option
@master_option
@click.option("--since", type=Instant(), help=f"Sent on this day or later [{_DAYS} days ago].")
@click.option("--until", type=Instant(), help="Sent on this day or earlier [today].")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME",
    help="Group by this message attribute; repeatable [those with few values].",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="A.B",
    help="Group by this field of JSON bodies; repeatable [type, kind, event and similar].",
)
@click.option(
    "--by",
    type=click.Choice(["day", "hour"]),
    default="day",
    show_default=True,
    help="Count by day or by hour.",
)
def command(
    lake: Lake,
    master: str | None,
    since: datetime | None,
    until: datetime | None,
    attributes: tuple[str, ...],
    fields: tuple[str, ...],
    by: str,
) -> None:
    """Group archived dead letters by error, attribute and body field: a table and a report.

    Sends no requests to the service: --url and --data are accepted and ignored.
    """
    if any("'" in field or not all(field.split(".")) for field in fields):
        raise click.BadParameter("write names separated by dots", param_hint="--field")
    now = datetime.now(UTC)
    since, until = since or now - timedelta(days=_DAYS), until or now
    if since > until:
        raise click.BadParameter("is before --since", param_hint="--until")
    grouping = Grouping(attributes, fields, by == "hour")
    open_session = partial(spark_session, "dead-letters", master)
    click.echo(run_dead_letters(lake, open_session, grouping, since, until))
