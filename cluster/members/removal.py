"""Removal: whether a cluster can go on without a host. Pure.

A host that is removed stops at once, and the others no longer ask it. So those that remain must be
a majority of the voters as they are now: else no set without the host can be made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cluster.replication.leadership import TermRecord
from cluster.replication.report import ReplicaReport
from cluster.replication.voters import VoterSet


def reason_to_keep(
    name: str,
    hosts: Collection[str],
    records: Sequence[TermRecord | None],
    reports: Mapping[str, Mapping[int, ReplicaReport]],
) -> str:
    """The reason not to remove this host now, with what to wait for; empty if it can go.

    `hosts` are all members, `records` the shards' latest terms, `reports` the copies of the hosts
    that were reached; one that was just removed may be among these.
    """
    for shard, record in enumerate(records):
        if record is None:
            return f"the voters of shard {shard} are not known: try again"
        if name not in record.voters.values() and not record.old_voters:
            continue
        ids = {
            host: own[shard].replica_id
            for host, own in reports.items()
            if host in hosts and host != name and shard in own and _counts(own[shard])
        }
        voters = VoterSet(record.term, record.voters, record.old_voters)
        if not voters.has_majority(set(ids.values())):
            gone = sorted(set(record.voters.values()) - {*hosts, name})
            away = sorted(
                host for host in hosts if host != name and ids.get(host) not in record.voters
            )
            advice = _advice(gone, away)
            return f"without host {name} shard {shard} would have no majority: {advice}"
    return ""


def _counts(copy: ReplicaReport) -> bool:
    return not copy.needs_checkpoint and not copy.damage


def _advice(gone: Sequence[str], away: Sequence[str]) -> str:
    if gone:
        return f"wait until host {' and host '.join(gone)}, just removed, counts no more"
    if not away:
        return (
            "add a host first, and wait until its copy counts, or found a cluster of one host with "
            "a backup"
        )
    return f"wait until the copy on host {' and on host '.join(away)} runs and counts"
