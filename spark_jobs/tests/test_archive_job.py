"""The archive job: each message is in the table exactly once, in spite of failures."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.archive.archive_client import ArchiveClient
from spark_jobs.archive.archive_job import archive, commit_parts, plan, run_archive
from spark_jobs.archive.delta_archive import open_archive, table_files
from spark_jobs.archive.executor import write_segments_here
from spark_jobs.archive.runs import Run, sweep
from spark_jobs.archive.segment_files import Segment
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.job_faults import FailingAlways, FailingOnce, KilledOnce
from spark_jobs.tests.job_services import ArchiveJob, no_session, place_of
from spark_jobs.tests.lakes import (
    ACCOUNT,
    BEGUN,
    SOURCE,
    archived_rows,
    message,
    messages,
    names,
    orphans,
    write_batches,
    write_segment,
)
from storage.lake.archive_schema import DELETED, SEGMENT, SEGMENTS, BatchId
from storage.lake.archive_table import confirm, load_archive
from storage.lake.table import Lake, LakeUnusable

RUN = "archive-" + "0" * 32
"""A run that is not noted: to others it is dead."""


# -- content of the table --------------------------------------------------------------------------


def test_each_message_is_in_the_table_once_with_all_its_columns(either_job: ArchiveJob) -> None:
    job = either_job
    rows = [
        *messages(
            30, queue="orders.fifo", message_group_id="g", sequence_number="18446744073709551615"
        ),
        message(31, reason=DELETED, body="\U0001f600" * 1000, aws_trace_header="Root=1"),
        message(32, body=None, attributes=None, sealed=b"\x00secret", data_key=7, md5_of_body=None),
        message(33, body="", attributes=None, queue="a" * 80, account="999999999999"),
        message(
            34, dead_letter_queue_source_arn="arn:aws:sqs:eu-west-1:1:q", first_received_at=None
        ),
    ]
    job = either_job
    write_segment(job.lake, rows)
    job.service.sealed[SOURCE, 0] = 1

    summary = job.run()

    table = archived_rows(job.lake)
    assert [{name: row[name] for name in SEGMENT} for row in table] == rows
    assert [row["day"] for row in table] == [row["sent_at"].date() for row in rows]
    assert str(summary).startswith("34 messages of 1 batches are in version 1 of the table, 1 segm")
    assert job.warnings == []


def test_table_is_partitioned_and_says_what_its_files_span(either_job: ArchiveJob) -> None:
    job = either_job
    write_batches(job.lake, 2, 20)

    job.run()

    table = load_archive(job.lake)
    assert table is not None
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert table.metadata().partition_columns == ["account", "queue", "day"]
    assert sum(file["num_records"] for file in files) == 40
    assert {file["partition.day"] for file in files} == {date(2026, 11, 20), date(2026, 11, 21)}
    for file in files:
        assert file["path"].startswith(
            f"account={ACCOUNT}/queue=orders/day={file['partition.day']}/part-archive-"
        )
        assert file["min.sent_at"].date() == file["max.sent_at"].date() == file["partition.day"]


def test_spark_reads_the_files_of_the_table_by_itself(job: ArchiveJob, spark: SparkSession) -> None:
    rows = write_batches(job.lake, 2, 20)
    job.run()

    files = open_archive(job.lake).file_uris()
    frame = spark.read.option("basePath", job.lake.uri("archive")).parquet(*files)

    found = {row["position"]: row for row in frame.collect()}
    assert sorted(frame.columns) == sorted([*SEGMENT, "day"])
    assert len(found) == 40
    for row in rows:
        read = found[row["position"]]
        assert (read["account"], read["queue"]) == (ACCOUNT, "orders")
        assert (read["body"], read["day"]) == (row["body"], str(row["sent_at"].date()))
        assert (read["attributes"] or {}).keys() == dict(row["attributes"] or []).keys()


def test_rows_of_many_queues_and_days_go_into_their_own_files(either_job: ArchiveJob) -> None:
    job = either_job
    rows = [message(i, queue=f"q{i % 7}", account=f"{i % 2:012d}") for i in range(1, 400)]
    job = either_job
    write_segment(job.lake, rows)

    job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    for row in archived_rows(job.lake):
        assert (row["account"], row["queue"]) == (
            f"{row['position'] % 2:012d}",
            f"q{row['position'] % 7}",
        )


def test_second_run_changes_nothing_and_needs_no_spark(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 3, 5)
    job.run(seal=False)
    version = open_archive(job.lake).version()
    job.open_session = no_session

    summary = job.run(seal=False)

    assert str(summary).startswith("nothing to archive")
    assert names(archived_rows(job.lake)) == names(rows)
    assert open_archive(job.lake).version() == version


def test_later_batches_are_added(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 1, 5)
    job.run()
    rows += write_batches(job.lake, 3, 5)[5:]

    summary = job.run()

    assert summary.archived.batches == 2
    assert names(archived_rows(job.lake)) == names(rows)


# -- acknowledging ---------------------------------------------------------------------------------


def test_service_is_told_the_table_and_version_and_the_segments_go(job: ArchiveJob) -> None:
    write_batches(job.lake, 3, 5)
    job.service.sealed[SOURCE, 0] = 3

    summary = job.run()

    assert summary.acknowledged == 3
    assert job.lake.list(SEGMENTS) == []
    assert job.service.told == [
        {
            "source": SOURCE,
            "shard": 0,
            "batch": 3,
            "table": job.lake.uri("archive"),
            "table_id": str(open_archive(job.lake).metadata().id),
            "version": 1,
        }
    ]


@pytest.mark.parametrize("path", ["/_holdfast/archive", "/_holdfast/archive/archived"])
def test_lost_acknowledgement_is_made_up_for_by_the_next_run(job: ArchiveJob, path: str) -> None:
    rows = write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 2
    job.service.fails = {path}
    assert job.run().acknowledged == 0
    assert "503 the disk is full" in job.warnings[-1]
    assert len(job.lake.list(SEGMENTS)) == 2
    job.service.fails = set()
    job.open_session = no_session

    assert job.run().acknowledged == 2
    assert job.warnings == []
    assert job.service.archived == {(SOURCE, 0): 2}
    assert names(archived_rows(job.lake)) == names(rows)


def test_refused_acknowledgement_keeps_the_segments(job: ArchiveJob) -> None:
    write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 1

    summary = job.run()

    assert summary.acknowledged == 0
    assert len(job.lake.list(SEGMENTS)) == 2
    assert job.warnings == [
        "the service refuses the acknowledgement of archived batches: there is no such batch"
    ]


def test_segments_of_another_service_are_archived_and_stay(job: ArchiveJob) -> None:
    rows = [*write_batches(job.lake, 1, 5, source="other"), *write_batches(job.lake, 1, 5)]
    job.service.sealed[SOURCE, 0] = 1

    summary = job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    assert summary.acknowledged == 1
    assert [file.path.split("/")[1] for file in job.lake.list(SEGMENTS)] == ["other"]
    assert job.warnings == []
    assert "other" in job.told[0]


def test_service_that_is_away_does_not_keep_the_lake_from_being_archived(
    lake: Lake, open_session: OpenSession
) -> None:
    rows = write_batches(lake, 2, 5)
    warnings: list[str] = []

    run_archive(
        lake,
        ArchiveClient(place_of("http://127.0.0.1:9")),
        open_session,
        seal=True,
        warn=warnings.append,
        tell=warnings.append,
    )

    assert names(archived_rows(lake)) == names(rows)
    assert "archiving the segments that are in the lake" in warnings[0]
    assert "the next run acknowledges" in warnings[1]


# -- ended at every step ---------------------------------------------------------------------------


def test_a_cluster_that_is_away_is_named_and_its_segments_wait(job: ArchiveJob) -> None:
    """The others' batches are archived and acknowledged meanwhile."""
    rows = write_batches(job.lake, 1, 5, shard=1) + write_batches(job.lake, 1, 5, shard=3)
    job.service.sealed.update({(SOURCE, 1): 1, (SOURCE, 3): 1})
    job.service.away = {1, 2}

    summary = job.run()

    assert (summary.archived.rows, summary.acknowledged) == (10, 1)
    assert job.warnings == ["messages of shards 1, 2 may wait: their cluster does not answer"]
    assert job.told == []

    job.service.away = set()
    assert job.run().acknowledged == 1
    assert job.warnings == []
    assert names(archived_rows(job.lake)) == names(rows)


