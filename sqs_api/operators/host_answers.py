"""Answers about a cluster's hosts; they are those of the administrative pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sqs_api.admin.actions import DRAIN_HOST, READ_CLUSTER
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from visibility.contract.errors import InvalidParameterValue

_OK, _NO_CLUSTER = 200, 409


class _Drained(msgspec.Struct, forbid_unknown_fields=True):
    host: str
    drained: bool


async def show_cluster(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Hosts, shards, copies and problems; `cluster` is null on a single host."""
    status, content = await _page(desk, asked, READ_CLUSTER)
    return content if status == _OK else {"cluster": None}


async def drain_host(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Let a host lead nothing, or let it lead again."""
    given = asked.content(_Drained)
    asked.noted |= {"of_host": given.host, "drained": given.drained}
    status, content = await _page(desk, asked, DRAIN_HOST)
    if status != _OK:
        raise InvalidParameterValue(content["error"])
    return {"host": given.host, "drained": given.drained}


async def _page(desk: Desk, asked: Asked, action: str) -> tuple[int, dict[str, Any]]:
    answer = await desk.pages[action](asked.sent)
    assert isinstance(answer.body, bytes)
    return answer.status, msgspec.json.decode(answer.body)
