"""compact: keeps the lake small and fast to read.

Drops days of the archive beyond the requested age, merges small files of a partition, vacuums
files that left the tables long ago, shortens the tables' logs, sweeps orphans, and removes old
snapshots and flows. A run may end after any of its commits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple

import click
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from spark_jobs.archive.archive_parts import PART_BYTES, Part, Partition
from spark_jobs.archive.archive_tasks import SMALL, Small, run_tasks, split_work
from spark_jobs.archive.delta_archive import (
    Action,
    add_action,
    commit,
    file_paths,
    remove_action,
    seen,
    table_files,
)
from spark_jobs.archive.executor import Written, merge_files, merge_here
from spark_jobs.archive.parquet_reading import TableFile
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segment_files import Warn, find_segments
from spark_jobs.lib.delta import delta_errors, load_table
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.job_options import Output, lake_option, master_option, unused_place_option
from spark_jobs.lib.progress import Work
from spark_jobs.lib.spark import OpenSession, spark_session
from storage.lake.archive_schema import (
    ARCHIVE,
    DEAD_LETTERS,
    FLOWS,
    QUEUE_AGE,
    SNAPSHOTS,
    BatchId,
)
from storage.lake.archive_table import (
    DROPPED_BEFORE,
    archived_batch,
    dropped_before,
    load_archive,
    partitions_of,
)
from storage.lake.table import Lake

SMALL_BYTES = 64 << 20
"""Smaller files are merged."""
_WAVE_BYTES = 8 << 30
"""Limit of the files merged in one commit, so that a run that is killed loses little work."""
_RETENTION = "delta.deletedFileRetentionDuration"
_RETENTION_OF_DELTA = "interval 168 hours"
"""Delta's default."""
_DAY = re.compile(r"[^/]+/[^/]+/[^/]+/(\d{4}-\d{2}-\d{2})(?=/)")


Bin = list[TableFile]
"""Files of one partition to merge into one."""


def bins(files: Iterable[TableFile]) -> list[Bin]:
    """Small files to merge: each bin is of one partition and at most a full-sized file."""
    by_partition: dict[Partition, Bin] = defaultdict(list)
    for file in sorted(files):
        if file.size < SMALL_BYTES:
            by_partition[file.partition].append(file)
    found: list[Bin] = []
    for small in by_partition.values():
        current: Bin = []
        for file in small:
            if _bytes(current) + file.size > PART_BYTES:
                found.append(current)
                current = []
            current.append(file)
        found.append(current)
    return [each for each in found if len(each) > 1]


def first_wave(found: Sequence[Bin]) -> list[Bin]:
    """The first bins, as many as one commit takes."""
    wave: list[Bin] = []
    size = 0
    for each in found:
        size += _bytes(each)
        if size > _WAVE_BYTES and wave:
            break
        wave.append(each)
    return wave


def _bytes(files: Bin) -> int:
    return sum(file.size for file in files)


# -- steps -----------------------------------------------------------------------------------------


def drop_days(lake: Lake, before: date) -> int:
    """Remove earlier days from the table; the number of files. Raises LakeUnusable, JobFailed.

    A partition with rows of batches that wait for their acknowledgement stays: it is compared with
    their segments first.
    """
    table = load_archive(lake)
    if table is None or not _note_dropped(table, before):
        return 0
    batches = [
        BatchId(*file.shard, file.batch)
        for file in find_segments(lake)
        if file.batch <= (archived_batch(table, *file.shard) or 0)
    ]
    waiting = partitions_of(lake, batches)
    old = [
        file
        for file in table_files(table)
        if file.day < before and "/".join(map(str, file.partition)) not in waiting
    ]
    if not old or not _replace(lake, table, old, [], data_change=True):
        return 0
    return len(old)


def _note_dropped(table: DeltaTable, before: date) -> bool:
    """Note in the table that earlier days may be missing; False if another run was faster."""
    known = dropped_before(table)
    if known is not None and known >= before:
        return True
    note = {DROPPED_BEFORE: before.isoformat()}
    try:
        with delta_errors(table):
            table.alter.set_table_properties(note, raise_if_not_exists=False)
            table.update_incremental()
    except CommitFailedError:
        return False
    return True


def merge(
    lake: Lake, run: Run, open_session: OpenSession, warn: Warn, small: Small
) -> tuple[int, int]:
    """Merge small files; the numbers of files merged and written.

    Raises JobFailed, LakeUnusable, SparkUnusable.
    """
    merged = made = waves = 0
    damaged: dict[str, str] = {}
    with ExitStack() as stack:
        session: SparkSession | None = None
        while (table := load_archive(lake)) is not None:
            wave = first_wave(bins(file for file in table_files(table) if file.path not in damaged))
            if not wave:
                break
            run.leaves_orphans = True
            if small.holds(sum(f.rows for each in wave for f in each), sum(map(_bytes, wave))):
                names = (f"part-{run.name}-{waves}-{number}" for number in range(len(wave)))
                tasks, results = (
                    wave,
                    [merge_here(lake, *each) for each in zip(names, wave, strict=True)],
                )
            else:
                session = session or stack.enter_context(open_session())
                tasks, results = _merge_with_spark(session, lake, run.name, wave)
            waves += 1
            for path, text in (item for result in results for item in result.damaged.items()):
                damaged[path] = text
                warn(f"{lake.uri(ARCHIVE)}/{path} is not merged: {text}")
            done = [task for task, result in zip(tasks, results, strict=True) if not result.damaged]
            files = [file for task in done for file in task]
            parts = [part for result in results for part in result.parts]
            if sum(file.rows for file in files) != sum(part.rows for part in parts):
                raise JobFailed("the merged files have more or fewer rows than their sources")
            if files and not _replace(lake, table, files, parts, data_change=False):
                break  # another run compacted or swept
            merged, made = merged + len(files), made + len(parts)
    return merged, made