def test_run_that_ended_before_its_commit_leaves_orphans_that_the_next_one_sweeps(
    job: ArchiveJob,
) -> None:
    rows = write_batches(job.lake, 3, 5)
    open_archive(job.lake)
    with Run(job.lake, "archive") as run:
        write_segments_here(job.lake, f"part-{run.name}-0", plan(job.lake, {}, {}, print).segments)
        run.leaves_orphans = True
    assert archived_rows(job.lake) == []
    left = len(orphans(job.lake))

    summary = job.run()

    assert summary.orphans == left > 0
    assert orphans(job.lake) == []
    assert names(archived_rows(job.lake)) == names(rows)


def test_run_that_ended_after_its_commit_is_finished_by_the_next_one(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 3, 5)
    job.service.sealed[SOURCE, 0] = 3
    with Run(job.lake, "archive") as run:
        archive(job.lake, run, job.open_session, {}, print)
    job.open_session = no_session

    summary = job.run()

    assert (summary.archived.batches, summary.acknowledged) == (0, 3)
    assert names(archived_rows(job.lake)) == names(rows)


@pytest.mark.parametrize("fault", [FailingOnce, KilledOnce])
def test_task_that_fails_or_is_killed_is_tried_again_and_leaves_orphans_only(
    spark_job: ArchiveJob, fault: type[Lake]
) -> None:
    job = spark_job
    rows = write_batches(job.lake, 3, 20)
    job.lake = fault(job.lake.url)

    summary = job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    assert summary.orphans > 0
    assert orphans(job.lake) == []


