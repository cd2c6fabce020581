"""Parts: sorted rows are split by account, queue and day, within bounds of memory and of size."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.archive.archive_parts import COLUMNS, Limits, Part, PartWriter
from spark_jobs.archive.parquet_reading import Damaged, TableFile, read_table_file
from spark_jobs.tests.lakes import SOURCE, message, with_flips
from storage.lake.archive_schema import ARCHIVE, SEGMENT, BatchId, arrow_schema
from storage.lake.table import Lake, LakeUnusable

BATCH = BatchId(SOURCE, 0, 1)


def batches_of(rows: int, size: int) -> list[pa.RecordBatch]:
    """Sorted rows of five queues and two days, in batches of this size."""
    messages = [message(i, queue=f"q{i % 5}", body=f"{i}" * 100) for i in range(1, rows + 1)]
    table = pa.Table.from_pylist(messages, arrow_schema(SEGMENT))
    order = [(name, "ascending") for name in ("queue", "sent_at")]
    return list(table.sort_by(order).to_batches(max_chunksize=size))


def positions(lake: Lake, parts: list[Part]) -> list[int]:
    files = [pq.ParquetFile(lake.path(f"{ARCHIVE}/{part.path}")) for part in parts]
    assert all(file.schema_arrow.equals(COLUMNS) for file in files)
    return [each for file in files for each in file.read()["position"].to_pylist()]


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(pending_bytes=0),
        Limits(pending_bytes=200_000),
        Limits(pending_bytes=0, part_bytes=1),
    ],
)
def test_each_row_is_in_one_part_whatever_the_limits(lake: Lake, limits: Limits) -> None:
    with PartWriter(lake, "part", limits) as writer:
        for batch in batches_of(1000, 70):
            writer.add(batch)
        parts = writer.finish()

    assert Counter(positions(lake, parts)) == Counter(range(1, 1001))
    assert sum(part.rows for part in parts) == 1000
    assert sum(part.batches[BATCH][0] for part in parts) == 1000
    assert len({part.path for part in parts}) == len(parts)
    if limits.part_bytes > 1:
        assert len(parts) == 10  # of five queues and two days


def test_order_of_rows_is_kept_in_a_part(lake: Lake) -> None:
    with PartWriter(lake, "part") as writer:
        for batch in batches_of(500, 500):
            writer.add(batch)
        parts = writer.finish()

    for part in parts:
        found = positions(lake, [part])
        assert found == sorted(found)


def test_part_says_what_its_batches_and_instants_span_rounded_outwards(lake: Lake) -> None:
    at = datetime(2026, 11, 21, 8, 0, 0, 123_456, tzinfo=UTC)
    rows = [message(i, sent_at=at + timedelta(seconds=i), removed_at=None) for i in range(3)]
    with PartWriter(lake, "part") as writer:
        writer.add(pa.RecordBatch.from_pylist(rows, arrow_schema(SEGMENT)))
        (part,) = writer.finish()

    assert json.loads(part.stats) == {
        "numRecords": 3,
        "minValues": {"sent_at": "2026-11-21T08:00:00.123Z", "batch": 1},
        "maxValues": {"sent_at": "2026-11-21T08:00:02.124Z", "batch": 1},
        "nullCount": {},
    }


def test_a_flipped_bit_in_any_column_of_a_part_is_damage(lake: Lake) -> None:
    """A compaction would carry on what the rows' checksums do not cover, such as the group."""
    with PartWriter(lake, "part") as writer:
        for batch in batches_of(100, 100):
            writer.add(batch)
        part = writer.finish()[0]
    account, queue, day = part.partition
    file = TableFile(part.path, part.size, part.rows, account, queue, date.fromisoformat(day))
    assert sum(rows.num_rows for rows in read_table_file(lake, file)) == part.rows

    columns: set[str] = set()
    for column in with_flips(Path(lake.path(f"{ARCHIVE}/{part.path}"))):
        columns.add(column)
        with pytest.raises(Damaged):
            list(read_table_file(lake, file))
    assert columns == set(COLUMNS.names)


def test_parts_before_an_error_stay_and_its_draft_goes(lake: Lake) -> None:
    def fail() -> None:
        with PartWriter(lake, "part", Limits(pending_bytes=0)) as writer:
            writer.add(*batches_of(100, 100))
            assert len(lake.list_drafts(ARCHIVE)) == 1
            raise LakeUnusable("gone")

    with pytest.raises(LakeUnusable, match="gone"):
        fail()

    assert lake.list_drafts(ARCHIVE) == []
    assert len(lake.list(ARCHIVE)) == 9  # orphans, for the sweep
