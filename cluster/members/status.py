"""Status: a cluster's hosts and shards, as this host and those that it reaches see them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec

from cluster.coordination.etcd_client import EtcdStatus
from cluster.members.leader_view import LeaderView
from cluster.members.membership import Membership
from cluster.members.removal import change_of, reason_to_keep, zone_problems
from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport, ask_all
from cluster.replication.contract import ReplicaReport, Timing
from storage.log import OLDEST_FORMAT

_WAIT_S = 1.0
"""Time for the answers of the other hosts."""
_ETCD_WAIT_S = 2.0
_BEHIND_MAX = 1_000
"""Entries that a copy may lack under load."""
_QUOTA_SHARE = 0.8
"""Part of etcd's quota from which an operator should act: at its end all changes are refused."""


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
    formats: int = OLDEST_FORMAT
    """The newest that it reads."""
    replication: str = ""
    """The way in which it answers while it leads; empty if it was not reached."""
    clock_ahead_s: int = 0
    """Seconds that its clock is ahead of a leader's; 0 unless that is too far to lead."""
    zone: str = ""
    """Empty if it is not known."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One host's copy of a shard."""

    host: str
    role: str
    is_voter: bool
    behind: int
    """Entries that are committed elsewhere and not applied here."""
    needs_checkpoint: bool
    damage: str
    """The reason why it neither leads nor counts until it has healed; empty if it is sound."""
    conflict: str = ""
    """The acknowledged Entries that only this copy has, since the others lost them: it follows and
    counts no more. Empty if there are none."""
    clock_behind_s: int = 0
    """Seconds by which its host's clock was behind the median of those of the hosts that ran when
    it last tried to lead; 0 unless that was too far."""


class ShardStatus(msgspec.Struct, frozen=True):
    """A shard; only copies of hosts that were reached are listed."""

    shard: int
    leader: str | None
    term: int
    voters: list[str]
    """Names of the hosts whose copies count."""
    replicas: list[ReplicaStatus]
    change: str = ""
    """The change of voters that is under way, and what it waits for; empty if there is none. Until
    it has ended, no further host may be lost."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The status of a cluster."""

    cluster: str
    cluster_id: str
    host: str
    """The host that was asked."""
    hosts: list[HostStatus]
    shards: list[ShardStatus]
    etcd: list[EtcdStatus]
    problems: list[str]
    """Reasons why the cluster needs an operator, one line each; see `problems_of`."""
    formats: int = OLDEST_FORMAT
    """The newest that leaders write."""
    number: int = 1
    """That of the cluster in its fleet."""


Reports = dict[int, ReplicaReport]
"""The copies of one host by shard."""


class StatusPage:
    """Makes the page, and answers other hosts for their pages."""

    def __init__(
        self,
        cluster: str,
        transport: Transport,
        membership: Membership,
        leaders: LeaderView,
        own: Callable[[], Reports],
        etcd: Callable[[float], Awaitable[list[EtcdStatus]]],
        number: int = 1,
    ) -> None:
        """`own` reports the copies of this host, `etcd` the members of etcd within seconds."""
        self._etcd = etcd
        self._number = number
        self._cluster = cluster
        self._transport = transport
        self._membership = membership
        self._leaders = leaders
        self._own = own
        transport.serve(Channel.STATUS, ChannelService(on_request=self._asked))

    def _asked(self, call: Call) -> None:
        call.answer(msgspec.msgpack.encode(self._own()))

    async def _reports(self) -> dict[str, Reports]:
        """The copies of this host, and of those that answer."""
        answers = await ask_all(self._transport, Channel.STATUS, b"", _WAIT_S)
        reports = {self._membership.name: self._own()}
        for host, answer in answers.items():
            reports[host] = msgspec.msgpack.decode(answer, type=Reports)
        return reports

    @property
    def hosts(self) -> list[str]:
        """The names of the members."""
        return sorted(self._membership.shown.hosts)

    async def reason_to_keep(self, host: str, hosts: Collection[str]) -> str:
        """The reason not to remove this one of the `hosts` now, see `removal`; empty if none."""
        reports = await self._reports()
        records = {shard: self._leaders.record_of(shard) for shard in self._leaders.leaders()}
        return reason_to_keep(host, hosts, records, reports)

    async def read(self) -> ClusterStatus:
        """The present status."""
        reports, etcd = await asyncio.gather(self._reports(), self._etcd(_ETCD_WAIT_S))
        members = self._membership.shown
        status = ClusterStatus(
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
                    formats=host.formats,
                    replication=_replication(reports.get(name, {})),
                    clock_ahead_s=_clock_ahead_s(name, reports),
                    zone=host.zone,
                )
                for name, host in sorted(members.hosts.items())
            ],
            shards=[
                self._shard(number, leader, reports)
                for number, leader in self._leaders.leaders().items()
            ],
            etcd=etcd,
            problems=[],
            formats=members.formats,
            number=self._number,
        )
        return msgspec.structs.replace(status, problems=problems_of(status))

    def _shard(
        self, number: int, leader: str | None, reports: Mapping[str, Reports]
    ) -> ShardStatus:
        record = self._leaders.record_of(number)
        found = {host: own[number] for host, own in sorted(reports.items()) if number in own}
        committed = last_committed(found.values())
        voters = {} if record is None else record.voters
        leading = found.get(leader) if leader is not None else None
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
                    damage=report.damage,
                    conflict=report.conflict,
                    clock_behind_s=round(report.clock_behind_s),
                )
                for host, report in found.items()
            ],
            change=change_of(record, leader, leading, self.hosts),
        )


