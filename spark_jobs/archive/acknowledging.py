"""Tell the service which batches the table has, after comparing it with their segments.

The service forgets the messages then, and the segments go. So a batch counts as archived only if a
table that was just read from its log shows the very rows of its segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from deltalake import DeltaTable

from spark_jobs.archive.archive_client import ArchiveClient, Refused, TableVersion
from spark_jobs.archive.segment_files import SegmentFile, ShardId, Warn, find_segments
from storage.lake.archive_schema import ARCHIVE, BatchId
from storage.lake.archive_table import archived_batch, confirm, load_archive, table_id
from storage.lake.table import Lake


def acknowledge(lake: Lake, service: ArchiveClient, warn: Warn, tell: Warn) -> int:
    """Tell the service which batches are in the table, then remove their segments; their number.

    Raises LakeUnusable, ServiceUnusable.
    """
    files = find_segments(lake)
    if not files:
        return 0
    known = service.archived()  # after the files: batches removed meanwhile are known
    table = load_archive(lake)
    if table is None:
        return 0
    by_shard: dict[ShardId, list[SegmentFile]] = defaultdict(list)
    for file in files:
        if file.batch <= (archived_batch(table, *file.shard) or 0):
            by_shard[file.shard].append(file)
    removed = 0
    for shard, archived in sorted(by_shard.items()):
        if shard not in known and shard[1] in service.left_out:
            continue  # of a cluster that is away; a later run acknowledges them
        if shard not in known:
            tell(f"segments of {shard[0]} stay: another service or earlier data folder wrote them")
            continue
        whole = _confirmed(lake, table, archived, known[shard], warn)
        if not whole:
            continue
        version = TableVersion(lake.uri(ARCHIVE), table_id(table), table.version())
        try:
            service.acknowledge(shard, max(known[shard], whole[-1].batch), version)
        except Refused as error:
            warn(f"the service refuses the acknowledgement of archived batches: {error}")
            continue
        for file in whole:
            lake.remove(file.path)
            removed += 1
    return removed


def _confirmed(
    lake: Lake, table: DeltaTable, files: list[SegmentFile], known: int, warn: Warn
) -> list[SegmentFile]:
    """The first of a shard's segments, in order, up to one that the table does not show whole."""
    unconfirmed = confirm(lake, table, [_batch(file) for file in files])
    left = {file.path for file in find_segments(lake)} if unconfirmed else set()
    whole: list[SegmentFile] = []
    acknowledged = known
    for file in files:
        source, shard = file.shard
        if file.batch > acknowledged + 1:
            gone = f"{acknowledged + 1} to {file.batch - 1} of {source}, shard {shard}"
            warn(f"batches {gone} cannot be compared with the table: their segments are missing")
            break
        acknowledged = max(acknowledged, file.batch)
        reason = unconfirmed.get(_batch(file))
        if reason is None:
            whole.append(file)
        elif file.path in left:  # else another run has acknowledged and removed it
            warn(f"{lake.uri(file.path)} stays and is not acknowledged: {reason}")
            break
    return whole


def _batch(file: SegmentFile) -> BatchId:
    return BatchId(*file.shard, file.batch)


def find_absent(
    lake: Lake, sealed: Mapping[ShardId, int], known: Mapping[ShardId, int], warn: Warn
) -> None:
    """Warn of batches that the service has written to another lake. Raises LakeUnusable."""
    here = {(file.shard, file.batch) for file in find_segments(lake)}
    absent = [
        (shard, batch)
        for shard, batch in sealed.items()
        if batch > known.get(shard, 0) and (shard, batch) not in here
    ]
    table = load_archive(lake) if absent else None
    for shard, batch in absent:
        if batch > ((archived_batch(table, *shard) if table else None) or 0):
            warn(f"the service has written batch {batch} of {shard[0]}, but not to {lake.url}")
