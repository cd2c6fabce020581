"""Records of a fleet: its clusters and the numbers of their shards, and the rules of adding one.
Pure.

fleet/next               the numbers that the next cluster and its first shard get
fleet/clusters/NUMBER    a cluster: its name, its shards, its founding hosts, its state
fleet/NUMBER/members/    the hosts of a further cluster, as `members/` has those of the first one
fleet/NUMBER/leaders/    the leaders of its shards, as `leaders/` has those of the first one

A cluster without these records is the first and only one of its fleet, with the shards of its own
record. The first cluster that is added writes the record of that one, too.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from cluster.coordination.coordination import Transaction
from cluster.members.member_records import CLUSTER, HOSTS, MEMBERS, Members, MembershipRefused

FLEET = "fleet/"
CLUSTERS = "clusters/"
NEXT = "next"
FIRST = 1
"""The number of the cluster whose records lie directly below the prefix."""
HOSTS_MAX = 4
SHARDS_MAX = 16
"""Of one cluster, as `shards` of the settings."""


class ClusterState(enum.Enum):
    """The state of a cluster."""

    OPEN = "open"
    DRAINING = "draining"
    """It gets no queues and parts, and those that it has go to others."""
    REMOVED = "removed"
    """It is no part of the fleet any more. Its hosts stop, and do not start again."""
    ABANDONED = "abandoned"
    """The same of one that was lost with its messages."""


_GONE = {
    ClusterState.REMOVED: "was removed from the fleet",
    ClusterState.ABANDONED: "was given up: its queues go on without what it had",
}


class FleetCluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster as its fleet knows it; only its state ever changes."""

    number: int
    name: str
    first_shard: int
    shards: int
    """Their count; they are numbered from `first_shard` on."""
    founders: tuple[str, ...]
    """Names of its founding hosts; empty of the first cluster."""
    state: ClusterState = ClusterState.OPEN
    worker: int = 0
    """The number of the worker that it consists of, see `workers_of`; 0 of other clusters."""
    workers_of: int = 0
    """The number of another cluster, of whose hosts it is the workers with one number; 0 for a
    cluster of hosts."""

    @property
    def hosts_in(self) -> int:
        """The number of the cluster whose mark the certificates of its hosts bear."""
        return self.workers_of or self.number

    @property
    def numbers(self) -> range:
        """The numbers of its shards."""
        return range(self.first_shard, self.first_shard + self.shards)

    @property
    def is_gone(self) -> bool:
        """True for one that was removed or given up. Its numbers are not given out again."""
        return self.state in _GONE

    @property
    def gone_as(self) -> str:
        """The way in which it left, for a sentence about it."""
        return _GONE[self.state]


class NextNumbers(msgspec.Struct, frozen=True):
    """Numbers that were never given out."""

    cluster: int
    shard: int


class Fleet(NamedTuple):
    """The clusters by number, none before the first one was added to another."""

    clusters: Mapping[int, FleetCluster]
    """Those that were removed or given up, too."""
    next: NextNumbers | None

    @property
    def present(self) -> dict[int, FleetCluster]:
        """Those that were neither removed nor given up."""
        return {number: each for number, each in self.clusters.items() if not each.is_gone}

    @property
    def draining(self) -> frozenset[int]:
        """The numbers of the clusters that are being emptied."""
        return frozenset(
            number for number, each in self.clusters.items() if each.state is ClusterState.DRAINING
        )

    @property
    def draining_shards(self) -> frozenset[int]:
        """Their shards."""
        found = (self.clusters[number].numbers for number in self.draining)
        return frozenset(shard for numbers in found for shard in numbers)

    def of_workers(self, cluster: int, worker: int) -> FleetCluster | None:
        """The cluster of the workers with this number of a cluster's hosts, None if there is
        none."""
        wanted = (cluster, worker)
        found = (
            each for each in self.clusters.values() if (each.workers_of, each.worker) == wanted
        )
        return next(found, None)


def place_of(number: int) -> str:
    """The prefix of a cluster's own records, below that of the fleet."""
    return "" if number == FIRST else f"{FLEET}{number}/"


def read_fleet(records: Mapping[str, bytes]) -> Fleet:
    """The fleet by its records, whose keys are below `fleet/`. Raises msgspec.MsgspecError."""
    clusters = {
        found.number: found
        for key, value in sorted(records.items())
        if key.startswith(CLUSTERS)
        for found in (msgspec.json.decode(value, type=FleetCluster),)
    }
    said = records.get(NEXT)
    return Fleet(clusters, None if said is None else msgspec.json.decode(said, type=NextNumbers))


