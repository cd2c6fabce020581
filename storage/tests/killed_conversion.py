"""Conversions that are killed, or in which a call fails, at a step; each in a separate process.

    python -m storage.tests.killed_conversion < lines of: kill|fail STEP DATA

A step is a call that changes files, or one of RocksDB's. Each line is answered by a line with the
number of an `Outcome`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

from rocksdict import Rdict

from storage.copies import convert as conversion
from storage.engines.store import StoreFailed
from storage.files.folder import FolderRefused

_CHANGING = {
    "open",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "shutil.rmtree",
}


class Outcome(IntEnum):
    """The end of a conversion; also the status of its process."""

    CONVERTED = 0
    """In spite of the step."""
    REFUSED = 1
    KILLED = 2
    HAS_FEWER_STEPS = 3
    BROKEN = 4


class Steps:
    """Counts steps, and ends the conversion at one of them."""

    def __init__(self, kind: str, end_at: int, data: Path) -> None:
        self.taken = 0
        self._kind = kind
        self._end_at = end_at
        self._data = str(data)

    def take(self) -> None:
        self.taken += 1
        if self.taken != self._end_at:
            return
        if self._kind == "kill":
            os._exit(Outcome.KILLED)
        raise OSError(28, "No space left on device")

    def watch(self, event: str, arguments: tuple[object, ...]) -> None:
        """For `sys.addaudithook`."""
        if event in _CHANGING and (event != "open" or self._writes(arguments)):
            self.take()

    def _writes(self, arguments: tuple[object, ...]) -> bool:
        path, _, flags = arguments
        is_ours = str(path).startswith(self._data)
        return is_ours and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            self.take()
            result = call(*arguments, **options)
            self.take()
            return result

        return stepped


class SteppedRows:
    """RocksDB, whose own calls of the system are not seen from here."""

    def __init__(self, steps: Steps, *arguments: Any, **options: Any) -> None:
        self._rows = steps.around(Rdict)(*arguments, **options)
        self.flush = steps.around(self._rows.flush)
        self.close = steps.around(self._rows.close)
        self.latest_sequence_number = self._rows.latest_sequence_number


def _convert(kind: str, step: int, data: Path) -> Outcome:
    steps = Steps(kind, step, data)
    sys.addaudithook(steps.watch)
    os.fsync = steps.around(os.fsync)
    vars(conversion)["Rdict"] = partial(SteppedRows, steps)
    try:
        conversion.convert(data)
    except (FolderRefused, StoreFailed, OSError):
        return Outcome.REFUSED
    return Outcome.HAS_FEWER_STEPS if steps.taken < step else Outcome.CONVERTED


def _main() -> None:
    for line in sys.stdin:
        kind, step, data = line.rstrip("\n").split(" ", 2)
        child = os.fork()  # no thread runs yet
        if not child:
            outcome = Outcome.BROKEN
            try:
                outcome = _convert(kind, int(step), Path(data))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(outcome)
        _, status = os.waitpid(child, 0)
        os.write(sys.stdout.fileno(), b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _main()
