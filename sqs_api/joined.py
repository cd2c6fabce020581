"""Joins this host to its cluster: its membership, and what etcd knows of the other hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from cluster.catalog.record_codec import CatalogUnreadable
from cluster.clock import Entropy
from cluster.coordination.coordination import Coordination, Snapshot, Unavailable
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.fleet.copied_fleet import check_backup, put_by
from cluster.fleet.fleet_operations import cluster_of_workers
from cluster.fleet.fleet_records import FIRST, FLEET, FleetCluster, place_of, read_fleet
from cluster.fleet.fleet_view import FleetLeaders, FleetView, watched
from cluster.members.copied_records import RECORDS_FILE, read_copied
from cluster.members.host_folder import former_lease, open_identity, save_identity, save_lease
from cluster.members.host_lease import HostLease
from cluster.members.leader_view import LeaderView
from cluster.members.member_records import HOSTS, MEMBERS, Cluster, MembershipRefused
from cluster.members.membership import Me, Membership
from cluster.members.shard_keys import ShardKeys
from cluster.peers.peer_settings import PeerSettings
from cluster.peers.peer_tls import TlsNetwork
from cluster.replication.hosting import replica_id_of
from sqs_api.parts import Process
from sqs_api.settings.cluster_records import coordination_of
from sqs_api.settings.config import installed_version
from sqs_api.settings.member_settings import MemberSettings, open_network
from storage.files.folder import FORMAT_FILE
from storage.log import NEWEST_FORMAT

PEERS = PeerSettings()
HEAR_S = 5.0
"""Time after which shards that have not answered are asked again."""
IDLE_CHECK_S = 60.0
"""Time after which a connection to another cluster that nobody uses is closed, at least."""
_PAUSE_S = 1.0


class Joined(NamedTuple):
    """The parts of a process that joined."""

    member: MemberSettings
    network: TlsNetwork
    """Bound to the peer address."""
    root: EtcdCoordination
    """All records of the fleet."""
    members: EtcdCoordination
    """The records of the hosts."""
    membership: Membership
    cluster: Cluster
    own_leaders: LeaderView
    """The leaders of the shards of this host's cluster."""
    fleet: FleetView
    leaders: FleetLeaders
    """The leaders of all shards."""
    keys: ShardKeys
    lease: HostLease


async def own_cluster(process: Process, member: MemberSettings) -> FleetCluster | None:
    """This host's cluster as the fleet knows it, None of the first one and of a gateway; waits for
    etcd. Raises MembershipRefused."""
    if not member.number or (member.number == FIRST and not member.worker):
        return None
    root = coordination_of(member, "", process.clock, process.entropy, ".starts")
    try:
        fleet = root.below(FLEET)
        while isinstance(found := await _found_cluster(process, member, root, fleet), str):
            structlog.get_logger("members").warning("waits_to_join", reason=found)
            await asyncio.sleep(_PAUSE_S)
    finally:
        await root.close()
    if not member.worker and found.founders and member.founders:
        if set(member.founders) != set(found.founders):
            raise MembershipRefused(
                f"cluster {member.number} was added with the hosts {', '.join(found.founders)}: "
                "leave --cluster-hosts away"
            )
    return found


async def _found_cluster(
    process: Process, member: MemberSettings, root: EtcdCoordination, fleet: Coordination
) -> FleetCluster | str:
    """This host's cluster, or the reason to wait. Raises MembershipRefused."""
    records = await _fleet_records(process, member, fleet)
    if isinstance(records, str):
        return records
    found, number = read_fleet(records), member.number
    worker = member.worker
    own = found.of_workers(number, worker) if worker else found.clusters.get(number)
    if own is None and worker:
        return await _of_workers(process, member, root)
    if own is None:
        raise MembershipRefused(
            f"the fleet `{member.cluster}` has no cluster {number}: make it with "
            "`holdfast fleet add-cluster` on a host of another cluster"
        )
    if own.is_gone:
        raise MembershipRefused(
            f"cluster {own.number} of fleet `{member.cluster}` {own.gone_as}. Its hosts do not "
            "start: on an empty folder this one can be a host of another cluster"
        )
    return own


async def _of_workers(
    process: Process, member: MemberSettings, root: EtcdCoordination
) -> FleetCluster | str:
    """The cluster of a worker, which is added, or the reason to wait. Raises MembershipRefused."""
    data = process.settings.data
    if (data / FORMAT_FILE).exists():
        raise MembershipRefused(
            f"the fleet `{member.cluster}` has no cluster of worker {member.worker + 1} of its "
            f"hosts, and {data} belongs to one: restore etcd's data"
        )
    found = await cluster_of_workers(root, member.number, member.worker)
    return found or f"cluster {member.number} has not been founded: start its hosts"


