"""AppliedRows: the rows behind a replica's log: what they have, their flushes, their damage, and
how they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from typing_extensions import override

from cluster.peers.log_retention import LogRetention
from cluster.replication.contract import ReplicaReport
from cluster.replication.replacement import DamagedRows, Replacement
from cluster.replication.replica import Replica
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import Leader, RowStore, StoreFailed
from storage.engines.store_options import StoreOptions
from storage.healing.rebuild import Healed
from storage.log import Disk, Position
from visibility.rows.row_changes import Ops


class AppliedRows(FlushedRows):
    """The part of a `ReplicatedStore` behind the commit."""

    replica: Replica
    replacement: Replacement
    damaged: DamagedRows

    def __init__(
        self,
        rows: RowStore,
        disk: Disk,
        options: StoreOptions,
        *,
        applied: Position,
        has_much_space: Callable[[], bool],
        on_closing: Callable[[], object],
    ) -> None:
        """`applied` is the Entry that the rows are as of. `has_much_space` is that of
        `LogRetention`. `on_closing` is called before the replica goes: no message may reach it
        afterwards."""
        super().__init__(rows, options)
        self.holds = LogRetention(options.monotonic_s, has_much_space)
        self.applied = applied
        """The last Entry that the rows have."""
        self.flushed = applied
        """The last Entry that the rows have durably."""
        self._leader: Leader | None = None
        self._applied_bytes = self._flushed_bytes = self._flushing_bytes = 0
        """Bytes of Entries: applied since the opening, of them durable, and once the flush under
        way has ended."""
        self._has_failed = self._is_over = False
        self._disk = disk
        self._on_closing = on_closing
        self._timer: asyncio.Handle | None = None
        """The timer of the replica's next tick."""
        self._stopped: asyncio.Future[None] | None = None
        """Done when the replica has let go of its files."""

    def _has_applied(self, position: Position, ops: Ops, size: int) -> None:
        self.applied = position
        self.damaged.applied(ops)
        self.unflushed_rows += len(ops) // 2
        self._applied_bytes += size
        self._check_files_later()
        if self._flushing is None and self._wants_flush():
            self._flush_applied()

    def _fail(self, error: StoreFailed) -> None:
        self._has_failed = True
        if self._leader is not None:
            self._leader.on_failed(error)

    # -- flush -------------------------------------------------------------------------------------

    def _wants_flush(self) -> bool:
        options = self._options
        is_long = self._applied_bytes - self._flushed_bytes >= options.flush_bytes
        return is_long or self.unflushed_rows >= options.flush_rows

    def _flush_applied(self) -> None:
        self._flushing_bytes = self._applied_bytes
        self._begin_flush(self.applied)

    @property
    def can_grow(self) -> bool:
        """False while the disk has no space for another segment of the log."""
        journal = self.replica.journal
        return not journal.is_open or journal.log.spares.can_grow

    def give_back_space(self) -> None:
        """The disk is short: remove unused files of the log, and have the rows flushed, so that
        RocksDB can remove what was deleted."""
        if self._is_over or self._has_failed or not self.replica.journal.is_open:
            return
        self.replica.log.spares.give_back()
        if self.unflushed_rows and self._flushing is None:
            self._flush_applied()
        self._check_files_later()  # a compaction may have left files

    def _has_flushed_enough(self) -> bool:
        options = self._options
        is_short = self._applied_bytes - self._flushed_bytes < 2 * options.flush_bytes
        return self._flushing is None or (is_short and self.unflushed_rows < options.flush_rows)

    @override
    def _release(self, reached: Position | None) -> None:
        """Let the log forget what neither the rows nor a peer needs."""
        assert reached is not None
        self.flushed, self._flushed_bytes = reached, self._flushing_bytes
        if self.replica.journal.is_open and not self._has_failed:
            log = self.replica.log
            if not self.replica.is_whole:  # the rows that are fetched must reach this log
                self.holds.hold(self.replica.name, log.start.index)
            self.replica.release(self.holds.limit(reached.index, log.entries.bytes_above))

    # -- damage, and rows of another host ----------------------------------------------------------

    @property
    def needs_rows(self) -> bool:
        """False once its own rows will do. Where the others lost Entries, only this host's rows
        have them."""
        replica = self.replica
        return not replica.conflict and (self.quarantines or not replica.is_whole)

    def rows_fetched(self) -> None:
        """Fail, so that the shard opens the store anew, which puts the rows in place."""
        self._fail(StoreFailed("a checkpoint replaces the rows"))

    def on_behind(self, leader: str) -> None:
        """Fetch rows of another host: no log reaches back to this one."""
        self.replacement.begin()

    @property
    def log_start(self) -> int:
        """Index of the Entry behind which this host's log can be sent."""
        journal = self.replica.journal
        return journal.log.start.index if journal.is_open else self.applied.index

    @property
    def quarantines(self) -> bool:
        """True if damage becomes an event: no host has a sound copy."""
        return self.damaged.quarantines

    @override
    async def heal(self, known: Mapping[int, bool]) -> list[Healed]:
        """Refuse to lead over damaged rows while another host may have sound ones, from which rows
        rebuilt here would differ. Raises StoreFailed."""
        if not self.quarantines:
            self.damaged.met(self.replica, "a queue cannot be loaded")
            raise StoreFailed("rows are damaged: another host leads")
        return await super().heal(known)

    # -- looking in --------------------------------------------------------------------------------

    def report(self) -> ReplicaReport:
        """The replica's present state."""
        replica = self.replica
        promise = replica.journal.promise
        return ReplicaReport(
            role=replica.role,
            replica_id=replica.replica_id,
            term=promise.term,
            leader_id=promise.leader,
            is_voter=replica.replica_id in promise.voters,
            commit=replica.commit,
            applied=self.applied.index,
            last_index=replica.log.last_index if replica.journal.is_open else 0,
            needs_checkpoint=replica.needs_checkpoint,
            damage=replica.damage,
            has_no_good_copy=self.damaged.has_no_good_copy,
            peers=replica.peer_reports(),
            replication=self._options.replication,
            is_changing_voters=replica.is_changing_voters,
            conflict=replica.conflict,
            clock_behind_s=replica.clocks.behind_s,
        )

    # -- the end -----------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Do nothing more: neither the shard nor the rows hear of the replica."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Flush the rows and release the disk. A leader hands over at once. Raises StoreFailed."""
        self._end()
        await self._end_flushes()
        try:
            await self._options.in_thread(self.flush)
        finally:
            await self._let_go()

    async def abandon(self) -> None:
        """Release the disk after a failure, without writing anything."""
        self._end()
        await self._end_flushes()
        await self._let_go()

    def _end(self) -> None:
        """Take part no longer."""
        if self._stopped is not None:
            return
        self.cut_off()
        self._on_closing()
        self.replacement.cancel()
        self._stopped = asyncio.get_running_loop().create_future()
        self.replica.stop(partial(self._stopped.set_result, None))

    async def _let_go(self) -> None:
        assert self._stopped is not None
        await self._stopped
        await self.replacement.leave()
        await self._options.in_thread(self.rows.close)
        await self.replacement.put_in_place(self._options.in_thread)
        self._disk.stop()
