"""Starts and stops the service as a user does: through its command line, in its own process."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from compat_tests import warm_starts
from compat_tests.facade import Credentials
from compat_tests.ports import free_ports
from compat_tests.warm_starts import WarmProcess

_CHECKOUT = Path(__file__).parent.parent
_LISTENING = re.compile(r"listening on (https?://\S+)")
_EXPORT = re.compile(r"export (AWS_\w+)=(\S+)")
_EXPORTED = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"}
QUICK_JAVA = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options with which Spark starts in half of the time: it is compiled less, and its own classes,
which come as they were released, are not verified. Long jobs would be slower."""
_START_S = 300.0
"""One that cannot start ends by itself, and at once; a fleet on a slow machine takes minutes."""
_LEFT_S = 15.0


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def command(*arguments: str) -> list[str]:
    """The `holdfast` command with these arguments: the installed one, else the checkout's."""
    installed = Path(sys.executable).with_name("holdfast")
    if installed.exists():
        return [str(installed), *arguments]
    return [sys.executable, "-m", "sqs_api", *arguments]


def environment() -> dict[str, str]:
    """An environment without the tester's own settings or credentials, and without the machine's
    authorities: nobody here has a certificate of theirs, and each process would load them."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START", "HOLDFAST_NATIVE")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "SSL_CERT_FILE": os.devnull,
    }


def run_command(
    *arguments: str,
    seconds: float = 120.0,
    variables: dict[str, str] | None = None,
    output: TextIO | None = None,
    errors: TextIO | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `holdfast` with these arguments to its end; `variables` are added to its environment.

    Standard output goes to `output`, standard error to `errors`; by default they are returned.
    """
    line, own, given = command(*arguments), environment(), variables or {}
    if warm_starts.can_start(line, own, given):
        return warm_starts.run(
            line, own, given, folder=_CHECKOUT, stdout=output, stderr=errors, seconds=seconds
        )
    return subprocess.run(
        line,
        env={**own, **given},
        cwd=_CHECKOUT,
        stdout=output or subprocess.PIPE,
        stderr=errors or subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=False,
    )


class NodeProcess:
    """One service process over one data folder, which can be restarted on the same port: no other
    program is given it meanwhile."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        data: Path | None = None,
        credentials: Credentials | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """The log is in `folder`, and so is the data by default.

        `credentials` are an access key of an existing data folder; `variables` are added to the
        environment.
        """
        self.data = data or folder / "data"
        self.log = folder / "node.log"
        self.url = ""
        self._credentials = credentials
        self.options = options
        self._variables = variables or {}
        self.port = 0
        self._process: subprocess.Popen[str] | WarmProcess | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def credentials(self) -> Credentials:
        """The access key that the first start printed."""
        assert self._credentials is not None, "the first start printed no access key"
        return self._credentials

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def memory(self) -> int:
        """Bytes of memory that the process has to itself; on Linux only."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) << 10

    def start(self) -> Self:
        """Start and wait until the service is ready to answer."""
        assert not self.running
        if not self.port:
            (self.port,) = free_ports(1)
        with self.log.open("a") as log:
            self._process = self._started(log)
        self._lines = []
        self._reader = threading.Thread(target=self._read_lines, args=(self._process,), daemon=True)
        self._reader.start()
        self._wait_for_start(time.monotonic() + _START_S)
        return self

    def _started(self, log: TextIO) -> subprocess.Popen[str] | WarmProcess:
        line, own = self.command_line(), environment()
        if warm_starts.can_start(line, own, self._variables):
            return warm_starts.start(
                line, own, self._variables, folder=_CHECKOUT, stderr=log.fileno()
            )
        return subprocess.Popen(
            line,
            env={**own, **self._variables},
            cwd=_CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def stop(self, *, seconds: float = 180.0) -> None:
        """Ask for an orderly stop and insist on exit status 0."""
        process = self._signal(signal.SIGTERM)
        status = process.wait(timeout=seconds)
        self._forget()
        assert status == 0, f"exit status {status}\n{self.log_tail()}"

    def kill(self) -> None:
        """Kill the process without warning."""
        process = self._signal(signal.SIGKILL)
        process.wait(timeout=60)
        self._forget()

    def freeze(self) -> None:
        """Stop every thread where it is, as a power failure would; `kill` may follow.

        Threads that sleep in the kernel stay there.
        """
        freeze(self.pid)

    def resume(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process if it still runs, in any state, and those that it started, which would
        take seconds for an orderly end."""
        if self.running:
            started = self.processes()
            self.kill()
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until_s = time.monotonic() + _LEFT_S
            while any(map(_lives, started)) and time.monotonic() < until_s:
                time.sleep(0.02)
        self._forget()

    def processes(self) -> list[int]:
        """The processes that the service has started and that live, such as its workers."""
        return children_of(self.pid)

    def limit_descriptors(self, count: int) -> None:
        """Limit the process to this number of open files from now on."""
        assert self._process is not None
        _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (count, hard))

    def descriptors(self) -> int:
        """Number of open files of the process."""
        assert self._process is not None
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def output(self) -> str:
        """Standard output of the service since its last start."""
        with self._changed:
            return "\n".join(self._lines)

    def exports(self) -> dict[str, str]:
        """The variables that the last start printed for clients."""
        return dict(_EXPORT.findall(self.output()))

    def log_tail(self, lines: int = 30) -> str:
        """The end of the log, for failure reports."""
        if not self.log.is_file():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def command_line(self) -> list[str]:
        """The words that start the process."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--data", str(self.data)]
        return command("serve", *options, *self.options)

    def _signal(self, number: signal.Signals) -> subprocess.Popen[str] | WarmProcess:
        assert self._process is not None
        assert self._process.poll() is None, f"it had ended by itself\n{self.log_tail()}"
        self._process.send_signal(number)
        return self._process

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=60)
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._reader = None
        self._process = None

    def _read_lines(self, process: subprocess.Popen[str] | WarmProcess) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _wait_for_start(self, deadline: float) -> None:
        while not self._read_greeting():
            left = deadline - time.monotonic()
            if left <= 0 or not self.running:
                ended = None if self._process is None else self._process.poll()
                why = "the time is over" if ended is None else f"exit status {ended}"
                said = f"{self.output()}\n{self.log_tail()}"
                self.close()
                raise AssertionError(f"the service did not start, {why}:\n{said}")
            with self._changed:
                self._changed.wait(min(left, 0.1))

    def _read_greeting(self) -> bool:
        """Read URL and access key from the output so far; True once both are known."""
        text = self.output()
        listening = _LISTENING.search(text)
        exports = self.exports()
        if self._credentials is None and exports.keys() >= _EXPORTED:
            self._credentials = Credentials(
                exports["AWS_ACCESS_KEY_ID"],
                exports["AWS_SECRET_ACCESS_KEY"],
                exports["AWS_DEFAULT_REGION"],
            )
        if listening is None or (self._credentials is None and "open" not in self.options):
            return False
        self.url = listening[1]
        return True


def freeze(pid: int) -> None:
    """Stop every thread of a process where it is."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    while any(_state(thread) not in "TtD" for thread in threads.iterdir()):
        time.sleep(0.001)


def wait_until_gone(pid: int) -> None:
    """Wait until a killed process has ended; its parent may not have noticed yet."""
    process = Path(f"/proc/{pid}")
    with suppress(FileNotFoundError):
        while len(list((process / "task").iterdir())) > 1 or _state(process) != "Z":
            time.sleep(0.001)


def _state(thread: Path) -> str:
    """The kernel's letter for a thread's state: T is stopped, D sleeps on the disk."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found
