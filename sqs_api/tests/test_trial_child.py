"""A process of a trial cluster: it is started again, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.clock import SystemClock
from sqs_api.trial import child
from sqs_api.trial.child import Child
from sqs_api.trial.programs import Program

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
WAITS = "echo begun; exec sleep 600"
IGNORES = "trap '' TERM; echo begun; while :; do sleep 600 & wait $!; done"


class Watched:
    """A child, what was said of it, and the processes that it was."""

    def __init__(self, folder: Path, script: str) -> None:
        self.said: list[str] = []
        self.pids: list[int] = []
        self.log = folder / "x.log"
        program = Program(["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]})
        self.child = Child(
            "x", program, self.log, SystemClock(), self.said.append, self._note_process
        )

    def _note_process(self) -> None:
        if self.child.pid is not None:
            self.pids.append(self.child.pid)

    async def begun(self, times: int) -> None:
        """Wait until the program has begun for this time, and its process is known."""
        await until(lambda: len(self.pids) >= times)
        await until(lambda: self.log.read_text().count("begun") >= times)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_killed_process_is_started_again_and_reported(tmp_path: Path) -> None:
    watched = Watched(tmp_path, WAITS)
    watched.child.start()
    await watched.begun(1)

    os.kill(watched.pids[0], signal.SIGKILL)
    await watched.begun(2)

    assert len(set(watched.pids)) == 2
    assert watched.child.pid == watched.pids[1]
    assert watched.said == [
        f"x ended with signal SIGKILL and is started again in 0.5 s; its log is {watched.log}"
    ]
    await watched.child.stop(LIMIT_S)
    assert all(map(is_gone, watched.pids))
    assert watched.child.pid is None


async def test_a_process_that_ends_again_at_once_is_given_more_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "echo begun; exit 1")
    watched.child.start()

    await until(lambda: len(watched.said) >= 2)

    waited = [line.split("started again in ")[1].split(";")[0] for line in watched.said[:2]]
    assert waited == ["0.5 s", "1 s"]
    assert "ended with status 1" in watched.said[0]
    await watched.child.stop(LIMIT_S)


async def test_wrong_settings_are_reported_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "echo 'port: is wrong'; exit 2")

    async with asyncio.timeout(LIMIT_S):
        await watched.child.start()

    assert watched.said == ["x cannot run: port: is wrong"]
    assert len(watched.pids) == 1
    await watched.child.stop(LIMIT_S)


async def test_a_process_that_ran_is_started_again_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "STABLE_S", 0.0)
    watched = Watched(tmp_path, "echo begun; exit 2")
    watched.child.start()
    await watched.begun(2)
    assert "ended with status 2" in watched.said[0]
    await watched.child.stop(LIMIT_S)


async def test_a_process_that_is_stopped_by_a_signal_ends_all_the_same(tmp_path: Path) -> None:
    watched = Watched(tmp_path, WAITS)
    watched.child.start()
    await watched.begun(1)
    os.kill(watched.pids[0], signal.SIGSTOP)

    await watched.child.stop(LIMIT_S)

    assert is_gone(watched.pids[0])
    assert watched.said == []


async def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    watched = Watched(tmp_path, IGNORES)
    watched.child.start()
    await watched.begun(1)

    await watched.child.stop(0.05)

    assert is_gone(watched.pids[0])
    assert watched.said == ["x did not end within 0 s and is killed"]


async def test_no_process_begins_after_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "PAUSE_S", 3600.0)  # it is stopped during the pause
    watched = Watched(tmp_path, "echo begun; exit 1")
    watched.child.start()
    await until(lambda: len(watched.said) == 1)

    await watched.child.stop(LIMIT_S)

    assert watched.child.pid is None
    assert len(watched.pids) == 1
