"""The archive's Delta table: open it only if it is the archive, and compare it with segments.

Jobs and service use this before they write to the table, and before they forget a message. Imports
the lake's packages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from storage.lake.archive_schema import (
    ADDED,
    ARCHIVE,
    CHECKSUM_MODULUS,
    FOOTER_KEY,
    TABLE,
    TABLE_PARTITIONS,
    BatchId,
    arrow_schema,
    transaction_id,
)
from storage.lake.table import Lake, LakeUnusable

In = TypeVar("In")
Out = TypeVar("Out")

DROPPED_BEFORE = "holdfast.droppedBefore"
"""Property of the table: rows of earlier days may have been dropped by age."""
_READERS = 8
"""Files read at once: an object store answers each read after some time."""
_BATCH = ["source", "shard", "batch"]


class ForeignTable(LakeUnusable):
    """Something else is at LAKE/archive; the text names the folder and what differs."""


class Sum(NamedTuple):
    """The number of rows and the sum of their checksums."""

    rows: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows with checksum {self.checksum}"


_NONE = Sum(0, 0)


# -- the table -------------------------------------------------------------------------------------


def load_archive(lake: Lake) -> DeltaTable | None:
    """The newest version, read from the log; None if there is no table yet.

    Raises ForeignTable, LakeUnusable.
    """
    uri, options = lake.uri(ARCHIVE), lake.storage_options()
    try:
        if not DeltaTable.is_deltatable(uri, options):
            _check_unused(lake)
            return None
        table = DeltaTable(uri, storage_options=options)
        difference = _difference(table)
    except (DeltaError, OSError) as error:
        raise LakeUnusable(f"{uri}: {' '.join(str(error).split())}") from error
    if difference is not None:
        raise ForeignTable(f"{uri} is not the archive of this lake: {difference}")
    return table


def table_id(table: DeltaTable) -> str:
    """The id that Delta gave the table when it was created."""
    return str(table.metadata().id)


def archived_batch(table: DeltaTable, source: str, shard: int) -> int | None:
    """The highest batch of the shard that the table's log has."""
    number: int | None = table.transaction_version(transaction_id(source, shard))
    return number


def dropped_before(table: DeltaTable) -> date | None:
    """The day before which rows may have been dropped by age; None if none ever were."""
    day = table.metadata().configuration.get(DROPPED_BEFORE)
    return None if day is None else date.fromisoformat(day)


def _check_unused(lake: Lake) -> None:
    log = f"{ARCHIVE}/_delta_log/"
    for file in lake.list(ARCHIVE):
        if not file.path.startswith(log):
            uri = lake.uri(ARCHIVE)
            raise ForeignTable(f"{uri} is no Delta table, but has files, such as {file.name}")


def _difference(table: DeltaTable) -> str | None:
    """The first difference to the archive. A later version's table may have more columns, one of a
    version before 0.2 lacks some."""
    if (readers := table.protocol().min_reader_version) > 1:
        return f"it needs readers of Delta's version {readers}"
    partitions = table.metadata().partition_columns
    if partitions != list(TABLE_PARTITIONS):
        return f"it is partitioned by {', '.join(partitions) or 'nothing'}"
    known = {field.name: field.type for field in Schema.from_arrow(arrow_schema(TABLE)).fields}
    found = {field.name: field for field in table.schema().fields}
    for name, kind in known.items():
        if name not in found and name in ADDED:
            continue
        if name not in found:
            return f"it has no column {name}"
        if found[name].type != kind:
            return f"its column {name} has another type"
    required = [name for name, field in found.items() if not field.nullable]
    if required:
        return f"its column {required[0]} may not be null"
    return None


# -- comparing it with segments --------------------------------------------------------------------


class _Unconfirmed(Exception):
    """A segment that cannot be compared; the text gives the reason in one line."""


def confirm(lake: Lake, table: DeltaTable, batches: Sequence[BatchId]) -> dict[BatchId, str]:
    """Compare the rows in the table with the segments of these batches, which are in the lake.

    Returns the reason for each batch that differs or cannot be compared. Rows of days that are
    dropped by age are not compared. Reads, of the files in the segments' partitions that may have
    such rows, the columns that name a row's batch and its checksum. Raises LakeUnusable.
    """
    unconfirmed: dict[BatchId, str] = {}
    expected: dict[BatchId, Sum] = {}
    partitions: set[str] = set()
    read = partial(_segment, lake, dropped_before(table))
    for batch, (summed, where) in _each(read, batches, unconfirmed):
        expected[batch] = summed
        partitions |= where
    found: dict[BatchId, Sum] = {}
    unread: dict[str, str] = {}
    files = _files(table, partitions, {batch.number for batch in expected})
    for _, sums in _each(partial(_sums, lake), files, unread):
        _add(found, sums)
    for batch, summed in expected.items():
        shown = found.get(batch, _NONE)
        if shown != summed:
            unconfirmed[batch] = f"the table has {shown} of batch {batch.number}, not {summed}"
            unconfirmed[batch] += "".join(f"; {text}" for text in list(unread.values())[:1])
    return unconfirmed


