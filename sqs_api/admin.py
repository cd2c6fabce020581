"""Everything that is not SQS: /healthz, /readyz and the reserved path /_holdfast/."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import web
from aiohttp.web_request import BaseRequest

from sqs_api.metrics import Metrics

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RESERVED = "/_holdfast/"


class AdminPages:
    """Answers by path."""

    def __init__(
        self, metrics: Metrics, is_ready: Callable[[], bool], *, answers_anyone: bool
    ) -> None:
        """`answers_anyone`: whether the reserved path is for more than clients on this machine."""
        self._answers_anyone = answers_anyone
        self._metrics = metrics
        self._is_ready = is_ready

    async def __call__(self, request: BaseRequest) -> web.StreamResponse | None:
        """The page, None if the path is not one of ours."""
        path = request.raw_path.partition("?")[0]
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            if self._is_ready():
                return web.Response(text="ready\n")
            return web.Response(status=503, text="not ready\n")
        if path.startswith(_RESERVED) and not (self._answers_anyone or _is_local(request)):
            return web.Response(status=403, text="forbidden\n")
        if path == _RESERVED + "metrics":
            return web.Response(body=self._metrics.page(), headers={"Content-Type": _METRICS_TYPE})
        if path.startswith(_RESERVED):
            return web.Response(status=404, text="not found\n")
        return None


def _is_local(request: BaseRequest) -> bool:
    """Whether the client's address is this machine's."""
    try:
        return ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
