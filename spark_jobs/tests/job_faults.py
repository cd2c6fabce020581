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
        if path.startswith(ARCHIVE) and context and self._is_first(context.partitionId()):
            self.accident()

    def _is_first(self, partition: int) -> bool:
        """True once for each task. Its attempts are counted from 0 again if the stage is repeated,
        as after the loss of an executor's part of a shuffle."""
        folder = Path(f"{self.url}.accidents")
        folder.mkdir(exist_ok=True)
        try:
            (folder / str(partition)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

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
