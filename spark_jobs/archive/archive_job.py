"""archive: moves exported messages, exactly once, into the Delta table LAKE/archive.

Seal, read the segments' footers, write their rows as parts of the table (with Spark, unless they
are few), commit the parts with each shard's highest batch, compare the table with the segments,
acknowledge, remove the segments, sweep. A run may end between any two steps, and two runs may
overlap: the table's log has the highest batch of each shard, so the next run does the rest, and
Delta refuses a commit that would repeat a batch. Without segments in the lake, a run reads no table
and starts no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import click
from pyspark.sql import SparkSession

from spark_jobs.archive.acknowledging import acknowledge, find_absent
from spark_jobs.archive.archive_client import ArchiveClient, ServiceUnusable
from spark_jobs.archive.archive_parts import Part
from spark_jobs.archive.archive_tasks import SMALL, Small
from spark_jobs.archive.delta_archive import Seen, add_action, commit, open_archive, seen
from spark_jobs.archive.executor import write_segments_here
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segment_files import Segment, ShardId, Warn, find_segments, waiting_segments
from spark_jobs.archive.shuffle import write_shuffled
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.job_options import Output, lake_option, master_option, place_option
from spark_jobs.lib.spark import OpenSession, spark_session
from sqs_api.settings.service_place import Place
from storage.lake.archive_schema import CHECKSUM_MODULUS, BatchId
from storage.lake.archive_table import archived_batch
from storage.lake.table import Lake

_TRIES = 5
"""A run starts over after a damaged segment, or a commit or sweep of another run."""


class Plan(NamedTuple):
    """The segments to archive, and the state of the table when they were chosen."""

    segments: list[Segment]
    before: dict[ShardId, int | None]
    """Highest batch of each shard in the table."""
    table: Seen | None
    """None if there are no segments in the lake."""

    @property
    def after(self) -> dict[ShardId, int]:
        """Highest batch of each shard once the segments are in the table."""
        return {segment.shard: segment.batch for segment in self.segments}


class Archived(NamedTuple):
    """Messages and batches that a run added to the table, the version it committed, and the shards
    of which the table had none before."""

    rows: int = 0
    batches: int = 0
    version: int | None = None
    begun: tuple[ShardId, ...] = ()


# -- steps -----------------------------------------------------------------------------------------


def plan(
    lake: Lake, known: Mapping[ShardId, int], unreadable: Mapping[str, str], warn: Warn
) -> Plan:
    """Find the segments that are in the lake but not in the table.

    `known` has the highest batch of each shard that the service knows to be archived; if an earlier
    table had it, this one lacks the batches up to it. Creates the table if there are segments.
    Raises LakeUnusable.
    """
    while True:
        warnings: list[str] = []
        files = find_segments(lake)  # before the table: segments removed later are in the table
        if not files:
            return Plan([], {}, None)
        table = open_archive(lake)
        before = {shard: archived_batch(table, *shard) for shard in {file.shard for file in files}}
        for shard, batch in before.items():
            if batch is not None and batch < known.get(shard, 0):
                missing = f"batches {batch + 1} to {known[shard]} of {shard[0]}"
                warnings.append(f"{missing} were archived before, but are not in this table")
        done = {shard: max(before[shard] or 0, known.get(shard, 0)) for shard in before}
        segments = waiting_segments(lake, files, done, unreadable, warnings.append)
        if not warnings or open_archive(lake).version() == table.version():
            break  # else another run may have archived and removed the unreadable segments
    for warning in warnings:
        warn(warning)
    return Plan(segments, before, seen(table))


def verify(segments: Sequence[Segment], parts: Sequence[Part]) -> None:
    """Check that the parts have each batch whole and once. Raises JobFailed."""
    rows: Counter[BatchId] = Counter()
    checksums: Counter[BatchId] = Counter()
    for part in parts:
        for batch, (count, checksum) in part.batches.items():
            rows[batch] += count
            checksums[batch] += checksum
    for segment in segments:
        batch = BatchId(*segment.shard, segment.batch)
        count, checksum = rows.pop(batch, 0), checksums[batch] % CHECKSUM_MODULUS
        if (count, checksum) != (segment.rows, segment.checksum):
            written = f"{count} rows with checksum {checksum} were written"
            raise JobFailed(f"{segment.path}: {written}, unlike its footer")
    if rows:
        raise JobFailed(f"the parts have batches of no segment: {sorted(rows)}")


def commit_parts(lake: Lake, plan: Plan, parts: Sequence[Part]) -> int | None:
    """Commit the parts; None if the table has changed since the plan. Raises LakeUnusable."""
    if plan.table is None:
        return None
    return commit(
        lake,
        [add_action(part) for part in parts],
        plan.after,
        plan.table,
        lambda table: all(
            archived_batch(table, *shard) == plan.before[shard] for shard in plan.after
        ),
    )


def archive(
    lake: Lake,
    run: Run,
    open_session: OpenSession,
    known: Mapping[ShardId, int],
    warn: Warn,
    small: Small = SMALL,
) -> Archived:
    """Plan, write, verify and commit. Raises JobFailed, LakeUnusable, SparkUnusable."""
    unreadable: dict[str, str] = {}
    with ExitStack() as stack:
        session: SparkSession | None = None
        for attempt in range(_TRIES):
            planned = plan(lake, known, unreadable, warn)
            if not planned.segments:
                return Archived()
            run.leaves_orphans = True
            rows = sum(segment.rows for segment in planned.segments)
            if small.holds(rows, sum(segment.bytes for segment in planned.segments)):
                name = f"part-{run.name}-{attempt}"
                parts, damaged = write_segments_here(lake, name, planned.segments)
            else:
                session = session or stack.enter_context(open_session())
                parts, damaged = write_shuffled(session, lake, run.name, planned.segments)
            if damaged:
                unreadable |= damaged
                continue
            verify(planned.segments, parts)
            version = commit_parts(lake, planned, parts)
            if version is not None:
                run.leaves_orphans = session is not None or attempt > 0
                begun = tuple(each for each, batch in planned.before.items() if batch is None)
                return Archived(rows, len(planned.segments), version, begun)
    raise JobFailed("the lake changes faster than it can be archived")


# -- the job ---------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """The result of a run."""

    archived: Archived
    acknowledged: int
    orphans: int

    def __str__(self) -> str:
        rows, batches, version, _ = self.archived
        done = f"{rows:,} messages of {batches:,} batches are in version {version} of the table"
        return ", ".join(
            [
                done if batches else "nothing to archive",
                f"{self.acknowledged:,} segments acknowledged",
                f"{self.orphans:,} orphans removed",
            ]
        )


def run_archive(
    lake: Lake,
    service: ArchiveClient,
    open_session: OpenSession,
    *,
    seal: bool,
    warn: Warn,
    tell: Warn,
    small: Small = SMALL,
) -> Summary:
    """Run the job; a call of `warn` reports something left undone.

    Raises JobFailed, LakeUnusable, SparkUnusable.
    """
    sealed: Mapping[ShardId, int] = {}
    known: Mapping[ShardId, int] = {}
    with Run(lake, "archive") as run:
        try:
            sealed = service.seal() if seal else {}
            not_sealed = service.left_out if seal else []
            known = service.archived()
            if away := sorted({*not_sealed, *service.left_out}):
                shards = ", ".join(map(str, away))
                warn(f"messages of shards {shards} may wait: their cluster does not answer")
        except ServiceUnusable as error:
            warn(f"{error}; archiving the segments that are in the lake")
        archived = archive(lake, run, open_session, known, warn, small)
        for source, shard in archived.begun:
            if before := known.get((source, shard)):
                tell(
                    f"batches up to {before} of {source}, shard {shard}, were archived before, and "
                    "not in this table: it is new, or another one was in its place"
                )
        find_absent(lake, sealed, known, warn)
        acknowledged = 0
        try:
            acknowledged = acknowledge(lake, service, warn, tell)
        except ServiceUnusable as error:
            warn(f"{error}; the next run acknowledges the archived batches")
        return Summary(archived, acknowledged, sweep(lake, run))


@click.command()
@lake_option
@place_option
@master_option
@click.option(
    "--seal/--no-seal",
    default=True,
    help="Have the service write waiting messages to the lake first (default), or do not.",
)
@click.pass_context
def command(
    context: click.Context, lake: Lake, place: Place, master: str | None, seal: bool
) -> None:
    """Move expired messages into the Delta table LAKE/archive, each exactly once.

    The service writes waiting messages to the lake as segments. The job verifies them, commits
    them to the table and tells the service, which then removes them from its disk. Runs may
    overlap and repeat: a batch that is in the table is not added again.

    If the service cannot be reached, the segments in the lake are archived all the same, but
    their messages take space in the service until a later run acknowledges them. The exit status
    is then 1, as it is when a batch is missing or damaged.
    """
    output = Output("archive")
    summary = run_archive(
        lake,
        ArchiveClient(place),
        lambda: spark_session("archive", master),
        seal=seal,
        warn=output.warn,
        tell=output.tell,
    )
    click.echo(f"archive: {summary}")
    context.exit(output.status)
