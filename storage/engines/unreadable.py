"""The mark of a shard with unreadable blocks, which also notes how far their removal has come.

    DATA/shard-0.unreadable    a CRC-32 in hexadecimal digits, a line feed, JSON: see `Unreadable`

An unreadable mark counts as one that notes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from storage.engines.live_files import write_durably
from storage.files.folder import sync_folder
from visibility.rows.row_keys import queue_key

_BLOCK = re.compile(r"(\d+\.sst) offset (\d+) size (\d+)")


class Block(NamedTuple):
    """The place of a data block."""

    file: str
    offset: int
    size: int


class Unreadable(msgspec.Struct):
    """The known damage."""

    files: list[str] = []
    """SST files with unreadable blocks."""
    stretches: list[tuple[bytes, bytes]] = []
    """Keys (first, until) that could not be read when the removal of these files began. Queues with
    rows there are to be rebuilt."""
    lost: list[bytes] = []
    """Keys of rows there, as far as the damaged blocks name them."""


def blocks_named(text: str) -> set[Block]:
    """The blocks that a message of RocksDB names."""
    return {Block(name, int(at), int(size)) for name, at, size in _BLOCK.findall(text)}


def has_unreadable_blocks(folder: Path) -> bool:
    """True if blocks of this database are known to be damaged: then it is opened with
    `readable.tolerant`."""
    return unreadable_mark_of(folder).exists()


def note_unreadable_blocks(folder: Path, text: str = "") -> None:
    """Remember the damage of which a message of RocksDB tells, if that can be written."""
    known = read_unreadable(folder)
    known.files = sorted({*known.files, *(block.file for block in blocks_named(text))})
    with suppress(OSError):
        write_unreadable(folder, known)


def note_damaged_queue(folder: Path, queue_id: int, text: str) -> None:
    """Let the next opening rebuild a queue with rows that cannot be read. Raises OSError."""
    known = read_unreadable(folder)
    known.files = sorted({*known.files, *(block.file for block in blocks_named(text))})
    own = queue_key(queue_id)
    known.stretches = sorted({*known.stretches, (own, own + b"\0")})
    write_unreadable(folder, known)


def read_unreadable(folder: Path) -> Unreadable:
    """Read the mark."""
    try:
        checksum, _, text = unreadable_mark_of(folder).read_bytes().partition(b"\n")
        if checksum == b"%08x" % crc32(text):
            return msgspec.json.decode(text, type=Unreadable)
    except (OSError, msgspec.MsgspecError):
        pass
    return Unreadable()


def write_unreadable(folder: Path, known: Unreadable) -> None:
    """Replace the mark atomically and durably. Raises OSError."""
    text = msgspec.json.encode(known)
    draft = folder.with_name(folder.name + ".unreadable.new")
    write_durably(draft, b"%08x\n" % crc32(text) + text)
    draft.rename(unreadable_mark_of(folder))
    sync_folder(folder.parent)


def forget_unreadable(folder: Path) -> None:
    """Remove the mark: all blocks can be read. Raises OSError."""
    unreadable_mark_of(folder).unlink(missing_ok=True)


def unreadable_mark_of(folder: Path) -> Path:
    """The file that says so."""
    return folder.with_name(folder.name + ".unreadable")
