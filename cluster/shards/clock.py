"""The only source of time and chance.

A shard's time starts at the wall clock, or at the last stamp it gave if that is later, goes on at the speed of the
monotonic clock, and slews towards the wall clock: it never turns back and never jumps, so neither a leap of the wall clock
ends visibility timeouts early nor does it hide messages for hours. A leap of a minute or more is reported, and for ten
minutes nothing is removed for its age because of it: somebody may yet set the clock right. So it is after a start when the
last stamp is a minute old or more; that is not reported, since most often the machine was off.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

LEAP_S = 60.0
"""A difference between two clocks from which on it is a leap."""
TRUST_AFTER_S = 600.0
"""How long a leap must last before retention believes it."""
_DRIFT = 0.001
"""How much two sound clocks may drift apart: a shard that was idle for days sees all of it at once, and it is no leap."""
_SLEW = 0.05
"""How much faster or slower than real time a shard's clock may run to catch up with the wall clock."""


# A clock that goes on while the machine sleeps, where there is one: then time has really passed.
_monotonic: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Clock(Protocol):
    """Time for a shard and for signatures."""

    def now_ms(self) -> int:
        """The shard's time in epoch milliseconds. Never decreases."""

    def trusted_ms(self, now_ms: int) -> int:
        """The time that retention may act on, 0 for `now_ms`: less for ten minutes after a leap of the wall clock."""

    def continue_from(self, last_stamp_ms: int) -> None:
        """A shard begins that gave this stamp last: its time goes on from there if the wall clock shows less."""

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
    """The machine's clocks; `wall` and `monotonic` give seconds, `on_leap` is told once how far the wall clock leapt."""

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = _monotonic,
        on_leap: Callable[[float], None] = lambda leap_s: None,
    ) -> None:
        self.wall_s = wall
        self.monotonic_s = monotonic
        self._on_leap = on_leap
        self._read_s = monotonic()
        self._now_s = wall()
        self._ahead_s = 0.0
        """How far the wall clock was ahead of the shard's time at the latest reading."""
        self._doubted_until_s = 0.0
        """Until then, on the monotonic clock, a leap is not believed."""
        self._trusted_ms = 0
        """What retention may act on while a leap is not believed: the time before it."""
        self._was_continued = False

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        read_s = self.monotonic_s()
        elapsed_s = read_s - self._read_s
        self._read_s = read_s
        ahead_s = self.wall_s() - (self._now_s + elapsed_s)
        leap_s = ahead_s - self._ahead_s
        if abs(leap_s) >= LEAP_S + elapsed_s * _DRIFT:
            self._doubt(int(self._now_s * 1000))
            self._on_leap(leap_s)
        slew_s = elapsed_s * _SLEW
        slewed_s = max(-slew_s, min(slew_s, ahead_s))
        self._ahead_s = ahead_s - slewed_s
        self._now_s += elapsed_s + slewed_s
        return int(self._now_s * 1000)

    def trusted_ms(self, now_ms: int) -> int:
        """See `Clock.trusted_ms`."""
        if not self._doubted_until_s:
            return 0
        if self._read_s >= self._doubted_until_s:
            self._doubted_until_s = 0.0
            return 0
        return min(self._trusted_ms, now_ms)

    def continue_from(self, last_stamp_ms: int) -> None:
        """See `Clock.continue_from`."""
        self.now_ms()
        is_start, self._was_continued = not self._was_continued, True
        if not last_stamp_ms:
            return
        ahead_s = self._now_s - last_stamp_ms / 1000
        if ahead_s <= -LEAP_S:
            self._doubt(last_stamp_ms)
            self._on_leap(ahead_s)
        elif ahead_s >= LEAP_S and is_start:
            # The machine was off, or its clock leapt meanwhile: nobody can tell which. Later this clock itself was there.
            self._doubt(last_stamp_ms)
        if ahead_s < 0:
            self._now_s = last_stamp_ms / 1000
            self._ahead_s += ahead_s

    def _doubt(self, trusted_ms: int) -> None:
        if not self._doubted_until_s:
            self._trusted_ms = trusted_ms
        self._doubted_until_s = self._read_s + TRUST_AFTER_S


class SystemEntropy:
    """The operating system's randomness; ids come from a generator that it seeds."""

    def __init__(self) -> None:
        self.bits128: Callable[[], int] = partial(random.Random(os.urandom(32)).getrandbits, 128)

    def secret(self, size: int) -> bytes:
        """See `Entropy.secret`."""
        return os.urandom(size)
