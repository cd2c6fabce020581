"""Rows that another host's checkpoint replaces.

    DATA/shard-0.incoming/           a checkpoint that is being fetched
    DATA/shard-0.incoming/REPLACED   it is complete and durable: from now on it counts, and the
                                     rows are dropped
    DATA/shard-0/REPLACED            it has their name; the log was not opened over it yet

The mark is written once everything else is durable, and moves with the folder. So a start drops an
incoming folder without a mark, finishes the switch to one with a mark, and learns from a mark in
the shard's own folder that the log may be of other rows (`Journal.open`). All functions block and
raise OSError.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import msgspec

from storage.copies.checkpoint_files import CheckpointFiles
from storage.log.entry import Position

MARK_FILE = "REPLACED"
_MARK_BYTES_MAX = 4096
_OUTGOING = ".outgoing-"


class Replaced(msgspec.Struct, frozen=True):
    """The checkpoint that replaces the rows."""

    log_id: bytes
    position: Position
    """The last Entry in it."""


def incoming_of(folder: Path) -> Path:
    """The folder into which a checkpoint for this shard is fetched."""
    return folder.with_name(folder.name + ".incoming")


def outgoing_of(folder: Path, number: int) -> Path:
    """The folder of a checkpoint that this shard gives to other hosts."""
    return folder.with_name(f"{folder.name}{_OUTGOING}{number}")


def remove_outgoing(files: CheckpointFiles, folder: Path) -> None:
    """Remove the checkpoints that a process before this one gave to other hosts: their links keep
    obsolete files from being freed."""
    for name in files.names(folder.parent):
        if name.startswith(folder.name + _OUTGOING):
            files.remove(folder.with_name(name))


def make_incoming(files: CheckpointFiles, folder: Path) -> Path:
    """An empty folder for a checkpoint of this shard."""
    drop_incoming(files, folder)
    incoming = incoming_of(folder)
    files.make_folder(incoming)
    return incoming


def drop_incoming(files: CheckpointFiles, folder: Path) -> None:
    """Remove a checkpoint that was fetched, its mark first: what is left must not count."""
    incoming = incoming_of(folder)
    if MARK_FILE in files.names(incoming):
        files.remove(incoming / MARK_FILE)
        files.sync_folder(incoming)
    files.remove(incoming)


def replace_rows(files: CheckpointFiles, folder: Path, replaced: Replaced) -> None:
    """Put the fetched checkpoint, all of it durable, in the place of the rows, which are closed.

    After a failure call `finish_replacing` before anything else uses the folder.
    """
    incoming = incoming_of(folder)
    draft = incoming / f"{MARK_FILE}.new"
    text = msgspec.json.encode(replaced)
    files.write(draft, b"%08x\n" % crc32(text) + text, 0)
    files.sync(draft)
    files.rename(draft, incoming / MARK_FILE)
    files.sync_folder(incoming)
    files.sync_folder(folder.parent)
    finish_replacing(files, folder)


def finish_replacing(files: CheckpointFiles, folder: Path) -> Replaced | None:
    """Finish or drop what a crash interrupted, before the rows are opened.

    Returns the checkpoint that the rows came from, if it is not known that the log was opened over
    it. If they are still of its Entry, the log was not.
    """
    incoming = incoming_of(folder)
    if _read_mark(files, incoming) is None:
        drop_incoming(files, folder)
    else:
        files.remove(folder)
        files.rename(incoming, folder)
        files.sync_folder(folder.parent)
    return _read_mark(files, folder)


def forget_replacing(files: CheckpointFiles, folder: Path) -> None:
    """The log is open over the new rows: remove the mark."""
    if MARK_FILE in files.names(folder):
        files.remove(folder / MARK_FILE)
        files.sync_folder(folder)


def _read_mark(files: CheckpointFiles, folder: Path) -> Replaced | None:
    """The mark in a folder; None if there is none, or if it was not written to its end."""
    if MARK_FILE not in files.names(folder):
        return None
    checksum, _, text = files.read(folder / MARK_FILE, 0, _MARK_BYTES_MAX).partition(b"\n")
    if checksum != b"%08x" % crc32(text):
        return None
    return msgspec.json.decode(text, type=Replaced)
