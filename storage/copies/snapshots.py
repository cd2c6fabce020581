"""Snapshots: a shard's messages at one instant, without bodies, and the flows since the last one.

Read from a view of the shard's files, in a separate process: a million messages take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet

from storage.copies.export_task import QueuePlace
from storage.lake.archive_schema import FLOW, FLOWS, SNAPSHOT, SNAPSHOTS, arrow_schema
from storage.lake.table import Lake
from storage.rows.damage import walk_rows
from visibility.contract.naming import QueueArn, parse_arn
from visibility.contract.stored_message import Lease
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import DELAYED, DEPARTURE, LEASE, MESSAGE, number_of, table_range
from visibility.rows.row_values import THE_SHARD, Departure

_GROUP_ROWS = 131_072
_REPEATED = ["taken_at", "account", "region", "queue", "state", "receivable", "receive_count"]


class _Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of a StoredMessage that a snapshot needs; the content is skipped."""

    message_id: msgspec.Raw
    sent_at_ms: int
    size: int
    data: msgspec.Raw
    sealed: int = 0
    dead_letter_source_arn: msgspec.Raw = msgspec.Raw(b"\xc0")
    receive_count: int = 0
    first_received_at_ms: int = 0
    group: bytes = b""


class _Seen(NamedTuple):
    state: str
    receivable: bool
    sent_at_ms: int
    receive_count: int
    size: int


def write_snapshot(
    lake: Lake,
    rows: RowReader,
    queues: Mapping[int, QueuePlace],
    *,
    source: str,
    shard: int,
    taken_at_ms: int,
) -> None:
    """Write one row for each stored message of these queues, and for each in the outbox that goes
    to one of them.

    Damaged messages are skipped. Raises LakeUnusable.
    """
    path = _path(SNAPSHOTS, source, shard, taken_at_ms)
    lake.remove_drafts(path.rpartition("/")[0])
    schema = arrow_schema(SNAPSHOT)
    with (
        lake.draft(path) as draft,
        parquet.ParquetWriter(
            draft,
            schema,
            compression="zstd",
            use_dictionary=_REPEATED,
            write_page_checksum=True,
        ) as file,
    ):
        for place, messages in _by_place(rows, queues, taken_at_ms):
            for group in _groups(messages):
                file.write_batch(_table(group, place, schema, taken_at_ms))


def _by_place(
    rows: RowReader, queues: Mapping[int, QueuePlace], taken_at_ms: int
) -> Iterator[tuple[QueuePlace, Iterator[_Seen]]]:
    for queue_id, place in queues.items():
        yield place, _messages(rows, queue_id, place.fifo, taken_at_ms)
    on_their_way = _on_their_way(rows)
    for place in queues.values():
        arn = QueueArn(place.region, place.account, place.name)
        if arn in on_their_way:
            yield place, iter(on_their_way[arn])


def _on_their_way(rows: RowReader) -> dict[QueueArn | None, list[_Seen]]:
    """The messages in the outbox by destination: not receivable yet, like delayed ones."""
    found: dict[QueueArn | None, list[_Seen]] = {}
    for _, departure in _decoded(rows, THE_SHARD, DEPARTURE, Departure):
        message = departure.arriving
        seen = _Seen("delayed", False, message.sent_at_ms, message.receive_count, message.size)
        found.setdefault(parse_arn(departure.target_arn), []).append(seen)
    return found


def write_flows(
    lake: Lake, flows: list[dict[str, Any]], *, source: str, shard: int, until_ms: int
) -> None:
    """Write arrivals and departures by queue; instants in epoch milliseconds. Raises
    LakeUnusable."""
    for flow in flows:
        flow["from_at"] *= 1000
        flow["until_at"] *= 1000
    path = _path(FLOWS, source, shard, until_ms)
    lake.remove_drafts(path.rpartition("/")[0])
    with lake.draft(path) as draft:
        table = pa.Table.from_pylist(flows, arrow_schema(FLOW))
        parquet.write_table(table, draft, write_page_checksum=True)


def _path(kind: str, source: str, shard: int, at_ms: int) -> str:
    day = datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
    return f"{kind}/{source}/shard-{shard}/{day}/{at_ms}.parquet"


def _messages(rows: RowReader, queue_id: int, fifo: bool, now_ms: int) -> Iterator[_Seen]:
    leases = {number_of(key): lease for key, lease in _decoded(rows, queue_id, LEASE, Lease)}
    held = {
        lease.group
        for lease in leases.values()
        if fifo and lease.group and lease.receivable_at_ms > now_ms
    }
    for key, message in _decoded(rows, queue_id, MESSAGE, _Envelope):
        lease = leases.get(number_of(key))
        count = message.receive_count if lease is None else lease.receive_count
        state = "visible" if lease is None else lease.state_at(now_ms)
        receivable = state == "visible" and message.group not in held
        yield _Seen(state, receivable, message.sent_at_ms, count, message.size)
    for _, message in _decoded(rows, queue_id, DELAYED, _Envelope):
        yield _Seen("delayed", False, message.sent_at_ms, message.receive_count, message.size)


def _decoded(
    rows: RowReader, queue_id: int, table: bytes, kind: type[Any]
) -> Iterator[tuple[bytes, Any]]:
    for found in walk_rows(rows, *table_range(queue_id, table)):
        if not isinstance(found, DamagedRecord):
            try:
                yield found[0], decode_row(kind, *found)
            except DamagedRecord:
                continue


def _groups(messages: Iterator[_Seen]) -> Iterator[list[_Seen]]:
    group: list[_Seen] = []
    for message in messages:
        group.append(message)
        if len(group) == _GROUP_ROWS:
            yield group
            group = []
    if group:
        yield group


def _table(
    group: list[_Seen], place: QueuePlace, schema: pa.Schema, taken_at_ms: int
) -> pa.RecordBatch:
    states, receivable, sent_at_ms, counts, sizes = zip(*group, strict=True)
    n = len(group)
    columns = [
        pa.repeat(pa.scalar(taken_at_ms * 1000, schema.field("taken_at").type), n),
        pa.repeat(place.account, n),
        pa.repeat(place.region, n),
        pa.repeat(place.name, n),
        pa.array(states),
        pa.array(receivable),
        pa.array([at_ms * 1000 for at_ms in sent_at_ms], schema.field("sent_at").type),
        pa.array(counts, pa.int32()),
        pa.array(sizes, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
