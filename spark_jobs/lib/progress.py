"""Progress: what a running job says of how far it is, on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TextIO

from pyspark.sql import SparkSession

_TERMINAL_S = 0.5
_LOG_S = 10.0


class Done(NamedTuple):
    """So much is done, or is to be done in all."""

    batches: int
    rows: int
    bytes: int


class Progress:
    """Prints one line again and again on a terminal, and one every ten seconds elsewhere, until the block ends."""

    def __init__(
        self,
        job: str,
        total: Done,
        done: Callable[[], Done],
        stream: TextIO | None = None,
        *,
        batches: str = "batches",
    ) -> None:
        """`done` is asked from another thread. What is 0 in all is not shown; `batches` is what they are called."""
        self._job = job
        self._batches = batches
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
        """How far it is, how fast, and how long it will take."""
        done, total = self._done(), self._total
        seconds = time.monotonic() - self._begun_s
        parts = []
        if total.rows:
            parts.append(f"{done.rows:,} of {total.rows:,} rows")
        if total.batches:
            parts.append(f"{done.batches:,} of {total.batches:,} {self._batches}")
        if total.bytes:
            parts.append(f"{done.bytes / 1e6:,.1f} of {total.bytes / 1e6:,.1f} MB")
        if done.rows and seconds:
            parts.append(f"{done.rows / seconds:,.0f} rows/s")
        at, end = (done.rows, total.rows) if total.rows else (done.batches, total.batches)
        if at:
            parts.append(f"{(end - at) * seconds / at:,.0f} s left")
        return f"{self._job}: {', '.join(parts)}"


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
