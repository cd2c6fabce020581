"""Periodic: work that a node repeats until it stops, and `in_slices` for long walks of it.

None is cancelled in its work, and a failure does not end one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import structlog

_Item = TypeVar("_Item")
Work = Callable[[], Awaitable[object] | None]


async def in_slices(items: Sequence[_Item], size: int) -> AsyncIterator[Sequence[_Item]]:
    """The items, `size` at a time; other work of the event loop runs in between."""
    for begin in range(0, len(items), size):
        if begin:
            await asyncio.sleep(0)
        yield items[begin : begin + size]


class Every(NamedTuple):
    """Work that is repeated every `period_s`, the first time after `first_s`; by default after one
    period."""

    period_s: float
    work: Work
    first_s: float | None = None


class Periodic:
    """The repeated work of a node. Belongs to the running event loop."""

    def __init__(self) -> None:
        self._stopping = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.get_logger("watches")

    def begin(self, repeated: Every) -> None:
        """Repeat this from now on."""
        period_s, work, first_s = repeated
        wait_s = period_s if first_s is None else first_s
        self._tasks.append(asyncio.create_task(self._run(period_s, work, wait_s)))

    async def _run(self, period_s: float, work: Work, wait_s: float) -> None:
        while not await self._stops_within(wait_s):
            wait_s = period_s
            try:
                under_way = work()
                if under_way is not None:
                    await under_way
            except Exception:
                self._log.exception("watch_failed", watch=getattr(work, "__name__", repr(work)))

    async def _stops_within(self, wait_s: float) -> bool:
        """Wait; whether the node began to stop before the time was over."""
        await asyncio.wait((self._stopping,), timeout=wait_s)  # without a task for each wait
        return self._stopping.done()

    def begin_to_stop(self) -> None:
        """Begin no more work."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def stop(self, patience_s: float) -> None:
        """Wait until all have ended; those that take longer are cancelled."""
        self.begin_to_stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=patience_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
