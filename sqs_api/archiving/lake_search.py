"""Searches the lake for archived messages, in a process of its own. Imports pyarrow.

The messages are in the archive's table, and in segments that no job has put there yet. One heap has
unread files, unread row groups and read rows, each at the earliest place that it can hold: what
comes first is opened, read, or a message of the page. So a page reads what it shows, and no more
than some row groups are in memory. A row in the heap has no more content than the page shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from heapq import heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sqs_api.archiving.archive_search import (
    LAST_SOURCE,
    ArchivedRow,
    ArchiveSearch,
    FoundRows,
    Place,
    Span,
    matches,
)
from storage.lake.archive_schema import (
    ADDED,
    ARCHIVE,
    SEGMENTS,
    TABLE_PARTITIONS,
    attribute_bytes,
    row_checksum,
    segment_folder,
    segment_name,
)
from storage.lake.archive_table import archived_batch, load_archive
from storage.lake.near_names import near_names
from storage.lake.table import Lake, LakeUnusable
from visibility.content.content import Extras
from visibility.contract.stored_message import Origin

READ_BYTES_MAX = 128 << 20
"""Size of the row groups that one page reads."""
_CONTENT = ("body", "attributes", "sealed")
_BESIDE = (
    "source",
    "shard",
    "position",
    "message_id",
    "reason",
    "sent_at",
    "removed_at",
    "first_received_at",
    "receive_count",
    "size",
    "sender_id",
    "aws_trace_header",
    "message_group_id",
    "message_deduplication_id",
    "sequence_number",
    "dead_letter_queue_source_arn",
    "checksum",
)
_ROWS_AT_ONCE = 256
"""Rows whose whole contents are in memory beside those of their row group."""
_SPANS_MAX = 10_000
_SEGMENT = re.compile(rf"{SEGMENTS}/([^/]+)/shard-([0-9]+)/batch-([0-9]+)\.parquet")
_DAY = timedelta(days=1)
_ALL_TIME: Span = 0, 10**16
Key = tuple[int, str, int, int]
"""A place in the order of a search: lower is earlier in its pages."""


class _File(NamedTuple):
    """A file that may have wanted messages, sent from one instant to another (inclusive)."""

    path: str
    from_us: int
    until_us: int
    where: dict[str, str]
    """Columns that wanted rows have these values in."""


class _Group(NamedTuple):
    """A row group of a file."""

    file: _File
    footer: pq.FileMetaData
    number: int


_Item = _File | _Group | ArchivedRow | None
"""None is a row that does not match."""


def search(lake: Lake, wanted: ArchiveSearch) -> FoundRows:
    """A page. Raises LakeUnusable."""
    try:
        return _Search(lake, wanted).run()
    except FileNotFoundError:  # moved into the table, or compacted away, since it was listed
        return _Search(lake, wanted).run()


class _Search:
    def __init__(self, lake: Lake, wanted: ArchiveSearch) -> None:
        self._lake = lake
        self._wanted = wanted
        self._sign = 1 if wanted.oldest_first else -1
        self._after = self._key(wanted.after) if wanted.after else None
        self._heap: list[tuple[Key, int, _Item]] = []
        self._pushed = 0
        self._read_bytes = 0
        self._passed: Key | None = self._after
        """Everything up to here was looked at."""
        self._spans: dict[str, Span] = {}
        self._others = set[str]()
        """Names of the account's queues in the table, if the wanted one is not there."""
        self._passed_over = False
        """True if a file or row group was not read that may have messages of the queue."""

    def run(self) -> FoundRows:
        """The page. Raises LakeUnusable, FileNotFoundError."""
        try:
            for file in files(self._lake, self._wanted, self._others):
                if file.path in self._wanted.spans:
                    self._spans[file.path] = file.from_us, file.until_us
                self._push_span(file.from_us, file.until_us, file)
            return self._run()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, DeltaError, OSError) as error:
            raise LakeUnusable(f"{self._lake.url}: {' '.join(str(error).split())}") from error

    def _run(self) -> FoundRows:
        rows: list[ArchivedRow] = []
        scanned = 0
        while self._heap:
            key, _, first = self._heap[0]
            if isinstance(first, _File | _Group):
                self._pass((key[0] - 1, LAST_SOURCE, 0, 0))
                if self._is_enough():
                    break
                heappop(self._heap)
                self._open(first)
                continue
            if len(rows) == self._wanted.limit:
                break
            heappop(self._heap)
            self._pass(key)
            scanned += 1
            if first is not None:
                rows.append(first)
        spans = dict(islice(self._spans.items(), _SPANS_MAX))
        is_unknown = not (scanned or self._heap or self._after or self._passed_over)
        near = near_names(self._wanted.queue, self._others) if is_unknown else None
        return FoundRows(rows, scanned, self._place() if self._heap else None, spans, near)

    def _is_enough(self) -> bool:
        return self._read_bytes >= READ_BYTES_MAX and self._passed != self._after

    # -- the order ---------------------------------------------------------------------------------

    def _key(self, place: Place) -> Key:
        return self._sign * place.sent_us, place.source, place.shard, self._sign * place.position

    def _place(self) -> Place | None:
        if self._passed is None:
            return None
        sent, source, shard, position = self._passed
        return Place(max(0, self._sign * sent), source, shard, self._sign * position)

    def _pass(self, key: Key) -> None:
        if self._passed is None or key > self._passed:
            self._passed = key

    def _push_span(self, from_us: int, until_us: int, item: _File | _Group) -> None:
        """Keep a file or row group, unless it has nothing that is wanted."""
        if not self._may_have(from_us, until_us):
            self._passed_over = True
            return
        first, last = sorted((self._sign * from_us, self._sign * until_us))
        if self._after is None or last >= self._after[0]:
            self._push((first, "", 0, 0), item)

    def _may_have(self, from_us: int, until_us: int) -> bool:
        """True if messages that were sent in this span can be wanted."""
        wanted, places = self._wanted.filter, self._wanted.places
        if until_us < wanted.sent_from_ms * 1000:
            return False
        if wanted.sent_until_ms is not None and from_us >= wanted.sent_until_ms * 1000:
            return False
        return places is None or any(from_us <= each.sent_us <= until_us for each in places)

    def _push(self, key: Key, item: _Item) -> None:
        self._pushed += 1
        heappush(self._heap, (key, self._pushed, item))

    # -- reading -----------------------------------------------------------------------------------

    def _open(self, item: _File | _Group) -> None:
        if isinstance(item, _Group):
            self._read(item)
            return
        with self._lake.files.open_input_file(self._lake.path(item.path)) as stream:
            footer = pq.read_metadata(stream)
        spans = [_span(footer, number, item) for number in range(footer.num_row_groups)]
        for number, span in enumerate(spans):
            self._push_span(*span, _Group(item, footer, number))
        if spans and _SEGMENT.fullmatch(item.path):
            self._spans[item.path] = min(begin for begin, _ in spans), max(end for _, end in spans)

    def _read(self, group: _Group) -> None:
        with self._lake.files.open_input_file(self._lake.path(group.file.path)) as stream:
            opened = pq.ParquetFile(stream, metadata=group.footer, page_checksum_verification=True)
            for row in self._wanted_rows(opened, group):
                key = self._key(row.place)
                if self._after is None or key > self._after:
                    is_wanted = matches(self._wanted, row)
                    self._push(key, _shortened(row, self._wanted.body_max) if is_wanted else None)

    def _wanted_rows(self, opened: pq.ParquetFile, group: _Group) -> Iterator[ArchivedRow]:
        """The queue's rows of a row group; contents are read if there are any."""
        where = group.file.where
        known = set(opened.schema_arrow.names)
        names = [*_BESIDE, *(name for name in ADDED if name in known), *where]
        beside = opened.read_row_group(group.number, names, use_threads=False)
        self._read_bytes += beside.nbytes
        chosen = pc.is_valid(beside["sent_at"])
        for name, text in where.items():
            chosen = pc.and_(chosen, pc.equal(beside[name], text))
        chosen = pc.fill_null(chosen, fill_value=False)
        if not pc.any(chosen).as_py():
            return
        content = opened.read_row_group(group.number, list(_CONTENT), use_threads=False)
        self._read_bytes += content.nbytes
        for name in _CONTENT:
            beside = beside.append_column(name, content[name])
        for batch in beside.filter(chosen).to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield from map(_row, batch.to_pylist())


