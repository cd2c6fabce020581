"""queue-age and dead-letters outside the tests' process: on an object store, and killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_jobs.ages import queue_age
from spark_jobs.ages.queue_age import HOURLY, REPORT, run_queue_age
from spark_jobs.dead_letters.dead_letters_job import REPORT as DEAD_LETTERS_REPORT
from spark_jobs.dead_letters.dead_letters_job import run_dead_letters
from spark_jobs.dead_letters.letter_groups import Grouping
from spark_jobs.lib.delta import open_table
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.archives import BEGINNING, archived, write_archive
from spark_jobs.tests.buckets import bucket
from spark_jobs.tests.processes import job, kill, wait
from spark_jobs.tests.snapshot_files import at, flow, stored, write_flows, write_snapshot
from storage.lake.archive_schema import QUEUE_AGE, QUEUE_AGE_LATEST
from storage.lake.table import Lake

pytestmark = pytest.mark.slow
ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


def rows_of(lake: Lake) -> int:
    return int(open_table(lake, QUEUE_AGE, HOURLY).to_pyarrow_dataset().count_rows())


def test_both_jobs_work_in_an_object_store(open_session: OpenSession) -> None:
    with bucket() as lake:
        write_snapshot(lake, at(10), [stored("orders", 7200), stored("mails", 5)])
        write_flows(lake, at(10), [flow("orders", 5, sent=300, visible=1)])
        letters = [
            archived(n, queue="orders-dlq", dead_letter_queue_source_arn=ARN) for n in range(3)
        ]
        write_archive(lake, letters)

        ages = run_queue_age(lake, open_session)
        again = run_queue_age(lake, open_session)
        failed = run_dead_letters(lake, open_session, Grouping(), BEGINNING, BEGINNING)

        worst = "worst orders (oldest 2 h)"
        assert ages == f"queue-age: 2 queues, 1 hour, 2 messages counted; {worst}"
        assert again == f"queue-age: nothing new; {worst}"
        assert failed.startswith("dead-letters: 3 messages of 1 queue")
        assert rows_of(lake) == 2
        assert all(lake.read(path) for path in (REPORT, DEAD_LETTERS_REPORT, QUEUE_AGE_LATEST))


def test_job_that_is_killed_leaves_hours_whole(
    lake: Lake, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run is one in this process: another start of Spark would say no more."""
    for hours in range(30):
        write_snapshot(lake, at(60 * hours + 10), [stored("orders", 60), stored("mails", 5)])
    log = Path(lake.url, QUEUE_AGE, "_delta_log")
    process = job("queue-age", "--lake", lake.url)
    wait(log.exists)

    kill(process)

    written = rows_of(lake)
    assert written in (0, 60), "all hours or none"
    monkeypatch.setattr(queue_age, "spark_session", lambda *_: open_session())
    again = CliRunner().invoke(queue_age.command, ["--lake", lake.url])
    said = "queue-age: nothing new" if written else "queue-age: 2 queues, 30 hours"
    assert (again.exit_code, again.stdout.startswith(said)) == (0, True), again.output
    assert rows_of(lake) == 60
