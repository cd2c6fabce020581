"""Status: a cluster's hosts and shards, as this host and those that it reaches see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from cluster.members.leader_view import LeaderView
from cluster.members.membership import Membership
from cluster.peers.asking import ask_all
from cluster.peers.incoming import Call, Service
from cluster.peers.settings import Channel
from cluster.peers.transport import Transport
from cluster.replication.report import ReplicaReport

_WAIT_S = 1.0
"""Time for the answers of the other hosts."""


class HostStatus(msgspec.Struct, frozen=True):
    """A member."""

    name: str
    peer_address: str
    version: str
    is_alive: bool
    """It holds its lease in etcd."""
    is_reached: bool
    """The host that was asked has its answer, or is the host itself."""
    is_drained: bool


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One host's copy of a shard."""

    host: str
    role: str
    is_voter: bool
    behind: int
    """Entries that are committed elsewhere and not applied here."""
    needs_checkpoint: bool


class ShardStatus(msgspec.Struct, frozen=True):
    """A shard; only copies of hosts that were reached are listed."""

    shard: int
    leader: str | None
    term: int
    voters: list[str]
    """Names of the hosts whose copies count."""
    replicas: list[ReplicaStatus]


class ClusterStatus(msgspec.Struct, frozen=True):
    """The status of a cluster."""

    cluster: str
    cluster_id: str
    host: str
    """The host that was asked."""
    hosts: list[HostStatus]
    shards: list[ShardStatus]


Reports = dict[int, ReplicaReport]
"""The copies of one host by shard."""


class StatusPage:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        cluster: str,
        transport: Transport,
        membership: Membership,
        leaders: LeaderView,
        own: Callable[[], Reports],
    ) -> None:
        """`own` reports the copies of this host."""
        self._cluster = cluster
        self._transport = transport
        self._membership = membership
        self._leaders = leaders
        self._own = own
        transport.serve(Channel.STATUS, Service(on_request=self._asked))

    def _asked(self, call: Call) -> None:
        call.answer(msgspec.msgpack.encode(self._own()))

    async def read(self) -> ClusterStatus:
        """The present status."""
        answers = await ask_all(self._transport, Channel.STATUS, b"", _WAIT_S)
        reports = {self._membership.name: self._own()}
        for host, answer in answers.items():
            reports[host] = msgspec.msgpack.decode(answer, type=Reports)
        members = self._membership.shown
        return ClusterStatus(
            cluster=self._cluster,
            cluster_id=members.cluster.cluster_id if members.cluster is not None else "",
            host=self._membership.name,
            hosts=[
                HostStatus(
                    name=host.name,
                    peer_address=host.peer_address,
                    version=host.version,
                    is_alive=name in members.alive,
                    is_reached=name in reports,
                    is_drained=host.is_drained,
                )
                for name, host in sorted(members.hosts.items())
            ],
            shards=[
                self._shard(number, leader, reports)
                for number, leader in enumerate(self._leaders.leaders())
            ],
        )

    def _shard(
        self, number: int, leader: str | None, reports: Mapping[str, Reports]
    ) -> ShardStatus:
        record = self._leaders.record_of(number)
        found = {host: own[number] for host, own in sorted(reports.items()) if number in own}
        committed = max((report.commit for report in found.values()), default=0)
        voters = {} if record is None else record.voters
        return ShardStatus(
            shard=number,
            leader=leader,
            term=0 if record is None else record.term,
            voters=sorted(voters.values()),
            replicas=[
                ReplicaStatus(
                    host=host,
                    role=report.role,
                    is_voter=report.replica_id in voters,
                    behind=max(0, committed - report.applied),
                    needs_checkpoint=report.needs_checkpoint,
                )
                for host, report in found.items()
            ],
        )
