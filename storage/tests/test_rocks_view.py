"""Copies and views of a shard's database: all that was written, nothing touched, and looking goes on behind damage."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage.checks.damage import Finding, SoundRow, check_rows
from storage.engines.rocks import Durability, RocksStore
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.rows.appliers import APPLIERS, write_queue
from storage.rows.codec import QueueRow
from storage.rows.keys import row_key
from visibility.state.events import MessagesSent, StoredMessage

COUNT = 400


def _refuse(error: StoreFailed) -> None:
    raise error


def _put(store: RocksStore, first: int = 1) -> None:
    """Messages that do not compress, so that many make several blocks."""
    messages = [
        StoredMessage(f"id-{number}", 1_000, 200, Random(number).randbytes(200))
        for number in range(first, first + COUNT)
    ]
    APPLIERS[MessagesSent](store.batch, MessagesSent(1, first, messages), {})
    write_queue(store.batch, 1, QueueRow(first + COUNT, 1, COUNT, 0), {0: COUNT})
    store.write()


def _keys(view: RocksView) -> set[bytes]:
    return {key for key, _ in view.scan(b"", b"\xff" * 33)}


@pytest.mark.parametrize(
    ("durability", "flushed"),
    [(Durability.OS, True), (Durability.OS, False), (Durability.MEMORY, False)],
)
def test_checkpoint_has_all_that_was_written_and_nothing_later(
    tmp_path: Path, durability: Durability, flushed: bool
) -> None:
    store = RocksStore(tmp_path / "shard", durability, _refuse)
    _put(store)
    if flushed:
        store.flush()

    store.checkpoint(tmp_path / "copy")
    _put(store, first=COUNT + 1)
    store.close()

    view = RocksView(tmp_path / "copy")
    keys = _keys(view)
    view.close()
    assert row_key(1, b"\x10", COUNT) in keys
    assert len(keys) == COUNT + 2


def test_checkpoint_of_a_store_that_failed_or_to_a_folder_that_exists_is_refused(
    tmp_path: Path,
) -> None:
    store = RocksStore(tmp_path / "shard", Durability.OS, _refuse)
    (tmp_path / "there").mkdir()

    with pytest.raises(StoreFailed):
        store.checkpoint(tmp_path / "there")
    store.abandon()
    with pytest.raises(StoreFailed, match="failed"):
        store.checkpoint(tmp_path / "copy")


def test_view_stays_readable_while_the_store_replaces_its_files(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "shard", Durability.OS, _refuse)
    _put(store)
    store.flush()
    view = RocksView(tmp_path / "shard")

    store.batch.delete_range(b"", b"\xff" * 33)
    store.write()
    store.flush()
    store._rows.compact_range(None, None)
    store.close()

    assert len(_keys(view)) == COUNT + 2
    view.close()


def test_folder_that_is_no_database_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(StoreFailed, match=str(folder)):
            RocksView(folder)


@pytest.mark.parametrize("at", [0.002, 0.3, 0.6, 0.85])
def test_rows_around_a_damaged_block_are_read_and_the_gap_is_named(
    tmp_path: Path, at: float
) -> None:
    folder = tmp_path / "shard"
    store = RocksStore(folder, Durability.MEMORY, _refuse)
    _put(store)
    store.close()
    (file,) = folder.glob("*.sst")
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1
    file.write_bytes(content)

    view = RocksView(folder)
    found = list(check_rows(view))
    view.close()

    (finding,) = (each for each in found if isinstance(each, Finding))
    read = sum(isinstance(each, SoundRow) for each in found)
    assert "checksum mismatch" in finding.what
    assert str(folder) in finding.what
    assert COUNT - 40 < read < COUNT + 2
