"""ReplicatedStore: a shard's log on several hosts, and this host's rows.

    append → propose    sync → a majority has the Entry    apply → rows, as on a single host

The replica says what is committed. On a leader each Entry is given back to the shard, which answers
and applies it; on a follower it is read from the log and applied here, in slices, so that the event
loop goes on while a host catches up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from typing_extensions import override

from cluster.clock import next_pulse
from cluster.replication.applied_rows import AppliedRows
from cluster.replication.contract import ReplicaOwner
from cluster.replication.replacement import DamagedRows, Replacement, RowSource
from cluster.replication.replica import Replica
from storage.engines.store import Done, Leader, RowStore, StoreFailed
from storage.engines.store_options import Replication, StoreOptions
from storage.log import Disk, LogFailed, LogFull, Position, ReadAhead
from storage.rows.entry_body import EntryBody, decode_body, encode_body
from visibility.rows.row_changes import Changes

_TICK_S = 0.1
"""Interval of the replica's own work."""
_SLICE_ROWS = 2_000
"""Row changes that a follower applies before the event loop may go on: 2 ms."""


@dataclass(slots=True, eq=False)
class Proposal:
    """An Entry of the shard."""

    body: bytes
    queue_ids: Sequence[int]
    index: int = 0
    """0 until the replica took it."""
    synced: Callable[[], None] | None = None
    """Called once it is on this host's disk; None if no answer waits for that."""
    done: Done | None = None
    """Called once it is committed."""

    def tell_synced(self) -> None:
        """Call `synced`, the first time."""
        synced, self.synced = self.synced, None
        if synced is not None:
            synced()


def synced_ones(
    proposals: Iterable[Proposal], synced_index: int, bytes_max: int
) -> Iterator[Proposal]:
    """Those that this host has durably; no more of them than may be lost with it."""
    size = 0
    for proposal in proposals:
        size += len(proposal.body)
        if not 0 < proposal.index <= synced_index or size > bytes_max:
            return
        yield proposal


SourceOf = Callable[["ReplicatedStore"], RowSource | None]
"""The rows of other hosts as a store gets them; None if it cannot."""


