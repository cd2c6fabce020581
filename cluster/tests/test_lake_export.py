"""The process that writes to the lake: repeated work does not count twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from auth.envelope import BUILT_IN_KEY
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.copies.lake_export import ExportFailed, export
from cluster.keys.keyring import Keyring
from storage.copies.export_task import Export, Exported, QueuePlace, ShardExport
from storage.engines.rocks import RocksRows
from storage.lake.archive_schema import FLOWS, QUEUE_AGE_LATEST, SNAPSHOTS
from storage.lake.table import Lake
from storage.tests.on_disk import changing
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import BATCH, DEPARTURE, MESSAGE, row_key
from visibility.rows.row_values import THE_SHARD, ArchiveRow, Departure, SealedBatch
from visibility.rows.state_rows import write_archive
from visibility.rules.leases import no_lease

_ARN = "arn:aws:sqs:us-east-1:000000000000:"
FLOW: dict[str, Any] = {"from_at": 1_000, "until_at": 61_000, "queue": "q", "sent": 1}


_DATED = (SNAPSHOTS, FLOWS)


def no_keyring() -> Keyring:
    raise AssertionError("no batch waits")


def _new_keyring() -> Keyring:
    async def opened() -> Keyring:
        records = await SqliteCoordination.open(Path(":memory:"))
        keyring = await Keyring.open(records, bytes(32), SystemClock(), SystemEntropy())
        await keyring.close()
        return keyring

    return asyncio.run(opened())


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


def test_a_flipped_bit_in_snapshots_and_flows_can_be_seen(tmp_path: Path) -> None:
    shard = tmp_path / "shard"
    with changing(shard) as changes:
        message = StoredMessage("id", 1_000, 7, b"x")
        changes.put(row_key(7, MESSAGE, 1), encode_row(message))
    lake = Lake(str(tmp_path / "lake"))
    places = {7: QueuePlace("000000000000", "us-east-1", "q", False)}
    flows = ShardExport(0, str(shard), "source", [dict(FLOW)])

    export(Export(lake.url, [flows], [], 61_000, 61_000, places), lake, no_keyring)

    for file in (*lake.list(SNAPSHOTS), *lake.list(FLOWS)):
        path = tmp_path / "lake" / file.path
        column = parquet.read_metadata(path).row_group(0).column(1)  # of 64 bits, uncoded
        content = bytearray(path.read_bytes())
        content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
        path.write_bytes(content)
        with pytest.raises(OSError, match="CRC"):
            parquet.read_table(path, page_checksum_verification=True)


def test_a_message_between_shards_is_counted_where_it_goes(tmp_path: Path) -> None:
    message = StoredMessage("id", 1_000, 7, b"x", receive_count=3)
    departures = [
        Departure(b"o", 1, 5_000, no_lease(n, message), message, 1, 2, f"{_ARN}{name}", message)
        for n, name in enumerate(("letters", "gone", "letters"))
    ]
    with changing(tmp_path / "shard") as changes:
        for number, departure in enumerate(departures, 1):
            changes.put(row_key(THE_SHARD, DEPARTURE, number), encode_row(departure))
        changes.put(row_key(THE_SHARD, DEPARTURE, 3), b"\x01rubbish")
    lake = Lake(str(tmp_path / "lake"))
    places = {7: QueuePlace("000000000000", "us-east-1", "letters", False)}
    shard = ShardExport(0, str(tmp_path / "shard"), "source")

    export(Export(lake.url, [shard], [], 6_000, 6_000, places), lake, no_keyring)

    (file,) = lake.list(SNAPSHOTS)
    (row,) = parquet.read_table(tmp_path / "lake" / file.path).to_pylist()
    assert (row["queue"], row["state"], row["receivable"]) == ("letters", "delayed", False)
    assert (row["sent_at"].timestamp(), row["receive_count"], row["size"]) == (1.0, 3, 7)


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


def test_what_a_killed_export_had_begun_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "shard"
    with changing(folder) as changes:
        write_archive(changes, ArchiveRow("source", 2, 2, 0, 2, 0, 0, 0))
        changes.put(row_key(THE_SHARD, BATCH, 1), encode_row(SealedBatch(1, 1, 2, 0, 0)))
    lake = Lake(str(tmp_path / "lake"))
    of_shard = ("segments/source/shard-0", *(f"{k}/source/shard-0/1970-01-01" for k in _DATED))
    for name in (*of_shard, "segments/source/shard-1"):
        lake.write(f"{name}/.draft-killed", b"x" * 100)

    shard = ShardExport(0, str(folder), "source", [dict(FLOW)])
    export(Export(lake.url, [shard], [], 61_000, 61_000), lake, _new_keyring)

    assert [file.path for file in lake.list_drafts("")] == ["segments/source/shard-1/.draft-killed"]
    assert len(lake.list("")) == 3


def test_nothing_is_archived_sealed_for_want_of_a_key_that_was_named_wrongly(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shard"
    with changing(folder) as changes:
        write_archive(changes, ArchiveRow("source", 2, 2, 0, 2, 0, 0, 0))
        changes.put(row_key(THE_SHARD, BATCH, 1), encode_row(SealedBatch(1, 1, 2, 0, 0)))
    lake = Lake(str(tmp_path / "lake"))

    wanted = Export(lake.url, [ShardExport(0, str(folder), "source")], ["alias/order"])
    with pytest.raises(ExportFailed, match="archive_keys: there is no key alias/order"):
        export(wanted, lake, _new_keyring)
    assert lake.list("") == []

    wanted.readable_keys = [BUILT_IN_KEY]
    assert export(wanted, lake, _new_keyring).shards[0].segments == 1
