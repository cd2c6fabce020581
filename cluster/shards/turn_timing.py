"""When a Turn runs: with the requests that are just coming, and at deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURN_REQUESTS_MAX = 512
"""Requests of one Turn; bounds the time for which the event loop is held."""
PASSES_MAX = 4
"""Passes of the event loop for which a Turn waits."""


class TurnBatching:
    """Lets a Turn wait for requests that are just coming.

    An Entry costs as much as several requests: a sync, and its way to another thread and back; with
    peers as much as some thirty, for their writes and answers. The requests that the last Entry's
    answers cause take several passes of the event loop to read, so a Turn at the first of them
    would decide few.
    """

    def __init__(self, run_turn: Callable[[], None], *, lone_waits: bool) -> None:
        """Unless `lone_waits`, a request that comes alone after a Turn with no others is decided at
        once: where one client asks at a time, nothing follows."""
        self._run_turn = run_turn
        self._lone_waits = lone_waits
        self._seen = self._passes = self._latest = 0

    def goes_on(self, waiting: int) -> bool:
        """True if this pass brought requests: `run_turn` is called again in the next one."""
        comes = self._seen < waiting < TURN_REQUESTS_MAX
        if comes and self._passes < PASSES_MAX and not self._is_lone(waiting):
            self._seen = waiting
            self._passes += 1
            asyncio.get_running_loop().call_soon(self._run_turn)
            return True
        self._seen = self._passes = 0
        self._latest = waiting
        return False

    def _is_lone(self, waiting: int) -> bool:
        return waiting == 1 and self._latest <= 1 and not self._lone_waits


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
