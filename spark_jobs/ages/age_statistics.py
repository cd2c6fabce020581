"""Statistics of a queue and hour, computed from counted snapshots and flows. DataFrames only.

Histograms of durations are logarithmic, with eight buckets a doubling (`archive_schema.bucket_of`).
A histogram is two parallel lists, PREFIX_buckets (ascending) and PREFIX_counts. Histograms of hours
or shards merge by adding counts; percentiles do not merge. A percentile is the upper end of its
bucket, so it is never below the exact one, and at most 9.1 % above.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.ages.counting import AGES, RECEIVE_CLASSES, RECEIVES, TIMES
from storage.lake.archive_schema import BUCKETS_PER_DOUBLING, Columns

QUEUE = ["account", "region", "queue"]
_KEYS = [*QUEUE, "hour"]
_SUMMED = ["sent", "received", "deleted", "expired", "purged", "moved_in", "moved_out"]
_AGE_PERCENTILES = ["age_p50_s", "age_p90_s", "age_p99_s", "age_max_s"]
_HALF_HOUR_S = 1800.0
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
_STATES = ["visible", "in_flight", "delayed"]

AGE: Columns = {
    "account": "string",
    "region": "string",
    "queue": "string",
    "hour": "instant",
    "snapshots": "int32",
    "messages": "int64",
    "age_buckets": "numbers",
    "age_counts": "numbers",
    "age_p50_s": "double",
    "age_p90_s": "double",
    "age_p99_s": "double",
    "age_max_s": "double",
    "oldest_receivable_max_s": "double",
    "stored": "int64",
    "oldest_stored_s": "double",
    "oldest_receivable_s": "double",
    "receive_counts": "numbers",
    "time_in_queue_buckets": "numbers",
    "time_in_queue_counts": "numbers",
    "time_in_queue_p50_s": "double",
    "time_in_queue_p90_s": "double",
    "time_in_queue_p99_s": "double",
    "time_in_queue_max_s": "double",
    "sent": "int64",
    "received": "int64",
    "deleted": "int64",
    "expired": "int64",
    "purged": "int64",
    "moved_in": "int64",
    "moved_out": "int64",
    "watched_s": "double",
    "arrivals_per_s": "double",
    "departures_per_s": "double",
    "deleted_per_s": "double",
    "expired_per_s": "double",
    "moved_per_s": "double",
    "visible": "int64",
    "in_flight": "int64",
    "delayed": "int64",
    "backlog": "int64",
    "growth_per_hour": "double",
}
"""A queue in an hour of UTC, over all its shards and sources. Times are in seconds.

`age_...`: ages of stored messages (taken_at - sent_at) in all `snapshots` of the hour. A message
counts once in each snapshot, `messages` times in all. Percentiles are at most 9.1 % too high;
`age_max_s` is exact. `oldest_receivable_max_s`: age of the oldest message that a receive could have
returned, over the hour's snapshots.

As of the hour's last snapshot: `stored`, `oldest_stored_s`, `oldest_receivable_s`, and in
`receive_counts` the numbers of messages received 0, 1, 2, 3, 4 to 9, and 10 or more times.

`time_in_queue_...`: time in the queue of deleted messages; the maximum is the end of a bucket.

