"""Peer: another host as a leader sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from storage.log import Position


@dataclass(slots=True)
class Peer:
    """A host as its leader sees it."""

    name: str
    replica_id: str = ""
    """Empty until it has promised the term."""
    next: int = 0
    """The index to send next; 0 while it is not known where the logs agree."""
    matched: int = 0
    """Up to here its log is ours, and durable."""
    goal: int = 0
    """The commit index when it joined: with this it may become a voter."""
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """Last index and bytes of messages that were not answered."""
    heard_at: float = 0.0
    alive_at: float = 0.0
    """When it last answered; 0 if it never did."""
    is_reading: bool = False
    refused: tuple[Position, Position] | None = None
    """The state of its log when it last refused Entries; None once it took some."""
    refused_at: float = 0.0
    round: int = 0
    """The last heartbeat that it answered."""
    ahead_s: float | None = None
    """Seconds by which its clock is ahead of ours."""
    has_space: bool = True
    """False if it said that its disk is short."""

    def join(self, replica_id: str, goal: int, now: float) -> None:
        """It promised the term as this replica; where the logs agree is not known yet."""
        self.replica_id, self.goal, self.heard_at = replica_id, goal, now
        self.next = self.matched = self.round = 0
        self.refused = self.ahead_s = None
        self.in_flight.clear()
