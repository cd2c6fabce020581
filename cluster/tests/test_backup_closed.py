"""A backup of a folder that no service uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.copies.backup import back_up_closed
from storage.copies.manifest import BackupRefused
from storage.engines.folder import open_folder
from storage.tests.on_disk import note_more


def test_a_folder_that_came_back_shorter_is_not_backed_up_and_stays_known_as_such(
    tmp_path: Path,
) -> None:
    shard = open_folder(tmp_path / "data")[0]
    (tmp_path / "data" / "catalog.sqlite").touch()
    note_more(shard, 10)

    for _ in range(2):
        with pytest.raises(BackupRefused, match="came back shorter"):
            back_up_closed(
                tmp_path / "data", tmp_path / "b", version="0", made_at_ms=0, with_master_key=False
            )