def last_committed(copies: Iterable[ReplicaReport]) -> int:
    """The newest Entry that counts: the others lost what only a copy in conflict has."""
    return max((copy.commit for copy in copies if not copy.conflict), default=0)


def _replication(reports: Reports) -> str:
    return next((report.replication for report in reports.values()), "")


def _clock_ahead_s(name: str, reports: Mapping[str, Reports]) -> int:
    """Seconds by which this host's clock is ahead, as leaders that were reached have it; 0 if it
    may lead."""
    ahead_s = [
        peer.ahead_s
        for own in reports.values()
        for report in own.values()
        for peer in report.peers
        if peer.name == name and peer.ahead_s is not None
        if peer.heard_s is not None and peer.heard_s < Timing().stuck_s
    ]
    return next((round(each) for each in ahead_s if abs(each) > Timing().clock_s), 0)


# -- problems --------------------------------------------------------------------------------------


def problems_of(status: ClusterStatus) -> list[str]:
    """Reasons why the cluster needs an operator: it does not serve, or could soon lose messages."""
    return [
        *_of_hosts(status.hosts, status.host),
        *zone_problems({host.name: host.zone for host in status.hosts}),
        *(line for shard in status.shards for line in _of_shard(shard)),
        *_of_etcd(status.etcd),
    ]


def _of_hosts(hosts: list[HostStatus], asked: str) -> list[str]:
    away = [host for host in hosts if not (host.is_alive and host.is_reached)]
    if len(away) * 2 < len(hosts):
        lines = [_of_host(host, asked) for host in away]
    else:
        lines = [f"a majority of the hosts is away: {', '.join(host.name for host in away)}"]
    lines += [_of_clock(host.name, host.clock_ahead_s) for host in hosts if host.clock_ahead_s]
    return lines


def _of_host(host: HostStatus, asked: str) -> str:
    name = host.name
    if host.is_alive:
        return (
            f"host {name} runs, and host {asked} does not reach it: mend the network, "
            f"or {name}'s peer_address"
        )
    return (
        f"host {name} is away: start it soon, or `holdfast cluster remove {name}` if it is gone "
        "for good"
    )


def _of_clock(name: str, ahead_s: int) -> str:
    way = "ahead" if ahead_s > 0 else "behind"
    return f"host {name}: its clock is {abs(ahead_s)} s {way}: set it"


def _without_leader(shard: ShardStatus) -> str:
    line = f"shard {shard.shard} has no leader"
    off_s = {copy.host: copy.clock_behind_s for copy in shard.replicas if copy.clock_behind_s}
    if not off_s:
        return line
    clocks = ", ".join(
        f"{host} is {abs(behind_s)} s {'behind' if behind_s > 0 else 'ahead of'} the median"
        for host, behind_s in off_s.items()
    )
    return (
        f"{line}: hosts do not lead while their clocks are so far apart ({clocks}): set the wrong "
        "one"
    )


def _of_shard(shard: ShardStatus) -> list[str]:
    lines = [] if shard.leader is not None else [_without_leader(shard)]
    for copy in shard.replicas:
        name = f"the copy of shard {shard.shard} on host {copy.host}"
        if copy.conflict:
            lines.append(
                f"{name} has acknowledged entries that the others lost ({copy.conflict}), and "
                f"counts no more: keep a copy of {copy.host}'s data folder, then start it with an "
                "empty one"
            )
        elif copy.damage:
            lines.append(f"{name} is damaged and fetches sound rows: {copy.damage}")
        elif copy.needs_checkpoint:
            lines.append(f"{name} is too far behind for the log and fetches a checkpoint")
        elif not copy.is_voter:
            lines.append(f"{name} does not count yet")
        elif copy.behind > _BEHIND_MAX:
            lines.append(f"{name} is {copy.behind} entries behind")
    return lines


def _of_etcd(members: list[EtcdStatus]) -> list[str]:
    away = [member.endpoint for member in members if not member.is_reached]
    lines = []
    if len(away) * 2 >= len(members):
        lines.append(f"a majority of etcd is away: {', '.join(away)}")
    elif not any(member.is_leader for member in members):
        lines.append("etcd has no leader")
    for member in members:
        lines += [f"etcd at {member.endpoint} raises {alarm}" for alarm in member.alarms]
        if member.quota_bytes and member.database_bytes > member.quota_bytes * _QUOTA_SHARE:
            lines.append(
                f"the database of etcd at {member.endpoint} takes {member.database_bytes} of "
                f"{member.quota_bytes} bytes: compact and defragment it"
            )
    return lines
