"""Takes SST files with unreadable blocks out of a database, and leaves all other rows as they are.

RocksDB can neither skip a block in a compaction nor replace a file. But what a file contributes can
be written again, above all other files:

    1  find the stretches of keys that cannot be read, and note them beside the shard
    2  compare the database with a view of it without these files, and write the differences
    3  flush, then add a record to the MANIFEST that removes the files; they are kept aside
    4  rebuild the queues with rows in the stretches (`healed_queue.heal`), and drop the note

Until 3 the files stay and the writes change nothing that can be read; so a crash at any point lets
the next start do it again. Within a stretch, each row of the view is looked up by its name in the
database: one that the damaged block may replace or delete cannot be read there, and is deleted. So
nothing older comes back, and rows that are newer, or that the file's filter excludes, stay. Of
several damaged files, each may have rows in another's stretches: views with one of them show those.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import Rdict

from storage.engines.live_files import OF_ONE_OPENING, current_manifest, write_durably
from storage.engines.manifest_log import deletion_records
from storage.engines.restored_files import place_aside
from storage.engines.sst_block import keys_in
from storage.engines.unreadable import Block
from storage.files.copying import copy_file
from storage.files.folder import sync_folder
from storage.rows.damage import END, FIRST, TABLES, UnreadableRows, walk_rows
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import MESSAGE, message_key, number_of, queue_of

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 10_000
_NOT_LINKED = (*OF_ONE_OPENING, "rocksdict-config.json", "MANIFEST-")
_KEY_BYTES_MAX = len(END)


def bounds_of(rows: Rdict, names: Iterable[str]) -> tuple[bytes, bytes]:
    """The first key of these SST files, and one behind their last; all keys if they are unknown."""
    files = [file for name, file in _live(rows).items() if name in names]
    first = [file["start_key"] for file in files]
    last = [file["end_key"] for file in files]
    keys = [key for key in (*first, *last) if isinstance(key, bytes)]
    if not keys or len(keys) < 2 * len(files):
        return FIRST, END
    behind = int.from_bytes(max(keys)[:_KEY_BYTES_MAX].ljust(_KEY_BYTES_MAX, b"\0")) + 1
    return min(keys), min(behind.to_bytes(_KEY_BYTES_MAX), END)


def levels_of(rows: Rdict, names: Iterable[str]) -> dict[str, int]:
    """The levels of those of these SST files that belong to the database."""
    live = _live(rows)
    return {name: int(str(live[name]["level"])) for name in sorted(names) if name in live}


def _live(rows: Rdict) -> dict[str, dict[str, object]]:
    return {str(file["name"]).lstrip("/"): file for file in rows.live_files()}


def unreadable_stretches(rows: RowReader, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    """The stretches (first, until) of keys between these that cannot be read. O(rows)."""
    found = [each for each in walk_rows(rows, begin, end) if isinstance(each, UnreadableRows)]
    return [(each.key, each.until) for each in found]


def keys_among(rows: RowReader, stretches: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The keys that a view shows in these stretches."""
    return {
        found[0]
        for stretch in stretches
        for found in walk_rows(rows, *stretch)
        if not isinstance(found, UnreadableRows)
    }


def lost_keys(
    rows: RowReader, folder: Path, blocks: set[Block], shown: Iterable[bytes]
) -> list[bytes]:
    """Keys of rows that cannot be read: those that damaged blocks name or views have `shown`.

    Keys that are damaged themselves are found if they are those of messages between others. The
    filter of a file may also say that it has a message that it does not have: that one is lost, or
    had been deleted.
    """
    named = _named(folder, blocks)
    rest = [*shown, *(key for key in named if _is_row(key))]
    lost: set[bytes] = set()
    while rest:
        key = rest.pop()
        if key in lost or not named.get(key, True) or not _is_unreadable(rows, key):
            continue
        lost.add(key)
        if key[8:9] == MESSAGE:
            number = number_of(key)
            rest += [message_key(queue_of(key), n) for n in (number - 1, number + 1) if n > 0]
    return sorted(lost)


