"""The process that writes to the lake: what it does twice does not count twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.keyring import Keyring
from cluster.lake_export import ExportFailed, export
from storage.archive_schema import FLOWS, QUEUE_AGE_LATEST
from storage.export_task import Export, Exported, ShardExport
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


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"queues": [{"queue": "a", "age_max_s": 1}, {"queue": "b"}, {"queue": "c", "age_max_s": 9.5}]}', ["c", "a"]),
        (b"{half of it", []),
        (b'{"queues": 7}', []),
        (b'{"queues": [7]}', []),
    ],
)  # fmt: skip
def test_the_queues_with_the_oldest_messages_are_told_of_whatever_lies_in_the_lake(
    tmp_path: Path, content: bytes, shown: list[str]
) -> None:
    lake = Lake(str(tmp_path))
    lake.write(QUEUE_AGE_LATEST, content)

    done = export(Export(lake.url, [], [], queue_ages_max=2), lake, no_keyring)

    told = msgspec.json.decode(msgspec.json.encode(done), type=Exported)
    assert [queue["queue"] for queue in told.queue_ages] == shown
