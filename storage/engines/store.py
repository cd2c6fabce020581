"""Store: a shard's log and rows. DurableStore and MemoryStore implement it; one contract suite
tests both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from storage.healing.rebuild import Healed
from storage.log import Position
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes, Ops


class StoreFailed(Exception):
    """The disk refused a write or a sync: uncommitted data is in doubt, and the store must be
    reopened."""


Done = Callable[[StoreFailed | None], None]
"""Called on the event loop when the work is done, with the error if it failed."""


class RowStore(RowReader, Protocol):
    """A shard's rows: `RocksRows`, or its model in the simulator."""

    folder: Path

    @property
    def flushed(self) -> Position:
        """An Entry up to which the flushed rows hold the log, even if the row of the applied one is
        damaged."""

    def applied(self) -> Position:
        """The last Entry applied to the rows. Raises DamagedRecord."""

    def write(self, ops: Ops, applied: Position | None = None) -> None:
        """Apply an Entry's changes and its position to the rows. Raises StoreFailed."""

    def flush(self) -> None:
        """Make all rows durable; for any thread. Raises StoreFailed."""

    @property
    def needs_healing(self) -> bool:
        """True if there is damage that `heal` is to remove."""

    def note_damage(self, queue_id: int, reason: str) -> None:
        """Let the next opening rebuild a queue with unreadable rows. Raises StoreFailed."""

    def heal(self, known: Mapping[int, bool], *, agree: bool = False) -> list[Healed]:
        """Write all readable rows anew, see `healing.rebuild`; for any thread. Raises
        StoreFailed."""

    def note_files(self) -> None:
        """Let compactions begin, and note the files if one changed them; for any thread.
        Called once a shard is loaded. Raises StoreFailed."""

    def checkpoint(self, folder: Path) -> None:
        """Make `folder` a database of all rows; for any thread. Raises StoreFailed."""

    def close(self) -> None:
        """Release the folder. Raises StoreFailed while another thread uses it."""


class Store(RowReader, Protocol):
    """One shard's log and rows. Reads see applied Entries.

    An Entry is appended, synced and applied, in this order; several may be under way.
    """

    turn_bytes_max: int
    """Bytes of row changes from which on a Turn decides nothing more, so that its Entry fits."""
    came_back_shorter: bool
    """True if it was opened although it holds less than clients were answered, for example an older
    copy."""

    @property
    def shared(self) -> SharedStore | None:
        """The same store if other hosts have its log too; then this host leads only when told."""

    @property
    def has_room(self) -> bool:
        """False while the unflushed log is too large for another append."""

    def on_room(self, call: Callable[[], object]) -> None:
        """From now on `call` this when `has_room` may be true again, as at the end of a flush."""

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        """Append an Entry to the log. Raises StoreFailed."""

    def sync(self, done: Done) -> None:
        """Make all appended Entries as durable as configured, then call `done` once, in order of
        the calls.

        An abandoned store calls nothing.
        """

    def apply(self, changes: Changes) -> None:
        """Apply the oldest committed Entry's changes to the rows. Raises StoreFailed."""

    @property
    def needs_healing(self) -> bool:
        """True if there is damage that `heal` is to remove."""

    def note_damage(self, queue_id: int, reason: str) -> None:
        """Let the next opening rebuild a queue with unreadable rows. Raises StoreFailed, also if
        there is no room for that."""

    async def heal(self, known: Mapping[int, bool]) -> list[Healed]:
        """Write all readable rows anew, with damaged queues rebuilt, before they are loaded: see
        `healing.rebuild`. Nothing may be under way. Raises StoreFailed."""

    async def close(self) -> None:
        """Make everything durable and release the disk. Nothing may be under way. Raises
        StoreFailed."""

    async def abandon(self) -> None:
        """Release the disk after a failure, without writing anything.

        Raises StoreFailed while the disk is still in use; call it again then.
        """


class Leader(Protocol):
    """The shard over a replicated store. All calls come on the event loop."""

    def on_leading(self) -> None:
        """This host leads: the rows hold all that was committed; load them and decide."""

    def on_deposed(self) -> None:
        """It no longer leads: what was appended and is not committed is unknown."""

    def on_failed(self, error: StoreFailed) -> None:
        """The store cannot go on and must be opened anew."""


class SharedStore(Store, Protocol):
    """A store whose log other hosts have too."""

    @property
    def under_way_max(self) -> int:
        """Entries that may be appended and not committed."""

    @property
    def answers_early(self) -> bool:
        """True if some answers need not wait for a majority: see `once_synced`."""

    def follow(self, leader: Leader) -> None:
        """Take part in the replication; `leader` is called from now on, never at once."""

    def once_synced(self, done: Callable[[], None]) -> None:
        """Call `done` once this host has the Entry that was appended last durably, unless too much
        is uncommitted: then when it is committed.

        In order of the calls, each behind its `append`; a deposed leader's are not called.
        """

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True once a majority has confirmed that this host leads, asked after
        this call; with False if it was deposed."""

    def give_up(self, reason: str) -> None:
        """Lead no longer; another host does."""

    @property
    def quarantines(self) -> bool:
        """True if damage becomes an event: no host has a sound copy."""

    def replace_rows(self, reason: str) -> None:
        """Rows are damaged: lead no longer, and have another host's rows take their place."""
