"""A claim on a folder of the lake, for one run at a time. Needs no shared clock and no locks.

A run writes a file of its own, "asking", and only then looks for others. So of two that start at
once, at least one sees the other, and a run that sees a live one gives up. Otherwise it writes
"holding". It rewrites the file every `beat_s` seconds. A claim is dead if its process has ended, on
this machine, or if its file has not changed for `dead_s` seconds.

`check` raises once a run has lost its claim, and trusts the last beat for `fresh_s` seconds. So a
run that was paused until another declared it dead finishes at most the step between two checks.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from spark_jobs.lib.job_failures import JobFailed
from storage.lake.table import Lake, LakeUnusable

_ASKING = "asking"
_HOLDING = "holding"


class Timing(NamedTuple):
    """Intervals. Invariant: beat_s < fresh_s < dead_s, with room for a slow lake in between."""

    beat_s: float = 5.0
    fresh_s: float = 10.0
    dead_s: float = 30.0
    look_s: float = 0.5


class Claim:
    """Held until the block ends. Raises JobFailed if another run has it, at first or in `check`."""

    def __init__(
        self,
        lake: Lake,
        folder: str,
        run: str,
        timing: Timing = Timing(),  # noqa: B008
    ) -> None:
        self._lake = lake
        self._folder = folder
        self._run = run
        self._timing = timing
        self._state = _ASKING
        self._beats = 0
        self._renewed_s = 0.0
        self._lost: str | None = None
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claim", daemon=True)

    def __enter__(self) -> Claim:
        try:
            self._renew()
            self._thread.start()
            self._take()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def check(self) -> None:
        """Raise JobFailed if this run has lost its claim."""
        if self._lost is None and time.monotonic() - self._renewed_s > self._timing.fresh_s:
            self._renew()
        if self._lost is not None:
            raise JobFailed(self._lost)

    def _take(self) -> None:
        for path, seen in self._others().items():
            if not self._is_dead(path, seen):
                raise JobFailed(f"another run is active ({_owner(seen)}): {self._folder}")
            self._lake.remove(path)
        self._state = _HOLDING
        self._renew()
        self.check()

    def _is_dead(self, path: str, seen: dict[str, object]) -> bool:
        is_here = _machine() != "" and seen.get("machine") == _machine()
        if is_here and not _is_running(seen.get("process")):
            return True
        deadline_s = time.monotonic() + self._timing.dead_s
        while time.monotonic() < deadline_s:
            self._ended.wait(self._timing.look_s)
            now = self._lake.read_json(path)
            if now is None:
                return True
            if now != seen:
                return False
        return True

    def _beat(self) -> None:
        while not self._ended.wait(self._timing.beat_s):
            with suppress(LakeUnusable):  # `check` tries again and raises
                self._renew()

    def _renew(self) -> None:
        with self._renewing:
            if self._ended.is_set():
                return
            begun_s = time.monotonic()
            self._beats += 1
            claim = {
                "state": self._state,
                "beat": self._beats,
                "machine": _machine(),
                "process": os.getpid(),
            }
            self._lake.write(self._path(), json.dumps(claim).encode())
            holders = [seen for seen in self._others().values() if seen.get("state") == _HOLDING]
            if self._state == _HOLDING and holders:
                self._lost = f"another run took over ({_owner(holders[0])}): {self._folder}"
            self._renewed_s = begun_s

    def _others(self) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}
        for file in self._lake.list(self._folder):
            seen = self._lake.read_json(file.path) if file.path != self._path() else None
            if isinstance(seen, dict):
                found[file.path] = seen
        return found

    def _path(self) -> str:
        return f"{self._folder}/{self._run}.json"

    def _leave(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._renewing, suppress(LakeUnusable):  # a leftover claim counts as dead
            self._lake.remove(self._path())


def _owner(seen: dict[str, object]) -> str:
    return f"process {seen.get('process')}"


def _machine() -> str:
    """An id of this machine, boot and container; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_running(process: object) -> bool:
    try:
        os.kill(int(str(process)), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True
