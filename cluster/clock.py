"""The only source of time and chance.

A shard's time starts at the wall clock, or at the last stamp it gave if that is later, goes on at the speed of the
monotonic clock, and slews towards the wall clock: it never turns back and never jumps, so neither a leap of the wall clock
ends visibility timeouts early nor does it hide messages for hours.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

_SLEW = 0.05
"""How much faster or slower than real time a shard's clock may run to catch up with the wall clock."""


class Clock(Protocol):
    """Time for a shard and for signatures."""

    def now_ms(self) -> int:
        """The shard's time in epoch milliseconds. Never decreases."""

    @property
    def wall_s(self) -> Callable[[], float]:
        """Reads the machine's wall clock in epoch seconds."""

    @property
    def monotonic_s(self) -> Callable[[], float]:
        """Reads a clock for durations, in seconds."""


class Entropy(Protocol):
    """Chance."""

    @property
    def bits128(self) -> Callable[[], int]:
        """Gives 128 random bits for ids that need not be secret."""

    def secret(self, size: int) -> bytes:
        """Random bytes for keys."""


class SystemClock:
    """The machine's clocks; `wall` and `monotonic` give seconds."""

    def __init__(
        self,
        last_stamp_ms: int = 0,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wall_s = wall
        self.monotonic_s = monotonic
        self._read_s = monotonic()
        self._now_s = max(wall(), last_stamp_ms / 1000)

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        read_s = self.monotonic_s()
        elapsed_s = read_s - self._read_s
        self._read_s = read_s
        ahead_s = self.wall_s() - (self._now_s + elapsed_s)
        slew_s = elapsed_s * _SLEW
        self._now_s += elapsed_s + max(-slew_s, min(slew_s, ahead_s))
        return int(self._now_s * 1000)


class SystemEntropy:
    """The operating system's randomness; ids come from a generator that it seeds."""

    def __init__(self) -> None:
        self.bits128: Callable[[], int] = partial(random.Random(os.urandom(32)).getrandbits, 128)

    def secret(self, size: int) -> bytes:
        """See `Entropy.secret`."""
        return os.urandom(size)