async def _fleet_records(
    process: Process, member: MemberSettings, fleet: Coordination
) -> dict[str, bytes] | str:
    """The records of the fleet, or the reason to wait. Raises MembershipRefused."""
    found = await fleet.read_all()
    if isinstance(found, Unavailable):
        return found.reason
    records = {each.key: each.value for each in found.records}
    if (process.settings.data / RECORDS_FILE).exists():
        own = _restored_records(process.settings.data)
        if not check_backup(own, records, member.number):
            return "cluster 1 of the restored fleet has not been founded: start its hosts"
    return records


async def join(
    process: Process,
    member: MemberSettings,
    cluster: FleetCluster | None,
    folders: Mapping[int, Path],
    on_removed: Callable[[], None],
) -> Joined:
    """Become a member; waits for etcd and for the founding hosts. `cluster` is `own_cluster`.

    The shards' folders are not open. Raises MembershipRefused, LeadersUnknown.
    """
    settings, clock, entropy, opened = process
    network = open_network(member, PEERS, clock.monotonic_s)
    await _bind(network, member)
    opened.callback(network.close)
    root = coordination_of(member, "", clock, entropy)
    opened.push_async_callback(root.close)
    if former := former_lease(settings.data):  # its process had the peer address, and is gone
        await root.end_lease(former)
    lease = HostLease(root, note=partial(save_lease, settings.data))
    opened.push_async_callback(lease.release)
    own = root.below(place_of(member.number)) if member.number != FIRST else root
    members = own.below("members/")
    membership = Membership(
        Me(
            name=member.host,
            peer_address=member.peer_address,
            version=installed_version(),
            founders=member.founders if cluster is None else cluster.founders or member.founders,
            shards=range(min(folders), min(folders) + len(folders)),
            formats=NEWEST_FORMAT,
            cluster=member.cluster,
            zone=member.zone,
        ),
        open_identity(settings.data, entropy),
        root=own,
        records=members,
        lease=lease,
        entropy=entropy,
        save=partial(save_identity, settings.data),
        replica_ids=partial(_replica_ids, settings.data, folders, entropy),
        on_removed=on_removed,
        restored_records=lambda: put_by(_restored_records(settings.data), member.number),
    )
    opened.push_async_callback(membership.close)
    fleet = FleetView(
        {key: root.below(key) for key in watched(member.number)}, member.number, on_removed
    )
    await _check_name(root, member)
    joined = await membership.join()
    (settings.data / RECORDS_FILE).unlink(missing_ok=True)  # they lie in etcd
    leaders = LeaderView(own.below("leaders/"), joined.numbers, fleet.leader_of)
    await leaders.begin()
    await fleet.begin()
    all_leaders = FleetLeaders(leaders, fleet)
    keys = ShardKeys(own.below("leaders/"), lease)
    opened.push_async_callback(keys.close)
    return Joined(
        member, network, root, members, membership, joined, leaders, fleet, all_leaders, keys, lease
    )


async def _check_name(root: EtcdCoordination, member: MemberSettings) -> None:
    """Names are unique in a fleet, as far as etcd answers. Raises MembershipRefused."""
    key = f"{MEMBERS}{HOSTS}{member.host}"
    found = [await root.read([key]), await root.below(FLEET).read_all()]
    parts = [part.records for part in found if isinstance(part, Snapshot)]
    records = {each.key: each.value for part in parts for each in part}
    others = read_fleet(records).present.keys() - {member.number}
    if any(place_of(number).removeprefix(FLEET) + key in records for number in others):
        raise MembershipRefused(
            f"another cluster of the fleet has a host {member.host}: give this one a host_name "
            "of its own"
        )


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
    data: Path, folders: Mapping[int, Path], entropy: Entropy, shards: range
) -> list[str]:
    if len(shards) != len(folders):
        raise MembershipRefused(
            f"data folder {data} was made for {len(folders)} shards, and the "
            f"cluster has {len(shards)}: start on a new folder with --shards {len(shards)}"
        )
    if set(shards) != folders.keys():
        raise MembershipRefused(
            f"data folder {data} has shards {min(folders)} to {max(folders)}, and the cluster has "
            f"{shards[0]} to {shards[-1]}: it belongs to another cluster of the fleet"
        )
    return [replica_id_of(folders[number], entropy) for number in shards]


def _restored_records(data: Path) -> Mapping[str, bytes]:
    """Raises MembershipRefused."""
    try:
        return read_copied(data)
    except (OSError, CatalogUnreadable) as error:
        raise MembershipRefused(f"restore the backup again: {error}") from error
