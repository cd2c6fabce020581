"""Tasks: how the work of a job is cut for Spark, and run by it. What they do there is in `executor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from spark_jobs.lib.failures import spark_failures
from spark_jobs.lib.progress import Done, Progress

In = TypeVar("In")
Out = TypeVar("Out")

_TASK_BYTES = 192 << 20
"""About what a task is given: more makes fewer and larger files, less spreads the work better."""
_TASK_BYTES_MIN = 16 << 20
"""Less is not worth a task of its own, though a processor may be idle."""


def cut(work: Sequence[In], size: Callable[[In], int], processors: int) -> list[list[In]]:
    """Tasks of about the same size, in order: enough for the processors, if there is enough to do."""
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
    tasks: Sequence[tuple[In, Done]],
    function: Callable[[tuple[int, In]], Out],
) -> list[Out]:
    """What the function returns for each task and its number, in order; shows how far it is. Raises JobFailed.

    Executors import what the function's module imports, and no more.
    """
    sums = [session.sparkContext.accumulator(0) for _ in Done._fields]

    def counted(numbered: tuple[int, tuple[In, Done]]) -> Out:
        number, (task, work) = numbered
        result = function((number, task))
        for total, value in zip(sums, work, strict=True):
            total.add(value)
        return result

    total = Done(*map(sum, zip(*(work for _, work in tasks), strict=True)))
    with (
        spark_failures(),
        Progress(job, total, lambda: Done(*(each.value for each in sums))),
    ):
        numbered = list(enumerate(tasks))
        results = session.sparkContext.parallelize(numbered, len(tasks)).map(counted)
        collected: list[Out] = results.collect()
        return collected
