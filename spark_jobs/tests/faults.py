"""Lakes whose first task attempts fail while they finish a file of the table."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import TaskContext

from storage.lake.archive_schema import ARCHIVE
from storage.lake.table import Lake


class FailingOnce(Lake):
    """The first attempt at each task ends with an error, after it has put a file in its place."""

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        with super().draft(path) as draft:
            yield draft
        context = TaskContext.get()
        if not path.startswith(ARCHIVE) or context is None:
            return
        try:  # a stage that is repeated begins with attempt 0 again
            Path(self.path(f".accident-{context.partitionId()}")).touch(exist_ok=False)
        except FileExistsError:
            return
        self.accident()

    def accident(self) -> None:
        raise OSError("the network is down")


class KilledOnce(FailingOnce):
    """The same, but the worker process is killed."""

    def accident(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class ExecutorKilledOnce(FailingOnce):
    """The same, but the executor is killed: the Java process above the worker."""

    def accident(self) -> None:
        process = os.getpid()
        while Path(f"/proc/{process}/comm").read_text().strip() != "java":
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(process, signal.SIGKILL)


class FailingAlways(FailingOnce):
    """No attempt succeeds."""

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        with Lake.draft(self, path) as draft:
            yield draft
            if path.startswith(ARCHIVE):
                self.accident()
