"""Progress of a running job on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from pyspark.sql import SparkSession

from spark_jobs.lib.live_count import LiveCount

_TERMINAL_S = 0.5
_LOG_S = 10.0


class Work(NamedTuple):
    """An amount of work, done or in total."""

    batches: int
    rows: int
    bytes: int


class Progress:
    """Until its block ends, updates one line on a terminal, or prints one every ten seconds."""

    def __init__(
        self,
        job: str,
        total: Work,
        done: Callable[[], Work],
        stream: TextIO | None = None,
        *,
        unit: str = "batches",
    ) -> None:
        """`done` is called in another thread. Totals of 0 are not shown; `unit` names batches."""
        self._job = job
        self._unit = unit
        self._total = total
        self._done = done
        self._stream = stream or sys.stderr
        self._begun_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        is_terminal = self._stream.isatty()
        while not self._ended.wait(_TERMINAL_S if is_terminal else _LOG_S):
            start, end = ("\r\x1b[K", "") if is_terminal else ("", "\n")
            self._stream.write(f"{start}{self.line()}{end}")
            self._stream.flush()
        if is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        """Work done, rate, and time left."""
        done, total = self._done(), self._total
        seconds = time.monotonic() - self._begun_s
        parts = []
        if total.rows:
            parts.append(f"{done.rows:,} of {total.rows:,} rows")
        if total.batches:
            parts.append(f"{done.batches:,} of {total.batches:,} {self._unit}")
        if total.bytes:
            parts.append(f"{done.bytes / 1e6:,.1f} of {total.bytes / 1e6:,.1f} MB")
        if done.rows and seconds:
            parts.append(f"{done.rows / seconds:,.0f} rows/s")
        at, end = (done.rows, total.rows) if total.rows else (done.batches, total.batches)
        if at:
            parts.append(f"{(end - at) * seconds / at:,.0f} s left")
        return f"{self._job}: {', '.join(parts)}"


@contextmanager
def query_progress(
    session: SparkSession, job: str, files: int, size: int, read: LiveCount | None = None
) -> Iterator[None]:
    """Show the progress of a query that reads these files, until the block ends.

    `size` is their bytes, 0 if unknown; `read` counts those that were read.
    """
    stages = _Stages(session)

    def done() -> Work:
        share = stages.share()
        if read is not None and size:
            share = min(1.0, max(share, read.value / size))
        return Work(int(files * share), 0, int(size * share))

    with Progress(job, Work(files, 0, size), done, unit="files"):
        yield


class _Stages:
    """The stages of a query. Those that read files come first and take most of the time."""

    def __init__(self, session: SparkSession) -> None:
        self._tracker = session.sparkContext.statusTracker()
        self._share = 0.0

    def share(self) -> float:
        """Share of the tasks that have finished; never decreases."""
        stages = [
            self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()
        ]
        known = [stage for stage in stages if stage is not None]
        if tasks := sum(stage.numTasks for stage in known):
            finished = sum(stage.numCompletedTasks for stage in known)
            self._share = max(self._share, finished / tasks)
        return self._share
