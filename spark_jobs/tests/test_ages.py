"""Statistics of a queue and hour, compared with the messages themselves."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_jobs.ages.age_statistics import histogram, queue_hours, ranked
from spark_jobs.ages.counting import (
    Read,
    SnapshotPart,
    buckets_of,
    count_snapshots,
    count_times,
    read_flows,
)
from spark_jobs.ages.lake_snapshots import count_cells, find_hours, movements
from spark_jobs.lib.live_count import LiveCount
from spark_jobs.tests.lakes import with_flips
from spark_jobs.tests.snapshot_files import HOUR, at, flow, stored, write_flows, write_snapshot
from storage.lake.archive_schema import BUCKETS_PER_DOUBLING, bucket_of
from storage.lake.table import Lake, LakeUnusable

Row = dict[str, Any]


Hours = dict[tuple[str, int], Row]
"""The rows of AGE by queue, and by how many hours after HOUR theirs begins."""

_GIVEN: list[Callable[[Lake], str]] = []


def given_snapshot(taken_at: datetime, rows: list[Row], **shard: Any) -> None:
    """A file of the one lake that most tests share: a run of Spark takes longer than all of them.

    Each test has a source of its own, and queues of its own.
    """
    _GIVEN.append(lambda lake: write_snapshot(lake, taken_at, rows, **shard))


def given_flows(until_at: datetime, rows: list[Row], **shard: Any) -> None:
    """The same with flows."""
    _GIVEN.append(lambda lake: write_flows(lake, until_at, rows, **shard))


def rows_of(spark: SparkSession, lake: Lake) -> list[Row]:
    """The rows of AGE. All bytes of the files are counted once."""
    hours = list(find_hours(lake).values())
    size = sum(file.size for hour in hours for file in hour.files)
    with LiveCount(spark) as read:
        cells, moved = (each(spark, lake, hours, read.add) for each in (count_cells, movements))
        rows: list[Row] = queue_hours(cells, moved).toArrow().to_pylist()
        assert read.value == size
    return rows


def by_hour(rows: list[Row]) -> Hours:
    return {(row["queue"], (row["hour"] - HOUR) // timedelta(hours=1)): row for row in rows}


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The rows of AGE of all that is given in this file."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    for write in _GIVEN:
        write(lake)
    return rows_of(spark, lake)


@pytest.fixture(scope="module")
def hours(rows: list[Row]) -> Hours:
    return by_hour(rows)


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


def test_a_flipped_bit_in_a_column_that_is_counted_is_damage(lake: Lake) -> None:
    snapshot = write_snapshot(lake, at(10), [stored("q", age) for age in range(20)])
    flows = write_flows(lake, at(10), [flow("q", 5, **SOME)])
    (hour,) = find_hours(lake).values()
    (shard,) = hour.shards.values()
    part = SnapshotPart(shard.snapshots, shard.hour_ms, 1, None)

    def is_read(*reads: Read) -> bool:
        with suppress(LakeUnusable):
            return all([*read(lake, lambda _: None)] for read in reads)
        return False

    of_flows = [partial(each, shard) for each in (count_times, read_flows)]
    assert is_read(partial(count_snapshots, part), *of_flows)
    missed = {
        column
        for column in with_flips(Path(lake.path(snapshot)))
        if is_read(partial(count_snapshots, part))
    }
    assert missed == {"state", "size"}  # which the job does not read
    assert not any(is_read(*of_flows) for _ in with_flips(Path(lake.path(flows))))


# -- stored messages -------------------------------------------------------------------------------


given_snapshot(at(10), [stored("several", age) for age in (5, 60, 3600)], source="several")
given_snapshot(at(20), [stored("several", age) for age in (1, 660)], source="several")


def test_ages_are_those_of_all_snapshots_of_the_hour(hours: Hours) -> None:
    row = hours["several", 0]

    assert (row["messages"], row["snapshots"], row["stored"]) == (5, 2, 2)
    assert row["age_max_s"] == 3600
    assert 60 <= row["age_p50_s"] <= 60 * 1.0906
    assert row["age_buckets"] == sorted(bucket_of(s * 1000) for s in (1, 5, 60, 660, 3600))
    assert row["age_counts"] == [1] * 5


LARGE = [stored(f"large-{number % 7}", number, receive_count=number % 5) for number in range(4321)]
given_snapshot(at(10), LARGE, source="large")
given_snapshot(at(20), LARGE[::-1], source="large")


def test_large_snapshots_are_counted_piece_by_piece(hours: Hours) -> None:
    found = [row for (queue, _), row in hours.items() if queue.startswith("large-")]

    assert sum(row["messages"] for row in found) == 2 * 4321
    for queue in range(7):
        own = [number for number in range(4321) if number % 7 == queue]
        row = hours[f"large-{queue}", 0]
        counts = Counter(bucket_of(number * 1000) for number in own)
        assert dict(zip(row["age_buckets"], row["age_counts"], strict=True)) == {
            bucket: 2 * count for bucket, count in counts.items()
        }
        classes = Counter(number % 5 for number in own)
        assert row["receive_counts"] == [*(classes[number] for number in range(5)), 0]


given_snapshot(at(10), [stored("single", 100)], source="single")


def test_percentile_never_exceeds_the_oldest_message(hours: Hours) -> None:
    row = hours["single", 0]

    assert row["age_p50_s"] == row["age_p99_s"] == row["age_max_s"] == 100


given_snapshot(
    at(10), [stored("oldest", 900), stored("oldest", 9000, receivable=False)], source="oldest"
)
given_snapshot(
    at(20), [stored("oldest", 30), stored("oldest", 300, receivable=False)], source="oldest"
)


def test_oldest_is_told_for_the_hour_and_for_its_last_snapshot(hours: Hours) -> None:
    row = hours["oldest", 0]

    assert (row["age_max_s"], row["oldest_receivable_max_s"]) == (9000, 900)
    assert (row["oldest_stored_s"], row["oldest_receivable_s"]) == (300, 30)


given_snapshot(at(10), [stored("hidden", 300, receivable=False, state="delayed")], source="hidden")


def test_queue_with_nothing_to_receive_has_no_oldest_receivable(hours: Hours) -> None:
    row = hours["hidden", 0]

    assert (row["oldest_stored_s"], row["oldest_receivable_s"]) == (300, None)


given_snapshot(at(10), [stored("received", 1, receive_count=2)], source="received")
given_snapshot(
    at(20),
    [stored("received", 1, receive_count=count) for count in (0, 0, 1, 3, 4, 9, 10, 400)],
    source="received",
)


def test_receive_counts_are_those_of_the_last_snapshot(hours: Hours) -> None:
    assert hours["received", 0]["receive_counts"] == [2, 1, 0, 1, 2, 2]


given_snapshot(at(10), [stored("future", -5)], source="future")


def test_message_from_the_future_has_no_age(hours: Hours) -> None:
    row = hours["future", 0]

    assert (row["age_buckets"], row["age_max_s"]) == ([0], 0)


given_snapshot(at(60), [stored("punctual", 1)], source="punctual")
given_snapshot(at(60) + timedelta(milliseconds=1), [stored("punctual", 1)], source="punctual")


def test_full_hour_belongs_to_the_hour_that_ends(hours: Hours) -> None:
    assert {hour for queue, hour in hours if queue == "punctual"} == {0, 1}


NAMESAKES = [
    stored("namesakes", 60),
    stored("namesakes", 70, region="eu-west-1"),
    stored("namesakes", 80, account="000000000002"),
]
given_snapshot(at(10), NAMESAKES, source="namesakes")


def test_queues_of_accounts_and_regions_are_told_apart(rows: list[Row]) -> None:
    found = [row for row in rows if row["queue"] == "namesakes"]

    assert sorted((r["account"], r["region"], r["age_max_s"]) for r in found) == [
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

    assert by_hour(rows_of(spark, apart)) == by_hour(rows_of(spark, together))


# -- arrivals and departures -----------------------------------------------------------------------


given_flows(at(-5), [flow("rates", 5)], source="rates")
given_flows(at(10), [flow("rates", 15, sent=900, deleted=450, visible=450)], source="rates")
COUNTS = {
    "sent": 900,
    "moved_in": 90,
    "deleted": 90,
    "expired": 45,
    "moved_out": 9,
    "purged": 9,
}
given_flows(
    at(25), [flow("rates", 15, **COUNTS, visible=1000, in_flight=200, delayed=37)], source="rates"
)


def test_rates_are_counts_by_the_time_that_was_watched(hours: Hours) -> None:
    row = hours["rates", 0]

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


given_flows(at(-130), [flow("away", 5)], source="away")
given_flows(at(10), [flow("away", 140, sent=8400)], source="away")
given_flows(at(15), [flow("away", 5, sent=300)], source="away")


def test_counts_of_hours_without_a_lake_are_divided_by_all_of_them(hours: Hours) -> None:
    row = hours["away", 0]

    assert (row["watched_s"], row["arrivals_per_s"]) == (145 * 60, 1.0)
    assert row["growth_per_hour"] == 3600


given_flows(at(10), [flow("set-back", -50, sent=300, visible=300)], source="set-back")


def test_flows_of_a_clock_that_was_set_back_have_no_rates(hours: Hours) -> None:
    row = hours["set-back", 0]

    assert (row["watched_s"], row["sent"], row["arrivals_per_s"]) == (0, 300, None)


given_flows(at(-5), [flow("watched", 5)], source="watched")
given_flows(at(15), [flow("new", 60 * 24 * 3, sent=1200, visible=1200)], source="watched")


def test_queue_that_is_new_is_watched_as_long_as_its_shard(hours: Hours) -> None:
    """For a new queue, the service gives its own start as the beginning of the flow."""
    row = hours["new", 0]

    assert (row["watched_s"], row["arrivals_per_s"]) == (1200, 1.0)
    assert row["growth_per_hour"] is None  # of twenty minutes there is no growth an hour


given_flows(at(5), [flow("early", 5, sent=1)], source="begun")
given_flows(at(60), [flow("late", 5, sent=360)], source="begun")
given_flows(at(5), [], source="begun-empty")
given_flows(at(60), [flow("late-too", 5, sent=330)], source="begun-empty")


def test_queue_that_was_empty_when_the_service_began_is_watched_as_long_as_its_shard(
    hours: Hours,
) -> None:
    """A flow has no row for it then."""
    assert (hours["late", 0]["watched_s"], hours["late", 0]["arrivals_per_s"]) == (3600, 0.1)
    assert (hours["late-too", 0]["watched_s"], hours["late-too", 0]["arrivals_per_s"]) == (
        3300,
        0.1,
    )


given_flows(
    at(5), [flow("drained", 5, visible=10), flow("gone", 5, sent=7, visible=7)], source="drained"
)
given_flows(at(10), [flow("drained", 5, visible=12)], source="drained")


def test_queue_that_was_drained_or_deleted_has_no_backlog(hours: Hours) -> None:
    assert (hours["drained", 0]["backlog"], hours["gone", 0]["backlog"]) == (12, 0)
    assert hours["gone", 0]["sent"] == 7


SOME = {"time_in_queue_buckets": [80, 90], "time_in_queue_counts": [98, 1]}
MORE = {"time_in_queue_buckets": [90, 120], "time_in_queue_counts": [1, 100]}
given_flows(at(5), [flow("times", 5, deleted=99, **SOME)], source="times")
given_flows(at(10), [flow("times", 5, deleted=101, **MORE)], shard=1, source="times")


def test_times_in_queue_add_up(hours: Hours) -> None:
    row = hours["times", 0]

    assert (row["time_in_queue_buckets"], row["time_in_queue_counts"]) == (
        [80, 90, 120],
        [98, 2, 100],
    )
    expected = [2.0 ** ((bucket + 1) / BUCKETS_PER_DOUBLING) / 1000 for bucket in (90, 120, 120)]
    names = ("time_in_queue_p50_s", "time_in_queue_p90_s", "time_in_queue_max_s")
    assert [row[name] for name in names] == pytest.approx(expected)


given_snapshot(at(10), [], source="empty")
given_flows(at(10), [flow("empty", 10, sent=60, deleted=60)], source="empty")


def test_empty_queue_with_flows_has_counts_and_no_ages(hours: Hours) -> None:
    row = hours["empty", 0]

    assert (row["messages"], row["stored"], row["backlog"], row["sent"]) == (0, 0, 0, 60)
    assert row["age_p50_s"] is None
    assert row["age_buckets"] == row["time_in_queue_buckets"] == []
    assert row["receive_counts"] == [0] * 6


given_snapshot(at(10), [stored("no-flows", 1)] * 3, source="no-flows")


def test_snapshots_alone_tell_of_the_backlog_but_not_of_rates(hours: Hours) -> None:
    row = hours["no-flows", 0]

    assert (row["backlog"], row["arrivals_per_s"], row["growth_per_hour"]) == (3, None, None)
