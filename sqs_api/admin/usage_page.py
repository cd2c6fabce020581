"""The answer about usage: requests by day, account and queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from typing import TypedDict, cast

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.routes import READ_USAGE, Refused, Route
from sqs_api.gateway.usage import GatewayRow, UsageRow

_WAIT_S = 5.0
"""Time for a host to read its file."""

ReadUsage = Callable[[str | None, str | None], Awaitable[tuple[list[UsageRow], list[GatewayRow]]]]
"""Reads the rows of an account, or of all, from a day on: those of this host, and of gateways.
Raises sqlite3.Error, OSError."""


class _Asked(msgspec.Struct, array_like=True):
    account: str | None
    since: str | None


class _Part(msgspec.Struct, array_like=True):
    """The usage of one host, whose name is empty on a single one."""

    host: str
    rows: list[UsageRow]
    of_gateways: list[GatewayRow] = []
    """Rows that gateways handed over to this host; others may have some of them, too."""


class UsageParameters(msgspec.Struct):
    """The account whose usage is wanted, and the first day; of all without them."""

    account: str | None = None
    since: str | None = None


class ShownUsageRow(TypedDict):
    """The requests of a day about a queue, which is an ARN, or empty for requests about none."""

    day: str
    account: str
    queue: str
    requests: int
    billed_requests: int
    bytes_in: int
    bytes_out: int


class ShownUsage(TypedDict):
    """Usage, added up over `hosts`; `missing` ones did not answer."""

    rows: list[ShownUsageRow]
    hosts: list[str]
    missing: list[str]


class UsagePage:
    """Adds up what all hosts counted."""

    def __init__(self, read: ReadUsage, host: str, hosts: EveryHost) -> None:
        """`read`: reads the usage of this host, from its file and journals."""
        self._read = read
        self._host = host
        self._hosts = hosts
        hosts.serve(READ_USAGE, self._here, of_folder=True)

    async def _here(self, body: bytes) -> bytes:
        asked = msgspec.msgpack.decode(body, type=_Asked)
        rows, of_gateways = await self._read(asked.account, asked.since)
        return msgspec.msgpack.encode(_Part(self._host, rows, of_gateways))

    async def show(self, given: UsageParameters) -> ShownUsage:
        """The usage of all hosts that answer. Raises Refused."""
        asked = msgspec.msgpack.encode(_Asked(given.account, given.since))
        try:
            heard = await self._hosts.ask(READ_USAGE, asked, _WAIT_S)
        except (sqlite3.Error, OSError) as error:
            raise Refused(503, f"cannot read the usage: {error}") from error
        parts = [msgspec.msgpack.decode(part, type=_Part) for part in heard.parts]
        own = [row for part in parts for row in part.rows]
        rows = _add_up([*own, *_greatest(row for part in parts for row in part.of_gateways)])
        return {
            "rows": [cast("ShownUsageRow", row._asdict()) for row in rows],
            "hosts": sorted(part.host for part in parts),
            "missing": sorted(heard.missing),
        }


async def read_usage(page: UsagePage, asked: Asked, given: UsageParameters) -> ShownUsage:
    """Show requests by day, account and queue."""
    return await page.show(given)


def _greatest(rows: Iterable[GatewayRow]) -> list[UsageRow]:
    """The latest of the rows of a gateway that several hosts have: its sums are greatest."""
    found: dict[tuple[str, str, str, str], UsageRow] = {}
    for gateway, row in rows:
        key = (gateway, row.day, row.account, row.queue)
        found[key] = max(row, found.get(key, row), key=lambda each: each.requests)
    return list(found.values())


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


ROUTES = (Route("GET", "usage", READ_USAGE, read_usage, "usage", root_only=True),)