From flows, which cover `watched_s` up to the hour's last one (more than an hour if the lake was
away for longer): the counts `sent` to `moved_out`, and rates (`..._per_s`). Arrivals are sent or
moved in; departures are deleted, expired, purged or moved out.
`visible`, `in_flight`, `delayed` and their sum `backlog` are those at the hour's end;
`growth_per_hour` is arrivals less departures, null if less than half an hour was watched. Without
flows these are null, and `backlog` is `stored`.
"""


def queue_hours(cells: DataFrame, movements: DataFrame) -> DataFrame:
    """AGE from CELL and MOVEMENT (`counting`)."""
    both = cell_sums(cells).join(flow_sums(movements), _KEYS, "full")
    defaults = {
        "messages": _zero(),
        "stored": _zero(),
        "receive_counts": f.array(*[_zero()] * len(RECEIVE_CLASSES)),
    }
    for prefix in ("age", "time_in_queue"):
        defaults |= dict.fromkeys(
            (f"{prefix}_buckets", f"{prefix}_counts"), f.array().cast("array<bigint>")
        )
    filled = both.withColumns({name: f.coalesce(name, value) for name, value in defaults.items()})
    exact = {name: f.least(name, "oldest_ever_s") for name in _AGE_PERCENTILES}
    return filled.withColumns(exact).withColumns(_rates()).select(*AGE)


def cell_sums(cells: DataFrame) -> DataFrame:
    """The columns of AGE from cells."""
    processors = cells.sparkSession.sparkContext.defaultParallelism
    sums = (
        cells.repartition(processors, *_KEYS)  # the only shuffle
        .groupBy(*_KEYS, "kind", "bucket")
        .agg(
            f.sum("count").alias("count"),
            f.max("oldest_ms").alias("oldest_ms"),
            f.max("oldest_receivable_ms").alias("oldest_receivable_ms"),
            f.max("snapshots").alias("snapshots"),
        )
    )
    ages, receives, times = (f.col("kind") == kind for kind in (AGES, RECEIVES, TIMES))
    classes = [
        f.coalesce(f.sum(f.when(receives & (f.col("bucket") == number), f.col("count"))), _zero())
        for number in range(len(RECEIVE_CLASSES))
    ]
    ranks = ranked(sums, [*_KEYS, "kind"])
    return ranks.groupBy(*_KEYS).agg(
        f.max("snapshots").alias("snapshots"),
        f.sum(f.when(ages, f.col("count"))).alias("messages"),
        *histogram("age", ages),
        _seconds("oldest_ms", ages).alias("oldest_ever_s"),
        _seconds("oldest_receivable_ms", ages).alias("oldest_receivable_max_s"),
        f.sum(f.when(receives, f.col("count"))).alias("stored"),
        _seconds("oldest_ms", receives).alias("oldest_stored_s"),
        _seconds("oldest_receivable_ms", receives).alias("oldest_receivable_s"),
        f.array(*classes).alias("receive_counts"),
        *histogram("time_in_queue", times),
    )


def _zero() -> Column:
    """A function, since Spark's literals need its session."""
    return f.lit(0).cast("bigint")


def _seconds(milliseconds: str, condition: Column) -> Column:
    return f.max(f.when(condition, f.col(milliseconds))) / 1000


def flow_sums(movements: DataFrame) -> DataFrame:
    """The columns of AGE from flows.

    A queue without a row in a shard's last flow of the hour is empty or deleted: its backlog is 0.
    """
    at_end = f.col("until_at") == f.col("ended_at")
    at_ends = [f.sum(f.when(at_end, f.col(name)).otherwise(0)).alias(name) for name in _STATES]
    watched = (f.unix_micros(f.max("ended_at")) - f.unix_micros(f.min("begun_at"))) / 1e6
    watched = f.greatest(watched, f.lit(0.0))  # a clock was set back
    return movements.groupBy(*_KEYS).agg(
        *(f.sum(name).alias(name) for name in _SUMMED), *at_ends, watched.alias("watched_s")
    )


def _rates() -> dict[str, Column]:
    arrivals = f.col("sent") + f.col("moved_in")
    departures = f.col("deleted") + f.col("expired") + f.col("purged") + f.col("moved_out")
    per_s = {
        "arrivals_per_s": arrivals,
        "departures_per_s": departures,
        "deleted_per_s": f.col("deleted"),
        "expired_per_s": f.col("expired"),
        "moved_per_s": f.col("moved_out"),
    }
    watched_s = f.nullif(f.col("watched_s"), f.lit(0.0))
    backlog = f.col("visible") + f.col("in_flight") + f.col("delayed")
    return {name: count / watched_s for name, count in per_s.items()} | {
        "growth_per_hour": f.when(
            watched_s >= _HALF_HOUR_S, (arrivals - departures) / watched_s * 3600
        ),
        "backlog": f.coalesce(backlog, "stored"),
    }


# -- histograms ------------------------------------------------------------------------------------


def ranked(sums: DataFrame, keys: list[str]) -> DataFrame:
    """Rows of (keys, bucket, count), unique, with `total` and the cumulative count `seen`."""
    of_keys = Window.partitionBy(*keys)
    upto = of_keys.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return sums.withColumns(
        {"seen": f.sum("count").over(upto), "total": f.sum("count").over(of_keys)}
    )


def histogram(prefix: str, condition: Column) -> list[Column]:
    """Aggregates of ranked rows: the two lists, and p50, p90, p99 and the maximum in seconds.

    Percentiles of an empty histogram are null.
    """
    pairs = f.sort_array(f.collect_list(f.when(condition, f.struct("bucket", "count"))))
    found = {
        name: f.min(
            f.when(condition & (f.col("seen") * 100 >= f.col("total") * percent), f.col("bucket"))
        )
        for name, percent in PERCENTILES.items()
    }
    return [
        pairs["bucket"].cast("array<bigint>").alias(f"{prefix}_buckets"),
        pairs["count"].alias(f"{prefix}_counts"),
        *(_upper_s(bucket).alias(f"{prefix}_{name}_s") for name, bucket in found.items()),
    ]


def _upper_s(bucket: Column) -> Column:
    return f.pow(f.lit(2.0), (bucket + 1) / BUCKETS_PER_DOUBLING) / 1000
