"""Arrivals: how many messages came into queues in the last hour as dead letters or by a redrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from sqs_api.cloudwatch.metric_actions import Reader, Wanted
from sqs_api.cloudwatch.metric_statistics import HOUR_S, Window
from sqs_api.cloudwatch.metric_table import MOVED_IN

_FRESH_S = 10.0
"""Time for which one count serves everyone who asks about the same account and region."""
_MINUTE_S = 60


class Arrivals:
    """Counts for one page."""

    def __init__(
        self,
        history: Callable[[str, str], Reader],
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._history = history
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._counted: dict[tuple[str, str], tuple[float, asyncio.Task[dict[str, int]]]] = {}
        """By account and region, with the time at which it began."""

    async def of(
        self, account: str, region: str, names: Callable[[], Iterable[str]]
    ) -> dict[str, int]:
        """The messages that came, by the name of the queue; at most ten seconds old. `names` gives
        the queues to count."""
        now_s, place = self._monotonic_s(), (account, region)
        self._counted = {
            each: kept for each, kept in self._counted.items() if now_s - kept[0] < _FRESH_S
        }
        if place not in self._counted:
            counting = asyncio.create_task(self._count(account, region, names()))
            self._counted[place] = now_s, counting
        return await asyncio.shield(self._counted[place][1])

    async def _count(self, account: str, region: str, names: Iterable[str]) -> dict[str, int]:
        end_s = (int(self._wall_s()) // _MINUTE_S + 1) * _MINUTE_S
        window = Window(end_s - HOUR_S, end_s, _MINUTE_S)
        wanted = [Wanted(name, MOVED_IN, window) for name in names]
        found = await self._history(account, region).datapoints(wanted)
        return {
            each.queue: int(sum(point.total for point in found.datapoints[each].values()))
            for each in wanted
        }