def _merge_with_spark(
    session: SparkSession, lake: Lake, run: str, wave: Sequence[Bin]
) -> tuple[list[Bin], list[Written]]:
    """The files of each task, and its result."""
    processors = session.sparkContext.defaultParallelism
    tasks = [list(chain(*task)) for task in split_work(wave, _bytes, processors)]
    work = [Work(len(task), sum(f.rows for f in task), _bytes(task)) for task in tasks]
    pairs = list(zip(tasks, work, strict=True))
    return tasks, run_tasks(session, "compact", pairs, partial(merge_files, lake, run))


def _replace(
    lake: Lake, table: DeltaTable, old: list[TableFile], new: list[Part], *, data_change: bool
) -> bool:
    """Replace files in one commit; False if an old file is no longer in the table."""
    paths = {file.path for file in old}
    actions: list[Action] = [remove_action(file, data_change=data_change) for file in old]
    actions += [add_action(part, data_change=data_change) for part in new]
    version = commit(
        lake,
        actions,
        {},
        seen(table),
        lambda newest: paths <= file_paths(newest),
    )
    return version is not None


def vacuum(lake: Lake, hours: int) -> int:
    """Remove files that left their tables this long ago, and shorten the tables' logs.

    Returns the number of files. Raises LakeUnusable.
    """
    tables = [load_archive(lake), load_table(lake, QUEUE_AGE), load_table(lake, DEAD_LETTERS)]
    return sum(_vacuum(table, hours) for table in tables if table is not None)


def _vacuum(table: DeltaTable, hours: int) -> int:
    retention = f"interval {hours} hours"
    with delta_errors(table):
        if table.metadata().configuration.get(_RETENTION, _RETENTION_OF_DELTA) != retention:
            table.alter.set_table_properties({_RETENTION: retention})
        gone = table.vacuum(hours, dry_run=False)
        table.create_checkpoint()
        table.cleanup_metadata()
    return len(gone)


def drop_old_days(lake: Lake, before: date) -> int:
    """Remove earlier days of snapshots and flows; the number of folders. Raises LakeUnusable."""
    paths = [file.path for folder in (SNAPSHOTS, FLOWS) for file in lake.list(folder)]
    days = {found[0] for found in map(_DAY.match, paths) if found and found[1] < before.isoformat()}
    for folder in sorted(days):
        lake.remove_folder(folder)
    return len(days)


# -- the job ---------------------------------------------------------------------------------------


class Keep(NamedTuple):
    """Retention periods."""

    days: int | None
    """The archive's; None keeps all."""
    vacuum_hours: int
    """That of files that left a table."""
    snapshots_days: int
    """That of snapshots and flows."""


def run_compact(
    lake: Lake,
    open_session: OpenSession,
    *,
    keep: Keep,
    today: date,
    warn: Warn,
    small: Small = SMALL,
) -> str:
    """Run the job; its summary. Raises JobFailed, LakeUnusable, SparkUnusable."""
    with Run(lake, "compact") as run:
        dropped = 0
        if keep.days is not None:
            dropped = drop_days(lake, today - timedelta(days=keep.days))
        merged, made = merge(lake, run, open_session, warn, small)
        vacuumed = vacuum(lake, keep.vacuum_hours)
        days = drop_old_days(lake, today - timedelta(days=keep.snapshots_days))
        run.leaves_orphans = True  # of whichever run: this one always sweeps
        orphans = sweep(lake, run)
    return (
        f"{merged:,} files merged into {made:,}, {dropped:,} dropped by age, "
        f"{vacuumed:,} vacuumed, {orphans:,} orphans and {days:,} days of snapshots removed"
    )


@click.command()
@lake_option
@unused_place_option
@master_option
@click.option(
    "--keep-days",
    type=click.IntRange(min=0),
    metavar="N",
    help="Drop messages sent more than N days ago from the archive. Default: keep all.",
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Remove files this long after they left their table; readers must be faster.",
)
@click.option(
    "--keep-snapshots-days",
    type=click.IntRange(min=0),
    default=35,
    show_default=True,
    help="Remove snapshots and flows, the input of queue-age, after this many days.",
)
@click.pass_context
def command(
    context: click.Context,
    lake: Lake,
    master: str | None,
    keep_days: int | None,
    vacuum_hours: int,
    keep_snapshots_days: int,
) -> None:
    """Merge the archive's small files and remove old ones.

    Other jobs may run meanwhile. Messages are dropped only with --keep-days. A file with a wrong
    row checksum is reported and left as it is, and the exit status is 1.

    Sends no requests to the service: --url and --data are accepted and ignored.
    """
    output = Output("compact")
    summary = run_compact(
        lake,
        lambda: spark_session("compact", master),
        keep=Keep(keep_days, vacuum_hours, keep_snapshots_days),
        today=datetime.now(UTC).date(),
        warn=output.warn,
    )
    click.echo(f"compact: {summary}")
    context.exit(output.status)
