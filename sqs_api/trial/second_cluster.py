"""The second cluster of a fleet on one machine: its record, written before its hosts start."""

from __future__ import annotations

from cluster.clock import Clock, SystemEntropy
from cluster.coordination.coordination import Unavailable
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire
from cluster.fleet.fleet_operations import add_cluster
from cluster.fleet.fleet_records import FLEET, Fleet, NewCluster, read_fleet
from cluster.members.member_records import MembershipRefused
from sqs_api.settings.config import CLUSTER_SHARDS
from sqs_api.trial.layout import MEMBERS, SECOND, Layout, TrialRefused

_PREFIX = "holdfast/holdfast/"
_NUMBER = 2


async def add_second_cluster(layout: Layout, clock: Clock) -> None:
    """Add it unless it is there; the first cluster runs. Raises TrialRefused."""
    addresses = tuple(f"https://{layout.address(member, 'client')}" for member in MEMBERS)
    root = EtcdCoordination(
        Access(addresses),
        HttpWire(layout.etcd_client.context()),
        prefix=_PREFIX,
        name=".trial",
        clock=clock,
        entropy=SystemEntropy(),
    )
    try:
        found = await root.below(FLEET).read_all()
        if isinstance(found, Unavailable):
            raise TrialRefused(f"etcd cannot be read: {found.reason}")
        fleet = read_fleet({each.key: each.value for each in found.records})
        if _NUMBER not in fleet.clusters:
            asked = NewCluster("", SECOND, CLUSTER_SHARDS)
            await add_cluster(root, Fleet({}, None), asked)
    except MembershipRefused as refusal:
        raise TrialRefused(str(refusal)) from refusal
    finally:
        await root.close()
