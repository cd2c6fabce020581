"""The page of usage: GET /_holdfast/usage?account=ID&since=YYYY-MM-DD, both optional.

{"rows": [...], "hosts": [...], "missing": [...]}    rows as `UsageRow`, added up over `hosts`
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import parse_qs, urlsplit

import msgspec
from aiohttp import web

from sqs_api.admin.access import AdminRequest
from sqs_api.admin.actions import READ_USAGE
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.pages import error_page
from sqs_api.gateway.usage import UsageRow

_WAIT_S = 5.0
"""Time for a host to read its file."""

ReadUsage = Callable[[str | None, str | None], Awaitable[list[UsageRow]]]
"""Reads the rows of an account, or of all, from a day on. Raises sqlite3.Error, OSError."""


class _Asked(msgspec.Struct, array_like=True):
    account: str | None
    since: str | None


class _Part(msgspec.Struct, array_like=True):
    """The usage of one host, whose name is empty on a single one."""

    host: str
    rows: list[UsageRow]


class UsagePage:
    """Belongs to the event loop's thread."""

    def __init__(self, read: ReadUsage, host: str, hosts: EveryHost) -> None:
        """`read`: reads the usage of this host, from its file and journals."""
        self._read = read
        self._host = host
        self._hosts = hosts
        hosts.serve(READ_USAGE, self._here)

    async def _here(self, body: bytes) -> bytes:
        asked = msgspec.msgpack.decode(body, type=_Asked)
        rows = await self._read(asked.account, asked.since)
        return msgspec.msgpack.encode(_Part(self._host, rows))

    async def show(self, sent: AdminRequest) -> web.Response:
        """The usage of all hosts that answer."""
        query = parse_qs(urlsplit(sent.target.decode("latin-1")).query)
        account, since = (query.get(name, [None])[0] for name in ("account", "since"))
        asked = msgspec.msgpack.encode(_Asked(account, since))
        try:
            heard = await self._hosts.ask(READ_USAGE, asked, _WAIT_S)
        except (sqlite3.Error, OSError) as error:
            return error_page(503, f"cannot read the usage: {error}")
        parts = [msgspec.msgpack.decode(part, type=_Part) for part in heard.parts]
        rows = _add_up(row for part in parts for row in part.rows)
        return web.json_response(
            {
                "rows": [row._asdict() for row in rows],
                "hosts": sorted(part.host for part in parts),
                "missing": sorted(heard.missing),
            }
        )


def _add_up(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """One row for each day, account and queue, in this order."""
    sums: dict[tuple[str, str, str], UsageRow] = {}
    for row in rows:
        day, account, queue, *counted = row
        before = sums.get((day, account, queue))
        if before is not None:
            counted = [a + b for a, b in zip(before[3:], counted, strict=True)]
        sums[day, account, queue] = UsageRow(day, account, queue, *counted)
    return [sums[key] for key in sorted(sums)]
