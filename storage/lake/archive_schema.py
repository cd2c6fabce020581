"""TABLE: the files and tables of the lake. Imports nothing until asked to.

    LAKE/segments/SOURCE/shard-N/batch-000000000012.parquet   SEGMENT: messages that left a queue
    LAKE/snapshots/SOURCE/shard-N/2026-11-21/MS.parquet       SNAPSHOT: messages at one instant
    LAKE/flows/SOURCE/shard-N/2026-11-21/MS.parquet           FLOW: changes since the last one
    LAKE/archive                    Delta table TABLE, by account, queue and day
    LAKE/queue_age, LAKE/dead_letters    Delta tables of the jobs
    LAKE/queue_age_latest.json      newest hour of queue_age, which the service reads
    LAKE/queue_age_empty.json       hours that have no rows there
    LAKE/replays, LAKE/runs, LAKE/reports    state of the jobs, and their reports

Segments are immutable; snapshots have no bodies. SOURCE is a data folder; one restored from a
backup is a different source. Days are in UTC. Instants are UTC timestamps in milliseconds. The
footer of a segment names its batch, and the number of rows and the checksum that it must have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    import pyarrow

SEGMENTS = "segments"
SNAPSHOTS = "snapshots"
FLOWS = "flows"
ARCHIVE = "archive"
QUEUE_AGE = "queue_age"
QUEUE_AGE_LATEST = "queue_age_latest.json"
DEAD_LETTERS = "dead_letters"
REPLAYS = "replays"
RUNS = "runs"
REPORTS = "reports"

EXPIRED = "expired"
DELETED = "deleted"
OVER_LENGTH = "over-length"
HOPS = "hops"
REASONS = (EXPIRED, DELETED, OVER_LENGTH, HOPS)
"""Reasons for which a message left its queue for the archive. Messages went away by limits of
length; with HOPS they had moved by themselves from queue to queue too often."""

Columns = dict[str, str]
"""Names and types of columns, in order; the types are keys of `_TYPES`."""

SEGMENT: Columns = {
    "source": "string",
    "shard": "int32",
    "batch": "int64",
    "position": "int64",
    "account": "string",
    "region": "string",
    "queue": "string",
    "message_id": "string",
    "reason": "string",
    "sent_at": "instant",
    "removed_at": "instant",
    "first_received_at": "instant",
    "receive_count": "int32",
    "size": "int64",
    "body": "string",
    "attributes": "attributes",
    "md5_of_body": "string",
    "sender_id": "string",
    "aws_trace_header": "string",
    "message_group_id": "string",
    "message_deduplication_id": "string",
    "sequence_number": "string",
    "dead_letter_queue_source_arn": "string",
    "sealed": "binary",
    "data_key": "int64",
    "checksum": "int64",
    "dead_letter_cause": "string",
    "dead_letter_at": "instant",
    "dead_letter_hops": "int32",
    "origin_message_id": "string",
    "origin_sent_at": "instant",
    "origin_receive_count": "int32",
}
"""A message that left its queue: AWS's member names in snake case.

