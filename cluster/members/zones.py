"""Zones: hosts of one zone may fail together. Pure.

All hosts of a cluster vote for each of its shards and keep a copy of it, so it outlives the loss of
a zone if a majority of them is elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

_ZONES_MATTER = 3
"""Fewer hosts outlive the loss of none anyway."""


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
