"""Answers about the cluster: its hosts and shards, see `cluster/members/status.py`; drain, remove,
and the formats that all hosts read.

A host that is removed stops, and each shard drops its copy from those that count.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, TypedDict, TypeVar

import msgspec

from cluster.coordination.coordination import Coordination
from cluster.fleet.fleet_operations import Root, set_host_drained
from cluster.members.member_operations import raise_formats, remove
from cluster.members.member_records import MembershipRefused
from cluster.members.status import ClusterStatus, StatusPage
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import (
    DRAIN_HOST,
    RAISE_FORMATS,
    READ_CLUSTER,
    REMOVE_HOST,
    Refused,
    Route,
)
from visibility.contract.errors import InvalidParameterValue

Pages = TypeVar("Pages")


class ClusterPages(NamedTuple):
    """The part that answers; a single host has none."""

    status: StatusPage
    members: Coordination
    """The records of the hosts."""
    root: Root
    """Those of the fleet."""
    number: int
    """That of the cluster."""


class Drained(msgspec.Struct, forbid_unknown_fields=True):
    """A host, and `drained` if it is to lead nothing."""

    host: str
    drained: bool


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


class NoCluster(msgspec.Struct):
    """The answer of a single host."""

    cluster: None = None


async def show_cluster(cluster: ClusterPages | None, asked: Asked) -> ClusterStatus | NoCluster:
    """Hosts, shards, copies and problems; `cluster` is null on a single host."""
    return NoCluster() if cluster is None else await cluster.status.read()


async def drain_host(cluster: ClusterPages | None, asked: Asked, given: Drained) -> Drained:
    """Let a host lead nothing, or let it lead again."""
    asked.noted |= {"of_host": given.host, "drained": given.drained}
    try:
        await _drain(cluster, given.host, is_drained=given.drained)
    except Refused as refusal:
        raise InvalidParameterValue(str(refusal)) from refusal
    return given


async def read_cluster(cluster: ClusterPages | None, asked: Asked) -> ClusterStatus:
    """Show hosts, shards, copies and problems."""
    return await of_member(cluster).status.read()


async def drain(cluster: ClusterPages | None, asked: Asked, given: DrainedHost) -> Nothing:
    """Let a host lead nothing, or lead again."""
    await _drain(cluster, given.host, is_drained=given.drained)
    return {}


async def remove_host(cluster: ClusterPages | None, asked: Asked, given: RemovedHost) -> Nothing:
    """Count a host's copies no more."""
    pages = of_member(cluster)
    status = pages.status
    hosts = status.hosts
    if given.host in hosts and (reason := await status.reason_to_keep(given.host, hosts)):
        raise Refused(409, reason)
    await _done(remove(pages.members, given.host, hosts))
    return {}


async def write_new_formats(cluster: ClusterPages | None, asked: Asked) -> WrittenFormats:
    """Have hosts write the newest formats that all can read."""
    try:
        return {"formats": await raise_formats(of_member(cluster).members)}
    except MembershipRefused as refusal:
        raise Refused(409, str(refusal)) from refusal


def of_member(pages: Pages | None) -> Pages:
    """The pages of a member of a cluster. Raises Refused on a single host."""
    if pages is None:
        raise Refused(409, "this host is not a member of a cluster")
    return pages


async def _drain(cluster: ClusterPages | None, host: str, *, is_drained: bool) -> None:
    pages = of_member(cluster)
    await _done(set_host_drained(pages.root, pages.number, host, is_drained=is_drained))


async def _done(work: Awaitable[None]) -> None:
    """Raises Refused."""
    try:
        await work
    except MembershipRefused as refusal:
        raise Refused(409, str(refusal)) from refusal


ROUTES = (
    Route("GET", "api/cluster", READ_CLUSTER, show_cluster),
    Route("POST", "api/cluster/drain", DRAIN_HOST, drain_host, root_only=True),
    Route("GET", "cluster", READ_CLUSTER, read_cluster, "cluster status"),
    Route("POST", "cluster/drain", DRAIN_HOST, drain, "cluster drain", root_only=True),
    Route("POST", "cluster/remove", REMOVE_HOST, remove_host, "cluster remove", root_only=True),
    Route(
        "POST",
        "cluster/formats",
        RAISE_FORMATS,
        write_new_formats,
        "cluster upgrade",
        root_only=True,
    ),
)
