"""archive: what the service handed over, exactly once into the Delta table LAKE/archive.

Seal, read the segments' footers, have tasks write the rows as parts of the table, commit the parts together with each
shard's highest batch, acknowledge, remove the segments, sweep. The job may end between any two of these steps, and
two may run at once: the shards' highest batches are in the table's own log, so the next run does what is left, and a
commit that would repeat a batch is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import click
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.archive.executor import Written, write_segments
from spark_jobs.archive.parts import BatchId, Part
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segments import Segment, ShardId, Warn, find_segments, waiting_segments
from spark_jobs.archive.service_client import Refused, Service, ServiceUnusable, Table
from spark_jobs.archive.table import added, archived_batch, commit, fence, open_archive
from spark_jobs.archive.tasks import cut, run_tasks
from spark_jobs.lib.delta import load_table
from spark_jobs.lib.failures import JobFailed
from spark_jobs.lib.options import Notes, lake_option, master_option, place_option
from spark_jobs.lib.progress import Done
from spark_jobs.lib.spark import OpenSession, spark_session
from sqs_api.service_place import Place
from storage.archive_schema import ARCHIVE, CHECKSUM_MODULUS
from storage.lake import Lake

_TRIES = 5
"""A run begins anew when a segment turned out to be damaged, or another run was faster or swept."""


class Plan(NamedTuple):
    """What to archive, and what the table said when that was decided."""

    segments: list[Segment]
    before: dict[ShardId, int | None]
    """The highest batch of each shard in the table."""
    fence: int

    @property
    def after(self) -> dict[ShardId, int]:
        """The highest batch of each shard once the segments are in the table."""
        return {segment.shard: segment.batch for segment in self.segments}


class Archived(NamedTuple):
    """What a run took into the table, and the version it made."""

    rows: int = 0
    batches: int = 0
    version: int | None = None


# -- the steps --------------------------------------------------------------------------------------------------------


def plan(
    lake: Lake, known: Mapping[ShardId, int], unreadable: Mapping[str, str], warn: Warn
) -> Plan:
    """What is in the lake and not in the table. `known` has what the service knows to be archived: where batches do not
    begin with 1, an earlier table has the others. Raises LakeUnusable."""
    while True:
        warnings: list[str] = []
        files = find_segments(lake)  # before the table: what another run removes now is in it then
        table = load_table(lake)
        shards = {file.shard for file in files}
        before = {shard: archived_batch(table, shard) if table else None for shard in shards}
        for shard, batch in before.items():
            if batch is not None and batch < known.get(shard, 0):
                missing = f"batches {batch + 1} to {known[shard]} of {shard[0]}"
                warnings.append(f"{missing} were archived once, and are not in this table")
        done = {shard: max(before[shard] or 0, known.get(shard, 0)) for shard in shards}
        segments = waiting_segments(lake, files, done, unreadable, warnings.append)
        if not warnings or _version(load_table(lake)) == _version(table):
            break  # else another run may have taken and removed what could not be read
    for warning in warnings:
        warn(warning)
    return Plan(segments, before, fence(table) if table else 0)


def _version(table: DeltaTable | None) -> int | None:
    return table.version() if table else None


def write(session: SparkSession, lake: Lake, run: str, segments: Sequence[Segment]) -> Written:
    """Have Spark write the segments as parts. Raises JobFailed."""
    processors = session.sparkContext.defaultParallelism
    tasks = [(task, _work(task)) for task in cut(segments, _bytes, processors)]
    results = run_tasks(session, "archive", tasks, partial(write_segments, lake, run))
    damaged = {path: text for result in results for path, text in result.damaged.items()}
    return Written([part for result in results for part in result.parts], damaged)


def _bytes(segment: Segment) -> int:
    return segment.bytes


def _work(segments: Sequence[Segment]) -> Done:
    return Done(len(segments), sum(s.rows for s in segments), sum(map(_bytes, segments)))


def verify(segments: Sequence[Segment], parts: Sequence[Part]) -> None:
    """That each batch is in the parts, whole and once, as its footer says. Raises JobFailed."""
    rows: Counter[BatchId] = Counter()
    checksums: Counter[BatchId] = Counter()
    for part in parts:
        for batch, (count, checksum) in part.batches.items():
            rows[batch] += count
            checksums[batch] += checksum
    for segment in segments:
        batch = (*segment.shard, segment.batch)
        count, checksum = rows.pop(batch, 0), checksums[batch] % CHECKSUM_MODULUS
        if (count, checksum) != (segment.rows, segment.checksum):
            raise JobFailed(f"{segment.path}: {count} rows with checksum {checksum} were written")
    if rows:
        raise JobFailed(f"batches were written that nobody asked for: {sorted(rows)}")


def take(lake: Lake, plan: Plan, parts: Sequence[Part]) -> int | None:
    """Commit the parts; None where the table is no longer as it was planned upon. Raises LakeUnusable."""
    return commit(
        lake,
        [added(part) for part in parts],
        plan.after,
        plan.fence,
        lambda table: all(
            archived_batch(table, shard) == plan.before[shard] for shard in plan.after
        ),
    )


def archive(
    lake: Lake, run: str, open_session: OpenSession, known: Mapping[ShardId, int], warn: Warn
) -> Archived:
    """All of this, until nothing is left to do. Raises JobFailed, LakeUnusable, SparkUnusable."""
    unreadable: dict[str, str] = {}
    with ExitStack() as stack:
        session: SparkSession | None = None
        for _ in range(_TRIES):
            planned = plan(lake, known, unreadable, warn)
            if not planned.segments:
                return Archived()
            open_archive(lake)
            session = session or stack.enter_context(open_session())
            parts, damaged = write(session, lake, run, planned.segments)
            if damaged:
                unreadable |= damaged
                continue
            verify(planned.segments, parts)
            version = take(lake, planned, parts)
            if version is not None:
                rows = sum(segment.rows for segment in planned.segments)
                return Archived(rows, len(planned.segments), version)
    raise JobFailed("the lake changes faster than it can be archived")


def acknowledge(lake: Lake, service: Service, warn: Warn, tell: Warn) -> int:
    """Tell the service what is in the table, then remove those segments, and say how many. Raises LakeUnusable."""
    table = load_table(lake)
    if table is None:
        return 0
    removed = 0
    files = find_segments(lake)
    in_table = {shard: archived_batch(table, shard) or 0 for shard in {f.shard for f in files}}
    files = [file for file in files if file.batch <= in_table[file.shard]]
    if not files:
        return 0
    known = service.archived()
    said = Table(lake.uri(ARCHIVE), str(table.metadata().id), table.version())
    for shard in sorted({file.shard for file in files}):
        if shard not in known:
            tell(
                f"segments of {shard[0]} stay: another service, or an earlier data folder, wrote them"
            )
            continue
        try:
            service.acknowledge(shard, in_table[shard], said)
        except Refused as error:
            warn(f"the service does not take it that batches are archived: {error}")
            continue
        for file in files:
            if file.shard == shard:
                lake.remove(file.path)
                removed += 1
    return removed


def absent(lake: Lake, sealed: Mapping[ShardId, int], warn: Warn) -> None:
    """Warn where the service has written batches that this lake does not have. Raises LakeUnusable."""
    table = load_table(lake)
    here = {(file.shard, file.batch) for file in find_segments(lake)}
    for shard, batch in sealed.items():
        in_table = archived_batch(table, shard) if table else None
        if (in_table or 0) < batch and (shard, batch) not in here:
            warn(f"the service has written batch {batch} of {shard[0]}, but not to {lake.url}")


# -- the job ----------------------------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """What a run of the job did."""

    archived: Archived
    acknowledged: int
    orphans: int

    def __str__(self) -> str:
        rows, batches, version = self.archived
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
    service: Service,
    open_session: OpenSession,
    *,
    seal: bool,
    warn: Warn,
    tell: Warn,
) -> Summary:
    """The whole job. `warn` means that it was not all done. Raises JobFailed, LakeUnusable, SparkUnusable."""
    sealed: Mapping[ShardId, int] = {}
    known: Mapping[ShardId, int] = {}
    with Run(lake, "archive") as run:
        try:
            sealed = service.seal() if seal else {}
            known = service.archived()
        except ServiceUnusable as error:
            warn(f"{error}; what lies in the lake is archived all the same")
        archived = archive(lake, run.name, open_session, known, warn)
        absent(lake, sealed, warn)
        acknowledged = 0
        try:
            acknowledged = acknowledge(lake, service, warn, tell)
        except ServiceUnusable as error:
            warn(f"{error}; the next run acknowledges what is archived")
        return Summary(archived, acknowledged, sweep(lake, run))


@click.command()
@lake_option
@place_option
@master_option
@click.option(
    "--seal/--no-seal",
    default=True,
    help="First have the service write what waits to the lake (default), or take what lies there.",
)
@click.pass_context
def command(
    context: click.Context, lake: Lake, place: Place, master: str | None, seal: bool
) -> None:
    """Take expired messages into the Delta table LAKE/archive, each exactly once.

    The service seals what waits and writes it to the lake; this job verifies it, commits it to the table, and tells
    the service, which then forgets it. Run it as often as you like, and as many at once: what is in the table is not
    taken again.

    Where the service cannot be reached, what lies in the lake is archived all the same. It takes room in the
    service until a later run can acknowledge it; so the exit status is 1, as it is where a batch is missing or damaged.
    """
    notes = Notes("archive")
    summary = run_archive(
        lake,
        Service(place),
        lambda: spark_session("archive", master),
        seal=seal,
        warn=notes.warn,
        tell=notes.tell,
    )
    click.echo(f"archive: {summary}")
    context.exit(notes.status)
