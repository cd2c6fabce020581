"""The pages of the archive: the waiting messages, GET /_holdfast/archive; and the requests of the
jobs, with POST and JSON.

/_holdfast/archive/seal      {}                    bring all that waits to the lake, then answer
/_holdfast/archive/archived  {"source", "shard", "batch", "table", "table_id", "version"}
                             the table has the batches up to this one: check that, then remove
                             their messages
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import msgspec
import structlog
from aiohttp import web

from cluster.shards.router import Router
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.admin_actions import ACKNOWLEDGE_ARCHIVE, READ_ARCHIVE, SEAL_ARCHIVE
from sqs_api.admin.admin_pages import Answer, error_page, json_page
from sqs_api.archiving.exporter import Exporter, ExportFailed, InLake
from sqs_api.archiving.lake_questions import ArchivedTable, NotInTable, TableUnreadable
from storage.lake.archived_batch import Claimed
from visibility.contract.errors import InvalidParameterValue, QueueError

_NO_LAKE = (
    "This service has no lake, so nothing is archived: start it with --lake FOLDER or "
    "--lake s3://BUCKET/PREFIX."
)
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


class SealedShard(TypedDict):
    """The highest batch of a shard in the lake."""

    source: str
    shard: int
    batch: int


class SealedShards(TypedDict):
    """Every shard that has a batch in the lake."""

    shards: list[SealedShard]


class RemovedMessages(TypedDict):
    """The number of messages that the service keeps no more."""

    removed: int


class ArchivePages:
    """Answers these pages."""

    def __init__(self, exporter: Exporter, router: Router, lake: str, table: ArchivedTable) -> None:
        self._exporter = exporter
        self._router = router
        self._lake = lake
        self._table = table

    def answers(self) -> Mapping[str, Answer]:
        """The pages by action."""
        return {
            READ_ARCHIVE: self.read,
            SEAL_ARCHIVE: partial(_or_busy, self.seal),
            ACKNOWLEDGE_ARCHIVE: partial(_or_busy, self.acknowledge),
        }

    async def read(self, sent: AdminRequest) -> web.Response:
        """The messages that wait for the archive, by shard."""
        status: ArchiveStatus = {"lake": self._lake, "shards": _waiting(self._router)}
        return json_page(status)

    async def seal(self, sent: AdminRequest) -> web.Response:
        """The highest batch of each shard in the lake. Raises ExportFailed, QueueError."""
        places = await self._exporter.seal()
        sealed: SealedShards = {
            "shards": [
                {"source": place.source, "shard": place.shard, "batch": place.batch}
                for place in places
            ]
        }
        return json_page(sealed)

    async def acknowledge(self, sent: AdminRequest) -> web.Response:
        """The number of removed messages; none is removed unless the table has it.

        Raises QueueError.
        """
        try:
            said = msgspec.json.decode(sent.body, type=ArchivedBatches)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return error_page(400, f"not an acknowledgement: {error}")
        if said.shard not in self._router.shards:
            return error_page(409, f"there is no shard {said.shard}")
        try:
            await self._check(said)
            removed = await self._exporter.acknowledge(InLake(said.source, said.shard, said.batch))
        except NotInTable as refusal:
            return error_page(409, str(refusal))
        except TableUnreadable as error:
            return error_page(503, str(error))
        except InvalidParameterValue as refusal:
            return error_page(409, refusal.message)
        _log.info("batches_archived", **msgspec.structs.asdict(said), messages=removed)
        answer: RemovedMessages = {"removed": removed}
        return json_page(answer)

    async def _check(self, said: ArchivedBatches) -> None:
        """Raises NotInTable, TableUnreadable."""
        shard = self._router.shards[said.shard]
        forgotten = shard.report().archive.archived
        claimed = Claimed(
            said.source, said.shard, said.batch, said.table_id, said.version, forgotten
        )
        try:
            await self._table.check(claimed)
        except NotInTable:
            # Another job may have acknowledged them meanwhile, and removed their segments.
            if not forgotten < said.batch <= shard.report().archive.archived:
                raise


async def _no_lake(sent: AdminRequest) -> web.Response:
    return error_page(404, _NO_LAKE)


NO_LAKE: Mapping[str, Answer] = dict.fromkeys(
    (READ_ARCHIVE, SEAL_ARCHIVE, ACKNOWLEDGE_ARCHIVE), _no_lake
)
"""The answers of a service without a lake."""


async def _or_busy(answer: Answer, sent: AdminRequest) -> web.Response:
    """The answer, or status 503 with the reason if the page fails for the moment."""
    try:
        return await answer(sent)
    except (ExportFailed, QueueError) as error:
        return error_page(503, error.message if isinstance(error, QueueError) else str(error))


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
