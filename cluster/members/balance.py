"""The hosts that should lead which shards. Pure, so that all hosts come to the same result.

Leaders are given by shard, None for a shard without one. Hosts that may
lead are those that run and are not drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Move(NamedTuple):
    """A shard whose leader hands it over."""

    shard: int
    to: str


def next_leaders(leaders: Mapping[int, str | None], hosts: Collection[str]) -> dict[int, str]:
    """The host that should take each shard without a leader: one of those that lead least."""
    counts = _counts(leaders, hosts)
    chosen: dict[int, str] = {}
    for shard, leader in leaders.items():
        if leader is None and counts:
            chosen[shard] = _least(counts, counts)
            counts[chosen[shard]] += 1
    return chosen


def next_move(
    host: str,
    leaders: Mapping[int, str | None],
    hosts: Collection[str],
    caught_up: Mapping[int, Collection[str]],
) -> Move | None:
    """A shard that this host should hand over now, None if it keeps those that it leads.

    `caught_up` has the hosts that could take each shard led here. A host that may not lead gives
    up all it can; another one gives a shard to a host that leads at least two fewer.
    """
    counts = _counts(leaders, hosts)
    own = sum(leader == host for leader in leaders.values())
    for shard in sorted(caught_up):
        able = (counts.keys() & set(caught_up[shard])) - {host}
        if leaders[shard] != host or not able:
            continue
        to = _least(counts, able)
        if host not in counts or own - counts[to] >= 2:
            return Move(shard, to)
    return None


def _counts(leaders: Mapping[int, str | None], hosts: Collection[str]) -> Counter[str]:
    """Shards that each of these hosts leads."""
    counts = Counter(dict.fromkeys(hosts, 0))
    counts.update(leader for leader in leaders.values() if leader is not None and leader in counts)
    return counts


def _least(counts: Mapping[str, int], hosts: Collection[str]) -> str:
    return min(hosts, key=lambda name: (counts[name], name))
