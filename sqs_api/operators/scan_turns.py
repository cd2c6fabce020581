"""ScanTurns: few scans at once, from all users and all their tabs together.

A scan of a queue, be it a search, a count or a plan, asks a shard for pages for up to a second, and
is asked for again until it is through. Those beyond the bounds wait a while, in order.

A scan that takes longer waits for its shard, which may have no leader for some time. It passes its
turn on, so that scans of other queues begin; those of the same queue wait until it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from visibility.contract.errors import ServiceUnavailable

AT_ONCE = 4
"""Scans of one process."""
OF_USER_AT_ONCE = 2
TURN_S = 2.0
"""The longest turn."""
WAIT_S = 5.0
"""Time that one waits for its turn; then it is refused, and may be tried again."""
WAIT_ON_S = 30.0
"""The same of one that goes on: a delete of all that match should not end in the middle."""
WAITING_MAX = 100
"""Waiting scans from which on new ones are refused; those that go on, from twice as many on."""
OF_USER_WAITING_MAX = 10
"""The same of one user."""


class NoTurn(ServiceUnavailable):
    """A search, count or plan found no turn. It has changed nothing, and may be tried again."""


class _Scan(msgspec.Struct, eq=False):
    user: str
    queue_id: int
    begins: asyncio.Future[None]


class ScanTurns:
    """Those of one process."""

    def __init__(self) -> None:
        self._running: list[_Scan] = []
        self._late: list[_Scan] = []
        """Passed their turn on, and are not over."""
        self._waiting: list[_Scan] = []
        """In order."""

    @asynccontextmanager
    async def turn(self, user: str, queue_id: int, *, goes_on: bool) -> AsyncIterator[None]:
        """Wait until a scan may begin; `goes_on` if it is a later step of one. Raises NoTurn."""
        loop = asyncio.get_running_loop()
        scan = _Scan(user, queue_id, loop.create_future())
        try:
            await self._begin(scan, goes_on)
            passing = loop.call_later(TURN_S, self._pass_on, scan)
            try:
                yield
            finally:
                passing.cancel()
        finally:
            self._end(scan)

    def _may_begin(self, scan: _Scan) -> bool:
        of_user = sum(other.user == scan.user for other in self._running)
        is_full = len(self._running) >= AT_ONCE or of_user >= OF_USER_AT_ONCE
        return not is_full and all(late.queue_id != scan.queue_id for late in self._late)

    async def _begin(self, scan: _Scan, goes_on: bool) -> None:
        if self._may_begin(scan):  # then none that waits could
            self._running.append(scan)
            return
        of_user = sum(other.user == scan.user for other in self._waiting)
        times = 2 if goes_on else 1
        if len(self._waiting) >= WAITING_MAX * times or of_user >= OF_USER_WAITING_MAX * times:
            raise _refused()
        self._waiting.append(scan)
        try:
            async with asyncio.timeout(WAIT_ON_S if goes_on else WAIT_S):
                await scan.begins
        except TimeoutError:
            raise _refused() from None

    def _pass_on(self, scan: _Scan) -> None:
        self._running.remove(scan)
        self._late.append(scan)
        self._let_begin()

    def _end(self, scan: _Scan) -> None:
        for scans in (self._running, self._late, self._waiting):
            if scan in scans:
                scans.remove(scan)
        self._let_begin()

    def _let_begin(self) -> None:
        """Those of users who run none go first, else in order."""
        while may := [
            scan for scan in self._waiting if not scan.begins.done() and self._may_begin(scan)
        ]:
            running = {other.user for other in self._running}
            scan = min(may, key=lambda each: each.user in running)
            self._waiting.remove(scan)
            self._running.append(scan)
            scan.begins.set_result(None)


def _refused() -> NoTurn:
    return NoTurn(
        f"Searches, counts and plans run {AT_ONCE} at a time, {OF_USER_AT_ONCE} of one user. Close "
        "tabs of yours that search or count, and try again."
    )