# -- files -----------------------------------------------------------------------------------------


def files(lake: Lake, wanted: ArchiveSearch, others: set[str]) -> Iterator[_File]:
    """Files that may have wanted messages. If the table has none, the names of the account's queues
    in it are added to `others`. Raises LakeUnusable, DeltaError, OSError."""
    # Listed before the table is read: a segment that is removed meanwhile is in the table.
    segments = [found for file in lake.list(SEGMENTS) if (found := _SEGMENT.fullmatch(file.path))]
    table = load_archive(lake)
    own = {"account": wanted.account, "region": wanted.region, "queue": wanted.queue}
    for source, shard, batch in (found.groups() for found in segments):
        archived = archived_batch(table, source, int(shard)) if table else None
        if int(batch) > (archived or 0):
            path = f"{segment_folder(source, int(shard))}/{segment_name(int(batch))}"
            yield _File(path, *wanted.spans.get(path, _ALL_TIME), own)
    if table is not None:
        yield from _table_files(table, wanted, others)


def _table_files(table: DeltaTable, wanted: ArchiveSearch, others: set[str]) -> Iterable[_File]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [f"partition.{name}" for name in TABLE_PARTITIONS]
    if not set(names) <= set(actions.column_names):
        return
    account, queue, day = (actions[name] for name in names)
    is_own = pc.equal(account, wanted.account)
    chosen = pc.and_(is_own, pc.equal(queue, wanted.queue))
    if not pc.any(chosen).as_py():
        others.update(queue.filter(is_own).unique().to_pylist())
    paths = actions["path"].filter(chosen).to_pylist()
    for path, on in zip(paths, day.filter(chosen).to_pylist(), strict=True):
        begin = _midnight(on)
        until_us = _us(begin + _DAY) - 1
        yield _File(f"{ARCHIVE}/{path}", _us(begin), until_us, {"region": wanted.region})


