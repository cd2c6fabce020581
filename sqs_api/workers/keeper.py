"""Keeper: has the processes of the workers, and replaces each that ends by a process that waits for
that.

A worker that stands still would keep its share of the connections and of the queues waiting for
ever, so it is ended. The times between looks are the supervisor's own: if the machine slept, or had
no time for it, all of that is one look.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import structlog

from sqs_api.workers.conversation import Close, Stop
from sqs_api.workers.pair_network import SocketKind
from sqs_api.workers.worker_process import WorkerProcess

_DRAIN_S = 12.0
"""Time for all workers to answer their last requests: a little more than each waits by itself."""
_END_S = 15.0
"""Time for a worker to close its shards."""
_STEADY_S = 5.0
"""A worker that lived as long is replaced at once; others after a pause that grows."""
_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0
_LOOK_S, _SILENT_LOOKS = 5.0, 6
"""A worker that does not answer at six looks in a row is ended."""
_STARTING_LOOKS = 60
"""The same for one that starts: it reads its code and all queues in one go each."""


class WorkerRefused(Exception):
    """A worker cannot start; the text says why in one line."""


class Keeper:
    """`begin`, `keep_once_ready`; `stop`."""

    def __init__(
        self,
        begun: Sequence[asyncio.Task[WorkerProcess]],
        give: Callable[[WorkerProcess, int], None],
        name_of: Callable[[int], str],
        on_removed: Callable[[], None],
    ) -> None:
        """`begun` are the processes of the first workers, and a spare. `give` makes a process the
        worker with a number, whose name among the others is `name_of`. `on_removed` is called when
        all workers were removed from their clusters."""
        self._begun = begun
        self._give = give
        self._name_of = name_of
        self._on_removed = on_removed
        self._workers: dict[int, WorkerProcess] = {}
        self._spare: asyncio.Task[WorkerProcess] | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._log = structlog.get_logger("supervisor")

    @property
    def has_workers(self) -> bool:
        """True once there are some."""
        return bool(self._workers)

    async def begin(self) -> list[WorkerProcess]:
        """The first workers, which start now. Raises OSError."""
        *first, self._spare = self._begun
        begun = await asyncio.gather(*first)
        for number, worker in enumerate(begun):
            self._put(worker, number)
        return begun

    async def keep_once_ready(self, *numbers: int) -> None:
        """Replace workers that end: these once they answer requests, all others from now on. Raises
        WorkerRefused as soon as one of these ends before, or stands still."""
        self._keep_these(self._workers.keys() - {*numbers})
        await asyncio.gather(*map(self._first_ready, numbers))
        self._keep_these(numbers)

    def _keep_these(self, numbers: Iterable[int]) -> None:
        self._keeping += [
            asyncio.create_task(self._keep(number, self._workers[number])) for number in numbers
        ]

    async def _first_ready(self, number: int) -> None:
        worker = self._workers[number]
        watching = asyncio.create_task(self._watch(number, worker))
        try:
            await worker.ready.wait()
        finally:
            watching.cancel()
        if worker.ended.is_set() or worker.process.returncode is not None:
            status = worker.process.returncode
            raise WorkerRefused(worker.refusal or f"a worker ended with status {status}")

    def pass_on(self, source: str, target: str, kind: SocketKind, end: socket.socket) -> None:
        """Give a socket of one worker to the one named `target`."""
        for number, worker in self._workers.items():
            if self._name_of(number) == target:
                worker.give(source, kind, end)

    # -- one worker after another ------------------------------------------------------------------

    def _put(self, worker: WorkerProcess, number: int) -> None:
        self._workers[number] = worker
        self._give(worker, number)

    async def _keep(self, number: int, worker: WorkerProcess) -> None:
        """Replace the worker with this number each time it ends."""
        loop = asyncio.get_running_loop()
        pause_s, begun_s = _PAUSE_S, loop.time()
        while True:
            watching = asyncio.create_task(self._watch(number, worker))
            try:
                await worker.ended.wait()
            finally:
                watching.cancel()
            if self._is_stopping:
                return
            if worker.is_removed:
                self._removed(number)
                return
            self._log.error(
                "worker_ended",
                worker=number,
                pid=worker.process.pid,
                status=worker.process.returncode,
                reason=worker.refusal or None,
                means="its shards answer again in a moment; requests for them wait meanwhile",
                action="none if it happens once; else see the lines before this one",
            )
            if loop.time() - begun_s < _STEADY_S:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                pause_s = _PAUSE_S
            begun_s = loop.time()
            worker = await self._next()
            self._put(worker, number)

    async def _watch(self, number: int, worker: WorkerProcess) -> None:
        """End the worker if it stands still."""
        silent, was_ready = 0, False
        while silent < (_SILENT_LOOKS if was_ready else _STARTING_LOOKS):
            worker.ask()
            await asyncio.sleep(_LOOK_S)
            is_ready = worker.ready.is_set()
            silent = silent + 1 if worker.is_silent and is_ready == was_ready else 0
            was_ready = is_ready
        self._log.error(
            "worker_stands_still",
            worker=number,
            pid=worker.process.pid,
            means=f"it answered nothing for {_LOOK_S * silent:g} s and is replaced",
            action="none if it happens once; else tell us what it did",
        )
        with suppress(ProcessLookupError):
            worker.process.kill()

    def _removed(self, number: int) -> None:
        del self._workers[number]
        self._log.warning("worker_removed", worker=number)
        if not self._workers:
            self._on_removed()

    def _prepare_spare(self) -> None:
        """Start a process that waits to take a worker's place: to read its code takes longest."""
        self._spare = asyncio.create_task(WorkerProcess.begin())

    async def _next(self) -> WorkerProcess:
        """The spare process, or a new one; tries again while the system has no room for one."""
        while True:
            spare, self._spare = self._spare, None
            try:
                worker = await (spare or asyncio.create_task(WorkerProcess.begin()))
            except OSError as error:
                self._log.error("worker_not_started", reason=error.strerror or str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if not worker.ended.is_set():
                self._prepare_spare()
                return worker

    # -- stop --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Have the workers finish their requests, all of them before any closes its shards."""
        self._is_stopping = True
        for task in self._keeping:
            task.cancel()
        workers = list(self._workers.values())
        for worker in workers:
            worker.conversation.send(Stop())
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await asyncio.gather(*(worker.drained.wait() for worker in workers))
        for worker in workers:
            worker.conversation.send(Close())
        await asyncio.gather(*(self._end(worker) for worker in workers), self._end_unused())

    async def _end(self, worker: WorkerProcess) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.ended.wait(), _END_S)
        await worker.end(0.0)

    async def _end_unused(self) -> None:
        unused = [*self._begun, *([self._spare] if self._spare is not None else [])]
        for process in await asyncio.gather(*unused, return_exceptions=True):
            if isinstance(process, WorkerProcess) and not process.ended.is_set():
                await process.end(0.0)
