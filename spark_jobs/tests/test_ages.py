"""Statistics of a queue and hour, compared with the messages themselves."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import timedelta
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_jobs.ages.age_statistics import histogram, queue_hours, ranked
from spark_jobs.ages.counting import buckets_of
from spark_jobs.ages.lake_snapshots import count_cells, find_hours, movements
from spark_jobs.lib.live_count import LiveCount
from spark_jobs.tests.snapshot_files import HOUR, at, flow, stored, write_flows, write_snapshot
from storage.lake.archive_schema import BUCKETS_PER_DOUBLING, bucket_of
from storage.lake.table import Lake

Row = dict[str, Any]


def rows_of(spark: SparkSession, lake: Lake) -> list[Row]:
    """The rows of AGE. All bytes of the files are counted once."""
    hours = list(find_hours(lake).values())
    size = sum(file.size for hour in hours for file in hour.files)
    with LiveCount(spark) as read:
        cells, moved = (each(spark, lake, hours, read.add) for each in (count_cells, movements))
        rows: list[Row] = queue_hours(cells, moved).toArrow().to_pylist()
        assert read.value == size
    return rows


def hours_of(spark: SparkSession, lake: Lake) -> dict[tuple[str, int], Row]:
    """The rows of AGE by queue, and by how many hours after HOUR theirs begins."""
    return {
        (row["queue"], (row["hour"] - HOUR) // timedelta(hours=1)): row
        for row in rows_of(spark, lake)
    }


def exact_percentile(values: list[float], percent: int) -> float:
    """The smallest value that this percentage does not exceed."""
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


# -- histograms ------------------------------------------------------------------------------------


def test_buckets_are_those_of_the_service_at_every_boundary() -> None:
    near = [int(2 ** (k / 8)) + off for k in range(8 * 45) for off in (-1, 0, 1)]

    assert buckets_of(np.array(near)).tolist() == [bucket_of(ms) for ms in near]


@settings(max_examples=3, deadline=None)
@given(st.lists(st.lists(st.integers(2, 10**9), min_size=1, max_size=60), min_size=5, max_size=20))
def test_percentiles_are_the_exact_ones_or_nine_percent_more(
    spark: SparkSession, queues: list[list[int]]
) -> None:
    counts = [Counter(map(bucket_of, durations_ms)) for durations_ms in queues]
    sums = spark.createDataFrame(
        [(queue, *item) for queue, of_queue in enumerate(counts) for item in of_queue.items()],
        "queue int, bucket bigint, count bigint",
    )

    rows = ranked(sums, ["queue"]).groupBy("queue").agg(*histogram("age", f.lit(True)))

    for row in rows.collect():
        buckets = dict(zip(row["age_buckets"], row["age_counts"], strict=True))
        assert buckets == counts[row["queue"]]
        assert row["age_buckets"] == sorted(buckets)
        for percent, name in ((50, "p50"), (90, "p90"), (99, "p99"), (100, "max")):
            exact_s = exact_percentile([ms / 1000 for ms in queues[row["queue"]]], percent)
            assert exact_s < row[f"age_{name}_s"] * 1.0000001 <= exact_s * 1.0906


def test_executors_need_pyarrow_and_numpy_only() -> None:
    program = "import sys, spark_jobs.ages.counting; print(*sys.modules)"

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert not {"pyspark", "pandas", "deltalake", "boto3", "click"} & set(said.split())


# -- stored messages -------------------------------------------------------------------------------


def test_ages_are_those_of_all_snapshots_of_the_hour(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [stored("orders", age) for age in (5, 60, 3600)])
    write_snapshot(lake, at(20), [stored("orders", age) for age in (1, 660)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["messages"], row["snapshots"], row["stored"]) == (5, 2, 2)
    assert row["age_max_s"] == 3600
    assert 60 <= row["age_p50_s"] <= 60 * 1.0906
    assert row["age_buckets"] == sorted(bucket_of(s * 1000) for s in (1, 5, 60, 660, 3600))
    assert row["age_counts"] == [1] * 5


def test_large_snapshots_are_counted_piece_by_piece(spark: SparkSession, lake: Lake) -> None:
    rows = [stored(f"q{number % 7}", number, receive_count=number % 5) for number in range(4321)]
    write_snapshot(lake, at(10), rows)
    write_snapshot(lake, at(20), rows[::-1])

    found = hours_of(spark, lake)

    assert sum(row["messages"] for row in found.values()) == 2 * 4321
    for queue in range(7):
        own = [number for number in range(4321) if number % 7 == queue]
        row = found[f"q{queue}", 0]
        counts = Counter(bucket_of(number * 1000) for number in own)
        assert dict(zip(row["age_buckets"], row["age_counts"], strict=True)) == {
            bucket: 2 * count for bucket, count in counts.items()
        }
        classes = Counter(number % 5 for number in own)
        assert row["receive_counts"] == [*(classes[number] for number in range(5)), 0]


def test_percentile_never_exceeds_the_oldest_message(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [stored("orders", 100)])

    row = hours_of(spark, lake)["orders", 0]

    assert row["age_p50_s"] == row["age_p99_s"] == row["age_max_s"] == 100


def test_oldest_is_told_for_the_hour_and_for_its_last_snapshot(
    spark: SparkSession, lake: Lake
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 900), stored("orders", 9000, receivable=False)])
    write_snapshot(lake, at(20), [stored("orders", 30), stored("orders", 300, receivable=False)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["age_max_s"], row["oldest_receivable_max_s"]) == (9000, 900)
    assert (row["oldest_stored_s"], row["oldest_receivable_s"]) == (300, 30)


def test_queue_with_nothing_to_receive_has_no_oldest_receivable(
    spark: SparkSession, lake: Lake
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 300, receivable=False, state="delayed")])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["oldest_stored_s"], row["oldest_receivable_s"]) == (300, None)


def test_receive_counts_are_those_of_the_last_snapshot(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [stored("orders", 1, receive_count=2)])
    counts = (0, 0, 1, 3, 4, 9, 10, 400)
    write_snapshot(lake, at(20), [stored("orders", 1, receive_count=count) for count in counts])

    assert hours_of(spark, lake)["orders", 0]["receive_counts"] == [2, 1, 0, 1, 2, 2]


def test_message_from_the_future_has_no_age(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [stored("orders", -5)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["age_buckets"], row["age_max_s"]) == ([0], 0)


def test_full_hour_belongs_to_the_hour_that_ends(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(60), [stored("orders", 1)])
    write_snapshot(lake, at(60) + timedelta(milliseconds=1), [stored("orders", 1)])

    assert {hour for _, hour in hours_of(spark, lake)} == {0, 1}


def test_queues_of_accounts_and_regions_are_told_apart(spark: SparkSession, lake: Lake) -> None:
    elsewhere = stored("orders", 70, region="eu-west-1")
    other = stored("orders", 80, account="000000000002")
    write_snapshot(lake, at(10), [stored("orders", 60), elsewhere, other])

    rows = rows_of(spark, lake)

    assert sorted((r["account"], r["region"], r["age_max_s"]) for r in rows) == [
        ("000000000001", "eu-west-1", 70),
        ("000000000001", "us-east-1", 60),
        ("000000000002", "us-east-1", 80),
    ]


ages = st.lists(st.integers(0, 10**6), max_size=20)


@settings(max_examples=3, deadline=None)
@given(first=ages, second=ages.filter(bool))
def test_shards_with_the_same_queue_are_as_one(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    first: list[int],
    second: list[int],
) -> None:
    apart, together = (Lake(str(tmp_path_factory.mktemp("lake"))) for _ in range(2))
    rows = [
        [stored("orders", age, receive_count=age % 7) for age in some] for some in (first, second)
    ]
    write_snapshot(apart, at(10), rows[0], source="data-1", shard=0)
    write_snapshot(apart, at(10), rows[1], source="data-2", shard=3)
    write_snapshot(together, at(10), rows[0] + rows[1])

    assert hours_of(spark, apart) == hours_of(spark, together)


# -- arrivals and departures -----------------------------------------------------------------------


def test_rates_are_counts_by_the_time_that_was_watched(spark: SparkSession, lake: Lake) -> None:
    write_flows(lake, at(-5), [flow("orders", 5)])
    write_flows(lake, at(10), [flow("orders", 15, sent=900, deleted=450, visible=450)])
    counts = {
        "sent": 900,
        "moved_in": 90,
        "deleted": 90,
        "expired": 45,
        "moved_out": 9,
        "purged": 9,
    }
    write_flows(
        lake, at(25), [flow("orders", 15, **counts, visible=1000, in_flight=200, delayed=37)]
    )

    row = hours_of(spark, lake)["orders", 0]

    assert row["watched_s"] == 30 * 60
    assert row["arrivals_per_s"] == 1890 / 1800
    assert row["departures_per_s"] == (540 + 45 + 9 + 9) / 1800
    assert (row["deleted_per_s"], row["expired_per_s"], row["moved_per_s"]) == (
        0.3,
        45 / 1800,
        9 / 1800,
    )
    assert row["growth_per_hour"] == (1890 - 603) * 2
    assert (row["backlog"], row["visible"], row["in_flight"], row["delayed"]) == (
        1237,
        1000,
        200,
        37,
    )


def test_counts_of_hours_without_a_lake_are_divided_by_all_of_them(
    spark: SparkSession, lake: Lake
) -> None:
    write_flows(lake, at(-130), [flow("orders", 5)])
    write_flows(lake, at(10), [flow("orders", 140, sent=8400)])
    write_flows(lake, at(15), [flow("orders", 5, sent=300)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["watched_s"], row["arrivals_per_s"]) == (145 * 60, 1.0)
    assert row["growth_per_hour"] == 3600


def test_flows_of_a_clock_that_was_set_back_have_no_rates(spark: SparkSession, lake: Lake) -> None:
    write_flows(lake, at(10), [flow("orders", -50, sent=300, visible=300)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["watched_s"], row["sent"], row["arrivals_per_s"]) == (0, 300, None)


def test_queue_that_is_new_is_watched_as_long_as_its_shard(spark: SparkSession, lake: Lake) -> None:
    """For a new queue, the service gives its own start as the beginning of the flow."""
    write_flows(lake, at(-5), [flow("orders", 5)])
    write_flows(lake, at(15), [flow("new", 60 * 24 * 3, sent=1200, visible=1200)])

    row = hours_of(spark, lake)["new", 0]

    assert (row["watched_s"], row["arrivals_per_s"]) == (1200, 1.0)
    assert row["growth_per_hour"] is None  # of twenty minutes there is no growth an hour


def test_queue_that_was_drained_or_deleted_has_no_backlog(spark: SparkSession, lake: Lake) -> None:
    write_flows(lake, at(5), [flow("orders", 5, visible=10), flow("gone", 5, sent=7, visible=7)])
    write_flows(lake, at(10), [flow("orders", 5, visible=12)])

    rows = hours_of(spark, lake)

    assert (rows["orders", 0]["backlog"], rows["gone", 0]["backlog"]) == (12, 0)
    assert rows["gone", 0]["sent"] == 7


def test_times_in_queue_add_up(spark: SparkSession, lake: Lake) -> None:
    some = {"time_in_queue_buckets": [80, 90], "time_in_queue_counts": [98, 1]}
    more = {"time_in_queue_buckets": [90, 120], "time_in_queue_counts": [1, 100]}
    write_flows(lake, at(5), [flow("orders", 5, deleted=99, **some)])
    write_flows(lake, at(10), [flow("orders", 5, deleted=101, **more)], shard=1)

    row = hours_of(spark, lake)["orders", 0]

    assert (row["time_in_queue_buckets"], row["time_in_queue_counts"]) == (
        [80, 90, 120],
        [98, 2, 100],
    )
    expected = [2.0 ** ((bucket + 1) / BUCKETS_PER_DOUBLING) / 1000 for bucket in (90, 120, 120)]
    names = ("time_in_queue_p50_s", "time_in_queue_p90_s", "time_in_queue_max_s")
    assert [row[name] for name in names] == pytest.approx(expected)


def test_empty_queue_with_flows_has_counts_and_no_ages(spark: SparkSession, lake: Lake) -> None:
    write_snapshot(lake, at(10), [])
    write_flows(lake, at(10), [flow("orders", 10, sent=60, deleted=60)])

    row = hours_of(spark, lake)["orders", 0]

    assert (row["messages"], row["stored"], row["backlog"], row["sent"]) == (0, 0, 0, 60)
    assert row["age_p50_s"] is None
    assert row["age_buckets"] == row["time_in_queue_buckets"] == []
    assert row["receive_counts"] == [0] * 6


def test_snapshots_alone_tell_of_the_backlog_but_not_of_rates(
    spark: SparkSession, lake: Lake
) -> None:
    write_snapshot(lake, at(10), [stored("orders", 1)] * 3)

    row = hours_of(spark, lake)["orders", 0]

    assert (row["backlog"], row["arrivals_per_s"], row["growth_per_hour"]) == (3, None, None)
