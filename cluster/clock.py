"""The only source of time and chance.

A shard's time starts at the wall clock, or at its last stamp if that is later, advances at the
speed of the monotonic clock, and slews towards the wall clock. It never turns back and never jumps,
so a leap of the wall clock neither ends visibility timeouts early nor hides messages for hours. A
leap of a minute or more is reported, and for ten minutes no message is removed because of it: the
clock may yet be corrected. The same holds after a start if the last stamp is at least a minute old;
that is not reported, since usually the machine was off.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

LEAP_S = 60.0
"""Difference between two clocks that counts as a leap."""
TRUST_AFTER_S = 600.0
"""Time for which a leap must last before retention trusts it."""
_DRIFT = 0.001
"""Drift between two sound clocks: an idle shard sees that of days at once, and it is no leap."""
_SLEW = 0.05
"""Relative speed at which a shard's clock may catch up with the wall clock."""


_PULSE_S = 1.0
"""Longer intervals end at multiples of this."""


def next_pulse(now_s: float, interval_s: float) -> float:
    """About one interval from now, when what is repeated as often is due, too: a moment that is a
    multiple of the interval, or of a second if that is less. To be woken is dearer for an idle
    process than most of what it then does."""
    step_s = min(interval_s, _PULSE_S)
    return round((now_s + interval_s) / step_s) * step_s


# A clock that continues while the machine sleeps, if there is one: then time has really passed.
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
        """The time on which retention may act, 0 for `now_ms`; earlier for ten minutes after a
        leap."""

    def continue_from(self, last_stamp_ms: int) -> None:
        """Note a starting shard's last stamp: time continues there if the wall clock is earlier."""

    def take_over(self, last_stamp_ms: int) -> None:
        """Begin anew at the wall clock, at this clock if it is earlier because the wall clock
        leapt, or at this stamp of another host if that is later."""

    @property
    def wall_s(self) -> Callable[[], float]:
        """Reads the machine's wall clock in epoch seconds."""

    @property
    def monotonic_s(self) -> Callable[[], float]:
        """Reads a clock for durations, in seconds."""


class Entropy(Protocol):
    """A source of chance."""

    @property
    def bits128(self) -> Callable[[], int]:
        """Gives 128 random bits for ids that need not be secret."""

    def secret(self, size: int) -> bytes:
        """Random bytes for keys."""


class SystemClock:
    """The machine's clocks; `wall` and `monotonic` give seconds, `on_leap` gets the size of each
    leap once."""

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
        """Lead of the wall clock over the shard's time at the latest reading."""
        self._doubted_until_s = 0.0
        """End of the time for which a leap is not trusted, on the monotonic clock."""
        self._trusted_ms = 0
        """The time on which retention may act while a leap is not trusted: the one before it."""
        self._was_continued = False

    def now_ms(self) -> int:
        """The shard's time in epoch milliseconds. Never decreases."""
        read_s = self.monotonic_s()
        elapsed_s = read_s - self._read_s
        self._read_s = read_s
        ahead_s = self.wall_s() - (self._now_s + elapsed_s)
        leap_s = ahead_s - self._ahead_s
        wanted_s = ahead_s
        if abs(leap_s) >= LEAP_S + elapsed_s * _DRIFT:
            self._doubt(int(self._now_s * 1000))
            self._on_leap(leap_s)
            wanted_s = self._ahead_s  # the leap may be a moment old
        slew_s = elapsed_s * _SLEW
        slewed_s = max(-slew_s, min(slew_s, wanted_s))
        self._ahead_s = ahead_s - slewed_s
        self._now_s += elapsed_s + slewed_s
        return int(self._now_s * 1000)

    def trusted_ms(self, now_ms: int) -> int:
        """The time on which retention may act, 0 for `now_ms`."""
        if not self._doubted_until_s:
            return 0
        if self._read_s >= self._doubted_until_s:
            self._doubted_until_s = 0.0
            return 0
        return min(self._trusted_ms, now_ms)

    def continue_from(self, last_stamp_ms: int) -> None:
        """Continue at the last stamp if the wall clock is earlier."""
        self.now_ms()
        is_start, self._was_continued = not self._was_continued, True
        if not last_stamp_ms:
            return
        ahead_s = self._now_s - last_stamp_ms / 1000
        if ahead_s <= -LEAP_S:
            self._doubt(last_stamp_ms)
            self._on_leap(ahead_s)
        elif ahead_s >= LEAP_S and is_start:
            # The machine was off, or its clock leapt: both look alike. This clock sees later leaps
            # itself.
            self._doubt(last_stamp_ms)
        if ahead_s < 0:
            self._now_s = last_stamp_ms / 1000
            self._ahead_s += ahead_s

    def take_over(self, last_stamp_ms: int) -> None:
        """Begin anew after another host led. Nothing was decided on this clock since, so it may
        turn back; it does not leap forward with the wall clock, since leases would end early."""
        self.now_ms()
        wall_s = self.wall_s()
        self._now_s = min(self._now_s, wall_s)
        self._ahead_s = wall_s - self._now_s
        self.continue_from(last_stamp_ms)

    def _doubt(self, trusted_ms: int) -> None:
        if not self._doubted_until_s:
            self._trusted_ms = trusted_ms
        self._doubted_until_s = self._read_s + TRUST_AFTER_S


class SystemEntropy:
    """The operating system's randomness; ids come from a generator that it seeds."""

    def __init__(self) -> None:
        self.bits128: Callable[[], int] = partial(random.Random(os.urandom(32)).getrandbits, 128)

    def secret(self, size: int) -> bytes:
        """Random bytes for keys."""
        return os.urandom(size)
