"""The progress line of a running job."""

from __future__ import annotations

import io
import re

from pyspark.sql import SparkSession

from spark_jobs.lib.progress import Progress, Work, query_progress


def line(total: Work, done: Work, unit: str = "batches") -> str:
    said = Progress("job", total, lambda: done, io.StringIO(), unit=unit).line()
    return re.sub(r"[\d,]+ rows/s", "N rows/s", re.sub(r"[\d,]+ s left", "N s left", said))


def test_everything_that_is_known_is_said() -> None:
    assert line(Work(4, 1000, 2_500_000), Work(1, 250, 600_000)) == (
        "job: 250 of 1,000 rows, 1 of 4 batches, 0.6 of 2.5 MB, N rows/s, N s left"
    )


def test_what_is_not_known_is_not_said() -> None:
    assert line(Work(4, 0, 0), Work(0, 0, 0), "files") == "job: 0 of 4 files"
    assert line(Work(4, 0, 2_000_000), Work(2, 0, 1_000_000), "files") == (
        "job: 2 of 4 files, 1.0 of 2.0 MB, N s left"
    )
    assert line(Work(0, 10, 0), Work(0, 0, 0)) == "job: 0 of 10 rows"


def test_query_is_followed_until_it_ends(spark: SparkSession) -> None:
    with query_progress(spark, "job", 2, 100):
        assert spark.range(0, 100, 1, 2).count() == 100
