"""ScanTurns: few scans at once, whoever asks for them and in however many tabs.

A scan of a queue, be it a search, a count or a plan, asks a shard for pages for up to a second, and
is asked for again until it is through. Those beyond the bounds wait a while, in order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from visibility.contract.errors import ServiceUnavailable

AT_ONCE = 4
"""Scans of one host."""
OF_USER_AT_ONCE = 2
WAIT_S = 5.0
"""Time that one waits for its turn; then it is refused, and may be tried again."""
_WAITING_MAX = 100


class ScanTurns:
    """Those of one host. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._running = Counter[str]()
        """By user."""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        """In order."""

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait until a scan may begin. Raises ServiceUnavailable."""
        await self._begin(user)
        try:
            yield
        finally:
            self._end(user)

    def _may_begin(self, user: str) -> bool:
        is_full = self._running.total() >= AT_ONCE
        return not is_full and self._running[user] < OF_USER_AT_ONCE

    async def _begin(self, user: str) -> None:
        if self._may_begin(user):  # then none that waits could
            self._running[user] += 1
            return
        if len(self._waiting) >= _WAITING_MAX:
            raise _refused()
        begins = asyncio.get_running_loop().create_future()
        self._waiting.append((user, begins))
        try:
            async with asyncio.timeout(WAIT_S):
                await begins
        except BaseException as error:
            if begins.done() and not begins.cancelled():
                self._end(user)
            else:
                self._waiting.remove((user, begins))
            if isinstance(error, TimeoutError):
                raise _refused() from None
            raise

    def _end(self, user: str) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        for place in list(self._waiting):
            waiting, begins = place
            if not begins.done() and self._may_begin(waiting):
                self._waiting.remove(place)
                self._running[waiting] += 1
                begins.set_result(None)


def _refused() -> ServiceUnavailable:
    return ServiceUnavailable("Too many searches and counts run at this moment. Try again.")