class ReplicatedStore(AppliedRows, ReplicaOwner):
    """The `SharedStore` of a cluster's host, and its replica's owner."""

    def __init__(
        self,
        rows: RowStore,
        disk: Disk,
        options: StoreOptions,
        *,
        applied: Position,
        replica_of: Callable[[ReplicaOwner], Replica],
        source_of: SourceOf,
        now_ms: Callable[[], int],
        peers: Callable[[], Sequence[str]],
        has_much_space: Callable[[], bool],
        on_closing: Callable[[], object],
    ) -> None:
        """`applied` is the Entry that the rows are as of. `replica_of` and `source_of` make the
        replica of this owner, and its way to rows of other hosts. `peers` names the other members,
        which may change; for the others see `AppliedRows`."""
        super().__init__(
            rows,
            disk,
            options,
            applied=applied,
            has_much_space=has_much_space,
            on_closing=on_closing,
        )
        self._peers = peers
        self.replacement = Replacement(self, source_of(self), self._logger)
        self.damaged = DamagedRows(self.replacement, self._logger)
        self._ahead = ReadAhead(self._apply_more)
        self.answers_early = options.replication is Replication.ASYNC
        """True if some answers need not wait for a majority."""
        self._now_ms = now_ms
        self._is_leading = False
        """True once the shard was told that it leads, as the replica served and the rows had what
        was committed. It stays so while the replica takes another term."""
        self._proposals: deque[Proposal] = deque()
        """Those that are not committed, in order: first those that the replica took."""
        self._unconfirmed: list[Callable[[bool], None]] = []
        """Called with the confirmation that was asked for while the leader takes another term."""
        self._releasing: tuple[Position, int] | None = None
        """The Entry that the shard is applying, with its size."""
        self._was_full = False
        """True if the shard was told that there is no room."""
        self._is_applying = False
        self.replica = replica_of(self)

    @property
    def shared(self) -> ReplicatedStore:
        """This store."""
        return self

    # -- taking part -------------------------------------------------------------------------------

    def follow(self, leader: Leader) -> None:
        """Take part in the replication; `leader` is called from now on, never at once."""
        self._leader = leader
        self._timer = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(next_pulse(loop.time(), _TICK_S), self._tick)
        peers = self._peers()
        if list(peers) != list(self.replica.peers):
            self.replica.set_peers(peers)
        self.replica.tick()
        self._apply_more()

    def give_up(self, reason: str) -> None:
        """Lead no longer; another host does."""
        if self._is_leading or self.replica.serving:
            self._logger.error("leadership_given_up", reason=reason)
        self.replica.step_down(rest_s=self.replica.timing.rest_s)

    def replace_rows(self, reason: str) -> None:
        """Rows are damaged: lead no longer, and have another host's take their place."""
        self.damaged.met(self.replica, reason)
        self.give_up(reason)

    # -- what a shard does -------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """False while too much is under way or unflushed, or another term is being taken."""
        has_room = (
            self._is_leading
            and self.replica.has_room
            and (not self._proposals or self._proposals[-1].index > 0)
            and self._has_flushed_enough()
        )
        self._was_full = not has_room
        return has_room

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        """Propose an Entry, or keep it until there is room. Raises StoreFailed."""
        self._proposals.append(Proposal(body, queue_ids))
        self._propose_more()

    def sync(self, done: Done) -> None:
        """Call `done` once the Entry that was just appended is committed."""
        self._proposals[-1].done = done

    def once_synced(self, done: Callable[[], None]) -> None:
        """Call `done` once this host has that Entry durably."""
        self._proposals[-1].synced = done

    @property
    def under_way_max(self) -> int:
        """Entries that may be appended and not committed."""
        timing = self.replica.timing
        return timing.under_way_max if self.answers_early else timing.waiting_max

    @override
    def on_synced(self) -> None:
        """Tell a shard that answers early which Entries this host has durably and may answer."""
        if not self.answers_early or not self._is_leading:
            return
        synced_index, bytes_max = self.replica.log.synced_index, self.replica.timing.under_way_bytes
        for proposal in list(synced_ones(self._proposals, synced_index, bytes_max)):
            if self._is_leading:
                proposal.tell_synced()

    def _propose_more(self) -> None:
        """Propose what waits. Raises StoreFailed, after which this host leads no longer."""
        for proposal in list(self._proposals):
            if proposal.index:
                continue
            leading = self.replica.leading
            if leading is None or not leading.has_room:
                return
            try:
                proposal.index = leading.propose(proposal.body, proposal.queue_ids)
            except (LogFull, LogFailed) as error:
                if not isinstance(error, LogFailed):
                    self.give_up(f"an Entry cannot be appended: {error!r}")
                raise StoreFailed(f"cannot append to the log: {error!r}") from error

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True once a majority confirms that this host leads."""
        if self.replica.serving:
            self.replica.confirm(done)
        elif self._is_leading:
            self._unconfirmed.append(done)
        else:
            done(False)

    def apply(self, changes: Changes) -> None:
        """Apply the Entry that is being released to the rows. Raises StoreFailed."""
        assert self._releasing is not None
        position, size = self._releasing
        self.rows.write(changes.ops, position)
        self._has_applied(position, changes.ops, size)

    # -- applying ----------------------------------------------------------------------------------

    def _apply_more(self) -> None:
        """Apply what is committed, up to a bound; the rest in the loop's next pass."""
        if self._is_applying or self._has_failed or self._is_over:
            return
        self._is_applying = True
        try:
            is_done = self._apply_slice()
        except StoreFailed as error:
            self._fail(error)
            return
        finally:
            self._is_applying = False
        if not is_done:
            asyncio.get_running_loop().call_soon(self._apply_more)
        elif self._is_leading:
            self._make_room()
        else:
            self._lead()

    def _apply_slice(self) -> bool:
        """Apply some Entries; False if there are more. Raises StoreFailed."""
        replica, left = self.replica, _SLICE_ROWS
        while not self._is_over and self.applied.index < replica.commit:
            index = self.applied.index + 1
            if not replica.journal.is_open or index > replica.log.last_index:
                return True  # the next tick goes on
            if self._proposals and self._proposals[0].index == index:
                self._release_proposal(self._proposals.popleft())
                if self.applied.index != index:
                    return True  # the shard has failed
                continue
            if not self._has_flushed_enough():
                return True  # the next tick goes on, or the end of the flush
            if left <= 0:
                return False
            rows = self._apply_from_log(index)
            if rows is None:
                return True
            left -= rows + 1
        return True

    def _release_proposal(self, proposal: Proposal) -> None:
        """Let the shard answer and apply an Entry of its own."""
        position = self.replica.log.position_at(proposal.index)
        assert position is not None
        assert proposal.done is not None
        proposal.tell_synced()
        self._releasing = position, len(proposal.body)
        proposal.done(None)
        self._releasing = None

    def _apply_from_log(self, index: int) -> int | None:
        """Apply an Entry of the log; returns the number of row changes, None if it is not read yet,
        or cannot be. Raises StoreFailed."""
        try:
            entry = self._ahead.entry(self.replica.log, index)
            if entry is None:
                return None
            ops = decode_body(entry.body).ops
        except (OSError, msgspec.MsgspecError) as error:
            self.replica.fail(f"cannot read Entry {index}: {error}")
            return None
        self.rows.write(ops, entry.position)
        self._has_applied(entry.position, ops, entry.size)
        return len(ops) // 2

    # -- ReplicaOwner ------------------------------------------------------------------------------

    @override
    def first_body(self) -> bytes:
        """It changes no rows."""
        return encode_body(EntryBody(self._now_ms(), [], []))

    @override
    def on_committed(self, index: int) -> None:
        self._apply_more()

    @override
    def on_serving(self, term: int) -> None:
        """A leader that took another term goes on where it was."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for done in unconfirmed:
            self.replica.confirm(done)
        asyncio.get_running_loop().call_soon(self._apply_more)

    def _lead(self) -> None:
        """Tell the shard that it leads, once the rows have what was committed before."""
        is_complete = self.replica.serving and self.applied.index >= self.replica.commit
        if is_complete and self._leader is not None:
            self._is_leading = True
            self._leader.on_leading()

    def _make_room(self) -> None:
        """Propose what waited, and tell the shard if it was refused room."""
        try:
            if self.replica.serving:
                self._propose_more()
                self.on_synced()  # less is uncommitted
        except StoreFailed:
            return  # deposed
        if self._was_full and self.has_room:
            self._on_room()

    @override
    def on_deposed(self) -> None:
        was_leading, self._is_leading = self._is_leading, False
        self._proposals.clear()
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for done in unconfirmed:
            done(False)
        if was_leading and not self._is_over and self._leader is not None:
            self._leader.on_deposed()
