"""Joins this host to its cluster: its membership, and what etcd knows of the other hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from cluster.catalog.record_codec import CatalogUnreadable
from cluster.clock import Entropy
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.members.copied_records import RECORDS_FILE, read_copied
from cluster.members.host_folder import open_identity, save_identity
from cluster.members.host_lease import HostLease
from cluster.members.leader_view import LeaderView
from cluster.members.member_records import Cluster, MembershipRefused
from cluster.members.membership import Me, Membership
from cluster.members.shard_keys import ShardKeys
from cluster.peers.peer_settings import PeerSettings
from cluster.peers.peer_tls import TlsNetwork
from cluster.replication.hosting import replica_id_of
from sqs_api.parts import Process
from sqs_api.settings.cluster_records import coordination_of
from sqs_api.settings.member_settings import MemberSettings, open_network
from storage.log import NEWEST_FORMAT

PEERS = PeerSettings()


class Joined(NamedTuple):
    """Belongs to the event loop's thread."""

    member: MemberSettings
    network: TlsNetwork
    """Bound to the peer address."""
    root: EtcdCoordination
    """All records of the cluster."""
    members: EtcdCoordination
    """The records of the hosts."""
    membership: Membership
    cluster: Cluster
    leaders: LeaderView
    keys: ShardKeys


async def join(
    process: Process,
    member: MemberSettings,
    folders: Mapping[int, Path],
    on_removed: Callable[[], None],
) -> Joined:
    """Become a member; waits for etcd and for the founding hosts.

    The shards' folders are not open. Raises MembershipRefused, LeadersUnknown.
    """
    settings, clock, entropy, opened = process
    network = open_network(member, PEERS, clock.monotonic_s)
    await _bind(network, member)
    opened.callback(network.close)
    root = coordination_of(member, "", clock, entropy)
    opened.push_async_callback(root.close)
    lease = HostLease(root)
    opened.push_async_callback(lease.release)
    members = root.below("members/")
    membership = Membership(
        Me(
            name=member.host,
            peer_address=member.peer_address,
            version=metadata.version("holdfast"),
            founders=member.founders,
            shards=len(folders),
            formats=NEWEST_FORMAT,
            cluster=member.cluster,
        ),
        open_identity(settings.data, entropy),
        root=root,
        records=members,
        lease=lease,
        entropy=entropy,
        save=partial(save_identity, settings.data),
        replica_ids=partial(_replica_ids, settings.data, folders, entropy),
        on_removed=on_removed,
        restored_records=partial(_restored_records, settings.data),
    )
    opened.push_async_callback(membership.close)
    cluster = await membership.join()
    (settings.data / RECORDS_FILE).unlink(missing_ok=True)  # they lie in etcd
    leaders = LeaderView(root.below("leaders/"), cluster.shards)
    await leaders.begin()
    keys = ShardKeys(root.below("leaders/"), lease)
    opened.push_async_callback(keys.close)
    return Joined(member, network, root, members, membership, cluster, leaders, keys)


async def _bind(network: TlsNetwork, member: MemberSettings) -> None:
    """Take the peer address before it is registered: another process may have it. Raises
    MembershipRefused."""
    host, port = member.peer_listen
    try:
        await network.bind(member.peer_listen)
    except OSError as error:
        reason = error.strerror or error
        raise MembershipRefused(f"cannot listen on {host}:{port}: {reason}") from error


def _replica_ids(
    data: Path, folders: Mapping[int, Path], entropy: Entropy, shards: int
) -> list[str]:
    if shards != len(folders):
        raise MembershipRefused(
            f"data folder {data} was made for {len(folders)} shards, and the "
            f"cluster has {shards}: start on a new folder with --shards {shards}"
        )
    return [replica_id_of(folders[number], entropy) for number in range(shards)]


def _restored_records(data: Path) -> Mapping[str, bytes]:
    """Raises MembershipRefused."""
    try:
        return read_copied(data)
    except (OSError, CatalogUnreadable) as error:
        raise MembershipRefused(f"restore the backup again: {error}") from error
