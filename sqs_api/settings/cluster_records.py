"""Opens the records in etcd that the hosts of a cluster share."""

from __future__ import annotations

import asyncio

from pydantic import SecretStr

from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import Snapshot, Unavailable
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire
from sqs_api.settings.cluster_settings import ClusterSettings
from sqs_api.settings.config import Settings
from sqs_api.settings.member_settings import MemberSettings, etcd_context, member_settings

_ROOT = "holdfast"
COMMANDS = ".commands"
"""The writer of commands, beside the service of the same host."""


def settings_of_member(settings: Settings) -> dict[str, str]:
    """The settings of a member of a cluster, for another process of this host; empty of a single
    host."""
    if settings.etcd is None:
        return {}
    given = {name: getattr(settings, name) for name in ClusterSettings.model_fields}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in given.items()
        if value is not None
    }


def open_coordination(
    settings: Settings, prefix: str, clock: Clock, entropy: Entropy, writer: str
) -> EtcdCoordination:
    """`coordination_of` the settings' membership. Raises MembershipRefused."""
    membership = member_settings(settings)
    assert membership is not None
    return coordination_of(membership, prefix, clock, entropy, writer)


def coordination_of(
    membership: MemberSettings, prefix: str, clock: Clock, entropy: Entropy, writer: str = ""
) -> EtcdCoordination:
    """The cluster's records below a prefix such as "catalog/", for the running event loop.

    Processes of one host that write below the same prefix differ in `writer`. Raises
    MembershipRefused.
    """
    return EtcdCoordination(
        membership.etcd,
        HttpWire(etcd_context(membership)),
        prefix=f"{_ROOT}/{membership.cluster}/{prefix}",
        name=membership.host + writer,
        clock=clock,
        entropy=entropy,
        logs_outages=not writer,
    )


def read_once(
    settings: Settings, prefix: str, clock: Clock, entropy: Entropy
) -> Snapshot | Unavailable:
    """The cluster's records below a prefix, for a command. Raises MembershipRefused."""

    async def read() -> Snapshot | Unavailable:
        coordination = open_coordination(settings, prefix, clock, entropy, COMMANDS)
        try:
            return await coordination.read_all()
        finally:
            await coordination.close()

    return asyncio.run(read())
