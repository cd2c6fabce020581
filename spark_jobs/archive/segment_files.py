"""Segments: files of exported messages that wait in the lake to be archived.

Damage does not end the job: the batches of a shard are archived up to the damaged one, and those of
other shards in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.archive.parquet_reading import Damaged, read_rows, verified_checksum
from storage.lake.archive_schema import (
    CHECKSUM_MODULUS,
    FOOTER_KEY,
    SEGMENT,
    SEGMENT_FORMAT,
    SEGMENTS,
    arrow_schema,
)
from storage.lake.table import Lake, LakeUnusable

ShardId = tuple[str, int]
"""Source and shard number."""
Warn = Callable[[str], None]
"""Prints a line for the user; the job continues and ends with status 1."""

_PATH = re.compile(rf"{SEGMENTS}/([^/]+)/shard-(\d+)/batch-(\d{{12,}})\.parquet")
_SAFE = re.compile(r"[A-Za-z0-9_.-]+")


class SegmentFile(NamedTuple):
    """A segment as its path identifies it."""

    path: str
    shard: ShardId
    batch: int


class Segment(NamedTuple):
    """A segment with its footer's data. `bytes` counts bodies and attributes."""

    path: str
    shard: ShardId
    batch: int
    rows: int
    checksum: int
    bytes: int

    def fields(self) -> dict[str, str | int]:
        """A row of SEGMENT_FIELDS."""
        source, shard = self.shard
        return self._asdict() | {"source": source, "shard": shard}

    @classmethod
    def from_fields(cls, row: dict[str, Any]) -> Segment:
        """The segment of such a row."""
        source, shard = row.pop("source"), row.pop("shard")
        return cls(shard=(source, shard), **row)


SEGMENT_FIELDS = (
    "path string, source string, shard int, batch long, rows long, checksum long, bytes long"
)
"""Spark's schema of a segment."""


def find_segments(lake: Lake) -> list[SegmentFile]:
    """All segments in the lake, sorted by shard and batch. Raises LakeUnusable."""
    found = (_PATH.fullmatch(file.path) for file in lake.list(SEGMENTS))
    files = (SegmentFile(m[0], (m[1], int(m[2])), int(m[3])) for m in found if m)
    return sorted(files, key=lambda file: (file.shard, file.batch))


def waiting_segments(
    lake: Lake,
    files: list[SegmentFile],
    archived: Mapping[ShardId, int],
    unreadable: Mapping[str, str],
    warn: Warn,
) -> list[Segment]:
    """Segments to archive: each shard's batches up to the first missing or unreadable one.

    `archived` has the highest archived batch of each shard, `unreadable` paths with the reason.
    """
    segments: list[Segment] = []
    ended: set[ShardId] = set()
    expected = {shard: batch + 1 for shard, batch in archived.items()}
    for file in files:
        next_batch = expected.get(file.shard, 1)
        if file.shard in ended or file.batch < next_batch:
            continue
        source, shard = file.shard
        ended.add(file.shard)
        if file.batch > next_batch:
            missing = f"batch {next_batch}"
            if file.batch > next_batch + 1:
                missing = f"batches {next_batch} to {file.batch - 1}"
            warn(f"{missing} of {source}, shard {shard}, missing in the lake: later ones wait")
            continue
        try:
            if file.path in unreadable:
                raise Damaged(unreadable[file.path])
            segments.append(_described(lake, file))
        except Damaged as error:
            warn(f"{lake.uri(file.path)} cannot be archived: {error}")
            continue
        ended.discard(file.shard)
        expected[file.shard] = file.batch + 1
    return segments


def _described(lake: Lake, file: SegmentFile) -> Segment:
    try:
        with lake.open(file.path) as stream:
            footer = (pq.read_metadata(stream).metadata or {}).get(FOOTER_KEY, b"")
        fields = json.loads(footer)
        identity = fields["format"], fields["source"], fields["shard"], fields["batch"]
        if identity != (SEGMENT_FORMAT, *file.shard, file.batch):
            raise Damaged(f"it has an unexpected footer: {footer.decode()}")
        return Segment(*file, int(fields["count"]), int(fields["checksum"]), int(fields["bytes"]))
    except (LakeUnusable, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"its footer cannot be read: {error}") from error


def read_segment(lake: Lake, segment: Segment) -> Iterator[pa.RecordBatch]:
    """The verified rows in batches, the last one only after a check of the sum. Raises Damaged."""
    rows = checksum = 0
    held: pa.RecordBatch | None = None
    for batch in read_rows(lake, segment.path, arrow_schema(SEGMENT), segment.bytes):
        shards = (batch["source"].unique(), batch["shard"].unique(), batch["batch"].unique())
        if [each.to_pylist() for each in shards] != [[each] for each in _identity(segment)]:
            raise Damaged("it has rows of another batch")
        _check_place(batch)
        rows += batch.num_rows
        checksum = (checksum + verified_checksum(batch)) % CHECKSUM_MODULUS
        if held is not None:
            yield held
        held = batch
    if (rows, checksum) != (segment.rows, segment.checksum):
        raise Damaged(f"its {rows} rows with checksum {checksum} do not match its footer")
    if held is not None:
        yield held


def _identity(segment: Segment) -> tuple[str, int, int]:
    return *segment.shard, segment.batch


def _check_place(rows: pa.RecordBatch) -> None:
    """Check that account, queue and day can be names of folders. Raises Damaged."""
    for name in ("account", "queue"):
        for text in rows[name].unique().to_pylist():
            if not _SAFE.fullmatch(text or ""):
                raise Damaged(f"it has rows whose {name} is {text!r}")
    if rows["sent_at"].null_count:
        raise Damaged("it has rows without sent_at")
