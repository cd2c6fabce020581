"""Time of a simulation: a wall clock that may stand or leap, and the shard's own time without its
leaps."""

from __future__ import annotations

import asyncio

from cluster.clock import SystemClock
from visibility.tests.prepared import START_MS

_TICK_S = 1e-8
"""Each reading is later than the one before, so that the history is in order."""


class WallClock:
    """The machine's clock: the loop's time unless it was set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._stands_at: float | None = None

    def time(self) -> float:
        """Epoch seconds."""
        now_s = START_MS / 1000 + asyncio.get_running_loop().time()
        return (now_s if self._stands_at is None else self._stands_at) + self.ahead_s

    def stand(self) -> None:
        """Stop the clock."""
        self._stands_at = self.time() - self.ahead_s

    def go_on(self) -> None:
        """Let it show the right time again, up to its leaps."""
        self._stands_at = None


class ShardTime:
    """Seconds of the shard's clock. A restart may set it forward, which counts, or back, which does
    not."""

    def __init__(self) -> None:
        self._clock: SystemClock | None = None
        self._last_ms = 0
        self._passed_ms = 0
        self._ticks = 0

    def follow(self, clock: SystemClock) -> float:
        """A shard began with this clock; returns the seconds by which it was set back."""
        self._clock = clock
        now_ms = clock.now_ms()
        by_ms = now_ms - self._last_ms if self._last_ms else 0
        self._passed_ms += max(0, by_ms)
        self._last_ms = now_ms
        return max(0, -by_ms) / 1000

    def end(self) -> None:
        """End the shard: time stands still until the next one."""
        self.read()
        self._clock = None

    def now_ms(self) -> int:
        """The shard's time in epoch milliseconds; 0 while there is no shard."""
        return self._clock.now_ms() if self._clock is not None else 0

    def read(self) -> float:
        """Seconds since the beginning."""
        if self._clock is not None:
            now_ms = self._clock.now_ms()
            self._passed_ms += max(0, now_ms - self._last_ms)
            self._last_ms = now_ms
        self._ticks += 1
        return self._passed_ms / 1000 + self._ticks * _TICK_S
