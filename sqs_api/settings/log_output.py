"""The log's way to standard error. A log line never fails or delays what wrote it.

A thread of its own writes the lines. Those that the disk does not take, or that a reader leaves
waiting, are dropped and counted; the next line that can be written says how many.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_WAITING_MAX = 4096
"""Lines that wait to be written; further ones are dropped."""
_AGAIN_S = 1.0
"""Interval at which a count of dropped lines is tried again while there are no further lines."""
_END_S = 1.0
"""Time for the waiting lines at the end of the process."""


class LogOutput:
    """A file for loggers, as far as they use one. Any thread may write."""

    def __init__(self, waiting_max: int = _WAITING_MAX, again_s: float = _AGAIN_S) -> None:
        self.dropped = 0
        """Lines that were not written."""
        self._waiting_max = waiting_max
        self._again_s = again_s
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        """Unlike `queue.Queue` it may be used by a destructor that interrupts its own user."""
        self._lock = threading.RLock()
        self._told = 0
        """Those of the dropped lines that a line told of."""
        self._is_cut = False
        """True after a line of which only the beginning was written."""
        self._descriptor: int | None = None
        self._render_dropped: Callable[[int], str] = str
        self._thread: threading.Thread | None = None

    def start(self, descriptor: int | None, render_dropped: Callable[[int], str]) -> None:
        """Write to this descriptor from now on, None for nowhere; `render_dropped` makes the line
        that tells of a number of dropped ones."""
        self._descriptor, self._render_dropped = descriptor, render_dropped
        self._thread = threading.Thread(target=self._write_forever, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write the waiting lines, if they can be written soon."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._lines.put(None)
            thread.join(_END_S)
            atexit.unregister(self.close)

    def write(self, text: str) -> None:
        """Write one or more whole lines, or count them as dropped."""
        if self._lines.qsize() < self._waiting_max:
            self._lines.put(text)
        else:
            self._drop()

    def flush(self) -> None:
        """Do nothing: the thread writes at once."""

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1

    # -- the thread --------------------------------------------------------------------------------

    def _write_forever(self) -> None:
        while True:
            try:
                text = self._lines.get(
                    timeout=None if self._told == self.dropped else self._again_s
                )
            except Empty:
                self._tell()
                continue
            if text is None:
                self._tell()
                return
            if not (self._tell() and self._written(text)):
                self._drop()

    def _tell(self) -> bool:
        """Tell how many lines were dropped; False if that cannot be written either."""
        dropped = self.dropped
        if self._told == dropped:
            return True
        if not self._written(self._render_dropped(dropped - self._told)):
            return False
        self._told = dropped
        return True

    def _written(self, text: str) -> bool:
        if self._descriptor is None:
            return False
        line = text.encode(errors="backslashreplace")
        rest = memoryview(b"\n" + line if self._is_cut else line)
        size = len(rest)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                self._is_cut = self._is_cut or len(rest) < size
                return False
        self._is_cut = False
        return True


def standard_error() -> int | None:
    """Its descriptor; None if it was closed, when its number may be another file's, or replaced by
    something that is no file."""
    try:
        return None if sys.stderr is None else sys.stderr.fileno()
    except io.UnsupportedOperation:
        return None