def test_task_that_fails_again_and_again_ends_the_job_with_its_reason(
    spark_job: ArchiveJob,
) -> None:
    job = spark_job
    write_batches(job.lake, 1, 5)
    lake = job.lake
    job.lake = FailingAlways(lake.url)

    with pytest.raises(JobFailed, match="the network is down") as failed:
        job.run()

    assert "\n" not in str(failed.value)
    assert archived_rows(lake) == []
    assert orphans(lake) == []


def test_a_full_disk_is_named_and_the_next_run_does_the_rest(
    job: ArchiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_batches(job.lake, 2, 5)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("spark_jobs.archive.archive_parts.pq.ParquetWriter.write_table", full)
        with pytest.raises(LakeUnusable, match=r"/archive/account=.*No space left on device"):
            job.run()
    job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    assert orphans(job.lake) == []


def test_of_two_runs_that_write_the_same_batches_one_commits(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 3, 5)
    open_archive(job.lake)
    plans = [plan(job.lake, {}, {}, print) for _ in range(2)]
    parts = [
        write_segments_here(job.lake, f"part-{RUN}-{i}", p.segments).parts
        for i, p in enumerate(plans)
    ]

    versions = [commit_parts(job.lake, *both) for both in zip(plans, parts, strict=True)]

    assert versions == [1, None]
    assert plan(job.lake, {}, {}, print).segments == []
    assert names(archived_rows(job.lake)) == names(rows)
    with Run(job.lake, "archive") as run:
        run.leaves_orphans = True
        assert sweep(job.lake, run) == len(parts[1])
    assert names(archived_rows(job.lake)) == names(rows)


def test_runs_with_different_batches_both_commit(job: ArchiveJob) -> None:
    rows = write_batches(job.lake, 1, 5)
    open_archive(job.lake)
    first = plan(job.lake, {}, {}, print)
    rows += write_batches(job.lake, 1, 5, shard=1)
    both = plan(job.lake, {}, {}, print)
    second = both._replace(segments=[s for s in both.segments if s.shard == (SOURCE, 1)])
    parts = [
        write_segments_here(job.lake, f"part-{RUN}-{i}", each.segments).parts
        for i, each in enumerate((first, second))
    ]

    assert commit_parts(job.lake, first, parts[0]) == 1
    assert commit_parts(job.lake, second, parts[1]) == 2
    assert names(archived_rows(job.lake)) == names(rows)


def test_plan_reads_no_more_than_what_is_not_in_the_table(job: ArchiveJob) -> None:
    write_batches(job.lake, 2, 5)
    job.run(seal=False)
    path = write_segment(job.lake, messages(5, batch=3))

    segments = plan(job.lake, {}, {}, print).segments

    assert [segment.path for segment in segments] == [path]
    assert isinstance(segments[0], Segment)
    assert (segments[0].rows, segments[0].batch) == (5, 3)


def test_acknowledging_reads_no_files_of_earlier_batches(job: ArchiveJob) -> None:
    """Else the many runs of a day would all read the files of all runs before."""
    opened: list[str] = []

    class Watched(Lake):
        @contextmanager
        def open(self, path: str) -> Iterator[pa.NativeFile]:
            opened.append(path)
            with super().open(path) as stream:
                yield stream

    for batch in (1, 2, 3):
        segment = write_segment(job.lake, messages(5, batch=batch, sent_at=BEGUN))
        job.run(seal=False)
    table = open_archive(job.lake)
    assert len(table_files(table)) == 3

    assert confirm(Watched(job.lake.url), table, [BatchId(SOURCE, 0, 3)]) == {}

    assert len(opened) == 2
    assert opened[0] == segment


def test_files_that_do_not_say_their_batches_are_read(lake: Lake) -> None:
    """Those of versions before 0.2, beside one that says it."""
    for batch, stats in ((1, '{"numRecords": 5}'), (2, None)):
        write_segment(lake, messages(5, batch=batch, sent_at=BEGUN))
        planned = plan(lake, {}, {}, print)
        (part,) = write_segments_here(lake, f"part-{RUN}-{batch}", planned.segments).parts
        assert commit_parts(lake, planned, [part._replace(stats=stats or part.stats)])

    for batch in (1, 2):
        assert confirm(lake, open_archive(lake), [BatchId(SOURCE, 0, batch)]) == {}


def test_executors_need_no_package_but_pyarrow() -> None:
    ours = {"boto3", "botocore", "click", "deltalake", "pandas"}
    program = "import sys, spark_jobs.archive.executor; print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "pyarrow" in done.stdout.split()
    assert not ours & set(done.stdout.split())
