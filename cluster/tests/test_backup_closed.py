"""A backup of a folder that no service uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.copies.backup import BackupDraft, back_up_closed
from cluster.members.host_folder import save_identity
from cluster.members.member_records import Identity
from storage.copies.manifest import BackupRefused
from storage.files.folder import open_folder
from storage.tests.on_disk import note_more


def test_a_folder_that_came_back_shorter_is_not_backed_up_and_stays_known_as_such(
    tmp_path: Path,
) -> None:
    shard = open_folder(tmp_path / "data")[0]
    (tmp_path / "data" / "records.sqlite").touch()
    note_more(shard, 10)

    for _ in range(2):
        with pytest.raises(BackupRefused, match="came back shorter"):
            back_up_closed(
                tmp_path / "data", tmp_path / "b", version="0", made_at_ms=0, with_master_key=False
            )


def test_a_host_of_a_cluster_is_not_copied_alone(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    open_folder(data)
    save_identity(data, Identity("a"))

    with pytest.raises(BackupRefused, match="belongs to a host of a cluster, of which only a runn"):
        back_up_closed(data, target, version="1", made_at_ms=0, with_master_key=False)
    with pytest.raises(BackupRefused, match="a cluster's hosts are given their master key"):
        BackupDraft(data, target, with_master_key=True, cluster="holdfast")

    assert not target.exists()
