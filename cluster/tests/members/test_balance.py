"""The rule that spreads leaders over the hosts."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from cluster.members.balance import Move, next_leaders, next_move

ABC = ("a", "b", "c")


@pytest.mark.parametrize(
    ("leaders", "hosts", "expected"),
    [
        ([None] * 6, ABC, {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}),
        # the shards of a host that failed go to different ones
        (["b", None, None, "c"], ("b", "c"), {1: "b", 2: "c"}),
        (["b", None, None, "c", "b"], ("b", "c"), {1: "c", 2: "b"}),
        (["a", "b"], ABC, {}),
        ([None], (), {}),
        # the leader of a shard may be about to be missed
        (["x", None], ABC, {1: "a"}),
    ],
)
def test_free_shards_are_for_the_hosts_that_lead_least(
    leaders: list[str | None], hosts: tuple[str, ...], expected: dict[int, str]
) -> None:
    assert next_leaders(dict(enumerate(leaders)), hosts) == expected


def everyone(leaders: list[str | None], host: str) -> dict[int, tuple[str, ...]]:
    return {shard: ABC for shard, leader in enumerate(leaders) if leader == host}


@pytest.mark.parametrize(
    ("leaders", "hosts", "expected"),
    [
        # c came back
        (["a", "b", "a", "b", "a", "b"], ABC, {"a": Move(0, "c"), "b": Move(1, "c"), "c": None}),
        # even, or as even as it can be
        (["a", "b", "c", "a", "b", "c"], ABC, {"a": None, "b": None, "c": None}),
        (["a", "b", "c", "a"], ABC, {"a": None, "b": None, "c": None}),
        (["a"], ABC, {"a": None}),
        # a is drained
        (["a", "b", "c"], ("b", "c"), {"a": Move(0, "b"), "b": None, "c": None}),
        # nobody else is there
        (["a", "a"], ("a",), {"a": None}),
        (["a", "a"], (), {"a": None}),
        ([None, "a", "a"], ABC, {"a": Move(1, "b")}),
    ],
)
def test_a_host_with_two_more_than_another_hands_one_over(
    leaders: list[str | None], hosts: tuple[str, ...], expected: dict[str, Move | None]
) -> None:
    for host, move in expected.items():
        found = next_move(host, dict(enumerate(leaders)), hosts, everyone(leaders, host))
        assert found == move


def test_a_shard_goes_only_to_a_host_that_has_caught_up() -> None:
    leaders: dict[int, str | None] = {0: "a", 1: "a", 2: "a", 3: "b"}

    assert next_move("a", leaders, ABC, {0: (), 1: ("b",), 2: ("b",)}) == Move(1, "b")
    assert next_move("a", leaders, ABC, {0: (), 1: ("b",), 2: ("c",)}) == Move(1, "b")
    assert next_move("a", leaders | {4: "b"}, ABC, {0: (), 1: ("b",), 2: ("c",)}) == Move(2, "c")
    assert next_move("a", leaders, ABC, {0: (), 1: (), 2: ()}) is None
    assert next_move("a", leaders, ("b", "c"), {0: (), 1: ("b",)}) == Move(1, "b")


@pytest.mark.parametrize("seed", range(50))
def test_moves_of_all_hosts_at_once_come_to_an_even_end(seed: int) -> None:
    random = Random(seed)
    hosts = "abcde"[: random.randint(1, 5)]
    able = random.sample(hosts, random.randint(1, len(hosts)))
    leaders: list[str | None] = [random.choice(hosts) for _ in range(random.randint(1, 12))]

    for _ in range(60):
        moves = []
        for host in hosts:
            caught_up = {shard: hosts for shard, leader in enumerate(leaders) if leader == host}
            moves.append(next_move(host, dict(enumerate(leaders)), able, caught_up))
        for move in filter(None, moves):
            leaders[move.shard] = move.to
        if not any(moves):
            break

    counts = Counter(leaders)
    each = [counts[host] for host in able]
    assert sum(each) == len(leaders), "a drained host leads nothing"
    assert max(each) - min(each) <= 1
