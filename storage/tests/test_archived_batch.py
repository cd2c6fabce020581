"""Claims about archived batches are accepted only if the table shows their rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from storage.lake.archive_schema import (
    ARCHIVE,
    FOOTER_KEY,
    SEGMENT,
    SEGMENTS,
    BatchId,
    arrow_schema,
    row_checksum,
)
from storage.lake.archived_batch import Claimed, refute
from storage.lake.table import Lake, LakeUnusable
from storage.tests.made_archive import commit, rows_of

SENT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def _batch(number: int, shard: int = 0) -> BatchId:
    return BatchId("source", shard, number)


def _write_segment(lake: Lake, batch: BatchId, count: int = 3) -> None:
    rows: list[dict[str, Any]] = []
    for number in range(count):
        name = f"{batch.shard}-{batch.number}-{number}"
        row = dict.fromkeys(SEGMENT) | {
            "source": batch.source,
            "shard": batch.shard,
            "batch": batch.number,
            "account": "1",
            "queue": f"q{number % 2}",
            "sent_at": SENT,
            "message_id": name,
            "body": name,
            "checksum": row_checksum(name, name.encode(), b""),
        }
        rows.append(row)
    footer = {"count": count, "checksum": sum(row["checksum"] for row in rows)}
    table = pa.Table.from_pylist(rows, arrow_schema(SEGMENT))
    with lake.draft(batch.path) as draft:
        pq.write_table(
            table.replace_schema_metadata({FOOTER_KEY: json.dumps(footer).encode()}), draft
        )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def right(lake: Lake) -> Claimed:
    """A claim about the first of two versions: batches 1 to 3, then one of another shard."""
    batches = [_batch(number) for number in (1, 2, 3)]
    for batch in [*batches, _batch(9, shard=1)]:
        _write_segment(lake, batch)
    table = commit(lake, rows_of(lake, batches), batches[-1])
    commit(lake, rows_of(lake, [_batch(9, shard=1)]), _batch(9, shard=1))
    return Claimed("source", 0, 3, str(table.metadata().id), table.version())


def test_what_the_table_shows_too_is_believed(lake: Lake, right: Claimed) -> None:
    assert refute(lake, right) is None
    assert refute(lake, msgspec.structs.replace(right, batch=2)) is None
    assert refute(lake, msgspec.structs.replace(right, version=right.version + 1)) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"batch": 4}, "up to 3, and not 4"),
        ({"version": 99}, "has no version 99: the last one is 1"),
        ({"version": -1}, "has no version -1"),
        ({"table_id": "invented"}, "and not invented"),
        ({"source": "another"}, "up to 0, and not 3"),
        ({"shard": 2}, "up to 0, and not 3"),
    ],
)
def test_anything_else_is_refuted(
    lake: Lake, right: Claimed, changed: dict[str, object], said: str
) -> None:
    refutation = refute(lake, msgspec.structs.replace(right, **changed))

    assert refutation is not None
    assert said in refutation


def test_number_without_the_rows_is_refuted(lake: Lake, right: Claimed) -> None:
    _write_segment(lake, _batch(4), 5)
    commit(lake, None, _batch(4))
    claimed = msgspec.structs.replace(right, batch=4)

    refutation = refute(lake, claimed)

    assert refutation is not None
    assert "the table has 0 rows with checksum 0 of batch 4, not 5 rows" in refutation
    assert refute(lake, msgspec.structs.replace(claimed, forgotten=4)) is None


def test_rows_that_left_the_table_are_missed(lake: Lake, right: Claimed) -> None:
    DeltaTable(lake.uri(ARCHIVE)).delete("queue = 'q1'")

    assert "the table has 2 rows" in str(refute(lake, right))


def test_rows_that_are_there_twice_are_noticed(lake: Lake, right: Claimed) -> None:
    commit(lake, rows_of(lake, [_batch(2)]), _batch(3))

    assert "the table has 6 rows" in str(refute(lake, right))


def test_file_that_is_gone_is_named(lake: Lake, right: Claimed) -> None:
    for file in Path(lake.path(ARCHIVE)).glob("account=1/queue=q0/*/*.parquet"):
        file.unlink()

    assert "part-" in str(refute(lake, right))


def test_segment_that_is_gone_or_damaged_confirms_nothing(lake: Lake, right: Claimed) -> None:
    segment = Path(lake.path(_batch(2).path))
    content = segment.read_bytes()
    segment.write_bytes(content[:-20])
    assert SEGMENTS in str(refute(lake, right))

    segment.unlink()
    assert SEGMENTS in str(refute(lake, right))


def test_foreign_table_confirms_nothing(lake: Lake) -> None:
    write_deltalake(lake.uri(ARCHIVE), pa.table({"id": [1]}))

    with pytest.raises(LakeUnusable, match="is not the archive of this lake: it is partitioned by"):
        refute(lake, Claimed("source", 0, 1, "", 0))


def test_no_table_is_no_archive(lake: Lake) -> None:
    assert refute(lake, Claimed("source", 0, 1, "", 0)) == f"there is no table {lake.uri(ARCHIVE)}"


def test_the_log_is_believed_after_a_checkpoint(lake: Lake, right: Claimed) -> None:
    table = DeltaTable(lake.uri(ARCHIVE))
    table.create_checkpoint()
    last = msgspec.structs.replace(right, version=table.version())
    for log in Path(lake.path(f"{ARCHIVE}/_delta_log")).glob("*.json"):
        log.unlink()

    assert refute(lake, last) is None
    assert refute(lake, msgspec.structs.replace(last, batch=8)) is not None


def test_a_damaged_table_tells_nothing(lake: Lake, right: Claimed) -> None:
    for log in Path(lake.path(f"{ARCHIVE}/_delta_log")).glob("*.json"):
        log.write_text("{")

    with pytest.raises(LakeUnusable):
        refute(lake, right)
