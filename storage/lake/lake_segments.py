"""Segments: a sealed batch of archived messages as one Parquet file, identical however often
written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet

from storage.lake.archive_schema import (
    CHECKSUM_MODULUS,
    FOOTER_KEY,
    SEGMENT,
    SEGMENT_FORMAT,
    arrow_schema,
    attribute_bytes,
    row_checksum,
    segment_folder,
    segment_name,
)
from storage.lake.table import Lake
from storage.rows.damage import walk_rows
from visibility.content.content import unpack
from visibility.content.receipts import sequence_number
from visibility.contract.digests import Attributes
from visibility.contract.naming import parse_arn
from visibility.contract.stored_message import StoredMessage, death_of
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import ARCHIVED, number_of, row_key
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, SealedBatch

ROW_GROUP_BYTES = 8 << 20
ROW_GROUP_ROWS = 16_384
_REPEATED = [
    "source",
    "account",
    "region",
    "queue",
    "reason",
    "sender_id",
    "dead_letter_queue_source_arn",
    "dead_letter_cause",
]
"""Columns with few distinct values."""

Open = Callable[[StoredMessage], bytes | None]
"""The content of a message, None if it stays encrypted."""


class Written(NamedTuple):
    """The result of writing a batch; `damaged` names the unreadable rows."""

    path: str
    messages: int
    missing: int
    damaged: list[DamagedRecord]


def not_written(
    lake: Lake, source: str, shard: int, batches: list[SealedBatch]
) -> list[SealedBatch]:
    """Those of the batches that are not in the lake. Raises LakeUnusable."""
    there = {file.name for file in lake.list(segment_folder(source, shard))}
    return [batch for batch in batches if segment_name(batch.number) not in there]


def write_segment(
    lake: Lake, rows: RowReader, source: str, shard: int, batch: SealedBatch, open_message: Open
) -> Written:
    """Write a batch from `rows`. Raises LakeUnusable."""
    path = f"{segment_folder(source, shard)}/{segment_name(batch.number)}"
    schema = arrow_schema(SEGMENT)
    damaged: list[DamagedRecord] = []
    count = checksum = size = 0
    with lake.draft(path) as draft:
        writer = parquet.ParquetWriter(
            draft,
            schema,
            compression="zstd",
            use_dictionary=_REPEATED,
            write_statistics=["position", "sent_at", "message_id"],
            write_page_checksum=True,
        )
        with writer:
            for group in _groups(_messages(rows, batch, damaged)):
                columns = [
                    _columns(source, shard, batch.number, *numbered, open_message)
                    for numbered in group
                ]
                writer.write_batch(pa.RecordBatch.from_pylist(columns, schema))
                count += len(columns)
                checksum += sum(row["checksum"] for row in columns)
                size += sum(row["size"] for row in columns)
            footer = {
                "format": SEGMENT_FORMAT,
                "source": source,
                "shard": shard,
                "batch": batch.number,
                "count": count,
                "checksum": checksum % CHECKSUM_MODULUS,
                "bytes": size,
            }
            writer.add_key_value_metadata({FOOTER_KEY: json.dumps(footer)})
    return Written(path, count, batch.until - batch.first - count, damaged)


def _messages(
    rows: RowReader, batch: SealedBatch, damaged: list[DamagedRecord]
) -> Iterator[tuple[int, ArchivedMessage]]:
    """The messages of a batch by position; appends unreadable ones to `damaged`."""
    begin = row_key(THE_SHARD, ARCHIVED, batch.first)
    end = row_key(THE_SHARD, ARCHIVED, batch.until)
    for found in walk_rows(rows, begin, end):
        if isinstance(found, DamagedRecord):
            damaged.append(found)
            continue
        key, value = found
        try:
            message = decode_row(ArchivedMessage, key, value)
        except DamagedRecord as error:
            damaged.append(error)
        else:
            yield number_of(key), message


def _groups(
    messages: Iterator[tuple[int, ArchivedMessage]],
) -> Iterator[list[tuple[int, ArchivedMessage]]]:
    """Parts that fit into memory, whatever the size of messages."""
    group: list[tuple[int, ArchivedMessage]] = []
    size = 0
    for numbered in messages:
        group.append(numbered)
        size += len(numbered[1].message.data)
        if size >= ROW_GROUP_BYTES or len(group) >= ROW_GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _columns(
    source: str, shard: int, batch: int, position: int, archived: ArchivedMessage, opened: Open
) -> dict[str, Any]:
    message = archived.message
    arn = parse_arn(archived.queue_arn)
    assert arn is not None
    content = opened(message)
    row: dict[str, Any] = {
        "source": source,
        "shard": shard,
        "batch": batch,
        "position": position,
        "account": arn.account,
        "region": arn.region,
        "queue": arn.name,
        "message_id": message.message_id,
        "reason": archived.reason,
        "sent_at": _instant(message.sent_at_ms),
        "removed_at": _instant(archived.removed_at_ms),
        "first_received_at": _instant(archived.first_received_at_ms),
        "receive_count": archived.receive_count,
        "size": message.size,
        "sequence_number": sequence_number(archived.sequence) if archived.sequence else None,
        "dead_letter_queue_source_arn": message.dead_letter_source_arn,
    }
    death = death_of(message)
    if death is not None:
        row["dead_letter_cause"] = death.cause
        row["dead_letter_at"] = _instant(death.at_ms)
        row["dead_letter_hops"] = death.hops
    origin = message.origin
    if origin is not None:
        row["origin_message_id"] = origin.message_id
        row["origin_sent_at"] = _instant(origin.sent_at_ms)
        row["origin_receive_count"] = origin.receive_count
    if content is None:
        row |= {"sealed": message.data, "data_key": message.sealed}
        row["checksum"] = row_checksum(message.message_id, message.data, b"")
        return row
    md5, body, extras = unpack(content)
    attributes = _attributes(extras.attributes) if extras.attributes else None
    deduplication_id = extras.deduplication_id
    if deduplication_id is not None and message.dead_letter_source_arn is not None:
        deduplication_id = message.message_id  # as in a receive
    return row | {
        "body": body,
        "attributes": attributes,
        "md5_of_body": md5,
        "sender_id": extras.sender,
        "aws_trace_header": extras.trace_header,
        "message_group_id": extras.group_id,
        "message_deduplication_id": deduplication_id,
        "checksum": row_checksum(message.message_id, body.encode(), attribute_bytes(attributes)),
    }


def _attributes(attributes: Attributes) -> list[tuple[str, dict[str, object]]]:
    return [
        (
            name,
            {
                "data_type": data_type,
                "string_value": None if data_type.startswith("Binary") else value.decode(),
                "binary_value": value if data_type.startswith("Binary") else None,
            },
        )
        for name, (data_type, value) in attributes.items()
    ]


def _instant(at_ms: int) -> int | None:
    """Epoch microseconds for an instant's column; None if there is none."""
    return at_ms * 1000 if at_ms else None
