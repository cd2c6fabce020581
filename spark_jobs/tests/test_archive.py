"""The archive job: each message once in the table, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.admin import Service
from spark_jobs.archive import Summary, archive, plan, run_archive, take, verify, write
from spark_jobs.failures import JobFailed
from spark_jobs.runs import Run
from spark_jobs.segments import Segment
from spark_jobs.spark import OpenSession
from spark_jobs.sweep import sweep
from spark_jobs.table import load_or_create, load_table, table_files
from spark_jobs.tests.faults import FailingAlways, FailingOnce, KilledOnce
from spark_jobs.tests.lakes import (
    ACCOUNT,
    SOURCE,
    archived_rows,
    message,
    messages,
    names,
    orphans,
    write_batches,
    write_segment,
)
from spark_jobs.tests.services import FakeService
from storage.archive_schema import DELETED, SEGMENT, SEGMENTS
from storage.lake import Lake

RUN = "archive-" + "0" * 32
"""A run that is not noted: to others it is dead."""


class Job:
    """The job on a lake, and what it said."""

    def __init__(self, lake: Lake, service: FakeService, open_session: OpenSession) -> None:
        self.lake = lake
        self.service = service
        self.open_session = open_session
        self.warnings: list[str] = []
        self.told: list[str] = []

    def run(self, *, seal: bool = True) -> Summary:
        self.warnings, self.told = [], []
        return run_archive(
            self.lake,
            Service(self.service.endpoint),
            self.open_session,
            seal=seal,
            warn=self.warnings.append,
            tell=self.told.append,
        )


@pytest.fixture
def job(lake: Lake, service: FakeService, open_session: OpenSession) -> Job:
    return Job(lake, service, open_session)


def no_session() -> Any:
    raise AssertionError("Spark is not started when there is nothing to do")


# -- what the table has -----------------------------------------------------------------------------------------------


def test_each_message_is_in_the_table_once_with_all_its_columns(job: Job) -> None:
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
    write_segment(job.lake, rows)
    job.service.sealed[SOURCE, 0] = 1

    summary = job.run()

    table = archived_rows(job.lake)
    assert [{name: row[name] for name in SEGMENT} for row in table] == rows
    assert [row["day"] for row in table] == [row["sent_at"].date() for row in rows]
    assert str(summary).startswith("34 messages of 1 batches are in version 1 of the table, 1 segm")
    assert job.warnings == []


def test_table_is_partitioned_and_says_what_its_files_span(job: Job) -> None:
    write_batches(job.lake, 2, 20)

    job.run()

    table = load_table(job.lake)
    assert table is not None
    files = table_files(table).to_pylist()
    assert table.metadata().partition_columns == ["account", "queue", "day"]
    assert sum(file["num_records"] for file in files) == 40
    assert {file["partition.day"] for file in files} == {date(2026, 11, 20), date(2026, 11, 21)}
    for file in files:
        assert file["path"].startswith(
            f"account={ACCOUNT}/queue=orders/day={file['partition.day']}/part-archive-"
        )
        assert file["min.sent_at"].date() == file["max.sent_at"].date() == file["partition.day"]


def test_rows_of_many_queues_and_days_go_into_their_own_files(job: Job) -> None:
    rows = [message(i, queue=f"q{i % 7}", account=f"{i % 2:012d}") for i in range(1, 400)]
    write_segment(job.lake, rows)

    job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    for row in archived_rows(job.lake):
        assert (row["account"], row["queue"]) == (
            f"{row['position'] % 2:012d}",
            f"q{row['position'] % 7}",
        )


def test_second_run_changes_nothing_and_needs_no_spark(job: Job) -> None:
    rows = write_batches(job.lake, 3, 5)
    job.run(seal=False)
    version = load_or_create(job.lake).version()
    job.open_session = no_session

    summary = job.run(seal=False)

    assert str(summary).startswith("nothing to archive")
    assert names(archived_rows(job.lake)) == names(rows)
    assert load_or_create(job.lake).version() == version


def test_later_batches_are_added(job: Job) -> None:
    rows = write_batches(job.lake, 1, 5)
    job.run()
    rows += write_batches(job.lake, 3, 5)[5:]

    summary = job.run()

    assert summary.archived.batches == 2
    assert names(archived_rows(job.lake)) == names(rows)


# -- order and damage -------------------------------------------------------------------------------------------------


def test_missing_batch_holds_back_its_own_shard_only(job: Job) -> None:
    kept = write_batches(job.lake, 2, 5)
    write_segment(job.lake, messages(5, batch=5))
    kept += write_batches(job.lake, 1, 5, shard=1)

    job.run()

    assert names(archived_rows(job.lake)) == names(kept)
    assert job.warnings == [
        f"batches 3 to 4 of {SOURCE}, shard 0, missing in the lake: later ones must wait"
    ]


def test_batches_begin_where_the_service_says_that_earlier_ones_are_archived(job: Job) -> None:
    write_segment(job.lake, messages(5, batch=8))
    job.service.sealed[SOURCE, 0] = 8
    job.service.archived[SOURCE, 0] = 7

    assert job.run().archived.batches == 1
    assert job.warnings == []


def test_lake_that_is_not_the_services_is_noticed(job: Job) -> None:
    job.service.sealed[SOURCE, 0] = 3

    job.run()

    assert job.warnings == [
        f"the service has written batch 3 of {SOURCE}, but not to {job.lake.url}"
    ]


def changed_body(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[13]["body"] = "something else"
    return write_segment(lake, rows)


def changed_checksum(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[19] |= {"body": "else", "checksum": None}
    return write_segment(lake, [*rows[:19], message(40, batch=2, checksum=5)])


def missing_row(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), count=21)


def other_sum(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), checksum=5)


def other_identity(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), batch=3)


def later_format(lake: Lake) -> str:
    return write_segment(lake, messages(20, batch=2), format=2)


def rows_of_another_batch(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[7]["batch"] = 1
    return write_segment(lake, rows)


def cut_file(lake: Lake) -> str:
    path = Path(lake.path(missing_row(lake)))
    path.write_bytes(path.read_bytes()[:-300])
    return f"{SEGMENTS}/{SOURCE}/shard-0/{path.name}"


def zeroed_page(lake: Lake) -> str:
    written = write_segment(lake, messages(20, batch=2))
    path = Path(lake.path(written))
    content = path.read_bytes()
    path.write_bytes(content[:600] + bytes(300) + content[900:])
    return written


def no_queue(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[5]["queue"] = None
    return write_segment(lake, rows)


def unsafe_queue(lake: Lake) -> str:
    rows = messages(20, batch=2)
    rows[5]["queue"] = "../../other"
    return write_segment(lake, rows)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (changed_body, f"message {SOURCE}-0-34 does not have its checksum"),
        (changed_checksum, f"message {SOURCE}-0-40 does not have its checksum"),
        (missing_row, "20 rows with checksum"),
        (other_sum, "20 rows with checksum"),
        (other_identity, "it says that it is {"),
        (later_format, "it says that it is {"),
        (rows_of_another_batch, "it has rows of another batch"),
        (cut_file, "its footer cannot be read"),
        (zeroed_page, "batch-000000000002.parquet: "),
        (no_queue, "it has rows without account, queue or sent_at"),
        (unsafe_queue, "is no name of a queue"),
    ],
)
def test_damaged_segment_is_named_and_holds_back_its_own_shard_only(
    damage: Callable[[Lake], str], reason: str, job: Job
) -> None:
    kept = [*write_batches(job.lake, 1, 20), *write_batches(job.lake, 1, 20, shard=1)]
    path = damage(job.lake)
    write_segment(job.lake, messages(20, batch=3))

    job.run()

    assert names(archived_rows(job.lake)) == names(kept)
    assert [path in warning and reason in warning for warning in set(job.warnings)] == [True]
    assert orphans(job.lake) == []
    assert job.lake.read(path) is not None


def test_rows_that_were_written_twice_or_not_at_all_are_not_committed(
    lake: Lake, spark: SparkSession
) -> None:
    write_batches(lake, 2, 5)
    segments = plan(lake, {}, {}, print).segments
    parts = write(spark, lake, RUN, segments).parts

    verify(segments, parts)
    for wrong in (parts[1:], [*parts, parts[0]]):
        with pytest.raises(JobFailed):
            verify(segments, wrong)
    with pytest.raises(JobFailed):
        verify(segments[1:], parts)


# -- acknowledging ----------------------------------------------------------------------------------------------------


def test_service_is_told_the_table_and_version_and_the_segments_go(job: Job) -> None:
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
            "version": 1,
        }
    ]


@pytest.mark.parametrize("path", ["/_holdfast/archive", "/_holdfast/archive/archived"])
def test_lost_acknowledgement_is_made_up_for_by_the_next_run(job: Job, path: str) -> None:
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


def test_refused_acknowledgement_keeps_the_segments(job: Job) -> None:
    write_batches(job.lake, 2, 5)
    job.service.sealed[SOURCE, 0] = 1

    summary = job.run()

    assert summary.acknowledged == 0
    assert len(job.lake.list(SEGMENTS)) == 2
    assert job.warnings == [
        "the service does not take it that batches are archived: there is no such batch"
    ]


def test_segments_of_another_service_are_archived_and_stay(job: Job) -> None:
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
        Service("http://127.0.0.1:9"),
        open_session,
        seal=True,
        warn=warnings.append,
        tell=warnings.append,
    )

    assert names(archived_rows(lake)) == names(rows)
    assert "all the same" in warnings[0]
    assert "the next run acknowledges" in warnings[1]


# -- ended at every step ----------------------------------------------------------------------------------------------


def test_run_that_ended_before_its_commit_leaves_orphans_that_the_next_one_sweeps(job: Job) -> None:
    rows = write_batches(job.lake, 3, 5)
    load_or_create(job.lake)
    with job.open_session() as session:
        write(session, job.lake, RUN, plan(job.lake, {}, {}, print).segments)
    assert archived_rows(job.lake) == []
    left = len(orphans(job.lake))

    summary = job.run()

    assert summary.orphans == left > 0
    assert orphans(job.lake) == []
    assert names(archived_rows(job.lake)) == names(rows)


def test_run_that_ended_after_its_commit_is_finished_by_the_next_one(job: Job) -> None:
    rows = write_batches(job.lake, 3, 5)
    job.service.sealed[SOURCE, 0] = 3
    archive(job.lake, RUN, job.open_session, {}, print)
    job.open_session = no_session

    summary = job.run()

    assert (summary.archived.batches, summary.acknowledged) == (0, 3)
    assert names(archived_rows(job.lake)) == names(rows)


@pytest.mark.parametrize("fault", [FailingOnce, KilledOnce])
def test_task_that_fails_or_is_killed_is_tried_again_and_leaves_orphans_only(
    job: Job, fault: type[Lake]
) -> None:
    rows = write_batches(job.lake, 3, 20)
    job.lake = fault(job.lake.url)

    summary = job.run()

    assert names(archived_rows(job.lake)) == names(rows)
    assert summary.orphans > 0
    assert orphans(job.lake) == []


def test_task_that_fails_again_and_again_ends_the_job_with_its_reason(job: Job) -> None:
    write_batches(job.lake, 1, 5)
    lake = job.lake
    job.lake = FailingAlways(lake.url)

    with pytest.raises(JobFailed, match="the network is down") as failed:
        job.run()

    assert "\n" not in str(failed.value)
    assert archived_rows(lake) == []
    assert orphans(lake) == []


def test_of_two_runs_that_write_the_same_batches_one_commits(job: Job) -> None:
    rows = write_batches(job.lake, 3, 5)
    load_or_create(job.lake)
    plans = [plan(job.lake, {}, {}, print) for _ in range(2)]
    with job.open_session() as session:
        parts = [
            write(session, job.lake, RUN[:-1] + str(i), p.segments).parts
            for i, p in enumerate(plans)
        ]

    versions = [take(job.lake, *both) for both in zip(plans, parts, strict=True)]

    assert versions == [1, None]
    assert plan(job.lake, {}, {}, print).segments == []
    assert names(archived_rows(job.lake)) == names(rows)
    with Run(job.lake, "archive") as run:
        assert sweep(job.lake, run) == len(parts[1])
    assert names(archived_rows(job.lake)) == names(rows)


def test_runs_with_different_batches_both_commit(job: Job) -> None:
    rows = write_batches(job.lake, 1, 5)
    load_or_create(job.lake)
    first = plan(job.lake, {}, {}, print)
    rows += write_batches(job.lake, 1, 5, shard=1)
    both = plan(job.lake, {}, {}, print)
    second = both._replace(segments=[s for s in both.segments if s.shard == (SOURCE, 1)])
    with job.open_session() as session:
        parts = [write(session, job.lake, RUN, each.segments).parts for each in (first, second)]

    assert take(job.lake, first, parts[0]) == 1
    assert take(job.lake, second, parts[1]) == 2
    assert names(archived_rows(job.lake)) == names(rows)


def test_plan_reads_no_more_than_what_is_not_in_the_table(job: Job) -> None:
    write_batches(job.lake, 2, 5)
    job.run(seal=False)
    path = write_segment(job.lake, messages(5, batch=3))

    segments = plan(job.lake, {}, {}, print).segments

    assert [segment.path for segment in segments] == [path]
    assert isinstance(segments[0], Segment)
    assert (segments[0].rows, segments[0].batch) == (5, 3)
