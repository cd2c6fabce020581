"""ConsolePages: the console's files. They hold no data, so they need no signature.

The page signs its requests itself: the secret of an access key stays in the browser.
"""

from __future__ import annotations

from importlib import resources

from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AccessDenied
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import error_page
from sqs_api.admin.routes import RESERVED

CONSOLE = RESERVED + "console"
_INDEX = "index.html"
_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class ConsolePages:
    """The files, in memory."""

    def __init__(self, access: AdminAccess, *, signs_in: bool, region: str) -> None:
        """`signs_in`: the console asks for an access key; `region` is its first suggestion."""
        self._access = access
        folder = resources.files(__package__).joinpath("static")
        self._files = {
            file.name: file.read_bytes()
            for file in folder.iterdir()
            if file.name.rpartition(".")[2] in _TYPES
        }
        index = self._files[_INDEX].decode()
        index = index.replace("{auth}", "sigv4" if signs_in else "open")
        self._files[_INDEX] = index.replace("{region}", region).encode()

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The file of a path."""
        try:
            self._access.check_host(sent)
        except AccessDenied as refusal:
            return error_page(403, refusal.message)
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        path = request.raw_path.partition("?")[0].removeprefix(CONSOLE)
        name = path.removeprefix("/") or _INDEX
        content = self._files.get(name)
        if content is None or path == f"/{_INDEX}":
            return web.Response(status=404, text="not found\n")
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)
