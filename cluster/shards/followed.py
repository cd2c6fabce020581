"""Followed: the queues of a shard whose message rows somebody follows.

Who follows is told what committed Entries changed, in order. Entries that touch no followed queue
cost one look at their queues' ids, so other queues of the shard pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from visibility.rows.row_changes import Ops

OnRows = Callable[[Ops], None]
"""Takes the row changes of an Entry, of all its queues. It handles its own errors."""


class Followed:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._queue_ids: frozenset[int] = frozenset()
        self._on_rows: OnRows | None = None

    def follow(self, queue_ids: Collection[int], on_rows: OnRows) -> None:
        """Tell of these queues and no others, from the next Turn on."""
        self._queue_ids, self._on_rows = frozenset(queue_ids), on_rows

    def concerns(self, queue_ids: Collection[int]) -> bool:
        """True if one of the queues is followed."""
        return bool(self._queue_ids) and not self._queue_ids.isdisjoint(queue_ids)

    def tell(self, ops: Ops) -> None:
        """Tell of a committed Entry."""
        if self._on_rows is not None:
            self._on_rows(ops)
