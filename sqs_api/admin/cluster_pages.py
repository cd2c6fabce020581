"""Answers about the cluster: its hosts and shards, see `cluster/members/status.py`; drain, remove,
and the formats that all hosts read.

A host that is removed stops, and each shard drops its copy from those that count. In a fleet any
host shows, and drains hosts of, all clusters: a balancer may send each request to another one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, NamedTuple, TypedDict, TypeVar

import msgspec

from cluster.coordination.coordination import Coordination
from cluster.fleet.fleet_operations import Root, set_host_drained
from cluster.fleet.fleet_view import FleetView
from cluster.members.member_operations import raise_formats, remove
from cluster.members.member_records import MembershipRefused
from cluster.members.status import ClusterStatus, StatusPage
from cluster.peers.questions import Question, Questions, Said
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
_ACTION = "holdfast:ShowCluster"
_WAIT_S = 4.0
"""Longer than a host waits for the others and for etcd."""


class ClusterPages(NamedTuple):
    """The part that answers; a single host and a gateway have none."""

    status: StatusPage
    members: Coordination
    """The records of the hosts."""
    root: Root
    """Those of the fleet."""
    fleet: FleetView
    questions: Questions

    def serve(self) -> None:
        """Answer hosts of other clusters from now on."""
        self.questions.serve(_ACTION, self._answer)

    async def _answer(self, question: Question) -> Said:
        return Said(200, msgspec.json.encode(await self.status.read()))

    def cluster_of(self, host: str) -> int:
        """The number of a host's cluster; that of this one if no other has such a host."""
        others = (each for each in self.fleet.founded if host in self.fleet.hosts_of(each))
        return next(others, self.fleet.own)

    async def read(self, number: int) -> ClusterStatus:
        """The status of a cluster of the fleet, of one of its hosts. Raises Refused."""
        if number not in self.fleet.founded:
            raise Refused(404, f"There is no cluster {number} in this fleet.")
        alive = self.fleet.alive_of(number)
        for host in sorted(self.fleet.hosts_of(number), key=lambda each: each not in alive):
            said = await self.questions.ask(host, Question(_ACTION, b"", b""), _WAIT_S)
            if said is not None and said.status == 200:
                return msgspec.json.decode(said.body, type=ClusterStatus)
        raise Refused(503, f"No host of cluster {number} answers now.")


class OfGateway:
    """Stands for ClusterPages on a gateway, which is of no cluster."""


class OneCluster(msgspec.Struct):
    """A cluster of a fleet."""

    cluster: Annotated[
        int, msgspec.Meta(ge=0, description="Its number; 0: that of the host that answers.")
    ] = 0


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
    """The answer of a single host, or of a gateway of a fleet."""

    cluster: None = None
    is_gateway: bool = False


async def show_cluster(
    cluster: ClusterPages | OfGateway | None, asked: Asked, given: OneCluster
) -> ClusterStatus | NoCluster:
    """Hosts, shards, copies and problems; `cluster` is null on a single host and a gateway."""
    if not isinstance(cluster, ClusterPages):
        return NoCluster(is_gateway=cluster is not None)
    is_own = given.cluster in (0, cluster.fleet.own)
    return await cluster.status.read() if is_own else await cluster.read(given.cluster)


async def drain_host(
    cluster: ClusterPages | OfGateway | None, asked: Asked, given: Drained
) -> Drained:
    """Let a host lead nothing, or let it lead again."""
    asked.noted |= {"of_host": given.host, "drained": given.drained}
    try:
        await _drain(cluster, given.host, is_drained=given.drained)
    except Refused as refusal:
        raise InvalidParameterValue(str(refusal)) from refusal
    return given


async def read_cluster(cluster: ClusterPages | OfGateway | None, asked: Asked) -> ClusterStatus:
    """Show hosts, shards, copies and problems."""
    return await of_member(cluster).status.read()


async def drain(
    cluster: ClusterPages | OfGateway | None, asked: Asked, given: DrainedHost
) -> Nothing:
    """Let a host lead nothing, or lead again."""
    await _drain(cluster, given.host, is_drained=given.drained)
    return {}


async def remove_host(
    cluster: ClusterPages | OfGateway | None, asked: Asked, given: RemovedHost
) -> Nothing:
    """Count a host's copies no more."""
    pages = of_member(cluster)
    status = pages.status
    hosts = status.hosts
    if given.host in hosts and (reason := await status.reason_to_keep(given.host, hosts)):
        raise Refused(409, reason)
    await _done(remove(pages.members, given.host, hosts))
    return {}


async def write_new_formats(
    cluster: ClusterPages | OfGateway | None, asked: Asked
) -> WrittenFormats:
    """Have hosts write the newest formats that all can read."""
    try:
        return {"formats": await raise_formats(of_member(cluster).members)}
    except MembershipRefused as refusal:
        raise Refused(409, str(refusal)) from refusal


def of_member(pages: Pages | OfGateway | None) -> Pages:
    """The pages of a member of a cluster. Raises Refused on a single host and a gateway."""
    if pages is None:
        raise Refused(409, "this host is not a member of a cluster")
    if isinstance(pages, OfGateway):
        raise Refused(409, "a gateway is of no cluster: ask a host of one")
    return pages


async def _drain(cluster: ClusterPages | OfGateway | None, host: str, *, is_drained: bool) -> None:
    pages = of_member(cluster)
    number = pages.cluster_of(host)
    await _done(set_host_drained(pages.root, number, host, is_drained=is_drained))


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
