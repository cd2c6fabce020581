"""Behaviour of RocksDB towards damaged data blocks that the recovery of a shard relies on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from rocksdict import Rdict, WriteBatch, WriteOptions

from storage.engines.rocks import RocksRows, rocks_options
from storage.engines.rocks_reader import RocksReader
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.rows.damage import UnreadableRows, walk_rows
from visibility.rows.row_codec import DamagedRecord

COUNT = 5_000
_COMPACTED_FROM = 4
"""Files in level 0 from which on RocksDB compacts them."""


def key(number: int) -> bytes:
    return b"%08d" % number


def put(rows: Rdict, numbers: range) -> None:
    batch, options = WriteBatch(raw_mode=True), WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]
    for number in numbers:
        batch.put(key(number), Random(number).randbytes(100))
    rows.write(batch, options)
    rows.flush(True)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A closed database of one file, with a flipped bit in the middle."""
    folder = tmp_path / "shard-0"
    rows = Rdict(str(folder), rocks_options())
    put(rows, range(COUNT))
    rows.close()
    (file,) = folder.glob("*.sst")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return folder


def unreadable(folder: Path) -> list[UnreadableRows]:
    view = RocksView(folder)
    found = [each for each in walk_rows(view) if isinstance(each, UnreadableRows)]
    view.close()
    return found


def write_until_compacted(rows: Rdict) -> None:
    """Flush files that overlap the damaged one, and wait until RocksDB has tried to compact
    them."""
    for first in range(_COMPACTED_FROM + 1):
        put(rows, range(first, COUNT, 7))
    while not rows.property_int_value("rocksdb.background-errors"):
        put(rows, range(1))


@pytest.mark.slow  # RocksDB waits a second
def test_compaction_of_a_damaged_block_ends_all_writes(damaged: Path) -> None:
    rows = Rdict(str(damaged), rocks_options())

    with pytest.raises(Exception, match="Corruption: block checksum mismatch"):
        write_until_compacted(rows)

    with pytest.raises(Exception, match="Corruption"):
        put(rows, range(1))
    with pytest.raises(Exception, match="Corruption"):
        rows.close()


def test_each_row_is_right_or_an_error(damaged: Path) -> None:
    rows = Rdict(str(damaged), rocks_options())
    errors = []
    for number in range(COUNT):
        try:
            assert rows.get(key(number)) == Random(number).randbytes(100)
        except Exception as error:
            errors.append(str(error))
    rows.close()
    assert 0 < len(errors) < COUNT // 50
    assert all("Corruption" in error for error in errors)


def test_the_names_in_a_damaged_block_can_be_read(damaged: Path) -> None:
    """Whatever its checksum says; reads that check it fail as before."""
    (stretch,) = unreadable(damaged)
    reader = RocksReader(Rdict(str(damaged), rocks_options()))

    names = [*reader.names(stretch.key, stretch.until)]

    lost = {key(number) for number in range(COUNT) if stretch.key <= key(number) < stretch.until}
    assert len(lost - {*names}) <= 1, "the one with the flipped bit"
    assert len(names) == len(lost)
    for name in lost:
        with pytest.raises(DamagedRecord):
            reader.get(name)


# -- the store -------------------------------------------------------------------------------------


def test_store_replaces_damaged_files_and_its_rows_are_whole(tmp_path: Path) -> None:
    folder = tmp_path / "shard-0"
    rows = RocksRows(folder)
    rows.write([part for n in range(COUNT) for part in (key(n), b"value")])
    rows.flush()
    rows.close()
    for file in (*folder.glob("*.sst"), *folder.glob("MANIFEST-*"), folder / "CURRENT"):
        content = bytearray(file.read_bytes())
        content[-9] ^= 1
        file.write_bytes(content)

    again = RocksRows(folder)

    assert len(list(again.scan(b"", b"\xff"))) == COUNT
    again.close()


def test_refusal_because_of_damage_says_what_to_do(damaged: Path) -> None:
    (damaged / "CURRENT").write_bytes(b"nothing\n")

    with pytest.raises(StoreFailed, match=f"holdfast salvage {damaged.parent} --data NEW"):
        RocksRows(damaged)
