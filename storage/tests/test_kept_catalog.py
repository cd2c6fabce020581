"""A conversion keeps the databases of version 0.1, which the next start takes over."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from storage.copies.convert import convert
from storage.engines.store import StoreFailed
from storage.files.folder import FORMAT_FILE, read_format

KEPT = "catalog.sqlite.format-3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of format 3 whose shard was never opened."""
    content: dict[str, object] = {"format": 3, "shards": {"0": "shard-0"}}
    checksum = crc32(json.dumps(content, sort_keys=True).encode())
    (tmp_path / FORMAT_FILE).write_text(json.dumps(content | {"crc32": checksum}))
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("PRAGMA journal_mode = WAL")
        catalog.execute("CREATE TABLE queues (name TEXT)")
        catalog.execute("INSERT INTO queues VALUES ('q')")
    return tmp_path


def test_the_kept_catalog_is_whole_also_after_an_attempt_that_was_cut_off(folder: Path) -> None:
    (folder / KEPT).write_bytes(b"half a copy")

    convert(folder)

    assert read_format(folder)["format"] == 4
    with closing(sqlite3.connect(folder / KEPT)) as kept:
        assert kept.execute("SELECT name FROM queues").fetchall() == [("q",)]
    assert {file.name for file in folder.glob("*.sqlite")} == {"catalog.sqlite"}


def test_every_database_is_kept(folder: Path) -> None:
    shutil.copy(folder / "catalog.sqlite", folder / "keyring.sqlite")

    kept = convert(folder)

    assert {folder / KEPT, folder / "keyring.sqlite.format-3"} <= {*kept}


def test_a_catalog_that_cannot_be_copied_stops_the_conversion(folder: Path) -> None:
    (folder / "catalog.sqlite").write_bytes(b"no database" * 1000)

    with pytest.raises(StoreFailed, match="cannot copy"):
        convert(folder)

    assert read_format(folder)["format"] == 3
