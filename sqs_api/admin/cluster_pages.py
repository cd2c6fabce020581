"""Pages about the cluster.

GET  /_holdfast/cluster           its hosts and shards, see `cluster/members/status.py`
POST /_holdfast/cluster/drain     {"host", "drained"}: the host is to lead nothing, or may again
POST /_holdfast/cluster/remove    {"host"}: it stops, and each shard drops its copy from those that
                                  count, which the cluster's page shows
POST /_holdfast/cluster/formats   write the newest formats that all hosts read: {"formats"}
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TypedDict

import msgspec
from aiohttp import web

from cluster.coordination.coordination import Coordination
from cluster.members.member_operations import raise_formats, remove, set_drained
from cluster.members.member_records import MembershipRefused
from cluster.members.status import StatusPage
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.admin_actions import DRAIN_HOST, RAISE_FORMATS, READ_CLUSTER, REMOVE_HOST
from sqs_api.admin.admin_pages import Answer, error_page, json_page


class DrainedHost(msgspec.Struct, forbid_unknown_fields=True):
    """A host, and `drained` if it is to lead nothing."""

    host: str
    drained: bool = True


class RemovedHost(msgspec.Struct, forbid_unknown_fields=True):
    """A host that leaves the cluster for good."""

    host: str


class WrittenFormats(TypedDict):
    """The formats that the hosts write from now on."""

    formats: int


class Nothing(TypedDict):
    """An empty object."""


async def _no_cluster(sent: AdminRequest) -> web.Response:
    return error_page(409, "this host is not a member of a cluster")


NO_CLUSTER: Mapping[str, Answer] = dict.fromkeys(
    (READ_CLUSTER, DRAIN_HOST, REMOVE_HOST, RAISE_FORMATS), _no_cluster
)
"""The answers of a single host."""


def cluster_answers(status: StatusPage, members: Coordination) -> dict[str, Answer]:
    """The answers by action; `members` has the records of the hosts."""
    return {
        READ_CLUSTER: partial(_show, status),
        DRAIN_HOST: partial(_drain, members),
        REMOVE_HOST: partial(_remove, status, members),
        RAISE_FORMATS: partial(_raise_formats, members),
    }


async def _show(status: StatusPage, sent: AdminRequest) -> web.Response:
    return json_page(await status.read())


async def _drain(members: Coordination, sent: AdminRequest) -> web.Response:
    try:
        asked = msgspec.json.decode(sent.body, type=DrainedHost)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return error_page(400, f"not a request to drain a host: {error}")
    return await _done(set_drained(members, asked.host, is_drained=asked.drained))


async def _remove(status: StatusPage, members: Coordination, sent: AdminRequest) -> web.Response:
    try:
        asked = msgspec.json.decode(sent.body, type=RemovedHost)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return error_page(400, f"not a request to remove a host: {error}")
    hosts = status.hosts
    if asked.host in hosts and (reason := await status.reason_to_keep(asked.host, hosts)):
        return error_page(409, reason)
    return await _done(remove(members, asked.host, hosts))


async def _raise_formats(members: Coordination, sent: AdminRequest) -> web.Response:
    try:
        written: WrittenFormats = {"formats": await raise_formats(members)}
    except MembershipRefused as refusal:
        return error_page(409, str(refusal))
    return json_page(written)


async def _done(work: Awaitable[None]) -> web.Response:
    try:
        await work
    except MembershipRefused as refusal:
        return error_page(409, str(refusal))
    return json_page(Nothing())
