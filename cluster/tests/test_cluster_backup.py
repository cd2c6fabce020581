"""The files of a cluster's backup, and the folders restored from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cluster.catalog.record_codec import StoredQueue, StoredTombstone, skip_part_numbers
from cluster.copies.backup import BackupDraft, CopiedRows
from cluster.copies.restore import BackupDamaged, restore
from cluster.copies.verify import FolderCheck
from cluster.keys.key_records import StoredBlock
from cluster.members.copied_records import RECORDS_FILE, read_copied
from cluster.members.host_folder import MEMBER_FILE
from cluster.members.member_records import Identity
from storage.copies.manifest import BackupRefused, Manifest, read_manifest
from storage.engines.rocks import RocksRows
from storage.files.folder import open_folder
from storage.log import Position
from visibility.contract.queue_parts import Part
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import queue_key
from visibility.rows.row_values import QueueRow

STAMP_MS = 9_000
APPLIED = Position(7, 40, 0xABC)


def _records(**more: bytes) -> dict[str, bytes]:
    queues = {
        f"catalog/queues/1/r/q{shard}": msgspec.json.encode(
            StoredQueue(shard + 1, "1", "r", f"q{shard}", 1, shard, 0, 0, b"k", {}, {}, "")
        )
        for shard in (0, 1)
    }
    block = msgspec.json.encode(StoredBlock(1, b"wrapped", 0))
    keys = {"keyring/root": b"\xff\x00", "keyring/data/1": block, "catalog/ids/queue": b"2"}
    return {**queues, **keys, **more}


def _write_queue(store: RocksRows, queue_id: int, next_sequence: int) -> None:
    changes = Changes()
    changes.put(
        queue_key(queue_id), encode_row(QueueRow(next_sequence, 1, 0, 0, stamp_ms=STAMP_MS))
    )
    store.write(changes.ops, APPLIED)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def back_up(data: Path, target: Path, records: dict[str, bytes]) -> Manifest:
    """As a host does, whose first copies were disturbed."""
    folders = open_folder(data, 2)
    draft = BackupDraft(data, target, with_master_key=False, cluster="holdfast")
    stores = {number: RocksRows(folder) for number, folder in folders.items()}
    checkpoints = {folders[n].name: store.checkpoint for n, store in stores.items()}
    draft.take_rows(checkpoints)
    for number, store in stores.items():
        _write_queue(store, number + 1, 5)
        store.flush()
    copied = draft.take_rows(checkpoints)
    assert copied == dict.fromkeys(checkpoints, CopiedRows(APPLIED, STAMP_MS))
    for store in stores.values():
        store.close()
    draft.put_records(records)
    named = {number: folder.name for number, folder in folders.items()}
    return draft.finish(named, version="1", made_at_ms=STAMP_MS, last_stamp_ms=STAMP_MS)


def found_in(folder: Path) -> tuple[int, list[str]]:
    check = FolderCheck(folder)
    findings = list(check.findings())
    return check.queues, findings


def test_a_backup_is_whole_and_its_folders_begin_alike(data: Path, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "backup", _records())
    assert (made.cluster, made.queues) == ("holdfast", 2)
    assert read_manifest(tmp_path / "backup") == made
    assert found_in(tmp_path / "backup") == (2, [])

    for name in "ab":
        restore(tmp_path / "backup", tmp_path / name)

    identities = [
        msgspec.json.decode((tmp_path / name / MEMBER_FILE).read_bytes(), type=Identity)
        for name in "ab"
    ]
    assert [each.restored for each in identities] == [made.backup_id] * 2
    assert identities[0].host_id != identities[1].host_id
    positions = set()
    for name in "ab":
        assert found_in(tmp_path / name) == (2, [])
        assert read_copied(tmp_path / name) == {
            key: skip_part_numbers(key, value) for key, value in _records().items()
        }
        for folder in open_folder(tmp_path / name).values():
            rows = RocksRows(folder)
            positions.add(rows.applied())
            rows.close()
    assert positions == {Position(0, 1, int(made.backup_id[:8], 16))}


def test_numbers_of_parts_that_a_backup_is_older_than_are_not_given_out_again(
    data: Path, tmp_path: Path
) -> None:
    """Handles of lost messages name these parts."""
    split = StoredQueue(
        3, "1", "r", "q2", 1, None, 0, 0, b"k", {}, {}, "", (Part(0, 3, 0), Part(16, 4, 1)), 16
    )
    kept = StoredTombstone(split, 5, 1, 0)
    records = {
        "catalog/queues/1/r/q2": msgspec.json.encode(split),
        "catalog/deleted/3": msgspec.json.encode(kept),
        "catalog/ids/queue": b"4",
    }
    back_up(data, tmp_path / "backup", _records(**records))

    restore(tmp_path / "backup", tmp_path / "a")

    restored = read_copied(tmp_path / "a")
    whole = msgspec.json.decode(restored["catalog/queues/1/r/q0"], type=StoredQueue)
    parted = msgspec.json.decode(restored["catalog/queues/1/r/q2"], type=StoredQueue)
    deleted = msgspec.json.decode(restored["catalog/deleted/3"], type=StoredTombstone)
    assert (whole.last_part, parted.last_part, deleted.queue.last_part) == (1024, 1040, 1040)
    assert (parted.parts, parted.shard) == (split.parts, None)


def test_rows_that_the_copied_catalog_does_not_know_are_found(data: Path, tmp_path: Path) -> None:
    records = _records()
    del records["catalog/queues/1/r/q1"]
    records["catalog/ids/queue"] = b"1"
    back_up(data, tmp_path / "backup", records)

    queues, findings = found_in(tmp_path / "backup")

    assert queues == 1
    assert len(findings) == 1
    assert findings[0].endswith("the catalog made queues only up to 1")


def test_other_backups_have_other_ids(data: Path, tmp_path: Path) -> None:
    first = back_up(data, tmp_path / "1", _records())
    second = back_up(data, tmp_path / "2", _records(**{"identities/users/1/u": b"{}"}))

    assert first.backup_id != second.backup_id


def test_damaged_records_are_not_restored(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup", _records())
    file = tmp_path / "backup" / RECORDS_FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    with pytest.raises(BackupDamaged, match="1 files are damaged"):
        restore(tmp_path / "backup", tmp_path / "a")

    assert not any((tmp_path / "a").iterdir())


def test_a_backup_of_a_later_version_is_refused(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup", _records(**{"members/formats": b"2"}))

    with pytest.raises(BackupRefused, match="writes formats 2; this version of holdfast knows 1"):
        restore(tmp_path / "backup", tmp_path / "a")

    assert not any((tmp_path / "a").iterdir())
