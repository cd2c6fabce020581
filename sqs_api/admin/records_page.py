"""The page by which commands read and change the records of users and keys of a running service.

It is a coordination over HTTP: what a command commits, the service knows at once. Only the key for
local commands opens it, which is for those who may read the data folder; secrets stay encrypted.
"""

from __future__ import annotations

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AuthError
from cluster.coordination.coordination import Coordination, Transaction, Unavailable
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.key_records import PREFIX as KEYRING
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import error_page, json_page, read_body

PATH = "/_holdfast/records"
_KINDS = (KEYRING, IDENTITIES)
_BYTES_MAX = 64 << 20
_Sent = tuple[dict[str, int], dict[str, bytes | None]]
"""The conditions and the changes of a Transaction."""


class RecordsPage:
    """GET answers a Snapshot, or why there is none; POST takes conditions and changes of a
    Transaction and answers the name of its outcome with the revision or the reason."""

    def __init__(self, records: Coordination, access: AdminAccess) -> None:
        self._records = records
        self._access = access

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """Answer a command of this machine."""
        try:
            self._access.check_claims_local(sent)  # before its body is read
            sent = sent._replace(body=await read_body(request, _BYTES_MAX))
            self._access.check_local(sent)
        except AuthError as refusal:
            return error_page(403, refusal.message)
        return await (self._read() if sent.method == "GET" else self._commit(sent.body))

    async def _read(self) -> web.Response:
        found = await self._records.read_all()
        if isinstance(found, Unavailable):
            return error_page(503, found.reason)
        own = [each for each in found.records if each.key.startswith(_KINDS)]
        return json_page(found._replace(records=own))

    async def _commit(self, body: bytes) -> web.Response:
        try:
            conditions, changes = msgspec.json.decode(body, type=_Sent)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return error_page(400, str(error))
        if not all(key.startswith(_KINDS) for key in (*conditions, *changes)):
            return error_page(400, "These are no records of users and keys.")
        outcome = await self._records.commit(Transaction(conditions, changes))
        return json_page([type(outcome).__name__, *outcome])
