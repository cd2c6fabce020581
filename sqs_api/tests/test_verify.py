"""Damage of backups and data folders of any kind: `holdfast verify` and `restore` name it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.members.host_folder import save_identity
from cluster.members.member_records import Identity
from sqs_api.node import start_node
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import filled, names, serving
from storage.checks import readable_rows
from storage.copies.manifest import MANIFEST_FILE, CopiedFile, read_manifest, write_manifest
from storage.copies.second_copy import open_with_copy
from storage.engines.kept_files import note_of
from storage.files.copying import files_below
from storage.tests.on_disk import changing, note_more, rows_of, tables
from visibility.rows.row_keys import message_key


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def closed(data: Path) -> Path:
    return filled(data)


# -- damage ----------------------------------------------------------------------------------------


def _flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at % len(content)] ^= 1
    file.unlink()  # it may be a link to a file of the service
    file.write_bytes(content)


def test_damaged_byte_of_any_file_is_named_and_nothing_is_restored(
    closed: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable_rows, "GUESSES", 100)
    run("backup", target, "--data", closed)
    files = [name for name in files_below(target) if (target / name).stat().st_size]
    assert MANIFEST_FILE in files
    assert len(files) > 5

    for number, name in enumerate(files):
        copy, new = tmp_path / f"copy-{number}", tmp_path / f"new-{number}"
        shutil.copytree(target, copy)
        _flip(copy / name, at=number * 1009 + 5)
        verified, restored = run("verify", copy), run("restore", copy, "--data", new)
        assert verified.status == 1
        assert verified.out.startswith(f"{name}: "), verified
        assert restored.status == (2 if name == MANIFEST_FILE else 1)
        assert name in restored.err
        assert not names(new)


def test_missing_and_added_files_of_a_backup_are_named(closed: Path, target: Path) -> None:
    run("backup", target, "--data", closed)
    (target / "records.sqlite").unlink()
    (target / "note").touch()

    said = run("verify", target)

    assert said.status == 1
    assert "records.sqlite: No such file or directory\n" in said.out
    assert "note: the backup was made without it\n" in said.out


def test_backup_without_a_manifest_is_not_used(closed: Path, target: Path, tmp_path: Path) -> None:
    run("backup", target, "--data", closed)
    (target / MANIFEST_FILE).unlink()

    restored = run("restore", target, "--data", tmp_path / "new")
    verified = run("verify", target)

    assert restored.status == verified.status == 2
    assert "not finished" in restored.err
    assert not (tmp_path / "new").exists()


def test_service_does_not_start_on_a_backup(closed: Path, target: Path) -> None:
    run("backup", target, "--data", closed)

    with pytest.raises(
        NodeRefused, match="is a backup: make a data folder of it with holdfast restore"
    ):
        asyncio.run(start_node(Settings(port=0, data=target, auth=AuthMode.OPEN)))
    assert run("verify", target).status == 0


def test_restore_touches_no_folder_that_is_in_use(
    closed: Path, target: Path, tmp_path: Path
) -> None:
    run("backup", target, "--data", closed)
    before = files_below(closed)

    said = run("restore", target, "--data", closed)

    assert said == Said(2, "", f"{closed} is not empty")
    assert files_below(closed) == before


# -- verify ----------------------------------------------------------------------------------------


def _state(folder: Path) -> list[tuple[str, int, int]]:
    states = ((name, (folder / name).stat()) for name in files_below(folder))
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


async def test_verify_changes_nothing_beside_a_running_service(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("a")
        before = _state(data / "shard-0")
        said = await asyncio.to_thread(run, "verify", data)
        assert _state(data / "shard-0") == before
        await served.send("b")

    assert said == Said(0, f"{data}: 1 shards, 1 queues, 3 rows; nothing found\n", "")


def test_verify_changes_nothing_of_a_folder_at_rest(closed: Path) -> None:
    before = _state(closed)

    assert run("verify", closed).status == 0
    assert _state(closed) == before


def test_verify_names_queue_and_message_of_a_damaged_row(closed: Path) -> None:
    key = message_key(1, 1)
    with rows_of(closed / "shard-0") as rows:
        value = rows.get(key)
    assert value is not None
    with changing(closed / "shard-0") as changes:
        changes.put(key, value[:-1] + bytes([value[-1] ^ 1]))

    said = run("verify", closed)

    assert said.status == 1
    lines = said.out.splitlines()
    assert lines[0] == f"shard 0, queue 1 (q), message, {key.hex()}: checksum does not match"
    assert lines[1] == "shard 0, queue 1 (q): 1 messages can be read, 1 missing"
    assert lines[2] == f"{closed}: 1 shards, 2 queues, 6 rows; 2 found"


def test_verify_finds_a_catalog_that_is_older_than_its_shards(closed: Path) -> None:
    with closing(open_with_copy(closed / "records.sqlite", tables(""))) as catalog:
        catalog.execute("DELETE FROM records WHERE key LIKE 'catalog/queues/%'")
        catalog.execute("UPDATE records SET value = X'31' WHERE key = 'catalog/ids/queue'")

    said = run("verify", closed)

    assert said.status == 1
    assert "queue 2, queue, 000000000000000201: the catalog made queues only up to 1" in said.out


def test_verify_says_which_shard_cannot_be_opened(closed: Path) -> None:
    (closed / "shard-0" / "CURRENT").write_text("MANIFEST-999999\n")
    note_of(closed / "shard-0").unlink()

    said = run("verify", closed)

    assert said.status == 1
    assert said.out.startswith(f"shard 0: cannot open {closed}/shard-0: ")


def test_verify_of_another_folder_is_wrong_use(tmp_path: Path) -> None:
    assert run("verify", tmp_path) == Said(2, "", f"{tmp_path} is not a data folder")


def test_verify_finds_messages_whose_key_is_missing(closed: Path) -> None:
    with closing(open_with_copy(closed / "records.sqlite", tables(""))) as records:
        records.execute("DELETE FROM records WHERE key LIKE 'keyring/data/%'")

    said = run("verify", closed)

    assert said.status == 1
    assert said.out.count(", is missing\n") == 3
    assert said.out.count("\n") == 4


def test_verify_finds_one_changed_value_in_the_records_or_their_copy(closed: Path) -> None:
    name = "records.sqlite"
    for file, table in ((closed / name, "checksum"), (closed / f"{name}.copy", "copied_checksum")):
        sound = file.read_bytes()
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"UPDATE {table} SET state = zeroblob(56)")
        said = run("verify", closed)
        assert said.status == 1
        assert said.out.splitlines()[0] == f"{file.name}: its checksum is damaged"
        file.write_bytes(sound)
    (closed / f"{name}.copy").unlink()

    said = run("verify", closed)

    assert said.out.splitlines()[0] == f"{name}.copy: there is none"


def test_verify_names_a_database_that_is_older_than_its_second_copy(closed: Path) -> None:
    file = closed / "records.sqlite"
    older = file.read_bytes()
    with closing(open_with_copy(file, tables(""))) as keyring:
        keyring.execute("UPDATE revisions SET last = last + 1")
    file.write_bytes(older)

    said = run("verify", closed)

    assert said.out.splitlines()[0] == "records.sqlite: it is older than its second copy"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 4}, "has format 4"),
        ({"data_format": 1}, "of data format 1"),
        ({"files": [CopiedFile("../x", 1, "")]}, "outside of the backup: ../x"),
        ({"files": [CopiedFile("/x", 1, "")]}, "outside of the backup: /x"),
    ],
)
def test_backup_of_another_version_or_with_strange_paths_is_refused(
    closed: Path, target: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    run("backup", target, "--data", closed)
    manifest = read_manifest(target)
    (target / MANIFEST_FILE).unlink()
    write_manifest(target, msgspec.structs.replace(manifest, **change))

    said = run("restore", target, "--data", tmp_path / "new")

    assert said.status == 2
    assert says in said.err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_came_back_shorter_is_named(closed: Path) -> None:
    note_more(closed / "shard-0", 5)

    verified = run("verify", closed)

    assert verified.status == 1
    assert "of its log are lost" in verified.out


def test_a_missing_log_is_named(closed: Path, target: Path) -> None:
    """The rows cannot tell what they lacked; a backup has no logs."""
    backed_up = run("backup", target, "--data", closed)
    shutil.rmtree(closed / "shard-0.log")

    verified, copy = run("verify", closed), run("verify", target)
    salvaged = run("salvage", closed, "--data", closed.parent / "new")

    assert "shard 0: its log is missing" in verified.out
    assert "shard 0: its log is missing" in salvaged.out
    assert (verified.status, salvaged.status) == (1, 1)
    assert (backed_up.status, copy.status) == (0, 0), copy.out


def test_the_folder_of_a_host_of_a_cluster_is_compared_with_no_records(closed: Path) -> None:
    """They are in etcd: each message would be said to be without its key."""
    for file in closed.glob("records.*"):
        file.unlink()
    save_identity(closed, Identity("a"))

    verified = run("verify", closed)

    assert (verified.status, "nothing found" in verified.out) == (0, True), verified.out
    assert "queues and keys are in etcd and were not compared" in verified.out


def test_a_backup_is_not_restored_into_itself(closed: Path, target: Path) -> None:
    """Else its new files would be said not to belong to it."""
    run("backup", target, "--data", closed)

    said = run("restore", target, "--data", target / "new")

    assert (said.status, "new is in the backup" in said.err) == (2, True)
    assert run("verify", target).status == 0


def test_the_folder_above_the_parts_of_a_fleet_says_what_it_is(
    closed: Path, target: Path, tmp_path: Path
) -> None:
    target.mkdir()
    for number in (1, 2):
        run("backup", target / f"cluster-{number}", "--data", closed)

    verified, restored = run("verify", target), run("restore", target, "--data", tmp_path / "new")

    assert "of a fleet: verify its parts, cluster-1, cluster-2" in verified.err
    assert "parts cluster-1, cluster-2: restore them with --fleet" in restored.err
    assert (verified.status, restored.status) == (2, 2)
