"""The queue-age job: each hour exactly once, in spite of failures, and the display of its
results."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.ages.counting import ShardHour
from spark_jobs.ages.lake_snapshots import HOUR_MS, Hour
from spark_jobs.ages.queue_age import (
    EMPTY,
    HOURLY,
    REPORT,
    command,
    commit,
    compute,
    plan,
    portions,
    publish,
    readable,
    run_queue_age,
)
from spark_jobs.lib.charts import amounts_chart, times_chart
from spark_jobs.lib.delta import NotCommitted, open_table
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.job_report import duration, number, signed
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.snapshot_files import HOUR, at, flow, stored, write_flows, write_snapshot
from storage.lake.archive_schema import QUEUE_AGE, QUEUE_AGE_LATEST
from storage.lake.table import Lake, LakeFile


def table_of(lake: Lake) -> DeltaTable:
    return open_table(lake, QUEUE_AGE, HOURLY)


def contents(lake: Lake) -> list[dict[str, Any]]:
    """All rows, in order."""
    rows = table_of(lake).to_pyarrow_dataset().to_table()
    found: list[dict[str, Any]] = rows.sort_by(
        [("hour", "ascending"), ("queue", "ascending")]
    ).to_pylist()
    return found


def no_spark() -> AbstractContextManager[SparkSession]:
    raise AssertionError("there is nothing to do for Spark")


# -- reruns ----------------------------------------------------------------------------------------


def test_rerun_changes_nothing_and_needs_no_spark(lake: Lake, open_session: OpenSession) -> None:
    write_snapshot(lake, at(10), [stored("orders", 11_520), stored("mails", 5)])
    write_flows(lake, at(10), [flow("orders", 5, sent=300, visible=1)])

    first = run_queue_age(lake, open_session)
    before, version = contents(lake), table_of(lake).version()
    second = run_queue_age(lake, no_spark)

    assert first == (
        "queue-age: 2 queues, 1 hour, 2 messages counted; worst orders (oldest 3 h 12 min)"
    )
    assert second == "queue-age: nothing new; worst orders (oldest 3 h 12 min)"
    assert (contents(lake), table_of(lake).version()) == (before, version)


def test_hours_in_which_all_queues_were_empty_are_computed_once(
    lake: Lake, open_session: OpenSession
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 5000)])
    for hours in range(1, 4):
        write_snapshot(lake, at(60 * hours + 10), [])
        run_queue_age(lake, open_session)

    assert run_queue_age(lake, no_spark) == "queue-age: nothing new"
    assert lake.read_json(QUEUE_AGE_LATEST) == {"hour": "2026-11-20T11:00:00Z", "queues": []}
    assert "last seen 20 Nov 08:00" in (lake.read(REPORT) or b"").decode()

    write_snapshot(lake, at(200), [stored("orders", 3)])
    said = run_queue_age(lake, open_session)
    assert said == "queue-age: 1 queue, 1 hour, 1 message counted; worst orders (oldest 3.0 s)"
    assert run_queue_age(lake, no_spark).startswith("queue-age: nothing new")


@pytest.mark.parametrize("content", [b"no", b"[]", b'{"hours": {"x": [1, 2]}}', b'{"hours": 1}'])
def test_a_wrong_note_of_empty_hours_is_written_anew(
    lake: Lake, open_session: OpenSession, content: bytes
) -> None:
    write_snapshot(lake, at(10), [])
    lake.write(EMPTY, content)

    run_queue_age(lake, open_session)

    assert run_queue_age(lake, no_spark) == "queue-age: nothing new"


def test_hour_with_new_files_is_computed_from_all_its_files(
    lake: Lake, open_session: OpenSession
) -> None:
    write_snapshot(lake, at(-30), [stored("orders", 7)])
    write_snapshot(lake, at(10), [stored("orders", 10)])
    run_queue_age(lake, open_session)
    before = contents(lake)

    write_snapshot(lake, at(20), [stored("orders", 20), stored("new", 1)])
    said = run_queue_age(lake, open_session)

    after = contents(lake)
    assert said.startswith("queue-age: 2 queues, 1 hour, 3 messages counted")
    assert after[0] == before[0]
    assert [(row["queue"], row["messages"], row["files"]) for row in after[1:]] == [
        ("new", 1, 2),
        ("orders", 2, 2),
    ]


def test_hour_that_lost_files_stays_as_it_is(lake: Lake, open_session: OpenSession) -> None:
    paths = [write_snapshot(lake, at(minute), [stored("orders", 10)]) for minute in (10, 20, 30)]
    run_queue_age(lake, open_session)
    before = contents(lake)

    lake.remove(paths[0])
    run_queue_age(lake, no_spark)
    lake.remove(paths[1])
    lake.remove(paths[2])
    run_queue_age(lake, no_spark)

    assert contents(lake) == before
    assert before[0]["messages"] == 3


def test_empty_lake_is_no_failure(lake: Lake) -> None:
    assert run_queue_age(lake, no_spark) == "queue-age: nothing new"
    assert lake.read(QUEUE_AGE_LATEST) is None


def test_other_files_are_not_looked_at(lake: Lake) -> None:
    lake.write("snapshots/data-1/shard-0/2026-11-20/notes.txt", b"mine")

    assert run_queue_age(lake, no_spark) == "queue-age: nothing new"


def test_since_leaves_earlier_hours_alone(lake: Lake, open_session: OpenSession) -> None:
    for hours in range(3):
        write_snapshot(lake, at(60 * hours + 10), [stored("orders", 1)])

    run_queue_age(lake, open_session, since=at(75))

    assert [row["hour"] for row in contents(lake)] == [at(60), at(120)]


# -- crashes and others ----------------------------------------------------------------------------


def test_run_that_dies_before_its_commit_has_changed_nothing(
    spark: SparkSession, lake: Lake, open_session: OpenSession
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 10)])
    hours = plan(lake, table_of(lake))
    compute(spark, lake, hours)

    assert contents(lake) == []
    assert plan(lake, table_of(lake)) == hours
    run_queue_age(lake, open_session)
    assert len(contents(lake)) == 1


def test_run_that_dies_after_its_commit_is_finished_by_the_next(
    spark: SparkSession, lake: Lake
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 10)])
    table = table_of(lake)
    hours = plan(lake, table)
    commit(table, hours, compute(spark, lake, hours))

    run_queue_age(lake, no_spark)

    assert lake.read(QUEUE_AGE_LATEST) is not None
    assert lake.read(REPORT) is not None


def test_of_two_runs_at_once_one_is_refused(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [stored("orders", 10)])
    first, second = table_of(lake), table_of(lake)
    hours = plan(lake, first)
    rows = compute(spark, lake, hours)
    commit(first, hours, rows)

    with pytest.raises(NotCommitted):
        commit(second, hours, rows)

    assert len(contents(lake)) == 1


def test_run_that_was_overtaken_begins_anew_with_what_is_left(
    lake: Lake, open_session: OpenSession
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 10)])

    def overtaken() -> AbstractContextManager[SparkSession]:
        run_queue_age(lake, open_session)
        write_snapshot(lake, at(70), [stored("orders", 20)])
        return open_session()

    said = run_queue_age(lake, overtaken)

    assert said.startswith("queue-age: 1 queue, 1 hour, 1 message counted")
    assert [(row["hour"], row["messages"]) for row in contents(lake)] == [(HOUR, 1), (at(60), 1)]


def test_damaged_file_ends_the_job_and_is_named(lake: Lake, open_session: OpenSession) -> None:
    path = write_snapshot(lake, at(10), [stored("orders", 10)])
    lake.write(path, b"PAR1 no")

    with pytest.raises(JobFailed, match=re.escape(path)):
        run_queue_age(lake, open_session)

    assert contents(lake) == []


def test_hour_with_a_damaged_file_is_left_out_and_others_are_computed(
    lake: Lake, open_session: OpenSession
) -> None:
    paths = [write_snapshot(lake, at(60 * hours + 10), [stored("q", 10)]) for hours in range(4)]
    whole = lake.read(paths[1]) or b""
    lake.write(paths[1], whole[: len(whole) // 2])

    for _ in range(2):
        with pytest.raises(JobFailed, match=f"^1 hour left out: .*{re.escape(paths[1])}"):
            run_queue_age(lake, open_session)
        assert [row["hour"] for row in contents(lake)] == [at(0), at(120), at(180)]
        assert (lake.read_json(QUEUE_AGE_LATEST) or {})["hour"] == "2026-11-20T11:00:00Z"  # type: ignore[index]

    lake.write(paths[1], whole)
    assert run_queue_age(lake, open_session).startswith("queue-age: 1 queue, 1 hour")
    assert len(contents(lake)) == 4


def test_job_that_cannot_compute_anything_ends(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> pa.Table:
        tried.append(1)
        raise JobFailed("no space on the disk")

    tried: list[int] = []
    monkeypatch.setattr("spark_jobs.ages.queue_age.compute", failing)
    hours = {number * HOUR_MS: Hour() for number in range(1000)}

    with pytest.raises(JobFailed, match="no space on the disk"):
        list(readable(spark, lake, hours, {}))

    assert len(tried) < 30


def test_large_lakes_are_taken_in_portions_of_whole_days() -> None:
    def hour(number: int) -> Hour:
        file = LakeFile(f"{number}.parquet", 20 << 20, 0.0)
        return Hour({"data-1/shard-0": ShardHour(number * HOUR_MS, [file])})

    hours = {number * HOUR_MS: hour(number) for number in range(60)}

    assert [sorted(some)[0] // HOUR_MS for some in portions(hours)] == [0, 24, 48]
    assert {ms: each for some in portions(hours) for ms, each in some.items()} == hours


# -- display ---------------------------------------------------------------------------------------


def test_newest_hour_is_what_the_service_reads(lake: Lake, open_session: OpenSession) -> None:
    write_snapshot(lake, at(-30), [stored("orders", 7)])
    write_snapshot(lake, at(10), [stored("orders", 10), stored("mails", 4)])
    write_flows(
        lake,
        at(10),
        [flow("orders", 10, deleted=1, time_in_queue_buckets=[80], time_in_queue_counts=[1])],
    )

    run_queue_age(lake, open_session)

    found = lake.read_json(QUEUE_AGE_LATEST)
    assert isinstance(found, dict)
    assert found["hour"] == "2026-11-20T08:00:00Z"
    mails, orders = found["queues"]
    assert (mails["queue"], orders["queue"]) == ("mails", "orders")
    assert (orders["account"], orders["region"]) == ("000000000001", "us-east-1")
    assert orders["age_p50_s"] == orders["age_max_s"] == 10
    assert orders["time_in_queue_p99_s"] == pytest.approx(1.1168, rel=1e-3)
    assert mails["time_in_queue_p99_s"] is None


def test_hours_of_a_clock_that_was_ahead_are_not_the_newest(
    spark: SparkSession, lake: Lake
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 3)])
    write_snapshot(lake, at(60 * 24 + 10), [stored("ahead", 9000)])
    table = table_of(lake)
    hours = plan(lake, table)
    commit(table, hours, compute(spark, lake, hours))

    for now, shown in ((at(20), "orders"), (at(60 * 24 + 20), "ahead"), (at(-60), "ahead")):
        found = publish(lake, table_of(lake), now)
        assert [queue["queue"] for queue in (found or {})["queues"]] == [shown]


def test_report_has_the_worst_queue_first_and_escapes_names(
    lake: Lake, open_session: OpenSession
) -> None:
    write_snapshot(
        lake,
        at(10),
        [stored("quick", 1), stored("<script>alert(1)</script>", 9000), stored("slow", 300)],
    )

    run_queue_age(lake, open_session)

    text = (lake.read(REPORT) or b"").decode()
    assert "<script" not in text
    cards = re.findall(r"<h3>(.*?)</h3>", text)
    assert cards == ["&lt;script&gt;alert(1)&lt;/script&gt;", "slow", "quick"]
    assert not re.search(r"(src|href)=|@import|url\(", text)


def test_report_shows_gaps_and_queues_that_are_gone(lake: Lake, open_session: OpenSession) -> None:
    for hours in (0, 1, 5):
        names = ["orders"] if hours == 5 else ["orders", "gone"]
        write_snapshot(lake, at(60 * hours + 10), [stored(name, 60) for name in names])

    run_queue_age(lake, open_session)

    text = (lake.read(REPORT) or b"").decode()
    assert "last seen 20 Nov 09:00" in text
    assert re.findall(r"<h3>(.*?)</h3>", text) == ["orders", "gone"]


def test_charts_leave_gaps_and_stay_in_their_frame() -> None:
    labels = ("then", "now")
    for values in ([None, 1.0, 2.0, None, 3.0], [None] * 5, [0.0], [1e9, 1e-9]):
        for chart in (
            times_chart("t", [("s1", values)], labels),
            amounts_chart("t", values, labels),
        ):
            points = re.findall(r'points="(.*?)"', chart)
            xy = [tuple(map(float, point.split(","))) for some in points for point in some.split()]
            assert all(40 <= x <= 360 and 0 <= y <= 92 for x, y in xy)
    gapped = times_chart("t", [("s1", [None, 1.0, 2.0, None, 3.0])], labels)
    assert gapped.count("<polyline") == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.25, "250 ms"),
        (2.44, "2.4 s"),
        (59.7, "1 min"),
        (3599.6, "1 h"),
        (11_520, "3 h 12 min"),
        (86_399.9, "1 d"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_read_well() -> None:
    values = (0, 0.034, 3.14159, 14.26, 1234567, 99_999.7)
    assert [number(value) for value in values] == [
        "0",
        "0.034",
        "3.1",
        "14.3",
        "1,234,567",
        "100,000",
    ]
    assert [signed(value) for value in (None, -3, 0, 4)] == ["–", "-3", "0", "+4"]


# -- the command -----------------------------------------------------------------------------------


def test_hours_and_since_exclude_each_other(tmp_path: Path) -> None:
    arguments = ["--lake", str(tmp_path), "--hours", "2", "--since", "1d"]

    result = CliRunner().invoke(command, arguments)

    assert (result.exit_code, "exclude each other" in result.output) == (2, True)


def test_publishing_needs_no_more_than_two_days(lake: Lake) -> None:
    hours = {at(60 * number): number for number in (0, 24, 72)}
    rows = [
        dict.fromkeys(HOURLY)
        | {"hour": hour, "day": hour.date(), "queue": f"q{number}", "receive_counts": [0] * 6}
        for hour, number in hours.items()
    ]
    table = table_of(lake)
    planned = {int(hour.timestamp() * 1000): Hour() for hour in hours}
    commit(table, planned, pa.Table.from_pylist(rows, table_of(lake).to_pyarrow_dataset().schema))

    shown = publish(lake, table_of(lake), datetime.now(UTC))

    assert json.dumps(shown["queues"] if shown else None).count("q72") == 1
    assert b"q24" not in (lake.read(REPORT) or b"")
