"""Levels: the lines of a standard queue whose messages have priorities, one for each level.

They are indexes on disk of the messages that wait, by level and sequence. While receives ask for
priorities, each has a window of its next messages, and the queue's own line is that of the messages
without a level. Else all messages are in the queue's line, whatever their level.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from visibility.contract.stored_message import StoredMessage


@dataclass(slots=True, eq=False)
class Level:
    """The line of one level; fields as in `QueueState`. Invariant: it is not empty."""

    level: int
    low_water: int
    """No waiting message of the level has a lower sequence."""
    head: int
    waiting: int = 0
    window: deque[tuple[int, StoredMessage]] = field(default_factory=deque)
    window_bytes: int = 0
    passed: int = 0

    @property
    def backlog(self) -> int:
        """Number of its messages that are on disk only, and not passed by."""
        return self.waiting - len(self.window) - self.passed
