"""The page that asks for a backup: POST /_holdfast/backups {"target": "/absolute/folder", "with_master_key": false}.

The service writes the target itself. The answer comes when the backup is on disk, which takes minutes for many GiB.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from sqs_api.backups import Backups
from storage.manifest import BackupRefused, Manifest

BACKUPS = "/_holdfast/backups"
_BODY_BYTES_MAX = 16 << 10


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    target: str
    with_master_key: bool = False


async def make_backup(request: BaseRequest, backups: Backups) -> web.StreamResponse:
    """What was made, or an object with an `error`: 400 for a request that is none, 409 if the backup was not made."""
    if request.method != "POST":
        return web.Response(status=405, headers={"Allow": "POST"})
    try:
        wanted = msgspec.json.decode(await read_body(request), type=_Wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return web.json_response({"error": f"not a request for a backup: {error}"}, status=400)
    if not wanted.target or "\0" in wanted.target:
        return web.json_response({"error": "target: must be a folder"}, status=400)
    try:
        made = await backups.make(Path(wanted.target), with_master_key=wanted.with_master_key)
    except BackupRefused as refusal:
        return web.json_response({"error": str(refusal)}, status=409)
    return web.json_response(_shown(made))


async def read_body(request: BaseRequest) -> bytes:
    """The body, cut off where it is longer than any that makes sense."""
    body = b""
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            break
    return body[:_BODY_BYTES_MAX]


def _shown(made: Manifest) -> dict[str, object]:
    return {"queues": made.queues, "files": len(made.files), "bytes": made.size}
