"""replay: sends archived messages to a queue again, through the SQS API.

Spark selects and sorts; the driver sends one request at a time and records it in the ledger before
the next. So a killed run repeats at most one request, and a rerun after a complete one sends
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

import click
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.archive.delta_archive import read_archive
from spark_jobs.archive.parquet_reading import TableFile
from spark_jobs.lib.job_failures import JobFailed, spark_failures
from spark_jobs.lib.job_options import Instant, Output, lake_option, master_option, place_option
from spark_jobs.lib.progress import Progress, Work, query_progress
from spark_jobs.lib.spark import OpenSession, spark_session
from spark_jobs.replay.ledger import Ledger, with_replayed
from spark_jobs.replay.replay_claim import Claim
from spark_jobs.replay.selection import (
    DayCount,
    Selection,
    Span,
    UnknownQueue,
    WrongPredicate,
    count_by_day,
    in_order,
    matching,
    messages,
    selected_files,
)
from spark_jobs.replay.sending import (
    Destination,
    Message,
    Rate,
    batches,
    find_destination,
    group_of,
    has_queue,
    send,
)
from storage.lake.archive_schema import REASONS, REPLAYS
from storage.lake.near_names import did_you_mean
from storage.lake.table import Lake

_NAMED_MAX = 20
"""Refused messages that are reported one by one."""
_REPLAY_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}").fullmatch

Tell = Callable[[str], None]
"""Prints a line on standard error."""

_NOTHING = DayCount(None, 0, 0, 0, 0)


@dataclass(slots=True)
class Tally:
    """Totals of a run."""

    sent: int = 0
    bytes: int = 0
    requests: int = 0
    held_back: int = 0
    refused: int = 0
    stopped_groups: set[str] = field(default_factory=set)

    def done(self) -> Work:
        """The totals for Progress."""
        return Work(self.requests, self.sent + self.refused + self.held_back, self.bytes)


# -- sending ---------------------------------------------------------------------------------------


class Sending(NamedTuple):
    """The parts of a run that sending needs. `replay` is the replay's name."""

    destination: Destination
    ledger: Ledger
    claim: Claim
    rate: Rate
    replay: str
    warn: Tell


def send_all(to_send: Iterable[Message], sending: Sending, tally: Tally) -> None:
    """Send the messages, one request at a time.

    Raises JobFailed if SQS or another run stops it; messages sent until then are in the ledger.
    """
    destination = sending.destination
    for batch in batches(
        to_send, entries_max=sending.rate.entries_max, is_fifo=destination.is_fifo
    ):
        if not (sendable := [each for each in batch if _is_sendable(each, sending, tally)]):
            continue
        sending.rate.wait_for(len(sendable))
        sending.claim.check()
        outcome = send(destination, sendable, sending.replay)
        if outcome.sent:
            sending.ledger.add(message.name for message in outcome.sent)
        tally.requests += 1
        tally.sent += len(outcome.sent)
        tally.bytes += sum(message.size for message in outcome.sent)
        for message, reason in outcome.refused:
            _refuse(message, reason, sending, tally)
        if outcome.stopped is not None:
            raise JobFailed(
                f"{destination.queue} accepts no more: {outcome.stopped} "
                f"({tally.sent:,} sent; run the job again to continue)"
            )


def _is_sendable(message: Message, sending: Sending, tally: Tally) -> bool:
    if sending.destination.is_fifo and group_of(message) in tally.stopped_groups:
        tally.held_back += 1
        return False
    if message.damage is not None:
        _refuse(message, message.damage, sending, tally)
        return False
    return True


def _refuse(message: Message, reason: str, sending: Sending, tally: Tally) -> None:
    """Count a refused message; in a FIFO queue, hold back the later ones of its group."""
    tally.refused += 1
    if sending.destination.is_fifo:
        tally.stopped_groups.add(group_of(message))
    if tally.refused <= _NAMED_MAX:
        name = f"{message.message_id} (position {message.name.position})"
        sending.warn(f"{name} is refused: {reason}")
    elif tally.refused == _NAMED_MAX + 1:
        sending.warn("more are refused, which are not listed")


