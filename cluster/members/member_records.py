"""Records of a cluster's hosts, and the rules of registering and founding. Pure.

members/cluster          the cluster: its id, the logs of its shards; written once
members/hosts/NAME       a host, from its first start until it is removed
members/alive/NAME       a host that runs now, bound to its lease
members/removed/NAME     the id of a host that was removed
members/formats          the formats that all hosts read, and leaders write: see `Members.formats`
leaders/term/SHARD       the first term of each shard, written with the cluster
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from cluster.coordination.coordination import Transaction
from cluster.members.shard_keys import term_key
from cluster.peers.peer_settings import Address
from cluster.replication.leadership import TermRecord
from storage.log import OLDEST_FORMAT, have_room

MEMBERS, LEADERS = "members/", "leaders/"
CLUSTER, HOSTS, ALIVE, REMOVED = "cluster", "hosts/", "alive/", "removed/"
FORMATS = "formats"


class MembershipRefused(Exception):
    """This host cannot be a member; the text is for the operator."""


def parse_address(text: str) -> Address:
    """HOST:PORT; an address of IPv6 may stand in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


class Cluster(msgspec.Struct, frozen=True):
    """The unchanging facts of a cluster."""

    cluster_id: str
    log_ids: tuple[bytes, ...]
    """The id of each shard's log."""
    restored: str = ""
    """The backup that its founders were restored from; empty if they began without messages."""
    first_shard: int = 0
    """Number of its first shard in the fleet; the others follow."""

    @property
    def numbers(self) -> range:
        """The numbers of its shards."""
        return range(self.first_shard, self.first_shard + len(self.log_ids))

    def logs(self) -> dict[int, bytes]:
        """The id of each shard's log."""
        return dict(zip(self.numbers, self.log_ids, strict=True))


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A host as it registered itself."""

    name: str
    host_id: str
    """Random, in its data folder: a new disk is another host under the same name."""
    peer_address: str
    """HOST:PORT as its peers reach it."""
    version: str
    founders: tuple[str, ...]
    """The founding hosts as it was told them."""
    replica_ids: tuple[str, ...]
    """The id of its replica of each shard, in order, as of its last start."""
    is_drained: bool = False
    """It is to lead nothing."""
    restored: str = ""
    """The backup that its folder was restored from, empty if from none."""
    formats: int = OLDEST_FORMAT
    """The newest formats that it reads."""
    zone: str = ""
    """Hosts of one zone may fail together; empty if it is not known."""
    starts: int = 0
    """The state of its folder, see `Identity`."""

    @property
    def address(self) -> Address:
        """Its peer address. Raises ValueError."""
        return parse_address(self.peer_address)


class Alive(msgspec.Struct, frozen=True):
    """A host that runs now."""

    host_id: str
    version: str
    is_leaving: bool = False
    """It is about to stop."""


class Identity(msgspec.Struct, frozen=True):
    """The identity that a host keeps in its data folder."""

    host_id: str
    cluster_id: str = ""
    """Empty before it is a member."""
    restored: str = ""
    """The backup that the folder was restored from, empty if from none."""
    starts: int = 0
    """Counts the starts on the folder, and more while its host runs; never less than etcd has of
    it, or the folder is an older copy."""


class Members(NamedTuple):
    """All members as of now."""

    cluster: Cluster | None
    hosts: Mapping[str, Host]
    alive: Mapping[str, Alive]
    removed: Mapping[str, str]
    """Ids of removed hosts by name."""
    formats: int = OLDEST_FORMAT
    """The newest formats that leaders write: of Entries, and of what these and etcd's records
    hold. An operator raises it once all hosts read them (`member_operations.py`); no host that
    does not may join any more."""

    def peers_of(self, name: str) -> dict[str, Address]:
        """Addresses of the other hosts. Raises ValueError."""
        return {each: self.hosts[each].address for each in sorted(self.hosts) if each != name}

    @property
    def zones(self) -> dict[str, str]:
        """The zone of each host by its name; empty if it is not known."""
        return {name: host.zone for name, host in sorted(self.hosts.items())}

    def able_to_lead(self) -> list[str]:
        """Names of the hosts that run, are not about to stop and are not drained."""
        return sorted(
            name
            for name, alive in self.alive.items()
            if not alive.is_leaving and name in self.hosts and not self.hosts[name].is_drained
        )


def read_members(records: Mapping[str, bytes]) -> Members:
    """The members by their records. Raises msgspec.MsgspecError."""

    def below(folder: str, kind: Any) -> dict[str, Any]:
        return {
            key.removeprefix(folder): msgspec.json.decode(value, type=kind)
            for key, value in records.items()
            if key.startswith(folder)
        }

    found = records.get(CLUSTER)
    cluster = None if found is None else msgspec.json.decode(found, type=Cluster)
    formats = OLDEST_FORMAT
    if FORMATS in records:
        formats = msgspec.json.decode(records[FORMATS], type=int)
    return Members(cluster, below(HOSTS, Host), below(ALIVE, Alive), below(REMOVED, str), formats)


# -- registering -----------------------------------------------------------------------------------


def check_cluster(members: Members, identity: Identity) -> None:
    """Raises MembershipRefused if the data folder is of another cluster, or restored from a backup
    that the cluster was not founded on."""
    found = members.cluster.cluster_id if members.cluster is not None else ""
    if not identity.cluster_id:
        if members.cluster is not None and identity.restored not in ("", members.cluster.restored):
            raise MembershipRefused(
                f"the data folder was restored from backup {identity.restored}, and there is "
                f"a cluster {found} already: found another one, or join with an empty folder"
            )
        return
    if identity.cluster_id == found:
        return
    if found:
        raise MembershipRefused(
            f"the data folder belongs to cluster {identity.cluster_id}, and this one is {found}"
        )
    raise MembershipRefused(
        f"the data folder belongs to cluster {identity.cluster_id}, of which etcd has no record: "
        "restore etcd's data first"
    )


def check_host(members: Members, me: Host) -> None:
    """Raises MembershipRefused if this host was removed, has the folder or the address of another
    one or an older copy of its own, cannot read what the others write, is one more than there is
    room for, or was told of other founding hosts."""
    _check_folder(members, me)
    _check_address(members, me)
    if me.formats < members.formats:
        raise MembershipRefused(
            f"the cluster writes formats {members.formats}, and this version of holdfast knows "
            f"{me.formats}: install a later one"
        )
    if me.name not in members.hosts:
        _check_room({me.name, *members.hosts, *(() if members.cluster else me.founders)})
    if members.cluster is not None:
        return
    for name in me.founders:
        other = members.hosts.get(name)
        if other is None or name == me.name:
            continue
        if set(other.founders) != set(me.founders):
            raise MembershipRefused(
                f"host {name} was started with the founding hosts {_listed(other.founders)}, "
                f"this one with {_listed(me.founders)}"
            )
        if len(other.replica_ids) != len(me.replica_ids):
            raise MembershipRefused(
                f"host {name} was started for {len(other.replica_ids)} shards, "
                f"this one for {len(me.replica_ids)}"
            )
        if other.restored != me.restored:
            raise MembershipRefused(
                f"host {name} was started on {_content(other)}, this one on {_content(me)}: "
                "restore one backup on each founding host"
            )


def _check_folder(members: Members, me: Host) -> None:
    """A folder has the ids of its replicas: under two names, one copy would count as two."""
    for name, host_id in members.removed.items():
        if host_id == me.host_id:
            raise MembershipRefused(
                f"host {name} was removed from the cluster; it may join anew with an empty folder"
            )
    for name, host in members.hosts.items():
        if host.host_id == me.host_id and host.starts > me.starts:
            raise MembershipRefused(
                f"this folder is an older copy of that of host {name} (state {me.starts}, the "
                f"host was at {host.starts}): it lacks what that acknowledged since. Put the later "
                "one there, or start with an empty folder while the other hosts have theirs. If "
                "such copies are all that is left, see the runbook, Replacing a disk"
            )
        if host.host_id == me.host_id and name != me.name:
            raise MembershipRefused(
                f"this folder is of host {name}: start it as {name}, "
                f"or start {me.name} with an empty folder"
            )


def _check_address(members: Members, me: Host) -> None:
    """Members may exchange theirs while they are stopped."""
    is_new = me.name not in members.hosts
    for name, host in members.hosts.items():
        if name == me.name or host.peer_address != me.peer_address:
            continue
        if is_new or name in members.alive:
            raise MembershipRefused(
                f"host {name} has the address {me.peer_address}: give this host a peer_address of "
                "its own"
            )


def _check_room(names: Collection[str]) -> None:
    if not have_room(names):
        raise MembershipRefused(
            f"a cluster has no room for {len(names)} hosts with names of "
            f"{sum(map(len, names)) // len(names)} characters on average: use shorter names"
        )


def _content(host: Host) -> str:
    return f"the restored backup {host.restored}" if host.restored else "a new folder"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"


def is_taken(members: Members, name: str, host_id: str) -> bool:
    """True while another host of this name runs."""
    alive = members.alive.get(name)
    return alive is not None and alive.host_id != host_id


def registration(
    members: Members, me: Host, revisions: Mapping[str, int], *, is_leaving: bool
) -> Transaction:
    """Write the records of this host; its lease is the caller's to add."""
    known = members.hosts.get(me.name)
    if known is not None and known.host_id == me.host_id:
        me = msgspec.structs.replace(me, is_drained=known.is_drained)
    changes: dict[str, bytes | None] = {
        HOSTS + me.name: msgspec.json.encode(me),
        ALIVE + me.name: msgspec.json.encode(Alive(me.host_id, me.version, is_leaving)),
    }
    if me.name in members.removed:
        changes[REMOVED + me.name] = None
    if members.cluster is not None and (known is None or known.formats != me.formats):
        # Writes what it was checked against: the formats cannot be raised past it meanwhile.
        changes[FORMATS] = msgspec.json.encode(members.formats)
    return Transaction({key: revisions.get(key, 0) for key in changes}, changes)


# -- founding --------------------------------------------------------------------------------------


def missing_founders(members: Members, founders: Iterable[str]) -> list[str]:
    """The founding hosts that have not registered yet."""
    return sorted(set(founders) - members.hosts.keys())


def founding(
    members: Members, me: Host, cluster: Cluster, revisions: Mapping[str, int]
) -> Transaction:
    """Write the cluster and the first term of each shard, for a cluster whose founders have all
    registered. The keys are those below the cluster's prefix."""
    hosts = [members.hosts[name] for name in sorted(set(me.founders))]
    changes = {MEMBERS + CLUSTER: msgspec.json.encode(cluster)}
    for place, (shard, log_id) in enumerate(cluster.logs().items()):
        voters = {host.replica_ids[place]: host.name for host in hosts}
        record = TermRecord(0, log_id, voters)
        changes[LEADERS + term_key(shard)] = msgspec.json.encode(record)
    conditions = dict.fromkeys(changes, 0)
    for host in hosts:  # as they are registered now
        conditions[MEMBERS + HOSTS + host.name] = revisions[HOSTS + host.name]
    return Transaction(conditions, changes)
