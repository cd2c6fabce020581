"""Whose promises and Entries count."""

from __future__ import annotations

from itertools import combinations

import pytest

from cluster.replication.replica_messages import (
    Append,
    Ask,
    HandOver,
    decode_message,
    encode_message,
)
from cluster.replication.voters import VoterSet, latest, next_voters, reached_by_majority
from storage.log import Position

ABC = {"a": "h1", "b": "h2", "c": "h3"}
HOSTS = set(ABC.values())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_two_majorities_of_sets_that_differ_by_one_have_a_voter_in_common(size: int) -> None:
    ids = "abcde"[:size]
    before = VoterSet(1, dict.fromkeys(ids, ""))
    after = VoterSet(2, dict.fromkeys(ids + "x", ""))

    for some in combinations(ids, size // 2 + 1):
        for others in combinations(ids + "x", (size + 1) // 2 + 1):
            assert before.has_majority(some)
            assert after.has_majority(others)
            assert set(some) & set(others)


def test_the_voters_before_count_until_they_are_dropped() -> None:
    changed = VoterSet(2, {"a": "", "b": "", "x": ""}, ("a", "b", "c"))

    assert not changed.has_majority({"a", "x"})
    assert changed.has_majority({"a", "b"})


def test_the_latest_set_is_of_the_highest_term_and_without_the_voters_before() -> None:
    old = VoterSet(1, ABC)
    changing = VoterSet(2, {"a": "h1"}, tuple(ABC))
    changed = VoterSet(2, {"a": "h1"})

    assert latest([changed, old, changing]) == changed
    assert latest([old, changing]) == changing
    assert latest([VoterSet(0, {}), old]) == old


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        ({}, 0),
        ({"a": 7}, 0),
        ({"a": 7, "b": 5}, 5),
        ({"a": 7, "b": 5, "c": 6}, 6),
        ({"a": 7, "learner": 9, "other": 9}, 0),
    ],
)
def test_a_number_counts_when_a_majority_of_the_voters_reached_it(
    reached: dict[str, int], expected: int
) -> None:
    assert reached_by_majority(reached, ABC) == expected


def test_a_learner_becomes_a_voter_after_the_one_it_replaces_was_dropped() -> None:
    without = next_voters(ABC, {"x": "h2"}, HOSTS)
    assert without == {"a": "h1", "c": "h3"}
    assert next_voters(without, {"x": "h2"}, HOSTS) == {**without, "x": "h2"}
    assert next_voters(ABC, {"a": "h1"}, HOSTS) is None
    assert next_voters({"a": "h1"}, {"x": "h1"}, HOSTS) == {"a": "h1", "x": "h1"}


def test_voters_of_removed_hosts_are_dropped_one_by_one() -> None:
    five = {**ABC, "d": "h4", "e": "h5"}
    hosts = {"h1", "h3", "h4"}
    without_one = next_voters(five, {"x": "h6"}, hosts)
    assert without_one == {"a": "h1", "c": "h3", "d": "h4", "e": "h5"}

    assert next_voters(without_one, {}, hosts) == {"a": "h1", "c": "h3", "d": "h4"}
    assert next_voters({"e": "h5"}, {}, hosts) is None, "a set is never empty"


def test_messages_have_a_wire_form() -> None:
    for message in (
        Ask(3, Position(1, 2, 3)),
        Append(4, "a", Position(1, 2, 3), [b"record", b""], 2),
        HandOver(5),
    ):
        assert decode_message(encode_message(message)) == message
