"""A backup's manifest says what was written, of this version, and of files in the backup."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from storage.copies.manifest import (
    FLEET_FORMAT,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    BackupRefused,
    CopiedFile,
    Manifest,
    read_manifest,
    write_manifest,
)

MADE = Manifest(MANIFEST_FORMAT, "1", 1, 0, 0, {"0": "l"}, 7, False, [CopiedFile("a/b", 1, "")])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_manifest(tmp_path, MADE)

    assert read_manifest(tmp_path) == MADE


def test_what_was_changed_since_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, MADE)
    file = tmp_path / MANIFEST_FILE
    file.write_text(file.read_text().replace('"queues": 7', '"queues": 8'))

    with pytest.raises(BackupRefused, match="it is not what was written"):
        read_manifest(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, msgspec.structs.replace(MADE, format=FLEET_FORMAT + 1))

    with pytest.raises(BackupRefused, match="has format 4"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_file_outside_of_the_backup_is_refused(tmp_path: Path, path: str) -> None:
    files = [*MADE.files, CopiedFile(path, 1, "")]
    write_manifest(tmp_path, msgspec.structs.replace(MADE, files=files))

    with pytest.raises(BackupRefused, match="outside of the backup"):
        read_manifest(tmp_path)
