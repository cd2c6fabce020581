"""FleetView: the other clusters of the fleet as a process sees them: their hosts and the leaders of
their shards, from a watch.

A cluster that was seen once stays: hosts whose etcd lost its records go on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import structlog

from cluster.coordination.coordination import Change, Coordination, Unavailable
from cluster.fleet.fleet_records import CLUSTERS, FIRST, FLEET, NEXT, Fleet, read_fleet
from cluster.members.leader_view import LeadersUnknown, LeaderView
from cluster.members.member_records import ALIVE, CLUSTER, HOSTS, LEADERS, MEMBERS, Cluster, Host
from cluster.members.shard_keys import HOLDERS, decode_holder
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS, Neighbour, PeerRole, Place, cluster_mark

GATEWAYS_KEY = "gateways/"
_OF_FIRST = (MEMBERS, LEADERS)
GONE_MEANS = "the fleet goes on without this cluster; this host stops, and does not start again"


class Gateway(msgspec.Struct, frozen=True):
    """A gateway that runs now; its record is bound to its lease."""

    version: str


def watched(own: int) -> tuple[str, ...]:
    """The prefixes of the records that a process needs; `own` is the number of its cluster, which
    has its own view of its own hosts, 0 of a gateway."""
    return (FLEET,) if own == FIRST else (FLEET, *_OF_FIRST)


def _nothing() -> None:
    """A gateway is of no cluster."""


class FleetView:
    """`begin`, and it ends with the coordinations.

    While these are away the view stays as it is.
    """

    def __init__(
        self,
        parts: Mapping[str, Coordination],
        own: int,
        on_removed: Callable[[], None] = _nothing,
    ) -> None:
        """`parts` are the records below each prefix of `watched(own)`. `on_removed` is called when
        this process's cluster leaves the fleet."""
        self._parts = parts
        self.own = own
        self._on_removed = on_removed
        self.fleet = Fleet({}, None)
        self._own_prefix = "" if own in (0, FIRST) else f"{FLEET}{own}/"
        self._of_fleet: dict[str, bytes] = {}
        self._leaders: dict[int, str] = {}
        self._hosts: dict[int, dict[str, Host]] = {}
        self._clusters: dict[int, Cluster] = {}
        self._alive: dict[int, set[str]] = {}
        self._gateways: dict[str, Gateway] = {}
        self._seen_gateways: set[str] = set()
        """Those are admitted whose lease ended, too: they start while etcd is away."""
        self._neighbours: dict[str, Neighbour] = {}
        self._on_leader: list[Callable[[int], None]] = []
        self._on_neighbours: list[Callable[[Mapping[str, Neighbour]], None]] = []
        self._log = structlog.get_logger("fleet")

    async def begin(self) -> None:
        """Read the records and watch them. Raises LeadersUnknown."""
        for prefix, part in self._parts.items():
            found = await part.read_all()
            if isinstance(found, Unavailable):
                raise LeadersUnknown(found.reason)
            self._apply(prefix, {record.key: record.value for record in found.records})
            await part.watch(found, partial(self._on_change, prefix))

    # -- the view ----------------------------------------------------------------------------------

    def leader_of(self, shard: int) -> str | None:
        """The host of another cluster that leads a shard, None while there is none."""
        return self._leaders.get(shard)

    @property
    def neighbours(self) -> Mapping[str, Neighbour]:
        """The hosts of other clusters, and the gateways, by name."""
        return self._neighbours

    @property
    def founded(self) -> dict[int, range]:
        """The shards of the other clusters that are founded and not removed, by number."""
        return {
            number: cluster.numbers
            for number, cluster in sorted(self._clusters.items())
            if not self._is_gone(number)
        }

    def hosts_of(self, number: int) -> list[str]:
        """The names of another cluster's hosts."""
        return sorted(self._hosts.get(number, ()))

    def all_hosts(self) -> list[str]:
        """The names of the hosts of all other clusters."""
        return [host for number in self.founded for host in self.hosts_of(number)]

    def zones_of(self, number: int) -> dict[str, str]:
        """The zone of each of another cluster's hosts by its name; empty if it is not known."""
        return {name: host.zone for name, host in sorted(self._hosts.get(number, {}).items())}

    def alive_of(self, number: int) -> set[str]:
        """The names of those of them that run."""
        return self._alive.get(number, set())

    @property
    def gateways(self) -> Mapping[str, Gateway]:
        """The gateways that run."""
        return self._gateways

    def hosts_that_may_lead(self, shard: int) -> list[str]:
        """The hosts of the other cluster that keeps a shard."""
        numbers = (number for number, shards in self.founded.items() if shard in shards)
        return self.hosts_of(next(numbers, 0))

    def subscribe(self, on_leader: Callable[[int], None]) -> None:
        """Call back with each shard of another cluster whose leader changed."""
        self._on_leader.append(on_leader)

    def subscribe_neighbours(
        self, on_neighbours: Callable[[Mapping[str, Neighbour]], None]
    ) -> None:
        """Call back with the neighbours each time that they change."""
        self._on_neighbours.append(on_neighbours)

    # -- records -----------------------------------------------------------------------------------

    def _on_change(self, prefix: str, change: Change) -> None:
        self._apply(prefix, change.records)

    def _apply(self, prefix: str, records: Mapping[str, bytes | None]) -> None:
        led = dict(self._leaders)
        for key, value in records.items():
            try:
                self._put(prefix + key, value)
            except (msgspec.MsgspecError, ValueError) as error:
                self._log.error("record_unreadable", key=prefix + key, error=str(error))
        for shard in sorted(led.keys() | self._leaders.keys()):
            if led.get(shard) != self._leaders.get(shard):
                for on_leader in self._on_leader:
                    on_leader(shard)
        neighbours = self._found_neighbours()
        if neighbours != self._neighbours:
            self._neighbours = neighbours
            for on_neighbours in self._on_neighbours:
                on_neighbours(neighbours)

    def _put(self, key: str, value: bytes | None) -> None:
        """Raises msgspec.MsgspecError, ValueError."""
        if self._own_prefix and key.startswith(self._own_prefix):
            return
        if not key.startswith(FLEET):
            self._put_of_cluster(FIRST, key, value)
            return
        name = key.removeprefix(FLEET)
        if name == NEXT or name.startswith(CLUSTERS):
            if value is not None:
                self._of_fleet[name] = value
                was_gone = self._is_gone(self.own)
                self.fleet = read_fleet(self._of_fleet)
                if self._is_gone(self.own) and not was_gone:
                    self._log.error("cluster_gone", cluster=self.own, means=GONE_MEANS)
                    self._on_removed()
        elif name.startswith(GATEWAYS_KEY):
            self._put_gateway(name.removeprefix(GATEWAYS_KEY), value)
        else:
            number, _, rest = name.partition("/")
            if number.isdecimal():
                self._put_of_cluster(int(number), rest, value)

    def _put_gateway(self, name: str, value: bytes | None) -> None:
        if name.startswith("."):
            return  # no record, see `coordination/etcd_commit.py`
        self._gateways.pop(name, None)
        if value is not None:
            self._gateways[name] = msgspec.json.decode(value, type=Gateway)
            self._seen_gateways.add(name)

    def _put_of_cluster(self, number: int, key: str, value: bytes | None) -> None:
        if key.startswith(LEADERS + HOLDERS):
            shard = int(key.removeprefix(LEADERS + HOLDERS))
            self._leaders.pop(shard, None)
            if value is not None:
                self._leaders[shard] = decode_holder(value).name
        elif key.startswith(MEMBERS + HOSTS):
            hosts = self._hosts.setdefault(number, {})
            hosts.pop(key.removeprefix(MEMBERS + HOSTS), None)
            if value is not None:
                host = msgspec.json.decode(value, type=Host)
                hosts[host.name] = host
        elif key.startswith(MEMBERS + ALIVE):
            alive = self._alive.setdefault(number, set())
            (alive.discard if value is None else alive.add)(key.removeprefix(MEMBERS + ALIVE))
        elif key == MEMBERS + CLUSTER and value is not None:
            self._clusters[number] = msgspec.json.decode(value, type=Cluster)

    def _found_neighbours(self) -> dict[str, Neighbour]:
        found = {
            name: Neighbour(
                host.address,
                Place(self._clusters[number].cluster_id, PeerRole.NEIGHBOUR, self._mark(number)),
            )
            for number, hosts in self._hosts.items()
            if number in self._clusters and not self._is_gone(number)
            for name, host in hosts.items()
        }
        gateway = Neighbour(None, Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK))
        return dict(sorted(found.items())) | dict.fromkeys(self._seen_gateways, gateway)

    def _is_gone(self, number: int) -> bool:
        cluster = self.fleet.clusters.get(number)
        return cluster is not None and cluster.is_gone

    def _mark(self, number: int) -> str:
        """The mark of the hosts of a cluster; one that has no record is the only one of its
        fleet."""
        cluster = self.fleet.clusters.get(number)
        return cluster_mark(number if cluster is None else cluster.hosts_in)


class FleetLeaders:
    """See `Leaders`: those of one's own cluster, and of the others."""

    def __init__(self, own: LeaderView, fleet: FleetView) -> None:
        self.leader_of: Callable[[int], str | None] = own.leader_of
        """See `Leaders`. Asked for each request, so there is no call in between."""
        self._subscribe = (own.subscribe, fleet.subscribe)

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """Call back with each shard whose leader changed, of any cluster."""
        for subscribe in self._subscribe:
            subscribe(on_change)
