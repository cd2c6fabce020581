"""Periodic: work that a node repeats until it stops, and `in_slices` for long walks of it.

None is cancelled in its work, and a failure does not end one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import structlog

from cluster.clock import next_pulse

_EARLY_S = 0.001
"""A loop may wake so much too early, and a wake-up more would be dearer."""
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


class _Repeated:
    """One work, and when it is due next."""

    __slots__ = ("due_s", "period_s", "task", "work")

    def __init__(self, repeated: Every, now_s: float) -> None:
        self.period_s, self.work, first_s = repeated
        wait_s = self.period_s if first_s is None else first_s
        self.due_s = next_pulse(now_s, wait_s) if wait_s else now_s
        self.task: asyncio.Task[None] | None = None
        """The work under way, if it is more than a call."""


class Periodic:
    """The repeated work of a node.

    Much of it begins in one pass of the loop, see `next_pulse`. Between the end of a work and its
    next begin is a half of its period at least.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._repeated: list[_Repeated] = []
        self._timer: asyncio.Handle | None = None
        self._wakes_s = 0.0
        """When the timer ends. uvloop's handle of what is due at once does not tell."""
        self._is_stopping = False
        self._log = structlog.get_logger("watches")

    def begin(self, repeated: Every) -> None:
        """Repeat this from now on."""
        self._repeated.append(_Repeated(repeated, self._loop.time()))
        self._plan()

    def _plan(self) -> None:
        """Wake for what is due next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        resting = [each.due_s for each in self._repeated if each.task is None]
        if resting and not self._is_stopping:
            self._wakes_s = min(resting)
            self._timer = self._loop.call_at(self._wakes_s, self._wake)

    def _wake(self) -> None:
        due_s = self._loop.time() + _EARLY_S
        for each in self._repeated:
            if each.task is None and each.due_s <= due_s:
                self._start(each)
        self._plan()

    def _start(self, each: _Repeated) -> None:
        try:
            under_way = each.work()
        except Exception:
            self._failed(each)
            under_way = None
        if under_way is None:
            self._rest(each)
        else:
            each.task = self._loop.create_task(self._finish(each, under_way))

    async def _finish(self, each: _Repeated, under_way: Awaitable[object]) -> None:
        try:
            await under_way
        except Exception:
            self._failed(each)
        each.task = None
        self._rest(each)
        if self._timer is None or each.due_s < self._wakes_s:
            self._plan()

    def _rest(self, each: _Repeated) -> None:
        each.due_s = next_pulse(self._loop.time(), each.period_s)

    def _failed(self, each: _Repeated) -> None:
        name = getattr(each.work, "__name__", repr(each.work))
        self._log.exception("watch_failed", watch=name)

    def begin_to_stop(self) -> None:
        """Begin no more work."""
        self._is_stopping = True
        self._plan()

    async def stop(self, patience_s: float) -> None:
        """Wait until all have ended; those that take longer are cancelled."""
        self.begin_to_stop()
        tasks = [each.task for each in self._repeated if each.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=patience_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