class NewCluster(NamedTuple):
    """A cluster as an operator asks for it."""

    name: str
    """Empty for `cluster-NUMBER`."""
    hosts: tuple[str, ...]
    shards: int
    worker: int = 0
    workers_of: int = 0
    """See `FleetCluster`."""


def adding(
    fleet: Fleet,
    first: Members,
    taken: Collection[str],
    asked: NewCluster,
    revisions: Mapping[str, int],
) -> tuple[FleetCluster, Transaction]:
    """The new cluster and its transaction; keys are below the fleet's prefix.

    `first` are the members of the first cluster, `taken` the names of all hosts and gateways of the
    fleet, `revisions` those of all records. Raises MembershipRefused.
    """
    if first.cluster is None:
        raise MembershipRefused("the first cluster is not founded yet")
    clusters = dict(fleet.clusters) or {FIRST: _first(first)}
    following = fleet.next or NextNumbers(FIRST + 1, clusters[FIRST].numbers.stop)
    name = asked.name or f"cluster-{following.cluster}"
    present = {each.number: each for each in clusters.values() if not each.is_gone}
    _check(asked, name, present, {*taken, *first.hosts})
    new = FleetCluster(
        number=following.cluster,
        name=name,
        first_shard=following.shard,
        shards=asked.shards,
        founders=asked.hosts,
        worker=asked.worker,
        workers_of=asked.workers_of,
    )
    after = NextNumbers(new.number + 1, new.numbers.stop)
    changes: dict[str, bytes | None] = {FLEET + NEXT: msgspec.json.encode(after)}
    for cluster in (new, *(() if fleet.clusters else clusters.values())):
        changes[f"{FLEET}{CLUSTERS}{cluster.number}"] = msgspec.json.encode(cluster)
    # The names of hosts are checked against those that are registered now.
    of_first = [MEMBERS + CLUSTER, *(MEMBERS + HOSTS + host for host in asked.hosts)]
    conditions = {key: revisions.get(key, 0) for key in (*changes, *of_first)}
    return new, Transaction(conditions, changes)


def draining(
    fleet: Fleet,
    founded: Collection[int],
    number: int,
    revisions: Mapping[str, int],
    *,
    is_draining: bool,
) -> tuple[FleetCluster, Transaction]:
    """A cluster that is emptied from now on, or no more, and its transaction. `founded` are the
    numbers of the founded clusters. Raises MembershipRefused."""
    cluster = fleet.clusters.get(number)
    if cluster is None:
        raise MembershipRefused(f"the fleet has no cluster {number}, or only one")
    if cluster.is_gone:
        raise MembershipRefused(f"cluster {number} {cluster.gone_as}")
    others = sorted(({*founded} & fleet.present.keys()) - fleet.draining - {number})
    if is_draining and not others:
        raise MembershipRefused(f"no other cluster could take the queues of cluster {number}")
    state = ClusterState.DRAINING if is_draining else ClusterState.OPEN
    changed = msgspec.structs.replace(cluster, state=state)
    key = f"{FLEET}{CLUSTERS}{number}"
    # Of two clusters that are emptied at the same moment one must see the other.
    read = {key, *(f"{FLEET}{CLUSTERS}{other}" for other in others[:1])}
    conditions = {each: revisions.get(each, 0) for each in read}
    return changed, Transaction(conditions, {key: msgspec.json.encode(changed)})


def _first(members: Members) -> FleetCluster:
    assert members.cluster is not None
    shards = members.cluster.numbers
    return FleetCluster(
        number=FIRST, name="cluster-1", first_shard=shards.start, shards=len(shards), founders=()
    )


def _check(
    asked: NewCluster, name: str, clusters: Mapping[int, FleetCluster], taken: Collection[str]
) -> None:
    if not 1 <= len(set(asked.hosts)) <= HOSTS_MAX or len(set(asked.hosts)) < len(asked.hosts):
        raise MembershipRefused(f"a cluster has one to {HOSTS_MAX} hosts, each named once")
    if not 1 <= asked.shards <= SHARDS_MAX:
        raise MembershipRefused(f"a cluster has one to {SHARDS_MAX} shards")
    if any(each.name == name for each in clusters.values()):
        raise MembershipRefused(f"the fleet has a cluster {name} already")
    of_others = {host for each in clusters.values() for host in each.founders} | {*taken}
    if known := sorted(of_others & {*asked.hosts}):
        raise MembershipRefused(
            f"the fleet has a host {known[0]} already: names of hosts are unique in a fleet"
        )
