"""Gathering: the Turn of a leader with peers waits for requests that are just coming.

An Entry costs such a leader as much as some thirty requests: a sync, a write to each peer, their
answers. The requests that the last Entry's answers cause take several passes of the event loop to
read, so a Turn at the first of them would decide few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURN_REQUESTS_MAX = 512
"""Requests of one Turn; bounds the time for which the event loop is held."""
PASSES_MAX = 4
"""Passes of the event loop for which a Turn waits."""


class Gathering:
    """Counts what each pass of the loop brings before a Turn."""

    def __init__(self, run_turn: Callable[[], None]) -> None:
        self._run_turn = run_turn
        self._seen = self._passes = 0

    def goes_on(self, waiting: int) -> bool:
        """True if this pass brought requests: `run_turn` is called again in the next one."""
        if self._passes < PASSES_MAX and self._seen < waiting < TURN_REQUESTS_MAX:
            self._seen = waiting
            self._passes += 1
            asyncio.get_running_loop().call_soon(self._run_turn)
            return True
        self._seen = self._passes = 0
        return False
