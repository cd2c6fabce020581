"""Behaviour of RocksDB towards damaged data blocks that the recovery of a shard relies on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from storage.engines.readable import tolerant
from storage.engines.rocks import RocksRows, rocks_options
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.rows.damage import UnreadableRows, walk_rows

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


@pytest.mark.slow  # RocksDB waits a second
def test_writes_go_on_where_damage_is_tolerated(damaged: Path) -> None:
    rows = Rdict(str(damaged), tolerant(rocks_options()))

    write_until_compacted(rows)

    put(rows, range(COUNT, COUNT + 10))
    assert rows.get(key(COUNT + 9)) == Random(COUNT + 9).randbytes(100)
    rows.close()
    rows = Rdict(str(damaged), tolerant(rocks_options()))
    assert rows.get(key(COUNT + 9)) == Random(COUNT + 9).randbytes(100)
    rows.close()


@pytest.mark.parametrize("options", [rocks_options, lambda: tolerant(rocks_options())])
def test_each_row_is_right_or_an_error(damaged: Path, options: Callable[[], Options]) -> None:
    rows = Rdict(str(damaged), options())
    errors = []
    for number in range(COUNT):
        try:
            assert rows.get(key(number)) == Random(number).randbytes(100)
        except Exception as error:
            errors.append(str(error))
    rows.close()
    assert 0 < len(errors) < COUNT // 50
    assert all("Corruption" in error for error in errors)


def test_range_deletion_over_an_unreadable_stretch_makes_its_rows_absent(damaged: Path) -> None:
    """So an event can quarantine a stretch: gets find nothing there, and older values do not
    return."""
    (stretch,) = unreadable(damaged)
    rows = Rdict(str(damaged), tolerant(rocks_options()))
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(stretch.key, stretch.until)
    rows.write(batch)
    rows.flush(True)

    found = [number for number in range(COUNT) if rows.get(key(number)) is not None]
    rows.close()

    assert found == [n for n in range(COUNT) if not stretch.key <= key(n) < stretch.until]
    assert len(unreadable(damaged)) <= 1


# -- the store -------------------------------------------------------------------------------------


@pytest.mark.slow  # RocksDB waits a second
def test_store_that_met_a_damaged_block_goes_on_after_it_is_opened_again(damaged: Path) -> None:
    rows = RocksRows(damaged)
    with suppress(StoreFailed):  # raised if RocksDB compacts between two writes
        _write_until_compacted(rows)
    with pytest.raises(StoreFailed, match="Corruption"):
        rows.write([key(0), b"newest"])
    rows.close()

    again = RocksRows(damaged)
    _write_until_compacted(again)
    again.write([key(COUNT + 1), b"later"])
    again.flush()

    assert again.get(key(COUNT + 1)) == b"later"
    again.close()


def _write_until_compacted(rows: RocksRows) -> None:
    rows.note_files()  # compactions begin
    for first in range(_COMPACTED_FROM + 1):
        rows.write([part for n in range(first, COUNT, 7) for part in (key(n), b"new")])
        rows.flush()
    while not rows._rows.property_int_value("rocksdb.background-errors"):
        rows.write([key(0), b"newer"])


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
