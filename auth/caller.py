"""The signer of a request."""

from __future__ import annotations

import msgspec


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who signed the request, and for which account and region.

    `principal` is what AWS shows as SenderId; `access_key_id` is None for an unsigned request.
    """

    account: str
    region: str
    principal: str
    access_key_id: str | None = None