def _midnight(day: date | str) -> datetime:
    found = date.fromisoformat(day) if isinstance(day, str) else day
    return datetime(found.year, found.month, found.day, tzinfo=UTC)


def _us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _span(footer: pq.FileMetaData, number: int, file: _File) -> tuple[int, int]:
    """The instants between which the row group's messages were sent."""
    group = footer.row_group(number)
    columns = map(group.column, range(group.num_columns))
    statistics = next(each.statistics for each in columns if each.path_in_schema == "sent_at")
    if statistics is None or not statistics.has_min_max:
        return file.from_us, file.until_us
    return _us(statistics.min), _us(statistics.max)


# -- rows ------------------------------------------------------------------------------------------


def _origin(found: dict[str, Any]) -> Origin | None:
    sent_at = found.get("origin_sent_at")
    if sent_at is None:
        return None
    received = found.get("origin_receive_count") or 0
    return Origin(found.get("origin_message_id") or "", _us(sent_at) // 1000, received)


def _row(found: dict[str, Any]) -> ArchivedRow:
    place = Place(_us(found["sent_at"]), found["source"], found["shard"], found["position"])
    attributes = {
        name: (
            each["data_type"],
            (each["string_value"] or "").encode()
            if each["binary_value"] is None
            else each["binary_value"],
        )
        for name, each in found["attributes"] or ()
    }
    extras = Extras(
        found["sender_id"] or "",
        found["aws_trace_header"],
        found["message_group_id"],
        found["message_deduplication_id"],
        attributes or None,
    )
    return ArchivedRow(
        place=place,
        message_id=found["message_id"],
        reason=found["reason"],
        removed_at=found["removed_at"],
        first_received_at=found["first_received_at"],
        receive_count=found["receive_count"] or 0,
        size=found["size"],
        source_arn=found["dead_letter_queue_source_arn"],
        cause=found.get("dead_letter_cause"),
        died_at=found.get("dead_letter_at"),
        hops=found.get("dead_letter_hops") or 0,
        origin=_origin(found),
        sequence_number=found["sequence_number"],
        is_sealed=found["sealed"] is not None,
        is_damaged=_is_damaged(found),
        body=found["body"],
        is_cut=False,
        extras=extras,
    )


def _is_damaged(found: dict[str, Any]) -> bool:
    content = found["sealed"] or (found["body"] or "").encode()
    attributes = attribute_bytes(found["attributes"])
    return bool(row_checksum(found["message_id"], content, attributes) != found["checksum"])


def _shortened(row: ArchivedRow, body_max: int | None) -> ArchivedRow:
    if body_max is None:
        return row
    body = None if row.body is None else row.body[:body_max]
    whole = row.extras.attributes or {}
    cut = {name: (kind, _cut(kind, value, body_max)) for name, (kind, value) in whole.items()}
    return msgspec.structs.replace(
        row,
        body=body,
        is_cut=body != row.body or cut != whole,
        extras=msgspec.structs.replace(row.extras, attributes=cut or None),
    )


def _cut(kind: str, value: bytes, size_max: int) -> bytes:
    if len(value) <= size_max or kind.startswith("Binary"):
        return value[:size_max]
    return value.decode()[:size_max].encode()
