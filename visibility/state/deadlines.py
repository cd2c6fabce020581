"""DeadlineHeap: the only timer structure of a shard.

An item is one packed integer, instant first, so the heap orders by time and costs a third of a heap
of tuples. Items are never removed early: the caller that pops one checks in the state whether it
still applies.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_WORD = 64
_MASK = (1 << _WORD) - 1


class DeadlineHeap:
    """Instants with two 64-bit numbers each: a queue id (0 for a long poll), and a sequence or a
    poll's number."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def push(self, at_ms: int, queue_id: int, sequence: int) -> None:
        """Add an instant. O(log n)."""
        heappush(self._items, ((at_ms << _WORD | queue_id) << _WORD) | sequence)

    def pop_due(self, now_ms: int) -> tuple[int, int, int] | None:
        """Take the earliest (at_ms, queue_id, sequence) up to `now_ms`; None if there is none."""
        items = self._items
        if not items or items[0] >> (2 * _WORD) > now_ms:
            return None
        packed = heappop(items)
        return packed >> (2 * _WORD), packed >> _WORD & _MASK, packed & _MASK

    def next_at_ms(self) -> int | None:
        """The earliest instant, None when empty."""
        return self._items[0] >> (2 * _WORD) if self._items else None

    def rebuild(self, items: list[tuple[int, int, int]]) -> None:
        """Replace the content by `items` of (at_ms, queue_id, sequence). O(n)."""
        self._items = [((at << _WORD | queue) << _WORD) | sequence for at, queue, sequence in items]
        heapify(self._items)
