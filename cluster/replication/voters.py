"""Voters: whose promises and synced Entries count in a term. Pure.

A term has one set of voters (rule 23). After a change it also names the voters before, until its
leader has committed an Entry of its own: till then promises of a majority of both sets are needed,
so that no leader overlooks what the set before committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

Voters = Mapping[str, str]
"""Names of hosts by replica id."""


class VoterSet(NamedTuple):
    """The voters of a term."""

    term: int
    voters: Voters
    old_voters: tuple[str, ...] = ()
    """Ids of the set before, if it still counts."""

    def has_majority(self, ids: Collection[str]) -> bool:
        """True if these replicas may elect."""
        return _has_majority(ids, self.voters) and (
            not self.old_voters or _has_majority(ids, self.old_voters)
        )


def _has_majority(ids: Collection[str], voters: Collection[str]) -> bool:
    return 2 * sum(voter in ids for voter in voters) > len(voters)


def latest(sets: Iterable[VoterSet]) -> VoterSet:
    """The set of the highest term; of one term the one that dropped the voters before."""
    return max(sets, key=lambda each: (each.term, bool(each.voters), not each.old_voters))


def reached_by_majority(reached: Mapping[str, int], voters: Collection[str]) -> int:
    """The highest number that a majority of the voters has reached."""
    numbers = sorted((reached.get(voter, 0) for voter in voters), reverse=True)
    return numbers[len(voters) // 2] if numbers else 0


def next_voters(voters: Voters, caught_up: Voters, hosts: Collection[str]) -> Voters | None:
    """The next set, by one voter different, if it is to change.

    Replicas that are lost on a host whose disk was replaced go first, then voters of hosts that
    were removed, which may still run; a replica that has caught up becomes a voter.
    """
    learners = sorted((name, new) for new, name in caught_up.items() if new not in voters)
    names = {name for name, _ in learners}
    lost = [voter for voter, name in sorted(voters.items()) if name in names]
    removed = [voter for voter, name in sorted(voters.items()) if name not in hosts]
    gone = lost + removed
    if gone and len(voters) > 1:
        return _without(voters, gone[0])
    if learners:
        name, new = learners[0]
        return {**voters, new: name}
    return None


def _without(voters: Voters, dropped: str) -> Voters:
    return {voter: name for voter, name in voters.items() if voter != dropped}
