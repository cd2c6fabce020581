"""Keeper: workers that end or stand still are replaced."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cluster.tests.virtual_time import virtual
from sqs_api.workers.keeper import Keeper
from sqs_api.workers.pair_network import worker_name
from sqs_api.workers.worker_process import WorkerProcess


class _Process:
    """A worker's process, which ends when it is killed."""

    pid = 17

    def __init__(self, worker: _Worker) -> None:
        self.returncode: int | None = None
        self._worker = worker

    def kill(self) -> None:
        self.returncode = -9
        self._worker.ended.set()


class _Worker:
    """See `WorkerProcess`."""

    refusal = ""
    is_removed = False

    def __init__(self) -> None:
        self.process = _Process(self)
        self.ready, self.drained, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.stands_still = False
        self.is_silent = False

    def ask(self) -> None:
        self.is_silent = self.stands_still


class _Workers:
    """A keeper of two workers and a spare."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[int, _Worker]] = []
        self.hang_at_start = False
        monkeypatch.setattr(WorkerProcess, "begin", self._begin)
        begun = [asyncio.ensure_future(self._begin()) for _ in range(3)]
        self.keeper = Keeper(begun, self._give, worker_name, lambda: None)

    async def _begin(self) -> Any:
        return _Worker()

    def _give(self, worker: WorkerProcess, number: int) -> None:
        given = cast(_Worker, worker)
        given.stands_still = self.hang_at_start
        if not self.hang_at_start:
            given.ready.set()
        self.given.append((number, given))

    async def begin(self) -> list[_Worker]:
        begun = await self.keeper.begin()
        self.keeper.keep()
        return cast(list[_Worker], begun)


@virtual
async def test_a_worker_that_stands_still_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections and queues would wait for ever; the others are left alone."""
    workers = _Workers(monkeypatch)
    first, second = await workers.begin()
    await asyncio.sleep(100)
    assert [number for number, _ in workers.given] == [0, 1]

    second.stands_still = True
    await asyncio.sleep(25)
    assert not second.ended.is_set()
    await asyncio.sleep(10)

    assert second.process.returncode == -9
    assert first.process.returncode is None
    assert [number for number, _ in workers.given] == [0, 1, 1]


@virtual
async def test_a_worker_that_goes_on_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = _Workers(monkeypatch)
    first, _ = await workers.begin()

    for _ in range(5):
        first.stands_still = True
        await asyncio.sleep(20)
        first.stands_still = False
        await asyncio.sleep(20)

    assert first.process.returncode is None
    assert len(workers.given) == 2


@virtual
async def test_a_worker_that_hangs_at_its_start_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has longer: some of a start is done in one go."""
    workers = _Workers(monkeypatch)
    _, second = await workers.begin()
    await asyncio.sleep(10)

    workers.hang_at_start = True
    second.process.kill()
    await asyncio.sleep(100)
    assert [number for number, _ in workers.given] == [0, 1, 1]
    workers.hang_at_start = False
    await asyncio.sleep(220)

    assert [number for number, _ in workers.given] == [0, 1, 1, 1]
    assert workers.given[2][1].process.returncode == -9
    await asyncio.sleep(1000)
    assert len(workers.given) == 4


@virtual
async def test_a_worker_that_has_just_started_gets_the_time_of_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its silence while it started counts no more, also if it has not answered since."""
    workers = _Workers(monkeypatch)
    _, second = await workers.begin()
    await asyncio.sleep(10)
    workers.hang_at_start = True
    second.process.kill()
    await asyncio.sleep(100)
    _, later = workers.given[-1]

    later.ready.set()
    await asyncio.sleep(20)
    later.stands_still = False
    await asyncio.sleep(1000)

    assert later.process.returncode is None
