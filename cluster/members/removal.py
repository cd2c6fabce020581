"""Removal: whether a cluster can go on without a host, and how far it has come; zones, whose hosts
may fail together. Pure.

A host that is removed stops at once, and the others no longer ask it. So those that remain must be
a majority of the voters as they are now: else no set without the host can be made. Until each
shard's leader has made it, the host still counts, and no other may be lost.

All hosts of a cluster vote for each of its shards and keep a copy of it, so it outlives the loss of
a zone if a majority of them is elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from cluster.replication.contract import ReplicaReport
from cluster.replication.leadership import TermRecord
from cluster.replication.voters import VoterSet

_SILENT_S = 1.0
"""Time without an answer after which a leader is said not to hear a voter."""
_ZONES_MATTER = 3
"""Fewer hosts outlive the loss of none anyway."""


def reason_to_keep(
    name: str,
    hosts: Collection[str],
    records: Mapping[int, TermRecord | None],
    reports: Mapping[str, Mapping[int, ReplicaReport]],
) -> str:
    """The reason not to remove this host now, with what to wait for; empty if it can go.

    `hosts` are all members, `records` the latest terms by shard, `reports` the copies of the hosts
    that were reached; one that was just removed may be among these.
    """
    for shard, record in records.items():
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


def change_of(
    record: TermRecord | None,
    leader: str | None,
    copy: ReplicaReport | None,
    hosts: Collection[str],
) -> str:
    """The change of a shard's voters that is under way, and what it waits for; empty if none is.

    `record` is the shard's latest term, `copy` its leader's, None if that was not reached; `hosts`
    are all members.
    """
    if record is None:
        return "its voters are not known"
    gone = sorted(set(record.voters.values()) - set(hosts))
    peers = copy.peers if copy is not None else []
    if gone:
        what = f"{_listed(gone)}, removed, still counts"
    elif record.old_voters:
        what = "the voters before still count"
    elif copy is not None and (copy.is_changing_voters or copy.term != record.term):
        what = "another term is being taken"
    elif unheard := sorted({peer.name for peer in peers} - set(hosts)):
        what = f"its leader has not heard that {_listed(unheard)} is removed"
    else:
        return ""
    return f"{what}; {_awaited(record, leader, copy)}"


def _awaited(record: TermRecord, leader: str | None, copy: ReplicaReport | None) -> str:
    if leader is None:
        return "it waits for a leader"
    if copy is None:
        return f"its leader, host {leader}, is not reached"
    silent = [
        peer.name
        for peer in copy.peers
        if peer.replica_id in record.voters and (peer.heard_s is None or peer.heard_s > _SILENT_S)
    ]
    if silent:
        return f"its leader, host {leader}, does not hear {_listed(sorted(silent))}"
    return f"its leader, host {leader}, goes on"


def _listed(names: Sequence[str]) -> str:
    return "host " + " and host ".join(names)


def _counts(copy: ReplicaReport) -> bool:
    return not copy.needs_checkpoint and not copy.damage and not copy.conflict


def _advice(gone: Sequence[str], away: Sequence[str]) -> str:
    if gone:
        return f"wait until {_listed(gone)}, just removed, counts no more"
    if not away:
        return (
            "add a host first, and wait until its copy counts, or go on with a single host: "
            "restore a backup with --single"
        )
    return f"wait until the copy on host {' and on host '.join(away)} runs and counts"


# -- zones -----------------------------------------------------------------------------------------


def crowded_zones(zones: Iterable[str]) -> dict[str, int]:
    """The zones without which no majority of hosts is left, each with its number of hosts, from
    the zone of each host, empty if it is not known."""
    of_hosts = [*zones]
    in_zone = Counter(filter(None, of_hosts))
    if len(of_hosts) < _ZONES_MATTER:
        return {}
    return {
        zone: count
        for zone, count in sorted(in_zone.items())
        if 2 * (len(of_hosts) - count) <= len(of_hosts)
    }


def zone_problems(zones: Mapping[str, str]) -> list[str]:
    """The reasons why an operator should look at the zones of a cluster's hosts, by host."""
    if len(zones) < _ZONES_MATTER or not any(zones.values()):
        return []
    lines = [
        f"zone {zone} has {count} of {len(zones)} hosts: without it no majority is left; spread "
        "them over three zones"
        for zone, count in crowded_zones(zones.values()).items()
    ]
    unknown = ", ".join(host for host, zone in zones.items() if not zone)
    return [*lines, *([f"the zone of {unknown} is not set, that of others is"] if unknown else [])]