`position` counts the shard's archived messages; (source, shard, position) names a message for good.
`reason` is one of REASONS. `attributes` are the message attributes as {name: {data_type,
string_value, binary_value}}, null if there are none; `sequence_number` is null in standard queues.
If a message stays encrypted, `sealed` has the content under the data key `data_key` of the source's
keyring, and the columns from the content are null: body, attributes, md5_of_body, sender_id,
aws_trace_header, message_group_id, message_deduplication_id. `checksum` is the result of
`row_checksum`. The columns of dead letters are null for other messages, and those of the origin for
messages that were never redriven or edited; `origin_receive_count` are the receives before that.
"""
ADDED = (
    "dead_letter_cause",
    "dead_letter_at",
    "dead_letter_hops",
    "origin_message_id",
    "origin_sent_at",
    "origin_receive_count",
)
"""The last columns, which files and tables of versions before 0.2 lack."""

TABLE: Columns = SEGMENT | {"day": "date"}
"""The archive; `day` is that of `sent_at`."""
TABLE_PARTITIONS = ("account", "queue", "day")

SNAPSHOT: Columns = {
    "taken_at": "instant",
    "account": "string",
    "region": "string",
    "queue": "string",
    "state": "string",
    "receivable": "bool",
    "sent_at": "instant",
    "receive_count": "int32",
    "size": "int64",
}
"""A message stored at `taken_at`. `state` is "visible", "in_flight" or "delayed", which includes
those on their way from another shard; `receivable` is false if no receive could have taken it, for
example from a FIFO group with messages in flight."""

FLOW: Columns = {
    "from_at": "instant",
    "until_at": "instant",
    "account": "string",
    "region": "string",
    "queue": "string",
    "visible": "int64",
    "in_flight": "int64",
    "delayed": "int64",
    "sent": "int64",
    "sent_bytes": "int64",
    "received": "int64",
    "deleted": "int64",
    "expired": "int64",
    "purged": "int64",
    "moved_in": "int64",
    "moved_out": "int64",
    "time_in_queue_buckets": "numbers",
    "time_in_queue_counts": "numbers",
}
"""A queue between two flushes of its shard: the number of messages at the end, the counts of events
in between, and the times that deleted messages had been in it (`bucket_of`; the two lists
correspond). The messages of a deleted queue count as purged, and as moved in if it is restored."""

CHECKSUM_MODULUS = 1 << 62
"""A batch's checksum is the sum of its rows' checksums modulo this, so their order does not
matter."""


def row_checksum(message_id: str, content: bytes, attributes: bytes) -> int:
    """CRC-32 over the message id, the body (or `sealed`), and the attributes as
    `attribute_bytes`."""
    return crc32(attributes, crc32(content, crc32(message_id.encode())))


def attribute_bytes(attributes: list[tuple[str, dict[str, object]]] | None) -> bytes:
    """Message attributes as one byte string, independent of their order. Takes a pyarrow map's
    value."""
    parts: list[bytes] = []
    for name, value in sorted(attributes or (), key=lambda pair: pair[0]):
        text, data = value["string_value"], value["binary_value"]
        content = text.encode() if isinstance(text, str) else data or b""
        assert isinstance(content, bytes)
        for part in (name.encode(), str(value["data_type"]).encode(), content):
            parts += (len(part).to_bytes(4, "big"), part)
    return b"".join(parts)


BUCKETS_PER_DOUBLING = 8


def bucket_of(milliseconds: float) -> int:
    """The bucket of a duration: floor(log2(ms) x 8), 0 for a millisecond and less. Bounds the error
    to 9 %."""
    from math import log2

    return int(log2(milliseconds) * BUCKETS_PER_DOUBLING) if milliseconds > 1 else 0


# -- footers ---------------------------------------------------------------------------------------

FOOTER_KEY = b"holdfast"
"""Key of the JSON in a segment's footer: {"format": 1, "source", "shard", "batch", "count",
"checksum", "bytes"}; `bytes` is the size of bodies and attributes."""
SEGMENT_FORMAT = 1


def segment_folder(source: str, shard: int) -> str:
    """The folder of a shard's segments, relative to the lake."""
    return f"{SEGMENTS}/{source}/shard-{shard}"


def segment_name(batch: int) -> str:
    """The file of a batch in that folder. Names sort like numbers."""
    return f"batch-{batch:012d}.parquet"


class BatchId(NamedTuple):
    """A sealed batch of a shard, which is a segment until it is in the table."""

    source: str
    shard: int
    number: int

    @property
    def path(self) -> str:
        """The path of its segment."""
        return f"{segment_folder(self.source, self.shard)}/{segment_name(self.number)}"


def transaction_id(source: str, shard: int) -> str:
    """The Delta application transaction whose version is the shard's highest archived batch."""
    return f"holdfast:{source}:{shard}"


# -- Arrow -----------------------------------------------------------------------------------------


def arrow_schema(columns: Columns) -> pyarrow.Schema:
    """The columns as a pyarrow schema; all are nullable."""
    import pyarrow as pa

    attribute = pa.struct(
        [("data_type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())]
    )
    types: dict[str, pa.DataType] = {
        "string": pa.string(),
        "binary": pa.binary(),
        "bool": pa.bool_(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "date": pa.date32(),
        "instant": pa.timestamp("us", tz="UTC"),
        "numbers": pa.list_(pa.int64()),
        "attributes": pa.map_(pa.string(), attribute),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
