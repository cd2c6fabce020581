"""The live bytes of a data folder by kind, so that damage can strike each kind with equal weight.

A new kind of file needs one row in ROWS. Files without a row hold nothing that must survive:
RocksDB's log of events, locks, journals.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_FOOTER = 53
_MAGIC = bytes.fromhex("f7cff485b741e288")
_TRAILER = 5  # after each block
_RECORD = b"\xd1\x9b\xf2\x8e"
_SEGMENT_HEADER = 4096
_SEGMENT_FIELDS = 74
_BLOCKS = {"rocksdb.index": "SST index", "fullfilter.": "SST filter", "rocksdb.": "SST properties"}

Parts = dict[str, list[tuple[int, int]]]
"""Ranges of a file by kind."""


class Row(NamedTuple):
    """The division of files of one name."""

    pattern: str
    parts: Callable[[Path], Parts]


class Span(NamedTuple):
    """Live bytes of one kind."""

    file: Path
    begin: int
    end: int


def whole(kind: str) -> Callable[[Path], Parts]:
    """Every byte of the file."""
    return lambda file: {kind: [(0, file.stat().st_size)]}


def written(kind: str) -> Callable[[Path], Parts]:
    """The file without the zeros at its end: a log that is allocated in advance."""
    return lambda file: {kind: [(0, len(file.read_bytes().rstrip(b"\0")))]}


def current(kind: str) -> Callable[[Path], Parts]:
    """The MANIFEST that CURRENT names, or the newest file of a pattern."""

    def parts(file: Path) -> Parts:
        pointer = file.with_name("CURRENT")
        named = pointer.read_text().strip() if pointer.exists() else ""
        newest = max(each.name for each in file.parent.glob(f"{file.name.split('-')[0]}-*"))
        is_live = file.name == (named if named.startswith(kind) else newest)
        return {kind: [(0, file.stat().st_size)]} if is_live else {}

    return parts


def sst(file: Path) -> Parts:
    """A table: its blocks of data, then those that its index of blocks names, then the footer."""
    content = file.read_bytes()
    end = len(content) - _FOOTER
    assert content.endswith(_MAGIC), f"{file} is not a table of RocksDB"
    parts: Parts = {"SST footer": [(end, len(content))]}
    version, size = struct.unpack_from("<I", content, len(content) - 12)[0], 0
    if version >= 6:
        (size,) = struct.unpack_from("<I", content, end + 13)
        at = end - _TRAILER - size
    else:
        at, position = _varint(content, end + 1)
        size, position = _varint(content, position)
        begin, position = _varint(content, position)
        length, _ = _varint(content, position)
        parts["SST index"] = [(begin, begin + length + _TRAILER)]
    parts["SST properties"] = [(at, at + size + _TRAILER)]
    for name, begin, length in _handles(content[at : at + size]):
        kind = next((kind for start, kind in _BLOCKS.items() if name.startswith(start)), None)
        parts.setdefault(kind or "SST properties", []).append((begin, begin + length + _TRAILER))
    parts["SST data"] = [(0, min(begin for spans in parts.values() for begin, _ in spans))]
    return parts


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """A number and the position after it."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _handles(block: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, offset and length of the blocks that the index of blocks names."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    position, key = 0, b""
    while position < len(block) - 4 * (restarts + 1):
        shared, position = _varint(block, position)
        added, position = _varint(block, position)
        length, position = _varint(block, position)
        key = key[:shared] + block[position : position + added]
        position += added
        begin, after = _varint(block, position)
        size, _ = _varint(block, after)
        position += length
        if size:
            yield key.decode(), begin, size


def segment(file: Path) -> Parts:
    """A segment of our log written since the last start: its two headers and its chain of
    records."""
    newest = max(_term(each) for each in file.parent.glob("segment-*"))
    if not _term(file) == newest > 0:
        return {}
    content = file.read_bytes()
    at, previous = _SEGMENT_HEADER, b""
    while content[at : at + 4] == _RECORD and previous in (b"", content[at + 12 : at + 16]):
        ids, size = struct.unpack_from(">HI", content, at + 6)
        checksum = at + 40 + 8 * ids + 4 + size
        previous = content[checksum : checksum + 4]
        at = checksum + 4 + -(checksum + 4) % 8
    headers = [(0, _SEGMENT_FIELDS), (_SEGMENT_HEADER // 2, _SEGMENT_HEADER // 2 + _SEGMENT_FIELDS)]
    return {"log headers": headers, "log records": [(_SEGMENT_HEADER, at)]}


def _term(file: Path) -> int:
    """The term of a segment's first header; 0 if there is none."""
    with file.open("rb") as stream:
        content = stream.read(_SEGMENT_FIELDS)
    return int.from_bytes(content[26:34], "big")


def copies(file: Path) -> Parts:
    """Files kept of a database; tables there are further names of its own, or obsolete."""
    return {} if file.suffix == ".sst" else whole("copies")(file)


ROWS = (
    Row("kept/*", copies),
    Row("*.sst", sst),
    Row("*.log", written("log records")),
    Row("segment-*", segment),
    Row("identity", written("notes")),
    Row("answered", written("notes")),
    Row("MANIFEST-*", current("MANIFEST")),
    Row("CURRENT", whole("CURRENT")),
    Row("OPTIONS-*", current("OPTIONS")),
    Row("*.answered", whole("notes")),
    Row("records.sqlite*", whole("records")),
    Row("master.key", whole("master key")),
    Row("format.json", whole("format")),
)
APART = {"records", "master key", "format"}
"""Small and irreplaceable: counted separately."""

LOG = {"log headers", "log records"}
"""Dead in a folder that was closed cleanly: everything is in tables then."""

_REBUILT = "*-shm"  # SQLite rebuilds it


_DEAD = (".damaged", ".fresh")
"""Folders of rows that were replaced, or are not whole yet."""


def live_bytes(data: Path, *, is_closed: bool) -> dict[str, list[Span]]:
    """Spans of the folder's files by kind; a file with two names counts once."""
    found: dict[str, list[Span]] = {}
    seen: set[int] = set()
    for file in sorted(path for path in data.rglob("*") if path.is_file()):
        if any(part.endswith(_DEAD) for part in file.parts):
            continue
        row = next((row for row in ROWS if file.match(row.pattern)), None)
        if row is None or file.match(_REBUILT):
            continue
        try:
            status = file.stat()
            parts = row.parts(file) if status.st_size and status.st_ino not in seen else {}
        except FileNotFoundError:  # a running service removes files meanwhile
            continue
        seen.add(status.st_ino)
        for kind, spans in parts.items():
            if not (is_closed and kind in LOG):
                found.setdefault(kind, []).extend(Span(file, *span) for span in spans)
    live = {kind: [span for span in of if span.begin < span.end] for kind, of in found.items()}
    return {kind: of for kind, of in live.items() if of}
