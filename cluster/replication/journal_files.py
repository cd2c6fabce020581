"""JournalFiles: a replica's log, its promise and a note of what it acknowledged.

It finds out at an opening whether the replica still has what it once acknowledged. If not, it is
another replica from then on: it gets a new id, and so it neither promises nor counts until it has
caught up and a transaction made it a voter (rule 22).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from storage.log import (
    ANSWERED_FILE,
    OLDEST_FORMAT,
    SEGMENT_BYTES,
    Answered,
    AnsweredNote,
    Disk,
    LogMismatch,
    NoteDamaged,
    Position,
    Promise,
    PromiseFile,
    Reading,
    ReplicaLog,
    open_replica_log,
    read_answered,
    read_log,
    without_entries,
)


class OtherLog(Exception):
    """The folder has the log of another cluster, or of a time before a restore."""


class JournalFiles:
    """Those of one replica, as they are opened, held and let go."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        log_id: bytes,
        new_replica_id: Callable[[], str],
        segment_bytes: int = SEGMENT_BYTES,
        written_as: Callable[[], int] = lambda: OLDEST_FORMAT,
    ) -> None:
        """`written_as` is the format of Entries that all members read (rule 33)."""
        self.written_as = written_as
        self.log_id = log_id
        self.is_open = False
        self.damage = ""
        """The reason why the replica took a new id at its last opening."""
        self.committed = 0
        """The highest commit index that the log's Entries carried at the last opening."""
        self._on_synced: Callable[[], None] = _nothing
        self._on_failed: Callable[[str], None] = _failed
        self._disk = disk
        self._folder = folder
        self._new_replica_id = new_replica_id
        self._segment_bytes = segment_bytes
        self._log: ReplicaLog | None = None
        self._promises: PromiseFile | None = None
        self._promise = Promise("")
        self._pending: Promise | None = None
        """A promise on its way to the disk."""
        self._note: AnsweredNote | None = None
        self._noted = 0
        self._known: Answered | None = None
        """The durable end when the files were closed in this life: more than is noted. Less after
        Entries were forgotten by an opening that failed."""
        self._is_noting = False
        self._is_syncing = False
        self._wants_sync = False
        self._openings = 0

    def report_to(self, *, on_synced: Callable[[], None], on_failed: Callable[[str], None]) -> None:
        """Call `on_synced` when more of the log is durable, `on_failed` with a reason when the disk
        refused something; `reopen` is next then."""
        self._on_synced, self._on_failed = on_synced, on_failed

    # -- opening -----------------------------------------------------------------------------------

    def open(
        self,
        applied: Position,
        keep: int | None = None,
        *,
        rows_replaced: bool = False,
        lost: str = "",
    ) -> None:
        """Read and open the files; blocks. Entries above `keep` are forgotten; `lost` says what of
        those that it acknowledged it is known to lack.

        `applied` is the Entry that the rows have durably. With `rows_replaced` they came from a
        checkpoint since the log was open: the log is kept from there on if it has the checkpoint's
        last Entry, else forgotten. Raises OSError, OtherLog, and LogMismatch if the rows are
        another log's.
        """
        self._disk.make_folder(self._folder)
        promises = PromiseFile(self._disk, self._folder)
        try:
            self._open(promises, applied, keep, rows_replaced=rows_replaced, lost=lost)
        except BaseException:
            promises.close()
            raise

    def _open(
        self,
        promises: PromiseFile,
        applied: Position,
        keep: int | None,
        *,
        rows_replaced: bool,
        lost: str,
    ) -> None:
        disk, folder = self._disk, self._folder
        promise = promises.promise
        if promise is None and self._openings:
            promise = self._promise  # this process gave it: the file was written by half
        damage = lost if promise is not None else "there is no readable promise"
        told = self._known
        try:
            told = told or read_answered(disk, folder)
        except NoteDamaged as error:
            damage = str(error)
        # Its name is durable before the first promise of a term is given.
        if promise is not None and promise.term and ANSWERED_FILE not in disk.list(folder):
            damage = "there is no note of what it acknowledged"
        try:
            reading = read_log(disk, folder, applied, told)
        except LogMismatch:
            if not rows_replaced:
                raise
            # A checkpoint holds committed Entries, so those that differ from them never count.
            reading = without_entries(disk, folder, applied)
            keep = applied.index
        if reading.log_id not in (b"", self.log_id):
            raise OtherLog(f"{folder} has the log {reading.log_id.hex()}")
        if reading.lost:
            gap = reading.lost[0]
            damage = f"Entry {gap.first} is lost: {gap.reason}"
            keep = gap.first - 1 if keep is None else min(keep, gap.first - 1)
        # First the promise, then the note, then the log: what counts never lacks what was noted.
        self._promise = self._renewed(promise, damage)
        promises.write_now(self._promise)
        self._lower_note(told, reading, keep)
        note = AnsweredNote(disk, folder, self.log_id)
        try:
            self._log = open_replica_log(
                reading, applied, log_id=self.log_id, keep=keep, segment_bytes=self._segment_bytes
            )
        except BaseException:
            note.close()
            raise
        self._promises, self._note, self.damage = promises, note, damage
        self._noted = 0
        self._known = None
        self.committed = min(max(reading.committed, applied.index), self._log.last_index)
        self._openings += 1
        self.is_open = True

    def _renewed(self, promise: Promise | None, damage: str) -> Promise:
        """The promise that was read, or one under a new id."""
        known = promise or Promise("")
        if not damage:
            return known
        return msgspec.structs.replace(known, replica_id=self._new_replica_id())

    def _lower_note(self, told: Answered | None, reading: Reading, keep: int | None) -> None:
        """Note less before Entries are forgotten, or the next opening would take them for lost."""
        if keep is None or told is None or told.position.index <= keep:
            return
        lowered = reading.position_at(max(keep, reading.applied.index))
        note = AnsweredNote(self._disk, self._folder, self.log_id)
        note.write_now(lowered)
        note.close()
        if not reading.lost:
            self._known = Answered(self.log_id, lowered)  # if this opening fails later on

    def reopen(
        self,
        done: Callable[[Exception | None], None],
        flushed: Callable[[], Position],
        keep: int | None = None,
        *,
        lost: str = "",
    ) -> None:
        """Close the files, then open them anew in the sync lane, over the rows as `flushed` says
        there. A failure leaves them closed."""
        if self.is_open:
            self._known = Answered(self.log_id, self.synced)
        self.is_open = False
        work = partial(self._open_again, flushed, keep, lost)
        if self._log is None:
            self._disk.run(work, done)
        else:
            self._log.close(lambda: self._disk.run(work, done))

    def _open_again(self, flushed: Callable[[], Position], keep: int | None, lost: str) -> None:
        """In the sync lane, behind everything that was under way."""
        self._let_go()
        self.open(flushed(), keep, lost=lost)

    def close(self, closed: Callable[[], None]) -> None:
        """Let go of the files once nothing is under way; then call `closed`. Nothing is synced."""
        self.is_open = False
        if self._log is None:
            self._disk.run(self._let_go, lambda error: closed())
        else:
            self._log.close(lambda: self._disk.run(self._let_go, lambda error: closed()))

    def _let_go(self) -> None:
        promises, note = self._promises, self._note
        self._log = self._promises = self._note = self._pending = None
        if promises is not None:
            promises.close()
        if note is not None:
            note.close()
        self._is_syncing = self._wants_sync = self._is_noting = False

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def log(self) -> ReplicaLog:
        """The log, while the files are open."""
        assert self._log is not None
        return self._log

    @property
    def promise(self) -> Promise:
        """The last promise that is durable."""
        return self._promise

    @property
    def standing(self) -> Promise:
        """The last promise, also if it is on its way to the disk."""
        return self._pending or self._promise

    @property
    def synced(self) -> Position:
        """The last Entry that is durable."""
        position = self.log.position_at(self.log.synced_index)
        assert position is not None
        return position


def _nothing() -> None:
    """Does nothing."""


def _failed(reason: str) -> None:
    raise AssertionError(reason)
