"""Answers about the archive: the waiting messages, and the requests of the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import structlog

from cluster.shards.router import Router
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import (
    ACKNOWLEDGE_ARCHIVE,
    READ_ARCHIVE,
    SEAL_ARCHIVE,
    Leads,
    Refused,
    Route,
)
from sqs_api.archiving.exporter import Exporter, ExportFailed, SealedShard
from sqs_api.archiving.lake_questions import ArchivedTable, NotInTable, TableUnreadable
from storage.lake.archived_batch import Claimed
from visibility.contract.errors import InvalidParameterValue, QueueError

_NO_LAKE = (
    "This service has no lake, so nothing is archived: start it with --lake FOLDER or "
    "--lake s3://BUCKET/PREFIX."
)
_AT_HOSTS = (
    "This is a gateway, which keeps no messages: ask any host of the fleet, which answers for the "
    "queues of all clusters."
)
_SEAL_S = 600.0
"""Time for a leader to bring what waits to the lake."""
_log = structlog.get_logger("archive")


class ArchivedBatches(msgspec.Struct):
    """The batches of a shard that are in a table's version, up to this one."""

    source: str
    shard: int
    batch: int
    table: str
    table_id: str
    version: int


@dataclass(frozen=True)
class WaitingMessages:
    """The messages of a shard that wait for the archive."""

    source: str
    shard: int
    sealed: int
    """The highest sealed batch."""
    archived: int
    messages: int
    bytes: int
    outbox: int
    """Messages on their way to another shard, which archives them."""


class ArchiveStatus(TypedDict):
    """The lake, and what waits for it."""

    lake: str
    shards: list[WaitingMessages]
    left_out: list[int]
    """Shards of clusters of the fleet that are away."""


class SealedShards(TypedDict):
    """Every shard that has a batch in the lake."""

    shards: list[SealedShard]
    left_out: list[int]
    """Shards of clusters of the fleet that are away."""


class RemovedMessages(TypedDict):
    """The number of messages that the service keeps no more."""

    removed: int


class ArchivePages(NamedTuple):
    """The part that answers; a service without a lake has none."""

    exporter: Exporter
    router: Router
    lake: str
    table: ArchivedTable


class AtHosts(NamedTuple):
    """The part of a gateway."""


async def read_archive(pages: ArchivePages | AtHosts | None, asked: Asked) -> ArchiveStatus:
    """Tell what waits for the archive, by shard."""
    _, router, lake, _ = _with_lake(pages)
    return {"lake": lake, "shards": _waiting(router), "left_out": []}


async def seal_archive(pages: ArchivePages | AtHosts | None, asked: Asked) -> SealedShards:
    """Bring all that waits for the archive to the lake."""
    try:
        places = await _with_lake(pages).exporter.seal()
    except (ExportFailed, QueueError) as error:
        raise Refused(503, str(error)) from error
    return {"shards": places, "left_out": []}


async def acknowledge_archive(
    pages: ArchivePages | AtHosts | None, asked: Asked, said: ArchivedBatches
) -> RemovedMessages:
    """Remove the messages of batches that a version of the archive's table has."""
    exporter, router, _, table = _with_lake(pages)
    if said.shard not in router.shards:
        raise Refused(409, f"there is no shard {said.shard}")
    try:
        await _check(said, router, table)
        removed = await exporter.acknowledge(SealedShard(said.source, said.shard, said.batch))
    except (NotInTable, InvalidParameterValue) as refusal:
        raise Refused(409, str(refusal)) from refusal
    except (TableUnreadable, ExportFailed, QueueError) as error:
        raise Refused(503, str(error)) from error
    _log.info("batches_archived", **msgspec.structs.asdict(said), messages=removed)
    return {"removed": removed}


async def _check(said: ArchivedBatches, router: Router, table: ArchivedTable) -> None:
    """Raises NotInTable, TableUnreadable."""
    shard = router.shards[said.shard]
    forgotten = shard.report().archive.archived
    claimed = Claimed(said.source, said.shard, said.batch, said.table_id, said.version, forgotten)
    try:
        await table.check(claimed)
    except NotInTable:
        # Another job may have acknowledged them meanwhile, and removed their segments.
        if not forgotten < said.batch <= shard.report().archive.archived:
            raise


def _with_lake(pages: ArchivePages | AtHosts | None) -> ArchivePages:
    """Raises Refused."""
    if isinstance(pages, AtHosts):
        raise Refused(409, _AT_HOSTS)
    if pages is None:
        raise Refused(404, _NO_LAKE)
    return pages


def _merged(answers: Mapping[str, Any], leads: Leads) -> Any:
    """Each shard as its leader sees it."""
    merged = dict(next(iter(answers.values())))
    shards = [
        shard
        for host, said in answers.items()
        for shard in said["shards"]
        if leads(shard["shard"]) == host
    ]
    return {**merged, "shards": sorted(shards, key=lambda shard: int(shard["shard"]))}


def _waiting(router: Router) -> list[WaitingMessages]:
    return [
        WaitingMessages(
            report.archive.source,
            report.number,
            report.archive.sealed,
            report.archive.archived,
            report.archive.messages,
            report.archive.size,
            report.outbox,
        )
        for report in router.reports()
    ]


ROUTES = (
    Route("GET", "archive", READ_ARCHIVE, read_archive, "archive status", merge=_merged),
    Route("POST", "archive/seal", SEAL_ARCHIVE, seal_archive, merge=_merged, wait_s=_SEAL_S),
    Route(
        "POST",
        "archive/archived",
        ACKNOWLEDGE_ARCHIVE,
        acknowledge_archive,
        of_shard=True,
        wait_s=_SEAL_S,
    ),
)
