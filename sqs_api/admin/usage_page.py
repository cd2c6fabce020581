"""The page of usage: GET /_holdfast/usage?account=ID&since=YYYY-MM-DD, both optional.

{"rows": [...], "hosts": [...], "missing": [...]}    rows as `UsageRow`, added up over `hosts`
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from sqs_api.admin.access import AdminRequest
from sqs_api.admin.pages import error_page
from sqs_api.gateway.usage import read_usage

_NAMES = ("day", "account", "queue")


async def show_usage(file: Path, host: str, sent: AdminRequest) -> web.Response:
    """The usage of this host, from its file and journals."""
    query = parse_qs(urlsplit(sent.target.decode("latin-1")).query)
    account, since = (query.get(name, [None])[0] for name in ("account", "since"))
    try:
        rows = await asyncio.to_thread(read_usage, file, account, since)
    except (sqlite3.Error, OSError) as error:
        return error_page(503, f"cannot read the usage: {error}")
    found = [row._asdict() for row in rows]
    return web.json_response({"rows": found, "hosts": [host], "missing": []})


def add_up(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each day, account and queue, in this order."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in _NAMES)
        before = sums.get(key)
        sums[key] = row if before is None else _sum(before, row)
    return [sums[key] for key in sorted(sums)]


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in _NAMES else value + other[name] for name, value in one.items()}
