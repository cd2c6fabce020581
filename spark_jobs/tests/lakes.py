"""Segments in the service's form, and a test's questions to a lake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.archive.delta_archive import removed_files, table_files
from storage.lake.archive_schema import (
    ARCHIVE,
    CHECKSUM_MODULUS,
    EXPIRED,
    FOOTER_KEY,
    SEGMENT,
    Columns,
    arrow_schema,
    attribute_bytes,
    row_checksum,
    segment_folder,
    segment_name,
)
from storage.lake.archive_table import load_archive
from storage.lake.table import Lake

Row = dict[str, Any]
ACCOUNT = "000000000042"
SOURCE = "0123456789abcdef"
BEGUN = datetime(2026, 11, 20, 23, 59, 30, tzinfo=UTC)
"""Ten messages later it is another day."""


def message(
    position: int, *, batch: int = 1, source: str = SOURCE, shard: int = 0, **given: Any
) -> Row:
    """A row of a segment: an expired message, every third with attributes, or as `given`."""
    body = given.get("body", f"body {position}")
    attributes = [
        ("tenant", {"data_type": "String", "string_value": "Ü", "binary_value": None}),
        ("raw", {"data_type": "Binary.x", "string_value": None, "binary_value": b"\x00\xff"}),
    ]
    row: Row = dict.fromkeys(SEGMENT) | {
        "source": source,
        "shard": shard,
        "batch": batch,
        "position": position,
        "account": ACCOUNT,
        "region": "eu-west-1",
        "queue": "orders",
        "message_id": f"{source}-{shard}-{position}",
        "reason": EXPIRED,
        "sent_at": BEGUN + timedelta(seconds=3 * position),
        "removed_at": BEGUN + timedelta(days=4),
        "receive_count": position % 4,
        "size": len(body or ""),
        "body": body,
        "attributes": None if position % 3 else attributes,
        "md5_of_body": hashlib.md5((body or "").encode()).hexdigest(),
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


def messages(count: int, *, batch: int = 1, **given: Any) -> list[Row]:
    """Rows of a batch of this size; positions continue from batch to batch."""
    first = (batch - 1) * count + 1
    return [message(position, batch=batch, **given) for position in range(first, first + count)]


def write_segment(
    lake: Lake,
    rows: Sequence[Row],
    *,
    columns: Columns = SEGMENT,
    checksums: bool = True,
    **said: Any,
) -> str:
    """Write the rows as the segment of their batch; `said` replaces footer fields. Its path."""
    batch = rows[0]
    footer = {
        "format": 1,
        "source": batch["source"],
        "shard": batch["shard"],
        "batch": batch["batch"],
        "count": len(rows),
        "checksum": sum(row["checksum"] for row in rows) % CHECKSUM_MODULUS,
        "bytes": sum(row["size"] for row in rows),
    }
    schema = arrow_schema(columns)
    table = pa.Table.from_pylist(rows, schema).replace_schema_metadata(
        {FOOTER_KEY: json.dumps(footer | said).encode()}
    )
    folder = segment_folder(batch["source"], batch["shard"])
    path = f"{folder}/{segment_name(batch['batch'])}"
    with lake.draft(path) as draft:
        pq.write_table(table, draft, row_group_size=7, write_page_checksum=checksums)
    return path


def with_flips(path: Path) -> Iterator[str]:
    """Flip a bit in the last page of each column and row group, in turn; the column."""
    content = path.read_bytes()
    metadata = pq.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            first, data = chunk.dictionary_page_offset, chunk.data_page_offset
            begin = data if first is None else min(first, data)
            flipped = bytearray(content)
            flipped[begin + chunk.total_compressed_size - 1] ^= 1
            path.write_bytes(flipped)
            yield chunk.path_in_schema.partition(".")[0]


def write_batches(lake: Lake, batches: int, count: int, **given: Any) -> list[Row]:
    """Write batches of `count` rows each, and return the rows."""
    rows: list[Row] = []
    for batch in range(1, batches + 1):
        written = messages(count, batch=batch, **given)
        write_segment(lake, written)
        rows += written
    return rows


def archived_rows(lake: Lake) -> list[Row]:
    """All rows of the archive, in the order of their names."""
    table = load_archive(lake)
    if table is None:
        return []
    rows: list[Row] = table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=name_of)


def name_of(row: Row) -> tuple[str, int, int]:
    """The permanent name of a message."""
    return row["source"], row["shard"], row["position"]


def names(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """The names of messages, sorted."""
    return sorted(map(name_of, rows))


def orphans(lake: Lake) -> list[str]:
    """Files in the archive's folder that no version of the table has, drafts included."""
    table = load_archive(lake)
    assert table is not None
    kept = {*(file.path for file in table_files(table)), *removed_files(table)}
    files = [*lake.list(ARCHIVE), *lake.list_drafts(ARCHIVE)]
    paths = [file.path.removeprefix(f"{ARCHIVE}/") for file in files]
    return [path for path in paths if not path.startswith("_delta_log/") and path not in kept]
