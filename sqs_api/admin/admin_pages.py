"""Everything that is not SQS: /healthz, /readyz, the metrics, and what lies below paths, such as
the admin API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AccessDenied
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.routes import RESERVED
from sqs_api.gateway.metrics import METRICS_TYPE
from sqs_api.http.fallback import headers_of

Below = Callable[[BaseRequest, AdminRequest], Awaitable[web.Response]]
"""Answers all requests below a path; the body is not read yet."""


class MetricsPage(Protocol):
    """Makes the page of the metrics."""

    async def page(self) -> bytes:
        """The Prometheus text format."""


class AdminPages:
    """Answers by path."""

    def __init__(
        self,
        metrics: MetricsPage,
        is_ready: Callable[[], bool],
        *,
        answers_anyone: bool,
        access: AdminAccess,
        below: Mapping[str, Below],
    ) -> None:
        """`answers_anyone`: serve the metrics to other machines too. `below` is by the beginning of
        paths, the first one that fits answers."""
        self._answers_anyone = answers_anyone
        self._metrics = metrics
        self._is_ready = is_ready
        self._access = access
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
                return await answer(request, _read(request))
        return web.Response(status=404, text="not found\n")

    async def _metrics_page(self, request: BaseRequest) -> web.StreamResponse:
        """Local clients only, unless configured otherwise."""
        if not self._answers_anyone:
            sent = _read(request)
            try:
                self._access.check_origin(sent)
            except AccessDenied as refusal:
                return error_page(403, refusal.message)
            if not sent.is_local:
                return error_page(403, "The metrics are for programs on this machine.")
        page = await self._metrics.page()
        return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})


async def read_body(request: BaseRequest, bytes_max: int) -> bytes:
    """The body, truncated if it is longer."""
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


def _read(request: BaseRequest) -> AdminRequest:
    """The request without its body, which is read later."""
    return AdminRequest(
        request.method,
        request.raw_path.encode("utf-8", "surrogateescape"),
        headers_of(request),
        b"",
        request.remote or "",
        request.secure,
    )
