"""Split work into Spark tasks and run them. The code of a task is in `executor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from pyspark.sql import SparkSession

from spark_jobs.lib.job_failures import spark_failures
from spark_jobs.lib.live_count import Count, LiveCount
from spark_jobs.lib.progress import Progress, Work

In = TypeVar("In")
Out = TypeVar("Out")

_TASK_BYTES = 192 << 20
"""Approximate size of a task: more makes fewer, larger files; less balances the load better."""
_TASK_BYTES_MIN = 16 << 20
"""Less does not make a task, even if a processor is idle."""


class Small(NamedTuple):
    """Limits up to which work needs no Spark, whose start takes longer."""

    rows: int
    bytes: int

    def holds(self, rows: int, size: int) -> bool:
        """True if this much work is small."""
        return rows <= self.rows and size <= self.bytes


SMALL = Small(100_000, 128 << 20)
"""The rows are in memory two or three times."""


def split_work(work: Sequence[In], size: Callable[[In], int], processors: int) -> list[list[In]]:
    """Split work into tasks of about the same size, in order, for all processors if possible."""
    total = sum(map(size, work))
    count = max(total // _TASK_BYTES, min(processors, total // _TASK_BYTES_MIN), 1)
    tasks: list[list[In]] = [[] for _ in range(count)]
    before = 0
    for each in work:
        tasks[min(before * count // max(total, 1), count - 1)].append(each)
        before += size(each)
    return [task for task in tasks if task]


def run_tasks(
    session: SparkSession,
    job: str,
    tasks: Sequence[tuple[In, Work]],
    function: Callable[[tuple[int, In], Count], Out],
) -> list[Out]:
    """Results of the function for each numbered task, in order; shows progress. Raises JobFailed.

    The function is also given what counts the rows that it has done. Executors import only the
    modules that the function's module imports.
    """
    batches = session.sparkContext.accumulator(0)
    total = Work(*map(sum, zip(*(work for _, work in tasks), strict=True)))
    with spark_failures(), LiveCount(session) as rows:
        count = rows.add

        def counted(numbered: tuple[int, tuple[In, Work]]) -> Out:
            number, (task, work) = numbered
            result = function((number, task), count)
            batches.add(work.batches)
            return result

        def done() -> Work:
            size = total.bytes * rows.value // max(total.rows, 1)
            return Work(batches.value, rows.value, size)

        numbered = list(enumerate(tasks))
        results = session.sparkContext.parallelize(numbered, len(tasks)).map(counted)
        with Progress(job, total, done):
            collected: list[Out] = results.collect()
        return collected
