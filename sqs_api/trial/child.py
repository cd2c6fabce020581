"""Child: a process that is started again when it ends by itself, as systemd would."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cluster.clock import Clock
from sqs_api.trial.programs import Program

WRONG_USE = 2
"""Exit status of `holdfast` for wrong settings: another start would end the same way."""
PAUSE_S = 0.5
_PAUSE_S_MAX = 30.0
STABLE_S = 10.0
"""Time after which an end is not taken for the same fault as the one before."""
_PR_SET_PDEATHSIG = 1
_LINES_SHOWN = 3


class Child:
    """`start`, then `stop`."""

    def __init__(
        self,
        name: str,
        program: Program,
        log: Path,
        clock: Clock,
        say: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        """`say` gets a line for each end; `on_change` is called when the process is another."""
        self.name = name
        self.pid: int | None = None
        """None between an end and the next start."""
        self._program = program
        self._log = log
        self._clock = clock
        self._say = say
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Keep the process running; the task ends only with a process that cannot run."""
        self._task = asyncio.create_task(self._keep_running())
        return self._task

    async def stop(self, limit_s: float) -> None:
        """Ask the process to end, and kill it after the limit."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        # One that is stopped would not see the request to end. That comes last: a signal to a
        # process that has ended would take its status away from asyncio, which logs that.
        for number in (signal.SIGCONT, signal.SIGTERM):
            with suppress(ProcessLookupError):
                process.send_signal(number)
        try:
            async with asyncio.timeout(limit_s):
                await process.wait()
        except TimeoutError:
            self._say(f"{self.name} did not end within {limit_s:.0f} s and is killed")
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self.pid = None

    def last_lines(self) -> str:
        """The end of its log, for reports."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-_LINES_SHOWN:])

    async def _keep_running(self) -> None:
        pause_s = PAUSE_S
        while True:
            begun_s = self._clock.monotonic_s()
            await self._run()
            process = self._process
            assert process is not None
            self.pid = None
            self._on_change()
            is_stable = self._clock.monotonic_s() - begun_s > STABLE_S
            # etcd ends so after a fault of its own, too.
            if process.returncode == WRONG_USE and not is_stable:
                self._say(f"{self.name} cannot run: {self.last_lines()}")
                return
            if is_stable:
                pause_s = PAUSE_S
            self._say(
                f"{self.name} ended with {_shown(process.returncode)} and is started again in "
                f"{pause_s:g} s; its log is {self._log}"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _run(self) -> None:
        """One process to its end. A session of its own keeps the terminal's Ctrl-C from it."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._program.command,
                env=self._program.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.pid = self._process.pid
        self._on_change()
        await self._process.wait()


def _end_with_parent() -> None:
    """Linux ends the process when this one is killed; elsewhere it would go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _shown(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"status {status}"