def _named(folder: Path, blocks: Iterable[Block]) -> dict[bytes, bool]:
    """Keys in damaged blocks, true for rows, false for deletions."""
    named: dict[bytes, bool] = {}
    for block in blocks:
        with (folder / block.file).open("rb") as stream:
            stream.seek(block.offset)
            named.update(keys_in(stream.read(block.size)))
    return named


def _is_row(key: bytes) -> bool:
    table = TABLES.get(key[8:9])
    return table is not None and len(key) == table.key_bytes


def _is_unreadable(rows: RowReader, key: bytes) -> bool:
    try:
        rows.get(key)
    except DamagedRecord:
        return True
    return False


# -- what the files contribute ---------------------------------------------------------------------


def contributions(
    rows: RowReader,
    without: RowReader,
    begin: bytes,
    end: bytes,
    *,
    stretches: Iterable[tuple[bytes, bytes]],
    shown: Collection[bytes],
) -> Iterator[Changes]:
    """Changes that let the rows `without` the damaged files be as `rows` are now.

    `shown` are the keys in the stretches that views without damaged files show. Raises
    DamagedRecord if rows outside of the stretches cannot be read.
    """
    changes = Changes()
    sound = _differences(rows, without, begin, end, stretches)
    for key, value in chain(sound, _looked_up(rows, without, shown)):
        if value is None:
            changes.delete(key)
        else:
            changes.put(key, value)
        if changes.size >= _BATCH_BYTES or len(changes) >= _BATCH_ROWS:
            yield changes
            changes = Changes()
    if changes:
        yield changes


def _differences(
    rows: RowReader,
    without: RowReader,
    begin: bytes,
    end: bytes,
    stretches: Iterable[tuple[bytes, bytes]],
) -> Iterator[tuple[bytes, bytes | None]]:
    at = begin
    for first, until in sorted(stretches):
        yield from _between(_until_stretch(rows, at, first), without.scan(at, first))
        at = max(at, until)
    yield from _between(rows.scan(at, end), without.scan(at, end))


def _looked_up(
    rows: RowReader, without: RowReader, keys: Iterable[bytes]
) -> Iterator[tuple[bytes, bytes | None]]:
    for key in keys:
        now: bytes | None = None
        with suppress(DamagedRecord):
            now = rows.get(key)
        if now != without.get(key):
            yield key, now


def _until_stretch(rows: RowReader, begin: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Rows up to a stretch that cannot be read, where a scan meets the damage. Raises DamagedRecord
    for damage before it."""
    behind = begin
    try:
        for row in rows.scan(begin, first):
            behind = row[0] + b"\0"
            yield row
    except DamagedRecord:
        if behind < first:
            raise


def _between(
    rows: Iterator[tuple[bytes, bytes]], without: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The differences of two sorted sequences of rows."""
    row, other = next(rows, None), next(without, None)
    while row is not None or other is not None:
        if other is None or (row is not None and row[0] < other[0]):
            assert row is not None
            yield row
            row = next(rows, None)
        elif row is None or other[0] < row[0]:
            yield other[0], None
            other = next(without, None)
        else:
            if row[1] != other[1]:
                yield row
            row, other = next(rows, None), next(without, None)


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def linked_without(folder: Path, levels: dict[str, int]) -> Iterator[Path]:
    """A folder of links to a flushed database, in which these files do not belong to it."""
    with TemporaryDirectory(prefix="holdfast-") as scratch:
        links = Path(scratch, folder.name)
        links.mkdir()
        for name in os.listdir(folder):
            if not name.startswith(_NOT_LINKED):
                (links / name).symlink_to(folder.absolute() / name)
        manifest = current_manifest(folder)
        shutil.copyfile(folder / manifest, links / manifest)
        _remove_files(links / manifest, levels)
        yield links


def take_out(folder: Path, levels: dict[str, int]) -> None:
    """Remove these files from a closed database, durably; they are kept aside. Raises OSError."""
    for name in levels:
        target = place_aside(folder, name)
        try:
            os.link(folder / name, target)
        except OSError:  # a disk without hard links
            copy_file(folder / name, target)
        sync_folder(target.parent)
    _remove_files(folder / current_manifest(folder), levels)


def _remove_files(manifest: Path, levels: dict[str, int]) -> None:
    size = manifest.stat().st_size
    write_durably(manifest, deletion_records(levels, size), at=size)
