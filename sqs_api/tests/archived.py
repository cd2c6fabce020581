"""Lakes with archived messages, as the service and the archive job write them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sqs_api.archiving import lake_questions
from sqs_api.archiving.archive_search import ArchiveSearch
from sqs_api.archiving.lake_search import search
from storage.lake.archive_schema import (
    ARCHIVE,
    SEGMENT,
    TABLE,
    TABLE_PARTITIONS,
    arrow_schema,
    attribute_bytes,
    row_checksum,
    segment_folder,
    segment_name,
    transaction_id,
)
from storage.lake.table import Lake

Row = dict[str, Any]
SOURCE = "0123456789abcdef"
BEGUN = datetime(2026, 11, 20, 23, 59, 30, tzinfo=UTC)
"""Ten messages later it is another day."""


def search_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have services search in a thread of this process, which takes less time."""

    async def ask(command: str, lake: str, wanted: ArchiveSearch) -> bytes:
        return msgspec.json.encode(await asyncio.to_thread(search, Lake(lake), wanted))

    monkeypatch.setattr(lake_questions, "ask_lake", ask)


def archived(position: int, **given: Any) -> Row:
    """A message sent three seconds after the one before."""
    attributes = [
        ("tenant", {"data_type": "String", "string_value": f"t{position}", "binary_value": None}),
        ("raw", {"data_type": "Binary", "string_value": None, "binary_value": b"\x00\xff"}),
    ]
    row: Row = dict.fromkeys(SEGMENT) | {
        "source": SOURCE,
        "shard": 0,
        "batch": 1,
        "position": position,
        "account": "000000000000",
        "region": "us-east-1",
        "queue": "q",
        "message_id": f"id-{position:04}",
        "reason": "expired",
        "sent_at": BEGUN + timedelta(seconds=3 * position),
        "removed_at": BEGUN + timedelta(days=4),
        "receive_count": position % 4,
        "size": 10,
        "body": f'{{"n": {position}}}',
        "attributes": None if position % 3 else attributes,
        "sender_id": "AIDAEXAMPLE",
    }
    row |= given
    content = row["sealed"] or (row["body"] or "").encode()
    row.setdefault("checksum", None)
    if row["checksum"] is None:
        row["checksum"] = row_checksum(
            row["message_id"], content, attribute_bytes(row["attributes"])
        )
    return row


def write_segment(lake: Lake, rows: Sequence[Row], *, row_group_size: int = 7) -> None:
    """The segment of the batch of the rows."""
    first = rows[0]
    table = pa.Table.from_pylist(list(rows), arrow_schema(SEGMENT))
    path = f"{segment_folder(first['source'], first['shard'])}/{segment_name(first['batch'])}"
    with lake.draft(path) as draft:
        pq.write_table(table, draft, row_group_size=row_group_size)


def write_table(lake: Lake, rows: Sequence[Row], *, batch: int = 1) -> None:
    """Add the rows to the archive, which then has the batches up to this one."""
    with_day = [row | {"day": row["sent_at"].date()} for row in rows]
    write_deltalake(
        lake.uri(ARCHIVE),
        pa.Table.from_pylist(with_day, arrow_schema(TABLE)),
        mode="append",
        partition_by=list(TABLE_PARTITIONS),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(transaction_id(SOURCE, 0), batch)]
        ),
    )
