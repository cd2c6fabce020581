"""Keeper: workers that end or stand still are replaced."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cluster.tests.virtual_time import virtual
from sqs_api.workers.keeper import Keeper, WorkerRefused
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
        for event in (self._worker.ready, self._worker.drained, self._worker.ended):
            event.set()


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
        await self.keeper.keep_once_ready(0, 1)
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
async def test_a_worker_that_was_long_silent_is_left_alone_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says that before it answers what it was asked meanwhile."""
    workers = _Workers(monkeypatch)
    _, second = await workers.begin()
    workers.hang_at_start = True
    second.process.kill()
    await asyncio.sleep(100)
    third = workers.given[-1][1]
    third.ready.set()
    await asyncio.sleep(5)
    third.stands_still = False
    await asyncio.sleep(100)

    assert third.process.returncode is None


@virtual
async def test_a_first_worker_that_ends_or_hangs_at_its_start_ends_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while another one waits for it."""
    for reason in ("it ends", "it hangs"):
        workers = _Workers(monkeypatch)
        workers.hang_at_start = True
        _, second = await workers.keeper.begin()
        starting = asyncio.ensure_future(workers.keeper.keep_once_ready(0, 1))
        await asyncio.sleep(1)
        if reason == "it ends":
            cast(_Worker, second).process.kill()
        with pytest.raises(WorkerRefused, match="a worker ended with status -9"):
            await asyncio.wait_for(starting, 400)
        assert len(workers.given) == 2


@virtual
async def test_other_workers_are_replaced_while_the_first_one_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = _Workers(monkeypatch)
    workers.hang_at_start = True
    first, second = cast(list[_Worker], await workers.keeper.begin())
    starting = asyncio.ensure_future(workers.keeper.keep_once_ready(0))
    await asyncio.sleep(1)
    second.process.kill()
    await asyncio.sleep(1)
    assert [number for number, _ in workers.given] == [0, 1, 1]

    first.ready.set()
    await starting
    first.process.kill()
    await asyncio.sleep(1)
    assert [number for number, _ in workers.given] == [0, 1, 1, 0]
