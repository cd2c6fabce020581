"""The archive as a DataFrame: which of its files may hold a queue's messages, and which of their rows are meant.

Delta's log names the files of one version of the table, so a compaction in between changes nothing. A local lake is read by
Spark's own reader. An object store is read through pyarrow, since Spark needs Java packages for it that are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.archive.archive_files import ArchiveFile, rows_of
from spark_jobs.archive.table import load_table, table_files
from spark_jobs.lib.failures import JobFailed
from storage.archive_schema import ARCHIVE, TABLE, TABLE_PARTITIONS, arrow_schema
from storage.lake import Lake


class WrongPredicate(Exception):
    """The predicate cannot be used; the text says why in one line."""


class Span(NamedTuple):
    """From an instant up to another, which does not belong to it; None is open."""

    after: datetime | None = None
    before: datetime | None = None


ALWAYS = Span()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of the archive are meant. `where` is a predicate of Spark SQL over the table's columns."""

    queue: str
    account: str | None = None
    sent: Span = ALWAYS
    removed: Span = ALWAYS
    message_ids: tuple[str, ...] = ()
    reason: str | None = None
    where: str | None = None


def selected_files(lake: Lake, selection: Selection) -> list[ArchiveFile]:
    """The files that may hold such messages. Raises JobFailed where the account has to be named."""
    files = [file for file in archived_files(lake) if file.queue == selection.queue]
    accounts = {file.account for file in files}
    if selection.account is None and len(accounts) > 1:
        raise JobFailed(
            f"several accounts have a queue {selection.queue}: name one with --account, "
            f"of {', '.join(sorted(accounts))}"
        )
    return [
        file
        for file in files
        if selection.account in (None, file.account) and _may_hold(file.day, selection.sent)
    ]


def _may_hold(day: date, sent: Span) -> bool:
    """`day` is that of `sent_at`."""
    return not (
        (sent.after is not None and day < sent.after.date())
        or (sent.before is not None and day > sent.before.date())
    )


def archived_files(lake: Lake) -> list[ArchiveFile]:
    """All files of the newest version of the table."""
    table = load_table(lake)
    if table is None:
        raise JobFailed(f"there is no archive in {lake.url} yet")
    wanted = ["path", *(f"partition.{name}" for name in TABLE_PARTITIONS)]
    return [ArchiveFile(*row.values()) for row in table_files(table).select(wanted).to_pylist()]


def read_archive(session: SparkSession, lake: Lake, files: list[ArchiveFile]) -> DataFrame:
    """The rows of the files, of which there is at least one, in TABLE's columns."""
    schema = from_arrow_schema(arrow_schema(TABLE))
    if lake.is_local:
        reader = session.read.schema(schema).option("basePath", lake.path(ARCHIVE))
        paths = [lake.path(f"{ARCHIVE}/{file.path}") for file in files]
        return reader.parquet(*paths).select(*TABLE)  # the partitions' columns came last
    named = session.createDataFrame(files, "path string, account string, queue string, day date")

    return named.repartition(len(files)).mapInArrow(partial(rows_of, lake), schema)


def chosen(rows: DataFrame, selection: Selection) -> DataFrame:
    """The rows that are meant, of those of the selected files. Raises WrongPredicate."""
    for column, span in (("sent_at", selection.sent), ("removed_at", selection.removed)):
        if span.after is not None:
            rows = rows.where(f.col(column) >= f.lit(span.after))
        if span.before is not None:
            rows = rows.where(f.col(column) < f.lit(span.before))
    if selection.message_ids:
        rows = rows.where(f.col("message_id").isin(*selection.message_ids))
    if selection.reason is not None:
        rows = rows.where(f.col("reason") == selection.reason)
    if selection.where is not None:
        try:
            rows = rows.where(selection.where)
            rows.schema  # noqa: B018 - Spark looks at names and types only when it is asked
        except PySparkException as error:
            raise WrongPredicate(first_line(error)) from error
    return rows


def first_line(error: Exception) -> str:
    """What the error says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
