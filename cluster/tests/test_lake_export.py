"""The process that writes to the lake: repeated work does not count twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from auth.envelope import BUILT_IN_KEY
from cluster.copies.lake_export import ExportFailed, export
from cluster.keys.sqlite_keyring import SqliteKeyring
from cluster.shards.clock import SystemClock, SystemEntropy
from storage.copies.export_task import Export, Exported, ShardExport
from storage.engines.rocks import RocksRows
from storage.lake.archive_schema import FLOWS, QUEUE_AGE_LATEST
from storage.lake.table import Lake
from storage.rows.archive_appliers import write_archive
from storage.rows.codec import ArchiveRow, encode_row
from storage.rows.keys import BATCH, row_key
from storage.tests.on_disk import changing
from visibility.state.events import THE_SHARD, SealedBatch

FLOW: dict[str, Any] = {"from_at": 1_000, "until_at": 61_000, "queue": "q", "sent": 1}


def no_keyring() -> SqliteKeyring:
    raise AssertionError("no batch waits")


def test_flows_are_written_once_all_else_is(tmp_path: Path) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    RocksRows(there).close()
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

    RocksRows(away).close()
    export(wanted(), lake, no_keyring)
    assert len(lake.list(FLOWS)) == 2


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (
            b'{"queues": [{"queue": "a", "age_max_s": 1}, {"queue": "b"}, '
            b'{"queue": "c", "age_max_s": 9.5}]}',
            ["c", "a"],
        ),
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


def test_nothing_is_archived_sealed_for_want_of_a_key_that_was_named_wrongly(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shard"
    with changing(folder) as changes:
        write_archive(changes, ArchiveRow("source", 2, 2, 0, 2, 0, 0, 0))
        changes.put(row_key(THE_SHARD, BATCH, 1), encode_row(SealedBatch(1, 1, 2, 0, 0)))
    lake = Lake(str(tmp_path / "lake"))

    def keyring() -> SqliteKeyring:
        return SqliteKeyring(Path(":memory:"), bytes(32), SystemClock(), SystemEntropy())

    wanted = Export(lake.url, [ShardExport(0, str(folder), "source")], ["alias/order"])
    with pytest.raises(ExportFailed, match="archive_keys: there is no key alias/order"):
        export(wanted, lake, keyring)
    assert lake.list("") == []

    wanted.readable_keys = [BUILT_IN_KEY]
    assert export(wanted, lake, keyring).shards[0].segments == 1
