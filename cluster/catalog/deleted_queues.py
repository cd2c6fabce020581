"""Deleted and purged queues in memory, and the rules of the restore window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from cluster.catalog.catalog_records import KeptQueue, KeptState

KEPT_MAX = 1_000
"""Limit of kept queues; beyond it the oldest are dropped early, since each takes memory."""


class KeptQueues:
    """Deleted and purged queues by id."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        """Time in which a deleted or purged queue can be restored; with 0 it is dropped at once."""
        self._kept: dict[int, KeptQueue] = {}
        self._deleted: Counter[str] = Counter()
        """Those that were deleted and are not to be dropped, by ARN; parts count each."""

    def __iter__(self) -> Iterator[KeptQueue]:
        return iter(self._kept.values())

    def put(self, kept: KeptQueue) -> None:
        """Add or replace a queue."""
        before = self._kept.get(kept.queue.queue_id)
        if before is not None:
            self._count(before, -1)
        self._kept[kept.queue.queue_id] = kept
        self._count(kept, 1)

    def get(self, queue_id: int) -> KeptQueue | None:
        """The queue with this id, None if it is not kept."""
        return self._kept.get(queue_id)

    def remove(self, queue_id: int) -> None:
        """Remove a queue that exists again, or is gone for good."""
        kept = self._kept.pop(queue_id, None)
        if kept is not None:
            self._count(kept, -1)

    def _count(self, kept: KeptQueue, change: int) -> None:
        if kept.state is KeptState.KEPT and not kept.continued_as:
            arn = kept.queue.arn
            self._deleted[arn] += change
            if not self._deleted[arn]:
                del self._deleted[arn]

    def has_deleted(self, arn: str) -> bool:
        """True if a queue with this ARN was deleted and is not to be dropped. Constant time, for
        the hot path."""
        return arn in self._deleted

    def in_state(self, state: KeptState) -> list[KeptQueue]:
        """The queues in this state, the latest first."""
        found = [kept for kept in self if kept.state is state]
        return sorted(found, key=lambda each: (each.deleted_at_ms, each.queue.queue_id))[::-1]

    def restorable(self, now_ms: int) -> list[KeptQueue]:
        """The queues that can be restored now, the latest first. One with parts is here once, as
        its home."""
        kept = (each for each in self.in_state(KeptState.KEPT) if each.queue.is_home)
        return [each for each in kept if self.is_restorable(each, now_ms)]

    def together(self, kept: KeptQueue) -> list[KeptQueue]:
        """The tombstones of all parts that were deleted or purged with this one, itself among
        them."""
        places = [part.queue_id for part in kept.queue.parts] or [kept.queue.queue_id]
        found = (self._kept.get(queue_id) for queue_id in places)
        return [
            each
            for each in found
            if each is not None
            and (each.deleted_at_ms, each.state) == (kept.deleted_at_ms, kept.state)
        ]

    def all_together(self, kept: Iterable[KeptQueue], at_once: int) -> list[KeptQueue]:
        """The first of these queues, each with all its parts; more than `at_once` only to complete
        the last one."""
        found: dict[int, KeptQueue] = {}
        for each in kept:
            if len(found) >= at_once:
                break
            found |= {other.queue.queue_id: other for other in self.together(each)}
        return list(found.values())

    def is_restorable(self, kept: KeptQueue, now_ms: int) -> bool:
        """True while the window is open. A clock turned back does not shorten it; a window of 0 is
        never open."""
        is_over = max(0, now_ms - kept.deleted_at_ms) >= self.window_ms
        return kept.state is KeptState.KEPT and not is_over

    def over(self, now_ms: int) -> list[KeptQueue]:
        """The queues whose window is over, and those beyond KEPT_MAX."""
        return [
            kept
            for position, kept in enumerate(self.in_state(KeptState.KEPT))
            if position >= KEPT_MAX or not self.is_restorable(kept, now_ms)
        ]

    @property
    def state_of_removed(self) -> KeptState:
        """State of a queue that is deleted or purged now."""
        return KeptState.KEPT if self.window_ms else KeptState.DROPPING
