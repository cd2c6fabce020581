"""The lake in an object store: moto's server replaces S3."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date

import boto3
import msgspec
import pytest
from pyspark.sql import SparkSession

from compat_tests.ports import free_ports
from spark_jobs.archive.archive_client import ArchiveClient
from spark_jobs.archive.archive_job import commit_parts, plan, run_archive
from spark_jobs.archive.compact import Keep, run_compact
from spark_jobs.archive.delta_archive import commit_to, fence, open_archive
from spark_jobs.archive.runs import Run
from spark_jobs.archive.shuffle import write_shuffled
from spark_jobs.lib.delta import NotCommitted
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.job_services import FakeService
from spark_jobs.tests.lakes import (
    SOURCE,
    archived_rows,
    message,
    names,
    orphans,
    write_batches,
    write_segment,
)
from spark_jobs.tests.processes import wait
from storage.lake.archive_schema import RUNS, SEGMENTS
from storage.lake.archived_batch import Claimed, refute
from storage.lake.table import Lake, LakeUnusable, ObjectStore

pytestmark = pytest.mark.slow
RUN = "archive-" + "0" * 32


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    # In a separate process: delta-rs holds the interpreter's lock while it waits for an answer.
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait(lambda: is_listening(port))
        yield ObjectStore("AKIDEXAMPLE", "secret", None, "eu-central-1", f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait(30)


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def s3(store: ObjectStore, request: pytest.FixtureRequest) -> Lake:
    bucket = f"lake-{abs(hash(request.node.name))}"
    boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        region_name=store.region,
    ).create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": store.region})
    return Lake(f"s3://{bucket}/holdfast/lake", store)


def test_archive_and_compact_work_in_an_object_store(
    s3: Lake, service: FakeService, open_session: OpenSession
) -> None:
    rows = write_batches(s3, 3, 20)
    large = message(61, batch=4, body="x" * (9 << 20))
    write_segment(s3, [large])
    service.sealed[SOURCE, 0] = 5
    client = ArchiveClient(service.place)
    warnings: list[str] = []

    def run() -> str:
        summary = run_archive(
            s3, client, open_session, seal=False, warn=warnings.append, tell=warnings.append
        )
        return str(summary)

    assert run().startswith("61 messages of 4 batches are in version 1 of the table, 4 segments")
    told = service.told[-1]
    claimed = Claimed(SOURCE, 0, 4, told["table_id"], told["version"], forgotten=4)
    assert refute(s3, claimed) is None
    assert refute(s3, msgspec.structs.replace(claimed, batch=5)) is not None
    fifth = [message(62, batch=5)]
    write_segment(s3, fifth)
    assert run().startswith("1 messages of 1 batches are in version 2 of the table, 1 segments")
    assert run().startswith("nothing to archive, 0 segments acknowledged, 0 orphans")
    keep = Keep(None, 0, 35)
    summary = run_compact(s3, open_session, keep=keep, today=date(2026, 11, 25), warn=print)

    assert summary.startswith("2 files merged into 1, 0 dropped by age, 2 vacuumed")
    assert names(archived_rows(s3)) == names([*rows, large, *fifth])
    assert archived_rows(s3)[60]["body"] == large["body"]
    assert warnings == []
    assert s3.list(SEGMENTS) == s3.list(RUNS) == []


def test_one_of_two_runs_commits_and_the_others_files_are_swept(
    s3: Lake, service: FakeService, open_session: OpenSession, spark: SparkSession
) -> None:
    rows = write_batches(s3, 2, 5)
    open_archive(s3)
    plans = [plan(s3, {}, {}, print) for _ in range(2)]
    parts = [
        write_shuffled(spark, s3, RUN[:-1] + str(number), each.segments).parts
        for number, each in enumerate(plans)
    ]
    stale = open_archive(s3)

    assert [commit_parts(s3, *both) for both in zip(plans, parts, strict=True)] == [1, None]
    with pytest.raises(NotCommitted):
        commit_to(stale, [], plans[1].after, fence(stale))

    with Run(s3, "archive") as refused:
        refused.leaves_orphans = True
    client = ArchiveClient(service.place)
    summary = run_archive(s3, client, open_session, seal=True, warn=print, tell=print)
    assert summary.orphans == len(parts[1])
    assert orphans(s3) == []
    assert names(archived_rows(s3)) == names(rows)


def test_store_that_is_away_is_named_in_one_line(store: ObjectStore) -> None:
    lake = Lake("s3://lake/x", store._replace(endpoint="http://127.0.0.1:9"))

    with pytest.raises(LakeUnusable, match=r"^s3://lake/x/\S+: ") as failed:
        plan(lake, {}, {}, print)

    assert "\n" not in str(failed.value)
