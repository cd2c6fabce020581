"""DocumentPage: the OpenAPI document. It holds no data, so it needs no signature."""

from __future__ import annotations

from functools import cache

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AccessDenied
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import error_page
from sqs_api.operators.openapi import DOCUMENT, document


class DocumentPage:
    """Answers at DOCUMENT."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The document."""
        try:
            self._access.check_host(sent)
        except AccessDenied as refusal:
            return error_page(403, refusal.message)
        if request.raw_path.partition("?")[0] != DOCUMENT:
            return error_page(404, "There is no such route.")
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        return web.Response(body=_encoded(), content_type="application/json")


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())
