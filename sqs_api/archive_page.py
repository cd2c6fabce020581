"""The pages of the archive: what waits, GET /_holdfast/archive; and what the jobs ask for, with POST and JSON.

/_holdfast/archive/seal      {}                                            bring all that waits to the lake, then answer
/_holdfast/archive/archived  {"source", "shard", "batch", "table", "version"}   all up to the batch is in the table's version
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import msgspec
import structlog
from aiohttp import web
from aiohttp.web_request import BaseRequest

from cluster.router import Router
from sqs_api.hand_over import ExportFailed, HandOver, InLake
from visibility.errors import InvalidParameterValue, QueueError

ARCHIVE = "/_holdfast/archive"
_SEAL = ARCHIVE + "/seal"
_ARCHIVED = ARCHIVE + "/archived"
_log = structlog.get_logger("archive")

Note = Callable[..., None]
"""Takes an event's name and its fields: `AuditLog.note`."""


class _Archived(msgspec.Struct):
    source: str
    shard: int
    batch: int
    table: str
    version: int


@dataclass(frozen=True)
class _Waiting:
    source: str
    shard: int
    sealed: int
    """The highest batch that was sealed."""
    archived: int
    messages: int
    bytes: int


async def archive_page(
    request: BaseRequest,
    path: str,
    body: bytes,
    hand_over: HandOver,
    router: Router,
    lake: str,
    note: Note,
) -> web.StreamResponse:
    """The page, or an object with an `error`."""
    pages = {ARCHIVE: "GET", _SEAL: "POST", _ARCHIVED: "POST"}
    allowed = pages.get(path)
    if allowed is None:
        return web.Response(status=404, text="not found\n")
    if request.method != allowed:
        return web.Response(status=405, headers={"Allow": allowed})
    try:
        if path == _SEAL:
            places = await hand_over.seal()
            return web.json_response({"shards": [place._asdict() for place in places]})
        if path == _ARCHIVED:
            return await _archived(body, hand_over, router, note)
    except (ExportFailed, QueueError) as error:
        return _refused(503, error.message if isinstance(error, QueueError) else str(error))
    return web.json_response({"lake": lake, "shards": [asdict(each) for each in _waiting(router)]})


async def _archived(
    body: bytes, hand_over: HandOver, router: Router, note: Note
) -> web.StreamResponse:
    try:
        said = msgspec.json.decode(body, type=_Archived)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _refused(400, f"not an acknowledgement: {error}")
    if said.shard not in router.shards:
        return _refused(409, f"there is no shard {said.shard}")
    try:
        removed = await hand_over.acknowledge(InLake(said.source, said.shard, said.batch))
    except InvalidParameterValue as refusal:
        return _refused(409, refusal.message)
    fields = msgspec.structs.asdict(said) | {"messages": removed}
    _log.info("batches_archived", **fields)
    if removed:
        note("batches_archived", **fields)
    return web.json_response({"removed": removed})


def _waiting(router: Router) -> list[_Waiting]:
    return [
        _Waiting(
            shard.archive.source,
            shard.number,
            shard.archive.next_batch - 1,
            shard.archive.archived,
            shard.archive.messages,
            shard.archive.size,
        )
        for shard in router.shards.values()
    ]


def _refused(status: int, text: str) -> web.StreamResponse:
    return web.json_response({"error": text}, status=status)
