"""The shard of a new part: of two clusters of the account's hand, drawn by hash, the less loaded
one. Pure.

The hand of an account is the few clusters that its queues go to. One account's poison takes a share
of the fleet, not all of it: two accounts seldom have the same hand. A hand is computed by
rendezvous hash, so all hosts have the same one without a record, and a new cluster changes few
hands.

Never the cluster least loaded of all: loads are up to thirty seconds old, and all creates of that
time would go to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

from cluster.fleet.plan_table import Cluster
from visibility.contract.queue_parts import PARTS_MAX

HAND = 4
"""Clusters of an account. With 100 clusters there are 3.9 million hands."""
REACH = 2 * PARTS_MAX
"""Clusters of an account's order that parts may go to, if too few of its hand can take them."""
NEW_QUEUE = 0.002
"""The share of a loop that a new queue counts until its shard is reported."""


class KnownLoads(Protocol):
    """Loads of clusters and shards, with what was assigned since they were reported."""

    def load(self, cluster: str) -> float:
        """The load of a cluster."""

    def shard(self, shard: int) -> float:
        """The share of a loop that is asked of a shard."""

    def has_room(self, cluster: str, asked: float) -> bool:
        """True if a cluster may take a new part that asks for this share of a loop."""


def choose_shard(
    queue: str,
    account: str,
    clusters: Mapping[str, Cluster],
    loads: KnownLoads,
    may_use: Callable[[str], bool],
) -> int | None:
    """The shard of a new queue, by its ARN. None if `may_use` allows no cluster at all.

    Nobody is asked. A create is not refused for load: if every cluster is full, the less loaded of
    two takes it.
    """
    dealt = hand(account, clusters.values(), len(clusters))
    for size in range(HAND, max(HAND, len(dealt)) + 1):
        able = [n for n in dealt[:size] if may_use(n) and loads.has_room(n, NEW_QUEUE)]
        if able:
            return shard_in(clusters, queue, able, loads)
    able = [name for name in dealt[:HAND] if may_use(name)] or [
        name for name in dealt if may_use(name)
    ]
    return shard_in(clusters, queue, able, loads) if able else None


def shard_in(
    clusters: Mapping[str, Cluster],
    key: str,
    names: Collection[str],
    loads: KnownLoads,
    avoid: Collection[int] = (),
) -> int:
    """A shard of these clusters, at least one of which has one that is not to be avoided."""
    free = {n: [s for s in clusters[n].shards if s not in avoid] for n in names}
    drawn = two_of(key, [name for name in names if free[name]])
    name = min(drawn, key=lambda each: (loads.load(each), each))
    shards = two_of(key, [str(shard) for shard in free[name]])
    return min(map(int, shards), key=lambda shard: (loads.shard(shard), shard))


def shards_of_new_parts(
    clusters: Mapping[str, Cluster],
    key: str,
    loads: KnownLoads,
    count: int,
    avoid: Collection[int],
    has: Mapping[str, int],
    room: Mapping[str, int],
) -> list[int]:
    """Up to this many different shards of the clusters that have `room`, spread over clusters
    first. `has` and `room` count, by cluster, the parts that are there and those it may get."""
    chosen: list[int] = []
    drawn, left = Counter(has), Counter(room)
    cluster_of = {shard: name for name in room for shard in clusters[name].shards}
    for number in range(count):
        taken = {*avoid, *chosen}
        able = [n for n in room if left[n] > 0 and any(s not in taken for s in clusters[n].shards)]
        if not able:
            break
        fewest = min(drawn[name] for name in able)
        able = [name for name in able if drawn[name] == fewest]
        shard = shard_in(clusters, f"{key}/{number}", able, loads, taken)
        drawn[cluster_of[shard]] += 1
        left[cluster_of[shard]] -= 1
        chosen.append(shard)
    return chosen


# -- hands -----------------------------------------------------------------------------------------


def rank(*names: str) -> int:
    """A hash of these names, the same on every host."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "big")


def two_of(key: str, names: Collection[str]) -> list[str]:
    """Two of these names, or the only one, drawn by the hash of the key."""
    return sorted(names, key=lambda name: rank(key, name))[:2]


def hand(account: str, clusters: Collection[Cluster], size: int = HAND) -> tuple[str, ...]:
    """The account's clusters, at most `size`, spread over zones; a larger hand has the smaller
    one at its beginning. Clusters that are being emptied are in no hand."""
    places = tuple((each.name, each.zone) for each in clusters if not each.is_draining)
    return _hand(account, places)[:size]


@lru_cache(maxsize=16_384)
def _hand(account: str, places: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """All clusters: first the best one of each zone, then the second of each, and so on."""
    in_zone: dict[str, int] = {}
    ordered: list[tuple[int, int, str]] = []
    for ranked, name, zone in sorted((rank(account, name), name, zone) for name, zone in places):
        in_zone[zone] = in_zone.get(zone, -1) + 1
        ordered.append((in_zone[zone], ranked, name))
    return tuple(name for _, _, name in sorted(ordered))
