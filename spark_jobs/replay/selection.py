"""The archive as a DataFrame: which of its files may hold a queue's messages, and which of their rows are meant.

Delta's log names the files of one version of the table, so a compaction in between changes nothing. A local lake is read by
Spark's own reader. An object store is read through pyarrow, since Spark needs Java packages for it that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from math import ceil
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from spark_jobs.archive.reading import TableFile
from spark_jobs.archive.table import archived_files
from spark_jobs.lib.failures import JobFailed, first_line
from spark_jobs.replay.ledger import Named
from spark_jobs.replay.sending import Message
from storage.lake import Lake

_PARTITION_BYTES = 32 << 20
"""The driver holds one partition at a time."""


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


def selected_files(lake: Lake, selection: Selection) -> list[TableFile]:
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


class DayCount(NamedTuple):
    """The chosen messages of a day; `replayed` and `sealed` ones are among `messages`, `bytes` are those of the others."""

    day: date | None
    messages: int
    bytes: int
    replayed: int
    sealed: int

    @property
    def to_send(self) -> int:
        """How many a replay would send."""
        return self.messages - self.replayed - self.sealed


def count_by_day(rows: DataFrame) -> list[DayCount]:
    """Counts of the rows, which have the column `replayed`, by day."""
    sealed = ~f.col("replayed") & f.col("sealed").isNotNull()
    to_send = ~f.col("replayed") & f.col("sealed").isNull()
    counts = rows.groupBy("day").agg(
        f.count("*").alias("messages"),
        f.sum(f.when(to_send, f.col("size")).otherwise(0)).alias("bytes"),
        f.count_if("replayed").alias("replayed"),
        f.count_if(sealed).alias("sealed"),
    )
    return sorted(DayCount(*row) for row in counts.collect())


def in_order(rows: DataFrame, total_bytes: int) -> DataFrame:
    """The rows in the order in which they were sent, in partitions that the driver can hold.

    A shard's time does not go back, so within a FIFO group sent_at and then sequence_number are the group's order.
    """
    order = [
        f.col("sent_at"),
        f.col("sequence_number").cast("decimal(38,0)"),
        f.col("source"),
        f.col("shard"),
        f.col("position"),
    ]
    partitions = max(1, ceil(total_bytes / _PARTITION_BYTES))
    return rows.repartitionByRange(partitions, *order).sortWithinPartitions(*order)


def messages(rows: DataFrame) -> Iterator[Message]:
    """The rows as messages, a partition at a time."""
    columns = [
        *Named._fields,
        "message_id",
        "body",
        "attributes",
        "aws_trace_header",
        "message_group_id",
        "checksum",
    ]
    return map(_message, rows.select(*columns).toLocalIterator())


def _message(row: Row) -> Message:
    return Message(
        Named(row.source, row.shard, row.position),
        row.message_id,
        row.body,
        {name: _attribute(value) for name, value in (row.attributes or {}).items()},
        row.aws_trace_header,
        row.message_group_id,
        row.checksum,
    )


def _attribute(value: Row) -> dict[str, Any]:
    binary = value.binary_value
    return value.asDict() | {"binary_value": None if binary is None else bytes(binary)}
