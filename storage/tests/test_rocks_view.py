"""Copies and views of a shard's database: complete, changing nothing, and reading past damage."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage.engines.rocks import RocksRows
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.rows.damage import SoundRow, check_rows
from storage.tests.on_disk import compact
from storage.tests.store_places import changes_of
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import row_key
from visibility.rows.row_values import QueueRow
from visibility.rows.state_rows import write_queue
from visibility.rules.message_events import MessagesSent
from visibility.rules.tables import Finding

COUNT = 400


def _changes(first: int = 1) -> Changes:
    """Messages that do not compress, so that many make several blocks."""
    messages = [
        StoredMessage(f"id-{number}", 1_000, 200, Random(number).randbytes(200))
        for number in range(first, first + COUNT)
    ]
    changes = changes_of(MessagesSent(1, first, messages))
    write_queue(changes, 1, QueueRow(first + COUNT, 1, COUNT, 0), {0: COUNT})
    return changes


def _keys(view: RocksView) -> set[bytes]:
    return {key for key, _ in view.scan(b"", b"\xff" * 33)}


@pytest.mark.parametrize("flushed", [True, False])
def test_checkpoint_has_all_that_was_written_and_nothing_later(
    tmp_path: Path, flushed: bool
) -> None:
    rows = RocksRows(tmp_path / "shard")
    rows.write(_changes().ops)
    if flushed:
        rows.flush()

    rows.checkpoint(tmp_path / "copy")
    rows.write(_changes(first=COUNT + 1).ops)
    rows.close()

    view = RocksView(tmp_path / "copy")
    keys = _keys(view)
    view.close()
    assert row_key(1, b"\x10", COUNT) in keys
    assert len(keys) == COUNT + 2


def test_checkpoint_of_closed_rows_or_to_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "shard")
    (tmp_path / "there").mkdir()

    with pytest.raises(StoreFailed):
        rows.checkpoint(tmp_path / "there")
    rows.close()
    with pytest.raises(StoreFailed, match="closed meanwhile"):
        rows.checkpoint(tmp_path / "copy")


def test_view_stays_readable_while_the_store_replaces_its_files(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "shard")
    rows.write(_changes().ops)
    rows.flush()
    view = RocksView(tmp_path / "shard")

    rows.write([b"", [b"\xff" * 33]])
    rows.flush()
    rows.close()
    compact(tmp_path / "shard")

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
    rows = RocksRows(folder)
    rows.write(_changes().ops)
    rows.flush()
    rows.close()
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
