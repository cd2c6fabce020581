"""The process that writes to the lake: what it does twice does not count twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.keyring import Keyring
from cluster.lake_export import ExportFailed, export
from storage.archive_schema import FLOWS
from storage.export_task import Export, ShardExport
from storage.lake import Lake
from storage.rocks import Durability, RocksStore

FLOW: dict[str, Any] = {"from_at": 1_000, "until_at": 61_000, "queue": "q", "sent": 1}


def no_keyring() -> Keyring:
    raise AssertionError("no batch waits")


def test_flows_are_written_once_all_else_is(tmp_path: Path) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    RocksStore(there, Durability.MEMORY, lambda error: None).close()
    lake = Lake(str(tmp_path / "lake"))

    def wanted() -> Export:
        shards = [
            ShardExport(number, str(folder), "source", [dict(FLOW)])
            for number, folder in enumerate((there, away))
        ]
        return Export(lake.url, shards, [], until_ms=61_000)

    with pytest.raises(ExportFailed, match="away"):
        export(wanted(), lake, no_keyring)
    assert lake.list(FLOWS) == []

    RocksStore(away, Durability.MEMORY, lambda error: None).close()
    export(wanted(), lake, no_keyring)
    assert len(lake.list(FLOWS)) == 2
