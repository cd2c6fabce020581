"""Opening a shard's folder: its rows, brought up to the end of its log. Blocks, for any thread but
the loop's.

It refuses only if acknowledged data is lost: synced Entries are missing, or the log belongs to
other rows. With `accepts_loss` it continues without them and reports the losses (rule 19).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR, ELOOP, ENOTDIR, EPERM
from pathlib import Path

import msgspec
import structlog

from storage.engines.durable import DurableStore
from storage.engines.rocks import RocksRows
from storage.engines.store import RowStore, StoreFailed
from storage.engines.store_options import Durability, StoreOptions, log_folder
from storage.files.refusing_disk import disk_refusal
from storage.healing.lost_entries import changed_queues, named, perhaps_changed
from storage.healing.rebuild import disagreements, report_rebuilt
from storage.log import (
    BEGINNING,
    Answered,
    AnsweredNote,
    Disk,
    LogMismatch,
    NewerFormat,
    NoteDamaged,
    Position,
    Reading,
    SystemDisk,
    is_begun,
    note_begun,
    open_log,
    read_answered,
    read_log,
)
from storage.rows.entry_body import decode_body
from visibility.rows.row_codec import DamagedRecord

_WAYS_OUT = (
    "Restore a backup, copy what can be read with holdfast salvage, "
    "or start with --accept-loss on to go on without the rest"
)
_TRY_AGAIN = (
    "Check the disk, then start again: nothing is known to be lost. If that stays, copy what can "
    "be read with holdfast salvage"
)

_NOT_ITS_FILES = (EACCES, EPERM, EISDIR, ENOTDIR, ELOOP)
"""Errors that tell of rights, or of something else under the name of a file: nothing is lost."""


def open_store(folder: Path, options: StoreOptions | None = None) -> DurableStore:
    """Open a shard for a service.

    Raises StoreFailed if another process has it, if it is damaged, or if it holds less than clients
    were answered.
    """
    return assemble(RocksRows(folder), SystemDisk(), options or StoreOptions())


def assemble(rows: RowStore, disk: Disk, options: StoreOptions) -> DurableStore:
    """The same over any rows and any disk, which are closed on failure."""
    with _closing(rows, disk):
        if options.durability is not Durability.MEMORY:
            return _opened(rows, disk, options)
        opening = _Opening(rows, disk, options)
        _replay(opening.read(), opening)  # from an opening with another durability
        return DurableStore(rows, None, disk, None, options)


def open_replayed(folder: Path) -> RocksRows:
    """Open the rows of a folder that no service uses, with its log replayed, durably.

    Raises StoreFailed.
    """
    rows, disk = RocksRows(folder), SystemDisk()
    with _closing(rows, disk):
        opening = _Opening(rows, disk, StoreOptions())
        _replay(opening.read(), opening)
        rows.flush()
    return rows


@contextmanager
def _closing(rows: RowStore, disk: Disk) -> Iterator[None]:
    """Close both if the opening fails. Raises StoreFailed with the ways out."""
    try:
        yield
    except BaseException as error:
        rows.close()
        disk.stop()
        if isinstance(error, LogMismatch | OSError | msgspec.MsgspecError):
            way_out = _TRY_AGAIN if isinstance(error, OSError) else _WAYS_OUT
            if disk_refusal(error):
                way_out = "Free some space"
            elif isinstance(error, OSError) and error.errno in _NOT_ITS_FILES:
                way_out = "Correct its rights, or what lies there in its place, then start again"
            elif isinstance(error, NewerFormat):
                way_out = "Start a version that knows it: this one was started in its place"
            raise StoreFailed(f"cannot open {rows.folder}: {error}. {way_out}") from error
        raise


def read_above(
    applied: Position | None,
    disk: Disk,
    folder: Path,
    answered: Answered | None,
    flushed: Position = BEGINNING,
) -> Reading:
    """The log's Entries above `applied`, the last one in the rows. Raises OSError, LogMismatch.

    If that is unknown (None), those above `flushed` are replayed, or without it the whole log:
    changes are absolute, so replaying them twice does no harm, and the rows have everything that
    the log forgot.
    """
    if applied is not None:
        return read_log(disk, folder, applied, answered)
    reading = read_log(disk, folder, flushed, answered)
    reading.warnings.append(
        f"the row of the applied Entry is damaged: the log is replayed from {flushed.index + 1} on"
    )
    if flushed == BEGINNING:
        reading.lost = [lost for lost in reading.lost if lost.first > 1]
    return reading


def lacks_log(reading: Reading) -> bool:
    """True if there is no log, although the rows took Entries of one, or one was begun. Rows that
    were restored are as of an Entry without a term. Raises OSError."""
    if reading.log_id:
        return False
    return reading.applied.term > 0 or is_begun(reading.disk, reading.folder)


class _Opening:
    """A folder while it is opened."""

    def __init__(self, rows: RowStore, disk: Disk, options: StoreOptions) -> None:
        self.rows = rows
        self.disk = disk
        self.options = options
        self.log = structlog.get_logger("store").bind(folder=str(rows.folder))
        self.applied: Position | None = None
        """The Entry that the rows are as of; None if that row is damaged."""
        with suppress(DamagedRecord):
            self.applied = rows.applied()
        self.lacks_log = False
        """See `lacks_log`."""

    def read(self) -> Reading:
        """Read the log; losses must be accepted. Raises StoreFailed, OSError, LogMismatch."""
        folder, accepts_loss = log_folder(self.rows.folder), self.options.accepts_loss
        try:
            reading = self._read(folder, self._noted(folder))
        except LogMismatch as mismatch:
            if not accepts_loss:
                raise
            self.log.error("log_set_aside", reason=str(mismatch))
            _set_aside(self.disk, folder)
            reading = self._read(folder, None)
        for warning in reading.warnings:
            self.log.warning("log_damaged", text=warning)
        self.lacks_log = lacks_log(reading)
        if self.lacks_log and not accepts_loss:
            raise StoreFailed(f"the log of {self.rows.folder} is missing: {folder}. {_WAYS_OUT}")
        self._refuse_loss(reading)
        return reading

    def _read(self, folder: Path, answered: Answered | None) -> Reading:
        return read_above(self.applied, self.disk, folder, answered, self.rows.flushed)

    def _noted(self, folder: Path) -> Answered | None:
        if self.options.durability is not Durability.FSYNC:
            return None
        try:
            return read_answered(self.disk, folder)
        except NoteDamaged as error:
            self.log.error("answered_note_damaged", error=str(error))
            return None

    def _refuse_loss(self, reading: Reading) -> None:
        """Raise StoreFailed if synced Entries are missing, unless that is accepted."""
        if not reading.lost:
            return
        names = self.options.queue_names
        queue_ids = sorted(set().union(*[lost.queue_ids for lost in reading.lost]))
        perhaps = perhaps_changed(self.rows, reading, names)
        entries = sum(lost.last - lost.first + 1 for lost in reading.lost)
        reason = reading.lost[0].reason
        self.log.error(
            "log_entries_lost",
            entries=entries,
            queue_ids=queue_ids,
            queues=named(queue_ids, names),
            one_of_these=named(perhaps, names),
            reason=reason,
        )
        if not self.options.accepts_loss and self.options.durability is Durability.FSYNC:
            raise StoreFailed(
                f"{self.rows.folder} came back shorter: {entries} entries of its log that answers "
                f"told of cannot be read ({reason}); queues they changed: "
                f"{changed_queues(queue_ids, perhaps, names)}. It is damaged, an older copy, or a "
                f"part of it was cut off. {_WAYS_OUT}"
            )


def _opened(rows: RowStore, disk: Disk, options: StoreOptions) -> DurableStore:
    opening = _Opening(rows, disk, options)
    reading = opening.read()
    durable = reading.applied
    unflushed_rows = _replay(reading, opening)
    if reading.lost or opening.applied is None or _is_long(reading, options):
        rows.flush()
        durable, unflushed_rows = reading.end, 0
    opened = open_log(
        reading,
        durable,
        new_log_id=options.new_log_id,
        segment_bytes=options.segment_bytes,
    )
    note_begun(disk, reading.folder)
    note = None
    if options.durability is Durability.FSYNC:
        note = AnsweredNote(disk, log_folder(rows.folder), opened.log_id)
    store = DurableStore(
        rows,
        opened,
        disk,
        note,
        options,
        came_back_shorter=bool(reading.lost) or opening.lacks_log,
        unflushed_rows=unflushed_rows,
    )
    opening.log.debug("store_opened", index=opened.last_index, term=opened.term)
    return store


def _is_long(reading: Reading, options: StoreOptions) -> bool:
    """True if the log takes the space at which a service flushes.

    Each start begins a segment: without this, a service that crashes soon after every start would
    fill the disk with nearly empty ones.
    """
    live = reading.runs_above(reading.applied.index)
    return sum(run.segment.size for run in live) >= options.flush_bytes


def _replay(reading: Reading, opening: _Opening) -> int:
    """Bring the log's Entries into the rows; returns the number of row changes.

    Behind a loss they are not noted as applied, until the rows agree: another start would not see
    the loss, and rebuild nothing.
    """
    rows, changed = opening.rows, 0
    sound_until = reading.lost[0].first if reading.lost else None
    for entry in reading.entries():
        ops = decode_body(entry.body).ops
        is_sound = sound_until is None or entry.index < sound_until
        rows.write(ops, entry.position if is_sound else None)
        changed += len(ops) // 2
    if reading.lost:
        names = opening.options.queue_names
        healed = rows.heal({}, agree=True) if disagreements(rows) else []
        report_rebuilt(healed, opening.log, lambda queue_id: named([queue_id], names)[0])
    if reading.lost or opening.applied is None:
        rows.write([], reading.end)
    return changed


def _set_aside(disk: Disk, folder: Path) -> None:
    """Keep a log that belongs to other rows, under another name."""
    number = 1
    while disk.list(aside := folder.with_name(f"{folder.name}.set-aside-{number}")):
        number += 1
    disk.rename_folder(folder, aside)
