"""Histograms of durations on a logarithmic scale: eight buckets to a doubling, as `archive_schema.bucket_of` has them.

A histogram is two lists that go together, PREFIX_buckets in ascending order and PREFIX_counts. Those of two hours, or of two
shards, merge into that of both by adding counts; percentiles do not merge. A percentile here is the upper end of the bucket
that has it, so it is never below the exact one, and above it by 9.1 % at most.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from storage.archive_schema import BUCKETS_PER_DOUBLING

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def ranked(sums: DataFrame, keys: list[str]) -> DataFrame:
    """Rows of (keys, bucket, count), each bucket once, with `total`, and with how many are in it or below: `seen`."""
    of_keys = Window.partitionBy(*keys)
    upto = of_keys.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return sums.withColumns(
        {"seen": f.sum("count").over(upto), "total": f.sum("count").over(of_keys)}
    )


def histogram(prefix: str, condition: Column) -> list[Column]:
    """Aggregates of those ranked rows: the two lists; p50, p90, p99 and the end of the last bucket in seconds, null where
    nothing was counted."""
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
