"""Opens the records in etcd that the hosts of a cluster share."""

from __future__ import annotations

from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire
from cluster.shards.clock import Clock, Entropy
from sqs_api.settings.config import Settings
from sqs_api.settings.membership import etcd_context, membership_of

_ROOT = "holdfast"


def open_coordination(
    settings: Settings, prefix: str, clock: Clock, entropy: Entropy, writer: str = ""
) -> EtcdCoordination:
    """The cluster's records below a prefix such as "catalog/", for the running event loop.

    Processes of one host that write below the same prefix differ in `writer`. Raises
    MembershipRefused.
    """
    membership = membership_of(settings)
    assert membership is not None
    return EtcdCoordination(
        membership.etcd,
        HttpWire(etcd_context(membership)),
        prefix=f"{_ROOT}/{membership.cluster}/{prefix}",
        name=membership.host + writer,
        clock=clock,
        entropy=entropy,
    )
