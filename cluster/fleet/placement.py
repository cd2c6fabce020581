"""The shard of a new queue: the better of two that chance draws, of two clusters where there are.
Pure.

Two draws keep the fullest shard close to the average, while creates at the same moment on hosts
that know nothing of each other do not all choose the emptiest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Candidate(NamedTuple):
    """A shard that may get a queue."""

    shard: int
    cluster: int
    queues: int
    """Queues that it has."""
    load: float = 0.0
    """Its cluster's last known load, 0 to 1; 0 if it is not known."""


def placed(candidates: list[Candidate], draw: Callable[[int], int]) -> int:
    """The shard of a new queue; `draw` gives a number below its argument by chance."""
    clusters: dict[int, list[Candidate]] = {}
    for each in candidates:
        clusters.setdefault(each.cluster, []).append(each)
    numbers = sorted(clusters)
    one = clusters[numbers[draw(len(numbers))]]
    others = [number for number in numbers if number != one[0].cluster] or numbers
    two = clusters[others[draw(len(others))]]
    drawn = (one[draw(len(one))], two[draw(len(two))])
    return min(drawn, key=lambda each: (each.load, each.queues, each.shard)).shard


def candidates(
    clusters: Mapping[int, range],
    leader_of: Callable[[int], str | None],
    queues: Mapping[int, int],
) -> list[Candidate]:
    """The shards that may get a queue: those of clusters whose shards all have leaders, or all if
    there is no such cluster. `clusters` are the founded ones, `queues` are counted by shard."""
    led = {
        number: shards
        for number, shards in clusters.items()
        if all(leader_of(shard) is not None for shard in shards)
    }
    return [
        Candidate(shard, number, queues.get(shard, 0))
        for number, shards in (led or clusters).items()
        for shard in shards
    ]
