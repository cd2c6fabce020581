"""Peaks: the most that was asked of each queue on each of the last days. Pure: time comes with the
reports.

They say how many parts a queue will need again. A planner writes them down for the next one, which
could not know them: a failover must not look like a week in which nothing was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from cluster.fleet.thresholds import KEPT_MS

GAP_MS = 3_600_000
"""Without any report for longer, the peaks are known from then on only."""
RECORDED_MAX = 1_000
"""Queues that a record names, of up to 200 bytes each; the others have what bounds them all."""
_DAYS = 7
_OTHERS = ""
"""Stands for each queue that is not named."""


class KnownPeaks(msgspec.Struct, frozen=True):
    """The peaks as a record."""

    since_ms: int
    """From then on all of them are known."""
    until_ms: int
    by_queue: dict[str, dict[int, float]] = {}
    """The most that was asked of all parts of a queue together, by day, without what a later day
    exceeds."""

    def is_news(self, before: KnownPeaks | None) -> bool:
        """True if it says more than one that was written before."""
        return before is None or (
            (self.since_ms, self.by_queue) != (before.since_ms, before.by_queue)
            or self.until_ms - before.until_ms >= GAP_MS // 6
        )


class Peaks:
    """Belongs to one planner."""

    def __init__(self, kept_ms: int = KEPT_MS) -> None:
        self.kept_ms = kept_ms
        self._day_ms = kept_ms // _DAYS
        self._since_ms = self._until_ms = 0
        self._by_queue: dict[str, dict[int, float]] = {}

    def observe(self, asked: Mapping[str, float], now_ms: int) -> None:
        """Take over what was asked of the queues that are worth a split, with each report: in each
        of as many windows as a split asks for. A shorter burst would not get the parts, either."""
        if now_ms - self._until_ms > GAP_MS or self._since_ms > now_ms:  # it was ahead
            self._since_ms = now_ms
        self._until_ms = now_ms
        for queue, total in asked.items():
            self._add(queue, now_ms // self._day_ms, total)

    def of(self, queue: str, now_ms: int) -> float:
        """The most that was asked of all parts of a queue within the time that is kept; 0 if it was
        not worth a split."""
        first = self._first(now_ms)
        return max(
            (
                asked
                for each in (queue, _OTHERS)
                for day, asked in self._by_queue.get(each, {}).items()
                if day >= first
            ),
            default=0.0,
        )

    def unknown_ms(self, now_ms: int) -> int:
        """The time until all peaks are known for as long as they are kept; 0 if they are."""
        return max(0, self._since_ms + self.kept_ms - now_ms)

    def forget(self, now_ms: int) -> None:
        """Drop what is too old to count. What a clock that was ahead saw on a later day was seen
        by today: a clock that is a second behind at midnight loses nothing."""
        first, today = self._first(now_ms), now_ms // self._day_ms
        before, self._by_queue = self._by_queue, {}
        for queue, days in before.items():
            for day, asked in days.items():
                if day >= first:
                    self._add(queue, min(day, today), asked)

    def known(self, queues: Collection[str], now_ms: int) -> KnownPeaks:
        """Those of these queues, for the next planner. If they are too many, the least are replaced
        by what bounds them all."""
        self.forget(now_ms)
        found = {each: self._by_queue[each] for each in queues if each in self._by_queue}
        order = sorted(found, key=lambda each: (-max(found[each].values()), each))
        others = dict(self._by_queue.get(_OTHERS, {}))
        for queue in order[RECORDED_MAX:]:
            for day, asked in found[queue].items():
                others[day] = max(others.get(day, 0.0), asked)
        kept = {queue: _falling(found[queue]) for queue in order[:RECORDED_MAX]}
        if others:
            kept[_OTHERS] = _falling(others)
        return KnownPeaks(self._since_ms, self._until_ms, kept)

    def learn(self, known: KnownPeaks) -> None:
        """Take over what another planner wrote down."""
        if known.until_ms > self._until_ms:
            self._since_ms, self._until_ms = known.since_ms, known.until_ms
        for queue, days in known.by_queue.items():
            for day, asked in days.items():
                self._add(queue, day, asked)

    def _add(self, queue: str, day: int, asked: float) -> None:
        days = self._by_queue.setdefault(queue, {})
        days[day] = max(days.get(day, 0.0), asked)

    def _first(self, now_ms: int) -> int:
        """The first day that counts, with all of it."""
        return (now_ms - self.kept_ms) // self._day_ms


def _falling(days: Mapping[int, float]) -> dict[int, float]:
    """The days that no later one exceeds, in hundredths."""
    found: dict[int, float] = {}
    most = 0.0
    for day in sorted(days, reverse=True):
        asked = round(days[day], 2)
        if asked > most:
            found[day] = most = asked
    return found
