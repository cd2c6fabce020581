"""Starts of the `holdfast` command as copies of a process that has read its code.

To read the code is nearly all of a start's processor time: 0.6 of 0.7 s of `holdfast serve`. A run
of all tests starts services and commands hundreds of times. So each process of the tests has one
that reads the code once and forks for each start; it is the parent of the command, which is the
same from its arguments on. A start with other variables of Python, of the loader or of the native
module is made anew, and so is each without Linux.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TextIO

_PROGRAM = Path(__file__).with_name("warm_program.py")
_MESSAGE_BYTES = 1000
_START_S = 300.0
_OF_THE_COMMAND = ("HOLDFAST_", "AWS_")
"""Beginnings of variables that the command reads after it has read its code, but for this one."""
_NATIVE = "HOLDFAST_NATIVE"


class _Warm:
    """The process that has read the code."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_START_S)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-EP", str(_PROGRAM), str(other.fileno())],
                env=self.environment,
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._close)
        assert self._control.recv(_MESSAGE_BYTES) == b"{}", "it could not read the code"

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    def start(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """The id and a descriptor of a process that was started."""
        with self._lock:
            socket.send_fds(self._control, [json.dumps(asked).encode()], descriptors)
            while "started" not in (said := self._receive())[0]:
                self._note(said[0])
        (handle,) = said[1]
        return int(said[0]["started"]), handle

    def status(self, pid: int) -> int:
        """The exit status of a process that has ended, once."""
        with self._lock:
            while pid not in self._ended:
                self._note(self._receive()[0])
            return self._ended.pop(pid)

    def _note(self, said: Mapping[str, int]) -> None:
        self._ended[said["ended"]] = said["status"]

    def _receive(self) -> tuple[dict[str, int], list[int]]:
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
        assert message, "the process that has read the code has ended"
        return json.loads(message), descriptors


class WarmProcess:
    """The part of `subprocess.Popen` that the tests use; `stdout` is there if it was a pipe."""

    def __init__(self, warm: _Warm, pid: int, handle: int, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._warm = warm
        self._handle = handle
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                ends = select.poll()
                ends.register(self._handle, select.POLLIN)
                if not ends.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
                self.returncode = self._warm.status(self.pid)
                os.close(self._handle)
            return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        with self._lock:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, number)


@cache
def _started_in(process: int, environment: tuple[tuple[str, str], ...]) -> _Warm:
    return _Warm(dict(environment))


def can_start(line: Sequence[str], own: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """True if a copy does what this command would with its `own` environment and the `given`
    variables."""
    of_the_command = all(
        name.startswith(_OF_THE_COMMAND) and name != _NATIVE for name in given if name not in own
    )
    is_installed = line[0] == str(Path(sys.executable).with_name("holdfast"))
    changed = any(own[name] != value for name, value in given.items() if name in own)
    measured = "COVERAGE_PROCESS_START" in own
    can_copy = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return can_copy and is_installed and of_the_command and not changed and not measured


def start(
    line: Sequence[str],
    own: Mapping[str, str],
    given: Mapping[str, str],
    *,
    folder: Path,
    stdout: int | None = None,
    stderr: int,
) -> WarmProcess:
    """Start the command; `can_start` says for which. `stdout` None: a pipe."""
    warm = _started_in(os.getpid(), tuple(own.items()))
    asked = {"arguments": line[1:], "environment": {**own, **given}, "folder": str(folder)}
    read: IO[str] | None = None
    written = stdout
    if written is None:
        reading, written = os.pipe()
        read = open(reading, encoding="utf-8")  # noqa: SIM115 the process's user closes it
    with open(os.devnull) as nothing:
        try:
            pid, handle = warm.start(asked, (nothing.fileno(), written, stderr))
        finally:
            if stdout is None:
                os.close(written)
    return WarmProcess(warm, pid, handle, read)


def run(
    line: Sequence[str],
    own: Mapping[str, str],
    given: Mapping[str, str],
    *,
    folder: Path,
    stdout: TextIO | None,
    stderr: TextIO | None,
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; as `subprocess.run` does, and what it writes to no file is
    returned. Raises TimeoutExpired, with the process killed."""
    with ExitStack() as files:
        said = [
            files.enter_context(TemporaryFile("w+", encoding="utf-8")) if each is None else each
            for each in (stdout, stderr)
        ]
        process = start(
            line, own, given, folder=folder, stdout=said[0].fileno(), stderr=said[1].fileno()
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        texts = [
            _text(file) if each is None else None
            for each, file in zip((stdout, stderr), said, strict=True)
        ]
        return subprocess.CompletedProcess(line, status, *texts)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
