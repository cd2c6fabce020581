"""Event loops that never wait for a timer: time jumps to the next one once idle, or moves on
command."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial, wraps
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, ParamSpec, TypeVarTuple, Unpack

from auth.envelope import KEY_BYTES, WrappingKey
from cluster.keys.keyring import Secrets
from visibility.tests.prepared import START_MS

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


_JUMP_S_MAX = 24 * 3600.0
"""As asyncio waits at most."""
_TIMERS_MIN = 100
"""As asyncio forgets cancelled ones."""


class _Selector(selectors.SelectSelector):
    """Most loops have nothing registered but their own pipe, into which only threads write."""

    registered = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.registered += 1
        return super().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self.registered -= 1
        return super().unregister(fileobj)


def _nothing() -> None:
    """Stands for the callback of a cancelled timer."""


class _Soon(asyncio.Handle):
    """A handle that costs half of what asyncio's does: it never has a traceback of its maker."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Later(asyncio.TimerHandle):
    """The same of a timer."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __lt__ = ().__contains__  # False without a call of Python: their times are equal

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when, self._scheduled = when_s, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self._scheduled:
                self._loop._timer_cancelled_count += 1


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time begins at 0.

    Simulations spend much of their time here. So timers lie in the heap in pairs, which compare
    without a call of Python, and each pass is one function. The order of calls is asyncio's, also
    of those due at the same time.
    """

    _ready: deque[_Soon | _Later]
    _clock_resolution: float
    _closed: bool
    _timer_cancelled_count: int
    _stopping: bool
    _check_closed: Callable[[], None]
    _process_events: Callable[[list[tuple[selectors.SelectorKey, int]]], None]

    def __init__(self) -> None:
        self._polled = _Selector()
        super().__init__(self._polled)
        self._timers: list[tuple[float, _Later]] = []
        self._now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        when = self._now_s + delay  # `call_at`, written out: nothing is called more often
        handle = _Later(when, callback, args, self, context)
        heappush(self._timers, (when, handle))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        handle = _Later(when, callback, args, self, context)
        heappush(self._timers, (when, handle))
        return handle

    def close(self) -> None:
        self._timers.clear()
        super().close()

    def run_in_executor(self, *_: object) -> asyncio.Future[Any]:
        """Refused: time would jump past every time-out while the thread works."""
        raise NotImplementedError("no threads in virtual time; SteppedLoop waits for them")

    def _run_once(self) -> None:
        """All passes until the loop is to stop; see `BaseEventLoop`."""
        ready, timers, resolution_s = self._ready, self._timers, self._clock_resolution
        while True:
            cancelled = self._timer_cancelled_count
            if timers and (timers[0][1]._cancelled or cancelled * 2 > len(timers) > _TIMERS_MIN):
                self._forget_cancelled()
            if self._polled.registered > 1:
                self._process_events(self._polled.select(0))
            if not (ready or self._stopping):
                assert timers, "nothing will ever happen any more"
                wait_s = timers[0][0] - self._now_s
                if wait_s > 0:
                    self._now_s += wait_s if wait_s < _JUMP_S_MAX else _JUMP_S_MAX
            end_s = self._now_s + resolution_s
            while timers and timers[0][0] < end_s:
                handle = heappop(timers)[1]
                handle._scheduled = False
                ready.append(handle)
            for _ in range(len(ready)):
                due = ready.popleft()
                if not due._cancelled:
                    try:
                        due._context.run(due._callback, *due._args)  # `Handle._run`, written out
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._tell(error, due)
            if self._stopping:
                return

    def _tell(self, error: BaseException, failed: asyncio.Handle) -> None:
        told = {"message": f"Exception in {failed!r}", "exception": error, "handle": failed}
        self.call_exception_handler(told)

    def _forget_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > _TIMERS_MIN and self._timer_cancelled_count / len(timers) > 0.5:
            for _, handle in timers:
                handle._scheduled = not handle._cancelled
            timers[:] = [each for each in timers if not each[1]._cancelled]
            heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][1]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(timers)[1]._scheduled = False


def failures_of(loop: asyncio.AbstractEventLoop) -> list[object]:
    """Failures of the loop's callbacks and tasks from now on.

    The task of a process that a test killed may wait for ever: it goes with the garbage, at some
    time, and is no failure.
    """
    failures: list[object] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if "exception" in context:
            failures.append(context)

    loop.set_exception_handler(note)
    return failures


class _ThreadsSelector(selectors.SelectSelector):
    """Waits for threads, never for a timer."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(_THREAD_S)
        assert ready, "nothing will ever happen unless time passes"
        return ready


_THREAD_S = 60.0
"""Bound of a thread's work; nothing comes near it unless something hangs."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time begins at 0 and stands until `now_s` is moved, also while threads work for
    it."""

    def __init__(self) -> None:
        super().__init__(_ThreadsSelector())
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s


_ENDED_S = 60.0
"""Bound of the time, virtual, in which a cancelled task ends."""


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in virtual time."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*arguments, **named))
        finally:
            if left := asyncio.all_tasks(loop):  # of a failed test, whose garbage fails others
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=_ENDED_S))
            loop.close()

    return run


class LoopClock:
    """A shard's clock that shows the running loop's time."""

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000)

    def trusted_ms(self, now_ms: int) -> int:
        return 0

    def continue_from(self, last_stamp_ms: int) -> None:
        pass

    def take_over(self, last_stamp_ms: int) -> None:
        pass

    def wall_s(self) -> float:
        return self.now_ms() / 1000

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


class SettableClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms

    def trusted_ms(self, now_ms: int) -> int:
        return 0

    def continue_from(self, last_stamp_ms: int) -> None:
        pass

    def take_over(self, last_stamp_ms: int) -> None:
        pass

    def wall_s(self) -> float:
        return self.at_ms / 1000

    def monotonic_s(self) -> float:
        return self.at_ms / 1000


class CountingEntropy:
    """Chance that can be repeated: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self._drawn = 0

    def _next(self) -> int:
        self._drawn += 1
        return self._drawn

    @property
    def bits128(self) -> Callable[[], int]:
        return self._next

    def secret(self, size: int) -> bytes:
        return self._next().to_bytes(size, "big")


class SeededEntropy:
    """Chance that can be repeated, and differs for each seed."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self.bits128: Callable[[], int] = partial(self._random.getrandbits, 128)

    def secret(self, size: int) -> bytes:
        return self._random.randbytes(size)


def some_secrets() -> Secrets:
    """The keyring's secrets for a catalog, without a keyring."""
    return Secrets(WrappingKey(bytes(KEY_BYTES)), CountingEntropy())
