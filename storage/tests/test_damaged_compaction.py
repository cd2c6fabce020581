"""A damaged block that a compaction meets costs the rows in it, not the shard."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.engines.durable import DurableStore
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.tests.durable_stores import Open
from storage.tests.store_places import commit
from visibility.rows.row_changes import Changes

pytestmark = pytest.mark.slow  # RocksDB waits a second

_FILES = 3
_ROWS = 500
_OPTIONS = StoreOptions(segment_bytes=1 << 20)


def _wide(number: int) -> Changes:
    """Rows between those of all other numbers, so that compactions join their files."""
    changes = Changes()
    for row in range(_ROWS):
        changes.put(b"%06d-%04d" % (row, number), random.Random(row).randbytes(300))
    return changes


def _damaged(folder: Path) -> None:
    """A folder of three files, with a flipped bit in the second."""
    rows = RocksRows(folder)
    for number in range(_FILES):
        rows.write(_wide(number).ops)
        rows.flush()
    rows.close()
    file = sorted(folder.glob("*.sst"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


async def _written_until_refused(store: DurableStore) -> bool:
    """True if RocksDB refused a write: a compaction has met the damage."""
    store.rows.note_files()  # compactions begin
    for number in range(_FILES, 200):
        try:
            store.rows.write(_wide(number).ops)
            store.flush()
        except StoreFailed:
            return True
    return False


async def test_a_shard_serves_on_after_a_compaction_met_damage(
    opened: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    _damaged(folder)
    store = opened(_OPTIONS, folder)
    assert await _written_until_refused(store)
    with pytest.raises(StoreFailed):
        await commit(store, _wide(500))
    await store.abandon()

    again = opened(_OPTIONS, folder)
    assert again.get(b"000000-0500") is not None, "it is in the log"
    assert again.needs_healing
    for number in range(501, 520):
        await commit(again, _wide(number))
        again.flush()
    assert again.get(b"000000-0519") is not None


async def test_a_process_starts_though_a_compaction_meets_damage_at_once(
    opened: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    _damaged(folder)
    store = opened(_OPTIONS, folder)
    assert await _written_until_refused(store)
    for number in range(500, 504):
        with pytest.raises(StoreFailed):
            await commit(store, _wide(number))
    await store.abandon()
    (folder / "REBUILD").unlink()  # as if no process had met the damage yet

    again = opened(_OPTIONS, folder)

    assert again.get(b"000000-0503") is not None
