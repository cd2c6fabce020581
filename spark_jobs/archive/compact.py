"""compact: keeps the lake small and quick to read.

Drops days of the archive that are older than asked for, merges small files of a partition into larger ones, removes
files that have been out of the table for long, shortens its log, sweeps orphans, and drops old snapshots and flows.
Each commit can be the last one of a run.
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
from pyspark.sql import SparkSession

from spark_jobs.archive.executor import merge_files
from spark_jobs.archive.parts import PART_BYTES, Part, Partition
from spark_jobs.archive.reading import TableFile
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segments import Warn
from spark_jobs.archive.table import Action, added, commit, fence, removed, table_files
from spark_jobs.archive.tasks import cut, run_tasks
from spark_jobs.lib.delta import load_table, named
from spark_jobs.lib.failures import JobFailed
from spark_jobs.lib.options import Notes, lake_option, master_option, unasked_place_option
from spark_jobs.lib.progress import Done
from spark_jobs.lib.spark import OpenSession, spark_session
from storage.archive_schema import ARCHIVE, DEAD_LETTERS, FLOWS, QUEUE_AGE, SNAPSHOTS
from storage.lake import Lake

SMALL_BYTES = 64 << 20
"""Files below this are merged."""
_WAVE_BYTES = 8 << 30
"""Merged between two commits, so that a run that is ended has not worked in vain."""
_RETENTION = "delta.deletedFileRetentionDuration"
_RETENTION_OF_DELTA = "interval 168 hours"
"""What holds where the table does not say."""
_DAY = re.compile(r"[^/]+/[^/]+/[^/]+/(\d{4}-\d{2}-\d{2})(?=/)")


Bin = list[TableFile]
"""Files of one partition that become one."""


def bins(files: Iterable[TableFile]) -> list[Bin]:
    """What to merge: small files of a partition, as many as give one of full size."""
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
    """The first bins: as much as is merged before a commit."""
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


# -- the steps --------------------------------------------------------------------------------------------------------


def drop_days(lake: Lake, before: date) -> int:
    """Take older days out of the table; how many files that were. Raises LakeUnusable, JobFailed."""
    table = load_table(lake)
    old = [] if table is None else [f for f in table_files(table) if f.day < before]
    if table is None or not old or not _replace(lake, table, old, [], data_change=True):
        return 0
    return len(old)


def merge(lake: Lake, run: str, open_session: OpenSession, warn: Warn) -> tuple[int, int]:
    """Merge small files; how many there were, and are now. Raises JobFailed, LakeUnusable, SparkUnusable."""
    merged = made = 0
    damaged: dict[str, str] = {}
    with ExitStack() as stack:
        session: SparkSession | None = None
        while (table := load_table(lake)) is not None:
            wave = first_wave(bins(file for file in table_files(table) if file.path not in damaged))
            if not wave:
                break
            session = session or stack.enter_context(open_session())
            processors = session.sparkContext.defaultParallelism
            tasks = [list(chain(*task)) for task in cut(wave, _bytes, processors)]
            work = [Done(len(task), sum(f.rows for f in task), _bytes(task)) for task in tasks]
            pairs = list(zip(tasks, work, strict=True))
            results = run_tasks(session, "compact", pairs, partial(merge_files, lake, run))
            for path, text in (item for result in results for item in result.damaged.items()):
                damaged[path] = text
                warn(f"{lake.uri(ARCHIVE)}/{path} is not merged: {text}")
            done = [task for task, result in zip(tasks, results, strict=True) if not result.damaged]
            files = [file for task in done for file in task]
            parts = [part for result in results for part in result.parts]
            if sum(file.rows for file in files) != sum(part.rows for part in parts):
                raise JobFailed(
                    "the merged files do not have the rows of those that they were made of"
                )
            if files and not _replace(lake, table, files, parts, data_change=False):
                break  # another run compacts, or swept
            merged, made = merged + len(files), made + len(parts)
    return merged, made


def _replace(
    lake: Lake, table: DeltaTable, old: list[TableFile], new: list[Part], *, data_change: bool
) -> bool:
    """Commit new files in place of old ones; false if those are no longer all there."""
    paths = {file.path for file in old}
    actions: list[Action] = [removed(file, data_change=data_change) for file in old]
    actions += [added(part, data_change=data_change) for part in new]
    version = commit(
        lake,
        actions,
        {},
        fence(table),
        lambda newest: paths <= {file.path for file in table_files(newest)},
    )
    return version is not None


def vacuum(lake: Lake, hours: int) -> int:
    """Remove files that have been out of their tables for so long, and shorten the tables' logs; how many files. Raises
    LakeUnusable."""
    tables = [load_table(lake, name) for name in (ARCHIVE, QUEUE_AGE, DEAD_LETTERS)]
    return sum(_vacuum(table, hours) for table in tables if table is not None)


def _vacuum(table: DeltaTable, hours: int) -> int:
    retention = f"interval {hours} hours"
    with named(table):
        if table.metadata().configuration.get(_RETENTION, _RETENTION_OF_DELTA) != retention:
            table.alter.set_table_properties({_RETENTION: retention})
        gone = table.vacuum(hours, dry_run=False)
        table.create_checkpoint()
        table.cleanup_metadata()
    return len(gone)


def drop_old_days(lake: Lake, before: date) -> int:
    """Remove older days of snapshots and flows; how many folders that were. Raises LakeUnusable."""
    paths = [file.path for folder in (SNAPSHOTS, FLOWS) for file in lake.list(folder)]
    days = {found[0] for found in map(_DAY.match, paths) if found and found[1] < before.isoformat()}
    for folder in sorted(days):
        lake.remove_folder(folder)
    return len(days)


# -- the job ----------------------------------------------------------------------------------------------------------


class Keep(NamedTuple):
    """What is kept: days of the archive (None: all), hours of files out of the table, days of snapshots and flows."""

    days: int | None
    vacuum_hours: int
    snapshots_days: int


def run_compact(
    lake: Lake, open_session: OpenSession, *, keep: Keep, today: date, warn: Warn
) -> str:
    """The whole job, and what it did in one line. Raises JobFailed, LakeUnusable, SparkUnusable."""
    with Run(lake, "compact") as run:
        dropped = 0
        if keep.days is not None:
            dropped = drop_days(lake, today - timedelta(days=keep.days))
        merged, made = merge(lake, run.name, open_session, warn)
        vacuumed = vacuum(lake, keep.vacuum_hours)
        days = drop_old_days(lake, today - timedelta(days=keep.snapshots_days))
        orphans = sweep(lake, run)
    return (
        f"{merged:,} files merged into {made:,}, {dropped:,} dropped by age, {vacuumed:,} vacuumed, "
        f"{orphans:,} orphans and {days:,} days of snapshots removed"
    )


@click.command()
@lake_option
@unasked_place_option
@master_option
@click.option(
    "--keep-days",
    type=click.IntRange(min=0),
    metavar="N",
    help="Drop messages that were sent more than N days ago from the archive. Default: keep all.",
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Remove files this long after they left the table; who reads it takes less time than that.",
)
@click.option(
    "--keep-snapshots-days",
    type=click.IntRange(min=0),
    default=35,
    show_default=True,
    help="Remove snapshots and flows, from which queue-age is computed, after so many days.",
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
    """Merge the archive's small files, and remove what is no longer needed.

    Other jobs may run meanwhile. Without --keep-days no message is ever dropped. A file whose rows do not have their
    checksums is left as it is and named, and the exit status is 1.

    The service is not asked: --url and --data are there since all jobs have them.
    """
    notes = Notes("compact")
    summary = run_compact(
        lake,
        lambda: spark_session("compact", master),
        keep=Keep(keep_days, vacuum_hours, keep_snapshots_days),
        today=datetime.now(UTC).date(),
        warn=notes.warn,
    )
    click.echo(f"compact: {summary}")
    context.exit(notes.status)
