"""A folder of version 0.1 is converted with every row, or is not changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Rdict

from storage.copies import convert as conversion
from storage.copies.convert import convert
from storage.engines.opening import open_store
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.files.folder import FolderRefused, read_format
from storage.tests.durable_stores import SMALL
from storage.tests.format_3 import (
    converted_rows,
    in_use,
    make_old_folder,
    note,
    noted,
    old_options,
    write_old_format,
)
from storage.tests.store_places import commit, message
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVE, message_key, queue_key, row_key
from visibility.rows.row_values import THE_SHARD, ArchiveRow, QueueRow
from visibility.rows.state_rows import load_archive
from visibility.rules.message_events import MessagesSent

ROWS = {message_key(1, sequence): encode_row(message(sequence, 2_000)) for sequence in range(40)}
ARCHIVE_KEY = row_key(THE_SHARD, ARCHIVE, 0)
ROWS |= {
    queue_key(1): encode_row(QueueRow(41, 1, 40, 0)),
    ARCHIVE_KEY: encode_row(ArchiveRow("source", 7, 3, 0, 0, 0, 0, 0)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made") / "data"
    make_old_folder(data, ROWS)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def _files(data: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of all files."""
    return {
        str(file.relative_to(data)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in data.rglob("*")
        if file.is_file()
    }


def _log(data: Path) -> Path:
    """RocksDB's log."""
    (log,) = (data / "shard-0").glob("*.log")
    return log


def _old_rows(shard: Path) -> dict[bytes, bytes]:
    """As version 0.1 reads them."""
    database = Rdict(str(shard), old_options())
    try:
        return {
            key: value
            for key, value in database.items()
            if isinstance(key, bytes) and isinstance(value, bytes)
        }
    finally:
        database.close()


def _assert_refused(data: Path, text: str) -> None:
    before = _files(data)
    with pytest.raises((StoreFailed, FolderRefused)) as refused:
        convert(data)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
    assert _files(data) == before
    assert not (data / "shard-0-format-4").exists()


# -- conversions -----------------------------------------------------------------------------------


async def test_all_rows_are_there_and_new_ones_join_them(data: Path) -> None:
    assert _log(data).stat().st_size > 20_000

    names = ["shard-0", "shard-0.answered", "format-3.json"]
    assert convert(data) == [data / name for name in names]

    assert converted_rows(data) == ROWS
    store = open_store(data / "shard-0-format-4", SMALL)
    await commit(store, MessagesSent(1, 41, [message(41)]))
    await store.close()
    assert converted_rows(data).keys() == ROWS.keys() | {message_key(1, 41)}


async def test_the_old_files_stay_a_backup_for_the_old_version(data: Path) -> None:
    before = _files(data)

    convert(data)
    store = open_store(data / "shard-0-format-4", SMALL)
    await commit(store, MessagesSent(1, 41, [message(41)]))
    await store.close()

    after = _files(data)
    assert after["format-3.json"][0] == before.pop("format.json")[0]
    assert {name: after[name] for name in before} == before
    (data / "format-3.json").rename(data / "format.json")
    assert _old_rows(data / "shard-0") == ROWS


def _options(shard: Path) -> list[str]:
    """The options that RocksDB uses."""
    newest = max(shard.glob("OPTIONS-*"))
    return [line for line in newest.read_text().splitlines() if not line.startswith("#")]


def test_a_converted_folder_has_the_new_options(data: Path, tmp_path: Path) -> None:
    convert(data)

    for shard in (data / "shard-0-format-4", tmp_path / "fresh"):
        RocksRows(shard).close()

    converted, fresh = _options(data / "shard-0-format-4"), _options(tmp_path / "fresh")
    assert "  compression=kNoCompression" in fresh
    assert converted == fresh


async def test_a_folder_that_the_old_version_used_again_is_converted_anew(data: Path) -> None:
    convert(data)
    shutil.copyfile(data / "format-3.json", data / "format.json")
    database = Rdict(str(data / "shard-0"), old_options())
    database[b"\0" * 7 + b"\2\1"] = b"later"
    database.close()
    store = open_store(data / "shard-0-format-4", SMALL)
    await commit(store, MessagesSent(1, 41, [message(41)]))
    await store.close()

    convert(data)

    assert {name for name in os.listdir(data) if "format-4" in name} == {"shard-0-format-4"}
    assert converted_rows(data) == ROWS | {b"\0" * 7 + b"\2\1": b"later"}


def test_a_first_start_that_was_cut_off_is_converted(tmp_path: Path) -> None:
    write_old_format(tmp_path)

    convert(tmp_path)

    assert converted_rows(tmp_path) == {}


def test_without_hard_links_files_are_copied(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)

    convert(data)

    assert converted_rows(data) == ROWS


# -- the end of the log ----------------------------------------------------------------------------


def _tear(data: Path) -> None:
    """The last record was being written."""
    log = _log(data)
    os.truncate(log, log.stat().st_size - 5)


def _damage(data: Path) -> None:
    """One byte in the middle of the log is another."""
    log = _log(data)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def test_a_torn_end_that_no_answer_told_of_is_accepted(data: Path) -> None:
    _tear(data)
    note(data / "shard-0", noted(data / "shard-0") - 1)

    convert(data)

    assert converted_rows(data).items() == set(list(ROWS.items())[:-1])


@pytest.mark.parametrize("spoil", [_tear, _damage])
def test_changes_that_answers_told_of_are_not_given_up_unasked(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(data)
    _assert_refused(data, f"answers told of {noted(data / 'shard-0')}")

    convert(data, accepts_loss=True)

    found = converted_rows(data)
    assert len(ROWS) // 2 <= len(found) < len(ROWS)
    assert found.items() <= ROWS.items()


def test_a_hole_that_no_answer_told_of_is_accepted(data: Path) -> None:
    _damage(data)
    note(data / "shard-0", len(ROWS) // 2)

    convert(data)

    assert len(ROWS) // 2 <= len(converted_rows(data)) < len(ROWS)


def test_to_the_archive_a_shorter_folder_becomes_another(data: Path) -> None:
    note(data / "shard-0", noted(data / "shard-0") + 1)

    convert(data, accepts_loss=True)

    rows = RocksRows(data / "shard-0-format-4")
    archive, _ = load_archive(rows)
    rows.close()
    assert archive == ArchiveRow("", 7, 3, 0, 0, 0, 0, 0)


def test_a_folder_that_came_back_shorter_is_refused(data: Path) -> None:
    note(data / "shard-0", noted(data / "shard-0") + 1)

    _assert_refused(data, "came back shorter: it holds 42 changes, but answers told of 43")


def test_a_shard_that_is_missing_is_refused(data: Path) -> None:
    shutil.rmtree(data / "shard-0")

    _assert_refused(data, "came back shorter: it holds 0 changes, but answers told of 42")


@pytest.mark.parametrize(
    "line", [b"x", b"%020d 00000000\n" % 42, b"%020d 00000000\n%020d 00000000\n" % (1, 1)]
)
def test_a_damaged_note_is_refused(data: Path, line: bytes) -> None:
    (data / "shard-0.answered").write_bytes(line)
    _assert_refused(data, "shard-0.answered is damaged")

    convert(data, accepts_loss=True)

    assert converted_rows(data).keys() == ROWS.keys()


def test_a_damaged_database_is_refused_whatever_is_accepted(data: Path) -> None:
    (data / "shard-0" / "CURRENT").write_text("MANIFEST-999999\n")
    _assert_refused(data, "cannot open")

    with pytest.raises(StoreFailed, match="cannot open"):
        convert(data, accepts_loss=True)

    assert read_format(data)["format"] == 3
    assert not (data / "shard-0-format-4").exists()


# -- refusals --------------------------------------------------------------------------------------


def test_a_folder_of_the_new_format_is_refused(data: Path) -> None:
    convert(data)
    before = _files(data)

    with pytest.raises(FolderRefused, match="has format 4 already"):
        convert(data)

    assert _files(data) == before


def test_a_folder_of_an_unknown_format_is_refused(data: Path) -> None:
    write_old_format(data, format=5)

    _assert_refused(data, "has format 5, not 3")


def test_a_damaged_format_file_is_refused(data: Path) -> None:
    file = data / "format.json"
    file.write_text(file.read_text().replace("shard-0", "shard-1"))

    _assert_refused(data, "its checksum does not match")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    _assert_refused(tmp_path, "is not a data folder")


def test_a_folder_of_another_user_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    _assert_refused(data, f"belongs to the user with the id {owner}")


@pytest.mark.slow
def test_a_folder_in_use_is_refused_with_the_process(data: Path) -> None:
    with in_use(data) as writer:
        _assert_refused(data, f"is in use by process {writer.pid}")


@pytest.mark.slow
def test_a_folder_in_use_is_refused_where_nothing_tells_by_whom(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "refuse_if_in_use", lambda *arguments: None)

    with in_use(data):
        _assert_refused(data, "is in use by another process")


@pytest.mark.slow
def test_the_old_version_cannot_start_during_a_conversion(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = conversion._replay

    def try_to_start(folder: Path, answered: int, *, accepts_loss: bool) -> int:
        with pytest.raises(AssertionError), in_use(data):
            pass
        return replay(folder, answered, accepts_loss=accepts_loss)

    monkeypatch.setattr(conversion, "_replay", try_to_start)

    convert(data)

    assert converted_rows(data) == ROWS
