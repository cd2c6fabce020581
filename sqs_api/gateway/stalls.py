"""Delays of the event loop, which every request shares."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from storage.histogram import Histogram

STALL_CHECK_S = 0.1
_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_STALL_S = 1.0


class StallWatch:
    """Wakes ten times a second and measures the delay."""

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
