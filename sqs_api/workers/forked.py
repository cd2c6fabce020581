"""Forked workers: processes that have read their code in that of the supervisor.

To read the code is most of a start. It is read once, before the supervisor opens a file, starts a
thread or makes a key; then the first workers are copies of the process. Later ones are started
anew: a process with threads and open files cannot be copied.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

_STDIN, _STDOUT = 0, 1
Run = Callable[[int, int], int]
"""Is a worker over two sockets; returns the exit status."""


class Pairs(NamedTuple):
    """The supervisor's sockets to a worker."""

    conversation: socket.socket
    descriptors: socket.socket
    """Over which sockets are passed."""


class Process(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, below 0 for a signal; None until its end is known."""

    async def wait(self) -> int:
        """Wait for its end. Returns the exit status."""

    def kill(self) -> None:
        """End it. Raises ProcessLookupError."""


class ForkedProcess:
    """A process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    async def wait(self) -> int:
        """Wait for its end; returns the exit status, below 0 for a signal."""
        if self.returncode is None:
            _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        """End it. Raises ProcessLookupError."""
        os.kill(self.pid, signal.SIGKILL)


class Started(NamedTuple):
    """A process that waits for its `Start`."""

    process: Process
    pairs: Pairs


def pairs() -> tuple[Pairs, Pairs]:
    """The supervisor's sockets and the worker's. Raises OSError."""
    own, others = socket.socketpair()
    try:
        descriptors, others_descriptors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        own.close()
        others.close()
        raise
    return Pairs(own, descriptors), Pairs(others, others_descriptors)


def fork_workers(count: int, run: Run) -> list[Started]:
    """Copy this process, which has one thread and no event loop. Raises OSError, with nothing left
    running."""
    gc.freeze()  # so that the copies share the pages of what was read
    forked: list[Started] = []
    for _ in range(count):
        try:
            forked.append(_fork(forked, run))
        except OSError:
            for process, own in forked:
                _close(own)
                process.kill()
                os.waitpid(process.pid, 0)
            raise
    return forked


def _fork(earlier: Sequence[Started], run: Run) -> Started:
    own, others = pairs()
    try:
        pid = os.fork()
    except OSError:
        _close(own)
        _close(others)
        raise
    if pid:
        _close(others)
        return Started(ForkedProcess(pid), own)
    status = 1
    try:
        for each in (own, *(other.pairs for other in earlier)):
            _close(each)  # else their workers would not notice the supervisor's end
        _read_and_print_nothing()
        status = run(others.conversation.detach(), others.descriptors.detach())
    finally:  # nothing of the supervisor's may run here
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)


def _close(ends: Pairs) -> None:
    for end in ends:
        end.close()


def _read_and_print_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, _STDIN)
    os.dup2(nothing, _STDOUT)
    os.close(nothing)
