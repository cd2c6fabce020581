"""Everything that is not SQS: /healthz, /readyz and the reserved path /_holdfast/."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import NamedTuple

from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.errors import AccessDenied
from auth.unverified import refuse_browsers
from sqs_api.archive_page import ARCHIVE
from sqs_api.backup_page import BACKUPS, make_backup, read_body
from sqs_api.backups import Backups
from sqs_api.deletions import Deletions
from sqs_api.metrics import Metrics
from visibility.errors import QueueDoesNotExist, QueueNameExists
from visibility.model import QueueDefinition

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RESERVED = "/_holdfast/"
_DELETED = _RESERVED + "deleted-queues"
_PASSED_ON = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
"""Headers of proxies."""
_RESTORE = re.compile(re.escape(_DELETED) + r"/([0-9]{1,18})/restore")


class Signed(NamedTuple):
    """A request whose signature may say who may see a page; names of headers are lower-case."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


ArchivePage = Callable[[BaseRequest, str, bytes], Awaitable[web.StreamResponse]]
"""Takes the request, its path and its body."""


class AdminPages:
    """Answers by path."""

    def __init__(
        self,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        *,
        answers_anyone: bool,
        deletions: Deletions | None = None,
        backups: Backups | None = None,
        archive: ArchivePage | None = None,
        is_operator: Callable[[Signed], bool] | None = None,
    ) -> None:
        """`answers_anyone`: whether the metrics are for more than clients on this machine.

        `deletions`, `backups` or `archive` None: there are no pages about deleted queues, backups or the archive.
        `is_operator`: whether who signed a request from elsewhere may use the pages about the archive.
        """
        self._archive = archive
        self._is_operator = is_operator
        self._backups = backups
        self._answers_anyone = answers_anyone
        self._metrics = metrics
        self._is_ready = is_ready
        self._deletions = deletions

    async def __call__(self, request: BaseRequest) -> web.StreamResponse | None:
        """The page, None if the path is not one of ours."""
        path = request.raw_path.partition("?")[0]
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            if self._is_ready():
                return web.Response(text="ready\n")
            return web.Response(status=503, text="not ready\n")
        if not path.startswith(_RESERVED):
            return None
        if self._archive is not None and path.startswith(ARCHIVE):
            return await self._archive_page(request, path, self._archive)
        if not self._answers_anyone and (forbidden := _forbidden_to(request)) is not None:
            return forbidden
        if path == _RESERVED + "metrics":
            page = await self._metrics.page()
            return web.Response(body=page, headers={"Content-Type": _METRICS_TYPE})
        if self._deletions is not None and path.startswith(_DELETED):
            return await _deleted_queues(request, path, self._deletions)
        if self._backups is not None and path == BACKUPS:
            return _forbidden_to(request) or await make_backup(request, self._backups)
        return _not_found()

    async def _archive_page(
        self, request: BaseRequest, path: str, page: ArchivePage
    ) -> web.StreamResponse:
        """For programs on this machine, and jobs elsewhere whose requests the account's root signed."""
        body = await read_body(request)
        forbidden = _forbidden_to(request)
        if forbidden is not None and self._is_operator is not None:
            headers = {name.lower(): value for name, value in request.raw_headers}
            method, target = request.method.encode(), request.raw_path.encode()
            if self._is_operator(Signed(method, target, headers, body)):
                forbidden = None
        return forbidden or await page(request, path, body)


def _forbidden_to(request: BaseRequest) -> web.StreamResponse | None:
    """For programs on this machine only, whoever else may read the metrics: nobody signs these requests."""
    try:
        refuse_browsers({name.lower(): value for name, value in request.raw_headers})
    except AccessDenied:
        return web.Response(status=403, text="forbidden\n")
    return None if _is_local(request) else web.Response(status=403, text="forbidden\n")


async def _deleted_queues(
    request: BaseRequest, path: str, deletions: Deletions
) -> web.StreamResponse:
    forbidden = _forbidden_to(request)
    if forbidden is not None:
        return forbidden
    restore = _RESTORE.fullmatch(path)
    if path != _DELETED and restore is None:
        return _not_found()
    allowed = "GET" if restore is None else "POST"
    if request.method != allowed:
        return web.Response(status=405, headers={"Allow": allowed})
    return _list(deletions) if restore is None else await _restore(deletions, int(restore[1]))


def _list(deletions: Deletions) -> web.StreamResponse:
    """A list of objects, the latest deleted first."""
    return web.json_response(
        [
            _shown(deleted.queue)
            | {
                "deleted_at_ms": deleted.deleted_at_ms,
                "restorable_until_ms": deletions.restorable_until_ms(deleted),
            }
            for deleted in deletions.all()
        ]
    )


async def _restore(deletions: Deletions, queue_id: int) -> web.StreamResponse:
    """The restored queue, or an object with an `error`."""
    try:
        queue = await deletions.restore(queue_id)
    except QueueDoesNotExist:
        text = f"No deleted queue with the id {queue_id} can be restored."
        return web.json_response({"error": text}, status=404)
    except QueueNameExists as refusal:
        return web.json_response({"error": refusal.message}, status=409)
    return web.json_response(_shown(queue))


def _shown(queue: QueueDefinition) -> dict[str, object]:
    return {
        "queue_id": queue.queue_id,
        "account": queue.account,
        "region": queue.region,
        "name": queue.name,
    }


def _not_found() -> web.StreamResponse:
    return web.Response(status=404, text="not found\n")


def _is_local(request: BaseRequest) -> bool:
    """Whether the client is on this machine. What a proxy passed on is not, whatever it says of where it came from."""
    if any(name in request.headers for name in _PASSED_ON):
        return False
    try:
        return ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
