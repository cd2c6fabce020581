"""Schedule: runs the Spark jobs over the lake repeatedly, on one machine, each in its own
process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from cluster.clock import Clock
from sqs_api.settings.config import without_secrets
from storage.lake.lake_permissions import UMASK_VARIABLE

JOBS = [sys.executable, "-EP", "-m", "spark_jobs"]
"""Isolated as `holdfast` is, see `sqs_api.__main__`."""
_JOBS = ("archive", "queue-age")
_RUN_S_MAX = 12 * 3600.0
"""A job that hangs is ended then, so that it does not hold the schedule for ever. The next run does
the rest."""
_END_S = 5.0
_LINES_KEPT = 3


class Schedule:
    """Each job is a group of processes, which end together."""

    def __init__(
        self,
        lake: str,
        data: Path,
        clock: Clock,
        umask: str,
        is_ours: Callable[[], bool],
    ) -> None:
        """`data` has this service's note, from which the archive job takes address and key;
        `umask` is that of the lake. `is_ours` is False while another host of the cluster runs the
        jobs."""
        self._is_ours = is_ours
        self._options = ("--lake", lake, "--data", str(data))
        self._variables = {UMASK_VARIABLE: umask}
        self._clock = clock
        self._log = structlog.get_logger("schedule")
        self._process: asyncio.subprocess.Process | None = None
        self._ends: asyncio.Future[tuple[bytes, bytes]] | None = None
        """Comes once no process of the job is left."""

        self._is_stopping = False
        self.runs: dict[tuple[str, str], int] = {}
        """By job and outcome, "done" or "failed"."""
        self.took_s: dict[str, float] = {}
        """Duration of a job's last run."""

    async def run(self) -> None:
        """All jobs, one after the other.

        A failure is logged; the next run does the rest.
        """
        for job in _JOBS:
            if not self._is_stopping and self._is_ours():
                await self._run(job)

    async def look(self) -> None:
        """End the job that runs here while another host runs the jobs."""
        if not self._is_ours():
            await self._end()

    async def _run(self, job: str) -> None:
        begun_s = self._clock.monotonic_s()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *JOBS,
            job,
            *self._options,
            env=without_secrets() | self._variables,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        self._ends = ends = asyncio.ensure_future(process.communicate())
        if self._is_stopping:  # since before there was a process to end
            await self._end()
        done, _ = await asyncio.wait([ends], timeout=_RUN_S_MAX)
        if not done:
            self._log.error("job_hangs", job=job, seconds=_RUN_S_MAX)
            await self._end()
        output, errors = await ends
        if self._is_stopping:
            return
        if not self._is_ours():
            self._log.info("job_left_to_the_next_leader", job=job)
            return
        took_s = self.took_s[job] = round(self._clock.monotonic_s() - begun_s, 1)
        outcome = "failed" if process.returncode else "done"
        self.runs[job, outcome] = self.runs.get((job, outcome), 0) + 1
        said = output.decode(errors="replace").strip()
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()[-_LINES_KEPT:]
            self._log.error(
                "job_failed", job=job, status=process.returncode, said=said, errors=lines
            )
        else:
            self._log.info("job_done", job=job, said=said, seconds=took_s)

    async def stop(self) -> None:
        """End the job that runs: it may be killed at any time."""
        self._is_stopping = True
        await self._end()

    async def _end(self) -> None:
        if self._process is None or self._ends is None or self._ends.done():
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        ended, _ = await asyncio.wait([self._ends], timeout=_END_S)
        if not ended:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
