"""Measures: the numbers of a process itself: delays of its event loop, leaps of the clock, syncs of
its logs."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from storage.histogram import SYNC_BOUNDS_S, Histogram

STALL_CHECK_S = 0.1
_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_STALL_S = 1.0


class StallWatch:
    """Wakes ten times a second and measures the delay of the event loop, which every request
    shares."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._log = structlog.get_logger("loop")
        self.late_s = Histogram(_BOUNDS_S)
        self._looked_at_s = 0.0
        self.longest_s = 0.0
        """The longest delay since the start."""

    def look(self) -> None:
        """Measure the delay; to be called every `STALL_CHECK_S`."""
        now_s = self._now_s()
        if self._looked_at_s:
            self.note(max(0.0, now_s - self._looked_at_s - STALL_CHECK_S))
        self._looked_at_s = now_s

    def note(self, late_s: float) -> None:
        """Count a delay."""
        self.late_s.observe(late_s)
        self.longest_s = max(self.longest_s, late_s)
        if late_s >= _STALL_S:
            self._log.warning("loop_stalled", late_s=round(late_s, 3))


class Measures:
    """Belongs to the event loop's thread, but for `sync_s`."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.stalls = StallWatch(monotonic_s)
        self.sync_s = Histogram(SYNC_BOUNDS_S)
        """Times of syncs of the logs."""
        self.clock_leaps = 0

    def clock_leapt(self, leap_s: float) -> None:
        """Count a leap of the wall clock."""
        self.clock_leaps += 1
        structlog.get_logger("node").warning("clock_leapt", leap_s=round(leap_s, 3))
