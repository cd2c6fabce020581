"""What a shard holds in memory about the messages that wait for the archive."""

from __future__ import annotations

import msgspec

from visibility.state.events import SealedBatch


class ArchiveState(msgspec.Struct):
    """What a shard knows of the messages that wait for the archive. Changed by `apply.py` and at start only."""

    source: str = ""
    """What the archive calls this data folder; another one after a restore, whose batches are others."""
    next_position: int = 1
    next_batch: int = 1
    archived: int = 0
    """The highest batch that is archived for good."""
    open_first: int = 1
    """Where the next batch begins. Invariant: open_first <= next_position."""
    open_size: int = 0
    open_since_ms: int = 0
    """When the first message of the next batch was handed over."""
    discarded: int = 0
    """Messages that were not archived since there was no room."""
    batches: dict[int, SealedBatch] = {}
    """Sealed and not archived, by number, ascending: archived < number < next_batch."""
    sealed_size: int = 0
    """The sizes of all of them."""
    is_on: bool = False
    """Whether there is an archive; volatile, like the limits."""
    size_max: int = 0
    """Above this nothing is handed over, in bytes on disk."""
    retains: bool = False
    """Whether messages that find no room stay in their queues, instead of being discarded."""
    handed_over: int = 0
    """Messages since the start; volatile."""

    @property
    def size(self) -> int:
        """About what waits, in bytes on disk."""
        return self.open_size + self.sealed_size

    @property
    def has_open(self) -> bool:
        """Whether messages wait that are in no batch yet."""
        return self.open_first < self.next_position

    @property
    def first_position(self) -> int:
        """Where what waits begins."""
        return next(iter(self.batches.values())).first if self.batches else self.open_first

    @property
    def messages(self) -> int:
        """How many messages wait."""
        return self.next_position - self.first_position