# -- the job ---------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """The task of a run. `files` are those that may have selected messages."""

    lake: Lake
    selection: Selection
    files: list[TableFile]
    destination: Destination
    name: str = "default"
    rate: float | None = None
    limit: int | None = None

    @property
    def folder(self) -> str:
        """The replay's folder in the lake."""
        return f"{REPLAYS}/{self.destination.folder}/{self.name}"

    def claim(self, run: str) -> Claim:
        """A claim that lets one run at a time work on this replay."""
        return Claim(self.lake, f"{self.folder}/claims", run)

    def rows(self, session: SparkSession, ledger: Ledger) -> DataFrame:
        """The selected messages with a column `replayed`. Raises WrongPredicate."""
        rows = matching(read_archive(session, self.lake, self.files), self.selection)
        return with_replayed(session, rows, ledger.read())


def find(
    lake: Lake, selection: Selection, endpoint: str, to: str | None
) -> tuple[list[TableFile], Destination]:
    """Files that may have selected messages, and the queue to send to, by default their own.

    A queue without archived messages has no files. Raises JobFailed, also for a
    queue that neither the archive nor the service has.
    """
    try:
        files = selected_files(lake, selection)
    except UnknownQueue as error:
        return [], _find_for_unknown(selection.queue, endpoint, to, did_you_mean(error.near))
    return files, find_destination(endpoint, to or selection.queue)


def _find_for_unknown(queue: str, endpoint: str, to: str | None, hint: str) -> Destination:
    if to is None:
        try:
            return find_destination(endpoint, queue)
        except JobFailed as error:
            raise JobFailed(f"{error}{hint}") from error
    destination = find_destination(endpoint, to)
    if not has_queue(destination, queue):
        raise JobFailed(f"neither the archive nor the service has a queue {queue}{hint}")
    return destination


