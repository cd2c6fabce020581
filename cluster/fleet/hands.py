"""The hand of an account: the few clusters that its queues go to. Pure.

One account's poison takes a share of the fleet, not all of it: two accounts seldom have the same
hand. A hand is computed by rendezvous hash, so all hosts have the same one without a record, and a
new cluster changes few hands.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

from cluster.fleet.plan_table import Cluster
from visibility.contract.queue_parts import PARTS_MAX

HAND = 4
"""Clusters of an account. With 100 clusters there are 3.9 million hands."""
REACH = 2 * PARTS_MAX
"""Clusters of an account's order that parts may go to, if too few of its hand can take them."""


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
