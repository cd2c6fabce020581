"""How far a query is: by the tasks that Spark has finished of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_jobs.lib.progress import Done, Progress


@contextmanager
def query_progress(session: SparkSession, job: str, files: int, size: int) -> Iterator[None]:
    """Show how much is read of so many files, of so many bytes if these are known, until the block ends."""
    stages = _Stages(session)

    def done() -> Done:
        share = stages.share()
        return Done(int(files * share), 0, int(size * share))

    with Progress(job, Done(files, 0, size), done, batches="files"):
        yield


class _Stages:
    """The stages that read files are the first, have the most tasks, and take the most time; what follows adds little."""

    def __init__(self, session: SparkSession) -> None:
        self._tracker = session.sparkContext.statusTracker()
        self._share = 0.0

    def share(self) -> float:
        """What part of the work is done; never less than before."""
        stages = [
            self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()
        ]
        known = [stage for stage in stages if stage is not None]
        if tasks := sum(stage.numTasks for stage in known):
            finished = sum(stage.numCompletedTasks for stage in known)
            self._share = max(self._share, finished / tasks)
        return self._share
