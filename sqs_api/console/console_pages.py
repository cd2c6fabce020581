"""ConsolePages: the console's files. They hold no data, so they need no signature.

The page signs its requests itself: the secret of an access key stays in the browser. All files but
the page itself have a hash of all of them in their path: browsers keep them for good, and another
version's are never mixed in. The page names the modules of the first screen, so that a browser asks
for all of them at once.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from html import escape
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
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Vary": "Accept-Encoding",
}
_FOR_GOOD = "public, max-age=31536000, immutable"
_PATH = re.compile(r"/(?:([0-9a-f]{16})/)?([a-z_]+\.[a-z]+)")
_FIRST = ("main.js", "queues.js")
_IMPORTED = re.compile(rb'from "\./([a-z_]+\.js)"')


@cache
def _read() -> tuple[Mapping[str, bytes], str]:
    """The files by name, and their hash."""
    folder = resources.files(__package__).joinpath("static")
    files = {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    content = b"".join(name.encode() + files[name] for name in sorted(files))
    return files, hashlib.sha256(content).hexdigest()[:16]


def files_hash() -> str:
    """The hash in their paths. A page of other files loads itself anew for its next screen."""
    return _read()[1]


class ConsolePages:
    """The files, in memory."""

    def __init__(
        self, access: AdminAccess, *, signs_in: bool, region: str, issuer: str | None
    ) -> None:
        """`signs_in`: the console asks for an access key; `region` is its first suggestion.
        `issuer` is that of an OpenID Connect provider."""
        self._access = access
        read, self._hash = _read()
        self._files = dict(read)
        index = self._files[_INDEX].decode()
        for name, text in {
            "{preloads}": "\n  ".join(map(self._preload, self._first_modules())),
            "{files}": f"{CONSOLE}/{self._hash}",
            "{auth}": "sigv4" if signs_in else "open",
            "{region}": region,
            "{issuer}": escape(issuer or ""),
        }.items():
            index = index.replace(name, text)
        self._files[_INDEX] = index.encode()
        self._compressed: dict[str, bytes] = {}

    def _first_modules(self) -> list[str]:
        """The modules of the first screen, with all that they import."""
        found = list(_FIRST)
        for name in found:
            imported = (each.decode() for each in _IMPORTED.findall(self._files[name]))
            found += (each for each in dict.fromkeys(imported) if each not in found)
        return found

    def _preload(self, name: str) -> str:
        return f'<link rel="modulepreload" href="{{files}}/{name}">'

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The file of a path."""
        try:
            self._access.check_host(sent)
        except AccessDenied as refusal:
            return error_page(403, refusal.message)
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        path = request.raw_path.partition("?")[0].removeprefix(CONSOLE)
        if path in ("", "/"):
            return self._answer(_INDEX, request, "no-cache")
        found = _PATH.fullmatch(path)
        if found is None or found[2] == _INDEX or found[2] not in self._files:
            return web.Response(status=404, text="not found\n")
        return self._answer(found[2], request, _FOR_GOOD if found[1] == self._hash else "no-cache")

    def _answer(self, name: str, request: BaseRequest, cached: str) -> web.Response:
        headers = {**_HEADERS, "Cache-Control": cached}
        content = self._files[name]
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            if name not in self._compressed:
                self._compressed[name] = gzip.compress(content, mtime=0)
            content = self._compressed[name]
            headers["Content-Encoding"] = "gzip"
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)
