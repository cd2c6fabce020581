"""Everything that is not SQS: /healthz, /readyz, the metrics, and the pages of
`sqs_api/admin/admin_actions.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AccessDenied, AuthError
from auth.caller import Caller
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_actions import RESERVED, AdminPage, pages_at
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.metrics import METRICS_TYPE, Metrics
from sqs_api.http.fallback import headers_of

_BODY_BYTES_MAX = 16 << 10

Below = Callable[[BaseRequest, AdminRequest], Awaitable[web.Response]]
"""Answers all requests below a path; the body is not read yet."""
Answer = Callable[[AdminRequest], Awaitable[web.Response]]
"""Answers a page with a JSON object, which has an `error` unless the status is 200."""


class AdminPages:
    """Answers by path."""

    def __init__(
        self,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        *,
        answers_anyone: bool,
        access: AdminAccess,
        answers: Mapping[str, Answer],
        audit: AuditLog | None = None,
        below: Mapping[str, Below] = MappingProxyType({}),
    ) -> None:
        """`answers_anyone`: serve the metrics to other machines too. `answers` are by action,
        `below` by the beginning of paths."""
        self._answers_anyone = answers_anyone
        self._metrics = metrics
        self._is_ready = is_ready
        self._access = access
        self._answers = answers
        self._audit = audit
        self._below = below

    async def __call__(self, request: BaseRequest) -> web.StreamResponse | None:
        """The page, None if the path has none."""
        path = request.raw_path.partition("?")[0]
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            if self._is_ready():
                return web.Response(text="ready\n")
            return web.Response(status=503, text="not ready\n")
        if not path.startswith(RESERVED):
            return None
        if path == RESERVED + "metrics":
            return await self._metrics_page(request)
        for begin, answer in self._below.items():
            if path.startswith(begin):
                return await answer(request, _read(request, b"", ()))
        methods = {
            method: found
            for method, found in pages_at(path).items()
            if found[0].action in self._answers
        }
        if not methods:
            return web.Response(status=404, text="not found\n")
        if request.method not in methods:
            return web.Response(status=405, headers={"Allow": ", ".join(methods)})
        page, parts = methods[request.method]
        return await self._page(page, _read(request, await read_body(request), parts))

    async def _metrics_page(self, request: BaseRequest) -> web.StreamResponse:
        """Local clients only, unless configured otherwise."""
        if not self._answers_anyone:
            sent = _read(request, b"", ())
            try:
                self._access.check_origin(sent)
            except AccessDenied as refusal:
                return error_page(403, refusal.message)
            if not sent.is_local:
                return error_page(403, "The metrics are for programs on this machine.")
        page = await self._metrics.page()
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})

    async def _page(self, page: AdminPage, sent: AdminRequest) -> web.Response:
        caller: Caller | None = None
        try:
            caller = self._access.signer(sent)
            self._access.admit(page, sent, caller)
        except AuthError as refusal:
            if self._audit is not None:
                self._audit.denied(page.action, caller, sent.source_ip, None, refusal.code)
            return error_page(403, refusal.message)
        sent = sent._replace(by_root=caller.user is None)
        try:
            answer = await self._answers[page.action](sent)
        except asyncio.CancelledError:
            self._note(page, sent, caller, outcome="the client hung up")
            raise
        said = _object(answer.body)
        if answer.status == 200:
            self._note(page, sent, caller, outcome="ok", answer=said)
        else:
            self._note(page, sent, caller, outcome=said.get("error"))
        return answer

    def _note(self, page: AdminPage, sent: AdminRequest, caller: Caller, **ended: Any) -> None:
        """Record a request that may have changed something."""
        if self._audit is None or page.only_reads:
            return
        self._audit.note(
            page.action,
            account=caller.account,
            user=caller.user,
            access_key_id=caller.access_key_id,
            login=self._access.login(sent, caller),
            source_ip=sent.source_ip,
            path=sent.target.decode("latin-1"),
            asked=_object(sent.body) or None,
            **ended,
        )


async def read_body(request: BaseRequest, bytes_max: int = _BODY_BYTES_MAX) -> bytes:
    """The body, truncated if it is longer than any sensible one."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > bytes_max:
            break
    return bytes(body[:bytes_max])


def json_page(content: object) -> web.Response:
    """An answer with status 200."""
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def error_page(status: int, text: str) -> web.Response:
    """A refusal."""
    return web.json_response({"error": text}, status=status)


def _read(request: BaseRequest, body: bytes, parts: tuple[str, ...]) -> AdminRequest:
    return AdminRequest(
        request.method,
        request.raw_path.encode("utf-8", "surrogateescape"),
        headers_of(request),
        body,
        request.remote or "",
        request.secure,
        parts,
    )


def _object(content: object) -> dict[str, Any]:
    """The JSON object in a body; empty if there is none."""
    try:
        said = msgspec.json.decode(content if isinstance(content, bytes) else b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
