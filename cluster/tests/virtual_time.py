"""Event loops that never wait for a timer: time jumps to the next one once idle, or moves on
command."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from random import Random
from typing import Any, ParamSpec

from auth.envelope import KEY_BYTES, WrappingKey
from cluster.keys.keyring import Secrets
from visibility.tests.prepared import START_MS

P = ParamSpec("P")


class _JumpingSelector(selectors.SelectSelector):
    """Polls for ready events, and lets time pass instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Most loops have nothing registered but their own pipe, into which only threads write.
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if not ready:
            assert timeout is not None, "nothing will ever happen any more"
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(self, *_: object) -> asyncio.Future[Any]:
        """Refused: time would jump past every time-out while the thread works."""
        raise NotImplementedError("no threads in virtual time; SteppedLoop waits for them")


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
