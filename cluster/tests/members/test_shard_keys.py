"""Leadership of shards on every coordination that has leases."""

from __future__ import annotations

import asyncio

import pytest

from cluster.coordination.coordination import Conflict, Done, Unavailable
from cluster.replication.leadership import Renewal, Seen, TermRecord
from cluster.tests.coordinations import Hosts
from cluster.tests.members.member_hosts import LOG_ID, VOTERS, Candidate, gone


async def test_the_key_and_the_term_record_are_written_together(hosts: Hosts) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    assert await one.read() == Seen(0, None, None)

    revision = await one.taken(term=1)

    expected = Seen(revision, one.holder(1), TermRecord(1, LOG_ID, VOTERS))
    assert await other.read() == expected
    assert await other.read(shard=1) == Seen(0, None, None)


async def test_one_of_several_candidates_takes_the_key(hosts: Hosts) -> None:
    candidates = [Candidate(hosts.host(), name) for name in "abcd"]
    await candidates[0].taken(term=1)
    candidates[0].keys.of_shard(0).release(candidates[0].holder(1))
    await gone(candidates[0])
    seen = [await each.read() for each in candidates]

    outcomes = await asyncio.gather(
        *[each.take(seen, 2) for each, seen in zip(candidates, seen, strict=True)]
    )

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 3 + ["Done"]
    (winner,) = [
        each for each, outcome in zip(candidates, outcomes, strict=True) if type(outcome) is Done
    ]
    assert (await candidates[0].read()).holder == winner.holder(2)


async def test_what_changed_since_it_was_seen_is_not_taken(hosts: Hosts) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    free = await one.read()
    await other.taken(term=1)
    held = await one.read()
    other.keys.of_shard(0).release(other.holder(1))
    await gone(one)

    for seen in (free, held):
        assert isinstance(await one.take(seen, 2), Conflict)
    assert isinstance(await one.take(await one.read(), 2), Done)


async def test_a_leader_changes_the_record_and_keeps_its_lease(hosts: Hosts) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    revision = await one.taken(term=1)

    # as a leader makes it up, from the outcome of its last transaction
    seen = Seen(revision, one.holder(1), TermRecord(1, LOG_ID, VOTERS))
    outcome = await one.take(seen, 2)

    assert isinstance(outcome, Done), outcome
    assert (await other.read()).holder == one.holder(2)
    assert await one.renew(2) is Renewal.KEPT
    await one.lease.release()
    await gone(other)


async def test_a_key_is_deleted_only_by_the_holder_that_it_bears(hosts: Hosts) -> None:
    one, again = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "a")
    await one.taken(term=1)

    one.keys.of_shard(0).release(one.holder(2))
    one.keys.of_shard(1).release(one.holder(1))
    assert await one.renew(1) is Renewal.KEPT

    # by the next process of the host, which finds its name in it
    again.keys.of_shard(0).release(again.holder(1))
    await gone(one)
    assert await one.renew(1) is Renewal.LOST
    assert (await one.read()).record == TermRecord(1, LOG_ID, VOTERS)


async def test_a_leader_that_gives_up_one_shard_keeps_the_others(hosts: Hosts) -> None:
    one = Candidate(hosts.host(), "a")
    for shard in range(3):
        await one.taken(term=1, shard=shard)

    one.keys.of_shard(1).release(one.holder(1))
    await gone(one, shard=1)

    renewed = [await one.renew(1, shard) for shard in range(3)]
    assert renewed == [Renewal.KEPT, Renewal.LOST, Renewal.KEPT]


async def test_all_keys_go_with_the_lease(hosts: Hosts) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    for shard in range(3):
        await one.taken(term=1, shard=shard)

    await one.lease.release()

    for shard in range(3):
        assert (await other.read(shard)).holder is None
        assert await one.renew(1, shard) is Renewal.LOST
    assert isinstance(await one.take(await one.read(), 2), Unavailable), "it is stopping"


@pytest.mark.slow  # a lease ends in real time
async def test_a_lease_that_ended_unheard_is_granted_anew(hosts: Hosts) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    for shard in range(2):
        await one.taken(term=1, shard=shard)
    lease = await one.lease.current()
    assert not isinstance(lease, Unavailable)
    lease.stop()  # type: ignore[attr-defined]  # as if the process was stopped
    await gone(other)
    await gone(other, shard=1)

    assert [await one.renew(1, shard) for shard in range(2)] == [Renewal.LOST] * 2
    assert isinstance(await one.take(await one.read(), 2), Unavailable), "nothing was written"
    assert isinstance(await one.take(await one.read(), 2), Done)
    assert await one.renew(2) is Renewal.KEPT
