"""The compact job shrinks the lake and loses neither messages nor the highest batches."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.archive.archive_job import archive, commit_parts, plan
from spark_jobs.archive.archive_tasks import SMALL, Small
from spark_jobs.archive.compact import Keep, bins, first_wave, run_compact
from spark_jobs.archive.delta_archive import (
    commit,
    open_archive,
    remove_action,
    removed_files,
    seen,
    table_files,
)
from spark_jobs.archive.executor import write_segments_here
from spark_jobs.archive.parquet_reading import TableFile
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segment_files import find_segments
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.job_services import no_session
from spark_jobs.tests.lakes import SOURCE, archived_rows, messages, names, orphans, write_segment
from storage.lake.archive_schema import ARCHIVE, DEAD_LETTERS, QUEUE_AGE, BatchId
from storage.lake.archive_table import archived_batch, confirm
from storage.lake.table import Lake

RUN = "archive-" + "0" * 32
TODAY = date(2026, 11, 25)
ALL = Keep(None, 168, 35)


class Compaction:
    """The job on a lake whose archive has five batches in ten files, of two days."""

    def __init__(self, lake: Lake, open_session: OpenSession) -> None:
        self.lake = lake
        self.open_session = open_session
        self.small = SMALL
        self.rows: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        for batch in range(1, 6):
            self.archive(batch)

    def archive(self, batch: int) -> None:
        rows = messages(4, batch=batch)
        for row in rows:
            row["sent_at"] = row["sent_at"].replace(day=20 + row["position"] % 2)
        write_segment(self.lake, rows)
        with Run(self.lake, "archive") as run:
            assert archive(self.lake, run, self.open_session, {}, print).batches == 1
        self.rows += rows

    def remove_segments(self) -> None:
        """As when the service knows that they are archived."""
        for file in find_segments(self.lake):
            self.lake.remove(file.path)

    def run(self, keep: Keep = ALL) -> str:
        self.warnings = []
        return run_compact(
            self.lake,
            self.open_session,
            keep=keep,
            today=TODAY,
            warn=self.warnings.append,
            small=self.small,
        )


@pytest.fixture
def compaction(lake: Lake, open_session: OpenSession) -> Compaction:
    """It merges the few rows of tests without Spark."""
    return Compaction(lake, open_session)


def test_small_files_become_one_for_each_partition(compaction: Compaction) -> None:
    compaction.small = Small(0, 0)
    before = archived_rows(compaction.lake)

    summary = compaction.run()

    assert summary.startswith("10 files merged into 2, 0 dropped by age, 0 vacuumed, 0 orphans")
    assert len(table_files(open_archive(compaction.lake))) == 2
    assert archived_rows(compaction.lake) == before
    assert names(before) == names(compaction.rows)
    compaction.open_session = no_session
    assert compaction.run().startswith("0 files merged")


def test_what_was_archived_up_to_where_outlives_checkpoints_and_the_log(
    compaction: Compaction,
) -> None:
    lake = compaction.lake
    open_archive(lake).alter.set_table_properties(
        {
            "delta.logRetentionDuration": "interval 0 seconds",
            "delta.deletedFileRetentionDuration": "interval 0 seconds",
        }
    )
    compaction.run(Keep(None, 0, 0))
    compaction.run(Keep(None, 0, 0))
    log = [file.name for file in lake.list(f"{ARCHIVE}/_delta_log")]

    assert "00000000000000000001.json" not in log
    assert archived_batch(open_archive(lake), SOURCE, 0) == 5
    assert plan(lake, {}, {}, print).segments == []
    compaction.archive(6)
    assert names(archived_rows(lake)) == names(compaction.rows)


def test_replaced_files_stay_for_readers_until_they_are_vacuumed(compaction: Compaction) -> None:
    lake = compaction.lake
    compaction.run()
    assert len(removed_files(open_archive(lake))) == 10
    with Run(lake, "archive") as run:
        assert sweep(lake, run) == 0

    assert "10 vacuumed" in compaction.run(Keep(None, 0, 35))

    assert len([file for file in lake.list(ARCHIVE) if file.name.startswith("part-")]) == 2
    assert names(archived_rows(lake)) == names(compaction.rows)


def test_what_later_runs_replaced_in_the_tables_of_other_jobs_is_vacuumed(lake: Lake) -> None:
    for name in (QUEUE_AGE, DEAD_LETTERS):
        for value in range(3):
            rows = pa.table({"day": [TODAY], "value": [value]})
            write_deltalake(lake.uri(name), rows, mode="overwrite", partition_by=["day"])

    summary = run_compact(lake, no_session, keep=Keep(None, 0, 35), today=TODAY, warn=print)

    assert "4 vacuumed" in summary
    for name in (QUEUE_AGE, DEAD_LETTERS):
        assert DeltaTable(lake.uri(name)).to_pyarrow_table()["value"].to_pylist() == [2]


def test_only_days_that_are_too_old_are_dropped(compaction: Compaction) -> None:
    compaction.remove_segments()
    assert "0 dropped" in compaction.run(Keep(5, 168, 35))
    assert names(archived_rows(compaction.lake)) == names(compaction.rows)

    assert "1 dropped by age" in compaction.run(Keep(4, 168, 35))

    kept = [row for row in compaction.rows if row["sent_at"].day == 21]
    assert names(archived_rows(compaction.lake)) == names(kept)
    assert archived_batch(open_archive(compaction.lake), SOURCE, 0) == 5


def test_days_of_batches_that_wait_for_their_acknowledgement_stay(compaction: Compaction) -> None:
    assert "0 dropped" in compaction.run(Keep(0, 168, 35))
    assert names(archived_rows(compaction.lake)) == names(compaction.rows)

    compaction.remove_segments()
    assert "2 dropped by age" in compaction.run(Keep(0, 168, 35))


def test_batches_whose_days_were_dropped_before_can_be_acknowledged(
    compaction: Compaction,
) -> None:
    """Earlier versions dropped them, and noted nothing."""
    lake, batches = compaction.lake, [BatchId(SOURCE, 0, number) for number in range(1, 6)]
    table = open_archive(lake)
    old = [file for file in table_files(table) if file.day == date(2026, 11, 20)]
    actions = [remove_action(file, data_change=True) for file in old]
    assert commit(lake, actions, {}, seen(table), lambda _: True) is not None
    assert len(confirm(lake, open_archive(lake), batches)) == 5

    assert "0 dropped" in compaction.run(Keep(4, 168, 35))
    assert confirm(lake, open_archive(lake), batches) == {}

    # A day that is younger must be there.
    table = open_archive(lake)
    actions = [remove_action(file, data_change=True) for file in table_files(table)]
    assert commit(lake, actions, {}, seen(table), lambda _: True) is not None
    assert len(confirm(lake, open_archive(lake), batches)) == 5


def test_archive_run_that_began_before_a_compaction_still_commits(
    compaction: Compaction,
) -> None:
    lake = compaction.lake
    rows = messages(4, batch=6)
    write_segment(lake, rows)
    planned = plan(lake, {}, {}, print)
    parts = write_segments_here(lake, f"part-{RUN}-0", planned.segments).parts
    with Run(lake, "archive"):
        assert compaction.run().startswith("10 files merged into 2")

        assert commit_parts(lake, planned, parts) is not None

    assert names(archived_rows(lake)) == names(compaction.rows + rows)


def test_compaction_that_another_one_overtook_changes_nothing(compaction: Compaction) -> None:
    compaction.small = Small(0, 0)
    lake, first = compaction.lake, compaction.open_session

    def overtaken() -> Any:
        compaction.open_session = first
        compaction.run()
        return first()

    compaction.open_session = overtaken
    # The first reads its table before it opens its session.
    assert compaction.run().startswith("0 files merged into 0")

    assert len(table_files(open_archive(lake))) == 2
    assert names(archived_rows(lake)) == names(compaction.rows)
    assert orphans(lake) == []


def test_damaged_file_of_the_table_is_named_and_left_as_it_is(compaction: Compaction) -> None:
    compaction.small = Small(0, 0)
    lake = compaction.lake
    damaged = table_files(open_archive(lake))[0].path
    path = Path(lake.path(f"{ARCHIVE}/{damaged}"))
    table = pq.ParquetFile(path).read()
    bodies = pa.array(["something else"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("body"), "body", bodies), path)

    summary = compaction.run()

    assert summary.startswith("9 files merged into 2")
    assert len(compaction.warnings) == 1
    assert damaged in compaction.warnings[0]
    assert damaged in {file.path for file in table_files(open_archive(lake))}


def test_old_days_of_snapshots_and_flows_are_removed(lake: Lake, open_session: OpenSession) -> None:
    for day in ("2026-10-20", "2026-10-21", "2026-11-25"):
        lake.write(f"snapshots/{SOURCE}/shard-0/{day}/1.parquet", b"")
        lake.write(f"flows/{SOURCE}/shard-1/{day}/1.parquet", b"")

    summary = run_compact(lake, open_session, keep=ALL, today=TODAY, warn=print)

    assert "2 days of snapshots removed" in summary
    left = [*lake.list("snapshots"), *lake.list("flows")]
    assert sorted({file.path.split("/")[3] for file in left}) == ["2026-10-21", "2026-11-25"]


def file(path: str, size: int, queue: str = "q") -> TableFile:
    return TableFile(path, size, 1, "1", queue, date(2026, 11, 21))


def test_bins_hold_small_files_of_one_partition_up_to_a_full_one() -> None:
    mb = 1 << 20
    small = [file(f"a{i}", 60 * mb) for i in range(6)]
    other = [file("b0", 1, "r"), file("b1", 200 * mb, "r"), file("b2", 63 * mb, "r")]

    found = bins([*small, *other, file("alone", 1, "s")])

    assert [[each.path for each in one] for one in found] == [
        ["a0", "a1", "a2", "a3"],
        ["a4", "a5"],
        ["b0", "b2"],
    ]
    assert bins([file("x", 64 * mb), file("y", 64 * mb)]) == []


def test_wave_has_at_least_one_bin() -> None:
    large = [file("a", 9 << 30), file("b", 1)]

    assert first_wave([large, large]) == [large]
    assert first_wave([]) == []
