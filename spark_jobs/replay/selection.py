"""Select archived messages for a replay, count them, and read them in the order of sending."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from math import ceil
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from spark_jobs.archive.delta_archive import archived_files
from spark_jobs.archive.parquet_reading import TableFile
from spark_jobs.lib.job_failures import JobFailed, first_line
from spark_jobs.replay.ledger import Named
from spark_jobs.replay.sending import Message
from storage.lake.near_names import near_names
from storage.lake.table import Lake

_PARTITION_BYTES = 32 << 20
"""Size of a partition; the driver holds one at a time."""


class WrongPredicate(Exception):
    """The predicate is not valid; the text gives the reason in one line."""


class UnknownQueue(Exception):
    """The archive has no message of the queue."""

    def __init__(self, near: list[str]) -> None:
        super().__init__(near)
        self.near = near
        """Similar names of queues that it has, the most similar first."""


class Span(NamedTuple):
    """From an instant to another (exclusive); None is open."""

    after: datetime | None = None
    before: datetime | None = None


ALWAYS = Span()


@dataclass(frozen=True, slots=True)
class Selection:
    """Criteria of a replay. `where` is a Spark SQL predicate over the archive's columns."""

    queue: str
    account: str | None = None
    sent: Span = ALWAYS
    removed: Span = ALWAYS
    message_ids: tuple[str, ...] = ()
    reason: str | None = None
    where: str | None = None


def selected_files(lake: Lake, selection: Selection) -> list[TableFile]:
    """Files that may have selected messages.

    Raises JobFailed if the account must be given or has no such queue, and UnknownQueue.
    """
    archived = archived_files(lake)
    files = [file for file in archived if file.queue == selection.queue]
    if not files:
        raise UnknownQueue(near_names(selection.queue, {file.queue for file in archived}))
    accounts = {file.account for file in files}
    if selection.account is None and len(accounts) > 1:
        raise JobFailed(
            f"several accounts have a queue {selection.queue}: choose one with --account, "
            f"of {', '.join(sorted(accounts))}"
        )
    if selection.account not in (None, *accounts):
        raise JobFailed(
            f"account {selection.account} has no queue {selection.queue} in the archive, "
            f"but {', '.join(sorted(accounts))} has"
        )
    return [
        file
        for file in files
        if selection.account in (None, file.account) and _may_hold(file.day, selection.sent)
    ]


def _may_hold(day: date, sent: Span) -> bool:
    """True if messages sent on this day may be in the span."""
    return not (
        (sent.after is not None and day < sent.after.date())
        or (sent.before is not None and day > sent.before.date())
    )


def matching(rows: DataFrame, selection: Selection) -> DataFrame:
    """The rows of the selected files that meet the criteria. Raises WrongPredicate."""
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
            rows.schema  # noqa: B018 - makes Spark check names and types
        except PySparkException as error:
            raise WrongPredicate(first_line(error)) from error
    return rows


class DayCount(NamedTuple):
    """The selected messages of a day."""

    day: date | None
    """None for all days."""
    messages: int
    bytes: int
    """The size of the messages to send."""
    replayed: int
    sealed: int

    @property
    def to_send(self) -> int:
        """The number of messages that a replay sends."""
        return self.messages - self.replayed - self.sealed


def count_by_day(rows: DataFrame) -> list[DayCount]:
    """Count the rows, which have a column `replayed`, by day."""
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
    """The rows in the order of sending, in partitions that fit the driver.

    A shard's time never goes back, so sent_at and then sequence_number give a FIFO group's order.
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
    """The rows as messages, read a partition at a time."""
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
