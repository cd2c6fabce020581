"""Splitting work into tasks, and the message when a task fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.archive.archive_tasks import run_tasks, split_work
from spark_jobs.lib.job_failures import JobFailed
from spark_jobs.lib.live_count import Count
from spark_jobs.lib.progress import Work

MB = 1 << 20


@given(st.lists(st.integers(0, 500 * MB), max_size=60), st.integers(1, 64))
def test_tasks_hold_all_work_in_order_and_none_is_empty(sizes: list[int], processors: int) -> None:
    tasks = split_work(sizes, lambda size: size, processors)

    assert [size for task in tasks for size in task] == sizes
    assert all(tasks)
    largest = max(sizes, default=0)
    assert all(sum(task) <= 400 * MB + largest for task in tasks)


def test_processors_share_what_is_worth_sharing() -> None:
    def count(work: list[int], processors: int) -> int:
        return len(split_work(work, lambda size: size, processors))

    assert count([MB] * 20, 8) == 1
    assert count([MB] * 64, 8) == 4
    assert count([MB] * 640, 8) == 8
    assert count([64 * MB] * 60, 8) == 20


def test_results_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    tasks = [(letter, Work(1, 1, 1)) for letter in "abc"]

    assert run_tasks(spark, "job", tasks, lambda task, _: task) == [(0, "a"), (1, "b"), (2, "c")]


def test_failure_of_a_task_is_said_in_its_own_words(spark: SparkSession) -> None:
    def fail(_: tuple[int, str], __: Count) -> None:
        raise RuntimeError("the disk\nis full")

    with pytest.raises(JobFailed, match=r"^the disk") as failed:
        run_tasks(spark, "job", [("a", Work(1, 1, 1))], fail)

    assert "\n" not in str(failed.value)
