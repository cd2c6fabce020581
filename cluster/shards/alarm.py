"""Alarm: a shard's one timer, set to its next deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `on_time` at the earliest deadline it was set to."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Go off at this time too; None for never."""
        if at_ms is None or (self._timer is not None and self._at_ms <= at_ms):
            return
        self.cancel()
        self._at_ms = at_ms
        delay_s = max(0, at_ms - now_ms) / 1000 + 0.0005
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_off)

    def cancel(self) -> None:
        """Do not go off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._on_time()