def partitions_of(lake: Lake, batches: Sequence[BatchId]) -> set[str]:
    """The partitions of the rows in the segments of these batches, each as "account/queue/day"; of
    those that can be read."""
    return set().union(
        *(where for _, (_, where) in _each(partial(_segment, lake, None), batches, {}))
    )


def _each(
    read: Callable[[In], Out], items: Iterable[In], failed: dict[In, str]
) -> Iterator[tuple[In, Out]]:
    """Each item with what was read of it, in order; the reasons of the others are in `failed`."""

    def attempt(item: In) -> tuple[In, Out | None, str]:
        try:
            return item, read(item), ""
        except (
            pa.ArrowException,
            OSError,
            ValueError,
            KeyError,
            _Unconfirmed,
            LakeUnusable,
        ) as error:
            return item, None, " ".join(str(error).split())

    with ThreadPoolExecutor(_READERS) as pool:
        for item, result, reason in pool.map(attempt, items):
            if result is None:
                failed[item] = reason
            else:
                yield item, result


def _segment(lake: Lake, dropped: date | None, batch: BatchId) -> tuple[Sum, set[str]]:
    """The sum of a segment's rows and their partitions, without those of days before `dropped`.
    Raises _Unconfirmed."""
    where: set[str] = set()
    sums: dict[BatchId, Sum] = {}
    kept: dict[BatchId, Sum] = {}
    with (
        lake.open(batch.path) as stream,
        pq.ParquetFile(stream, page_checksum_verification=True) as file,
    ):
        said = json.loads((file.metadata.metadata or {}).get(FOOTER_KEY, b"{}"))
        columns = [*_BATCH, "checksum", "account", "queue", "sent_at"]
        for rows in _row_groups(file, columns):
            _add(sums, _by_batch(rows))
            if dropped is not None:
                stays = pc.greater_equal(rows["sent_at"].cast(pa.date32()), pa.scalar(dropped))
                rows = rows.filter(pc.fill_null(stays, True))
            days = rows["sent_at"].cast(pa.date32()).cast(pa.string())
            keys = pc.binary_join_element_wise(rows["account"], rows["queue"], days, "/")
            where.update(key for key in keys.unique().to_pylist() if key is not None)
            _add(kept, _by_batch(rows))
    found = sums.pop(batch, _NONE)
    if sums or found._asdict() != {"rows": said.get("count"), "checksum": said.get("checksum")}:
        raise _Unconfirmed(f"{lake.uri(batch.path)} is damaged: its rows do not match its footer")
    return kept.get(batch, _NONE), where


def _files(table: DeltaTable, partitions: set[str], batches: set[int]) -> list[str]:
    """The paths of the files in these partitions, each given as "account/queue/day", that may have
    rows of these batches: files of earlier versions do not say which they have."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [f"partition.{name}" for name in TABLE_PARTITIONS]
    if not set(names) <= set(actions.column_names):  # of a table without files
        return []
    columns = [actions[name].cast(pa.string()) for name in names]
    keys = pc.binary_join_element_wise(*columns, "/")
    chosen = pc.is_in(keys, pa.array(sorted(partitions), pa.string()))
    if batches and {"min.batch", "max.batch"} <= set(actions.column_names):
        begins = pc.less_equal(actions["min.batch"], max(batches))
        ends = pc.greater_equal(actions["max.batch"], min(batches))
        chosen = pc.and_(chosen, pc.fill_null(pc.and_(begins, ends), fill_value=True))
    paths: list[str] = actions["path"].filter(chosen).to_pylist()
    return paths


def _sums(lake: Lake, path: str) -> Mapping[BatchId, Sum]:
    """The sums of the batches in a file of the table."""
    found: dict[BatchId, Sum] = {}
    with (
        lake.open(f"{ARCHIVE}/{path}") as stream,
        pq.ParquetFile(stream, page_checksum_verification=True) as file,
    ):
        for rows in _row_groups(file, [*_BATCH, "checksum"]):
            _add(found, _by_batch(rows))
    return found


def _add(sums: dict[BatchId, Sum], more: Mapping[BatchId, Sum]) -> None:
    for batch, (rows, checksum) in more.items():
        known = sums.get(batch, _NONE)
        sums[batch] = Sum(known.rows + rows, (known.checksum + checksum) % CHECKSUM_MODULUS)


def _row_groups(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.Table]:
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, columns, use_threads=False)


def _by_batch(rows: pa.Table) -> dict[BatchId, Sum]:
    grouped = rows.group_by(_BATCH).aggregate([("checksum", "count"), ("checksum", "sum")])
    columns = (grouped[name].to_pylist() for name in [*_BATCH, "checksum_count", "checksum_sum"])
    return {
        BatchId(source, shard, number): Sum(rows, checksum)
        for source, shard, number, rows, checksum in zip(*columns, strict=True)
    }
