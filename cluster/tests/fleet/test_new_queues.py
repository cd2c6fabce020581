"""New queues go where fewer are, in clusters that have leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cluster.fleet.new_queues import shard_for


def test_shards_fill_evenly() -> None:
    clusters = {number: range(3 * number, 3 * number + 3) for number in range(4)}
    queues: Counter[int] = Counter()
    for number in range(1_200):
        queues[shard_for(("account", "r", f"q{number}"), clusters, lambda shard: "a", queues)] += 1
    assert len(queues) == 12
    assert max(queues.values()) <= 1.2 * 100
    assert min(queues.values()) >= 0.8 * 100


def test_a_cluster_without_leaders_gets_no_queue_unless_all_are() -> None:
    clusters = {1: range(2), 2: range(2, 4)}

    def leader_of(shard: int) -> str | None:
        return None if shard == 3 else "a"

    def shards(leader_of: Callable[[int], str | None]) -> set[int]:
        queues: Counter[int] = Counter()
        for number in range(50):
            name = ("a", "r", f"q{number}")
            queues[shard_for(name, clusters, leader_of, queues)] += 1
        return set(queues)

    assert shards(leader_of) == {0, 1}
    assert shards(lambda shard: None) == {0, 1, 2, 3}


def test_a_cluster_that_is_emptied_gets_no_queue() -> None:
    clusters = {1: range(3), 2: range(3, 6)}
    for name in (("account", "r", f"q{number}") for number in range(20)):
        assert shard_for(name, clusters, lambda shard: "a", {}, {2}) in clusters[1]
        assert shard_for(name, clusters, lambda shard: "a", {}, {1, 2}) in range(6)