def new_run() -> str:
    """A unique name for a run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:12]}"


def dry_run(plan: Plan, open_session: OpenSession, tell: Tell) -> str:
    """Report the messages of a replay, without sending them; returns the summary. Raises
    WrongPredicate."""
    total = _NOTHING
    if plan.files:
        with open_session() as session:
            rows = plan.rows(session, Ledger(plan.lake, plan.folder, "dry"))
            days = _count(plan, session, rows)
        total = _total(days)
        for day in days:
            tell(
                f"{plan.selection.queue} {day.day}: {day.to_send:,} to send, "
                f"{day.bytes / 1e6:,.1f} MB, {_not_sent(day)}"
            )
    count = _limited(total.to_send, plan.limit)
    takes = f", {count / plan.rate:,.0f} s at {plan.rate:g} a second" if plan.rate else ""
    return (
        f"dry run: {count:,} would be sent to {plan.destination.arn}, "
        f"{_bytes_of(count, total) / 1e6:,.1f} MB{takes}, {_not_sent(total)}"
    )


def run_replay(plan: Plan, open_session: OpenSession, warn: Tell) -> tuple[str, Tally]:
    """Send the selected messages not sent yet; the summary. Raises WrongPredicate, JobFailed."""
    tally, total = Tally(), _NOTHING
    if plan.files:
        run = new_run()
        ledger = Ledger(plan.lake, plan.folder, run)
        with plan.claim(run) as claim, open_session() as session:
            rows = plan.rows(session, ledger)
            total = _total(_count(plan, session, rows))
            rate = Rate(plan.rate)
            sending = Sending(plan.destination, ledger, claim, rate, plan.name, warn)
            _send_selected(rows, total, plan.limit, sending, tally)
            ledger.merge()
    held_back = f"{tally.held_back:,} held back behind them, " if tally.held_back else ""
    summary = (
        f"{tally.sent:,} sent to {plan.destination.queue}, {tally.refused:,} refused, "
        f"{held_back}{_not_sent(total)}"
    )
    return summary, tally


def _count(plan: Plan, session: SparkSession, rows: DataFrame) -> list[DayCount]:
    size = sum(file.size for file in plan.files)
    with query_progress(session, "replay", len(plan.files), size):
        return count_by_day(rows)


def _send_selected(
    rows: DataFrame, total: DayCount, limit: int | None, sending: Sending, tally: Tally
) -> None:
    count = _limited(total.to_send, limit)
    if not count:
        return
    ordered = in_order(rows.where("not replayed and sealed is null"), total.bytes)
    first = islice(messages(ordered), count)
    with Progress("replay", Work(0, count, _bytes_of(count, total)), tally.done):
        send_all(first, sending, tally)


def _limited(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def _bytes_of(count: int, total: DayCount) -> int:
    """Approximate bytes of this many of the messages to send."""
    return total.bytes * count // max(1, total.to_send)


def _total(days: list[DayCount]) -> DayCount:
    if not days:
        return _NOTHING
    _, *columns = zip(*days, strict=True)
    return DayCount(None, *map(sum, columns))


def _not_sent(total: DayCount) -> str:
    return f"{total.replayed:,} sent before, {total.sealed:,} sealed"


class ReplayName(click.ParamType[str]):
    """An option that is a name for use in paths."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        """The name; exits as wrong use if it is not valid."""
        if not _REPLAY_NAME(value):
            self.fail("must be 1 to 64 letters, digits, '_', '-' or '.'", param, context)
        return str(value)


@click.command("replay")
@lake_option
@place_option
@master_option
@click.option("--queue", required=True, help="Send messages of this queue.")
@click.option("--account", help="Account of the queue; needed if several have such a queue.")
@click.option("--to", "to", metavar="QUEUE", help="Queue to send to, a name or URL [the same].")
@click.option("--sent-after", type=Instant(), help="Sent at this time or later.")
@click.option("--sent-before", type=Instant(), help="Sent before this time.")
@click.option("--removed-after", type=Instant(), help="Expired or deleted at this time or later.")
@click.option("--removed-before", type=Instant(), help="Expired or deleted before this time.")
@click.option("--message-id", "message_ids", multiple=True, help="This message; repeatable.")
@click.option("--reason", type=click.Choice(REASONS), help="Reason of removal.")
@click.option("--where", help="Spark SQL predicate over the columns of the archive.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Most messages a second.")
@click.option("--limit", type=click.IntRange(1), help="Most messages to send; a rerun continues.")
@click.option("--name", type=ReplayName(), default="default", help="A new name sends them again.")
@click.option("--dry-run", is_flag=True, help="Report what would be sent, and send nothing.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Send archived messages to a queue again.

    \b
    Times: 2026-11-20, 2026-11-20T08:00+01:00 (UTC by default), or 90s, 30m, 2h, 3d, 1w for ago.
    Columns for --where: message_id, body, attributes, sent_at, removed_at, receive_count, size, ...
    Example: "body like '%refund%' and attributes['kind'].string_value = 'card'"

    The AWS SDK finds credentials and region; a URL in --to also gives the service's address. The
    lake records the messages sent, by the queue's ARN and --name, so a rerun sends only the rest.
    A killed run repeats at most one request of ten messages, which a FIFO queue drops for five
    minutes. One run at a time may use a name. A replayed message that expires again is archived
    as another message.

    Messages are sent in their original order, within each group in FIFO queues. A message that
    SQS refuses, or whose checksum is wrong, holds back the later ones of its group; others
    continue. The exit status is then 1, and a rerun tries again. Messages that are encrypted in
    the archive (sealed) cannot be sent.
    """
    selection = Selection(
        given["queue"],
        given["account"],
        Span(given["sent_after"], given["sent_before"]),
        Span(given["removed_after"], given["removed_before"]),
        given["message_ids"],
        given["reason"],
        given["where"],
    )
    files, destination = find(given["lake"], selection, given["place"].url, given["to"])
    plan = Plan(
        given["lake"],
        selection,
        files,
        destination,
        given["name"],
        given["rate"],
        given["limit"],
    )
    output = Output("replay")

    def open_session() -> AbstractContextManager[SparkSession]:
        return spark_session("replay", given["master"])

    try:
        with spark_failures("cannot read the archive"):
            if given["dry_run"]:
                summary = dry_run(plan, open_session, output.tell)
            else:
                summary, _ = run_replay(plan, open_session, output.warn)
    except WrongPredicate as error:
        raise click.BadParameter(str(error), param_hint="--where") from error

    click.echo(f"replay: {summary}")
    context.exit(output.status)
