"""New queues go to the better of two shards drawn by chance, of clusters that have leaders."""

from __future__ import annotations

from collections import Counter
from random import Random

from cluster.fleet.placement import Candidate, candidates, placed


def test_the_better_of_two_clusters_gets_the_queue() -> None:
    few, many = Candidate(0, 1, 5), Candidate(3, 2, 9)
    assert placed([few, many], lambda below: 0) == 0
    assert placed([few, many._replace(queues=0)], lambda below: 0) == 3
    assert placed([few._replace(load=0.9), many], lambda below: 0) == 3, "load counts for more"
    assert placed([few], lambda below: 0) == 0


def test_shards_fill_evenly() -> None:
    random = Random(1)
    clusters = {number: range(3 * number, 3 * number + 3) for number in range(10)}
    queues: Counter[int] = Counter()
    for _ in range(3_000):
        shard = placed(candidates(clusters, lambda shard: "a", queues), random.randrange)
        queues[shard] += 1
    assert max(queues.values()) <= 1.1 * 3_000 / 30
    assert min(queues.values()) >= 0.9 * 3_000 / 30


def test_a_cluster_without_leaders_gets_no_queue_unless_all_are() -> None:
    clusters = {1: range(2), 2: range(2, 4)}

    def leader_of(shard: int) -> str | None:
        return None if shard == 3 else "a"

    assert [each.shard for each in candidates(clusters, leader_of, {})] == [0, 1]
    assert [each.shard for each in candidates(clusters, lambda shard: None, {})] == [0, 1, 2, 3]
