"""Answers about a cluster's hosts; they are those of the administrative pages."""

from __future__ import annotations

import msgspec

from cluster.members.status import ClusterStatus
from sqs_api.admin.admin_actions import DRAIN_HOST, READ_CLUSTER
from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from visibility.contract.errors import InvalidParameterValue

_OK, _NO_CLUSTER = 200, 409


class Drained(msgspec.Struct, forbid_unknown_fields=True):
    """A host, and `drained` if it is to lead nothing."""

    host: str
    drained: bool


class NoCluster(msgspec.Struct):
    """The answer of a single host."""

    cluster: None = None


async def show_cluster(desk: Desk, asked: Asked) -> ClusterStatus | NoCluster:
    """Hosts, shards, copies and problems; `cluster` is null on a single host."""
    status, content = await _page(desk, asked, READ_CLUSTER)
    return msgspec.json.decode(content, type=ClusterStatus) if status == _OK else NoCluster()


async def drain_host(desk: Desk, asked: Asked, given: Drained) -> Drained:
    """Let a host lead nothing, or let it lead again."""
    asked.noted |= {"of_host": given.host, "drained": given.drained}
    status, content = await _page(desk, asked, DRAIN_HOST)
    if status != _OK:
        raise InvalidParameterValue(msgspec.json.decode(content)["error"])
    return given


async def _page(desk: Desk, asked: Asked, action: str) -> tuple[int, bytes]:
    answer = await desk.pages[action](asked.sent)
    assert isinstance(answer.body, bytes)
    return answer.status, answer.body
