"""A shard's memory of the messages that wait for the archive."""

from __future__ import annotations

import msgspec

from visibility.rows.row_changes import Changes
from visibility.rows.row_values import ArchiveRow, SealedBatch
from visibility.rows.state_rows import write_archive


class ArchiveState(msgspec.Struct):
    """A shard's messages that wait for the archive. Changed by events and at a start only."""

    source: str = ""
    """The archive's name for this data folder; a restore changes it, as batches differ from then
    on."""
    next_position: int = 1
    next_batch: int = 1
    archived: int = 0
    """The highest batch that is safely archived."""
    open_first: int = 1
    """Position at which the next batch begins. Invariant: open_first <= next_position."""
    open_size: int = 0
    open_since_ms: int = 0
    """Time at which the first message of the next batch was handed over."""
    discarded: int = 0
    """Messages not archived for lack of room."""
    open_by_account: dict[str, int] = {}
    """`open_size` of each account."""
    batches: dict[int, SealedBatch] = {}
    """Batches sealed and not archived, by number, ascending: archived < number < next_batch."""
    sealed_size: int = 0
    """Total size of these batches."""
    is_on: bool = False
    """True if there is an archive; volatile, like the limits."""
    size_max: int = 0
    """Nothing is handed over above this size, in bytes on disk."""
    retains: bool = False
    """True if messages without room stay in their queues; otherwise they are discarded."""
    handed_over: int = 0
    """Messages handed over since the start; volatile."""

    @property
    def size(self) -> int:
        """Approximate size of the waiting messages, in bytes on disk."""
        return self.open_size + self.sealed_size

    def has_room(self, size: int, account: str, accounts: int) -> bool:
        """True if messages of this size may wait, of an account that is one of `accounts`.

        The first half of the room goes to the first that come. Of the second half each account has
        the same share, which no other one can use up.
        """
        if self.size + size > self.size_max:
            return False
        half = self.size_max // 2
        if accounts <= 1 or self.size + size <= half:
            return True
        waiting = self.open_by_account.get(account, 0)
        waiting += sum(batch.by_account.get(account, 0) for batch in self.batches.values())
        return waiting + size <= half // accounts

    @property
    def has_open(self) -> bool:
        """True if messages wait that are in no batch yet."""
        return self.open_first < self.next_position

    @property
    def first_position(self) -> int:
        """Position of the first waiting message."""
        return next(iter(self.batches.values())).first if self.batches else self.open_first

    @property
    def messages(self) -> int:
        """Number of waiting messages."""
        return self.next_position - self.first_position

    def record(self, changes: Changes) -> None:
        """Record the state's own row: once in a Turn, after its events."""
        row = ArchiveRow(*(getattr(self, name) for name in ArchiveRow.__struct_fields__))
        write_archive(changes, row)
