"""The rules of replication, each as the story that breaks a cluster without it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.replication import ReplicaRole
from cluster.replication.replica_messages import Append, Message
from cluster.replication.voters import VoterSet
from cluster.tests.replication.host import Host
from cluster.tests.replication.stage import Stage, last_index, role_of, staged
from storage.log import Position
from storage.log.entry import read_entry
from storage.log.promise import FIRST_SLOT_AT, PROMISE_FILE, PROMISE_SLOT_BYTES, PromiseFile
from storage.tests.simulated_disk import SimulatedFile


@staged
async def test_all_hosts_get_what_a_majority_acknowledged(stage: Stage) -> None:
    leader = await stage.leader()

    assert await stage.sent(leader, 5)
    await stage.settled()

    assert {host.applied for host in stage.hosts.values()} == {leader.applied}
    assert stage.record.acknowledged == 6


# -- leadership: rules 3, 8, 24, 26, 27 ------------------------------------------------------------


@staged
async def test_a_killed_leader_is_replaced_in_a_higher_term(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader, 3)

    leader.crash(is_power_loss=True)
    other = await stage.leader()
    await stage.sent(other)
    leader.start()
    await stage.settled()

    assert stage.record.served == sorted(set(stage.record.served))


@staged
async def test_a_key_with_our_name_is_deleted_and_its_term_spent(stage: Stage) -> None:
    """Rule 24: the process is back before its lease is over."""
    stage.coordination.ttl_s = 1000.0
    leader = await stage.leader()
    await stage.sent(leader)
    stage.only(leader)
    term = stage.record.served[-1]

    leader.crash(is_power_loss=False)
    leader.start()
    again = await stage.leader()

    assert again is leader
    assert stage.record.served[-1] > term


@pytest.mark.parametrize("reaches_a_voter", [False, True])
def test_a_deposed_leader_does_not_answer_after_it_was_stopped(reaches_a_voter: bool) -> None:
    """Rule 8: it is asked for what its successor acknowledged."""

    @staged
    async def story(stage: Stage) -> None:
        old = await stage.leader()
        await stage.sent(old)
        stage.isolate(old)  # so that no message tells it
        old.pause()
        new = await stage.leader(but=old)
        assert await stage.sent(new, 2)
        if reaches_a_voter:  # which promised a higher term
            third = stage.others(old, new)[0]
            stage.network.cut -= {(old.name, third.name), (third.name, old.name)}

        answered = asyncio.create_task(stage.read(old))
        await asyncio.sleep(0.1)
        old.resume()

        assert not await answered
        stage.heal()
        await stage.settled()

    story()


@pytest.mark.parametrize("is_new", [False, True])
def test_coordination_restored_to_an_older_state_costs_nothing(is_new: bool) -> None:
    """Rule 24: from an old snapshot, and from nothing."""

    @staged
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        await stage.sent(leader)
        stage.coordination.snapshot()
        for _ in range(2):
            leader.crash(is_power_loss=True)
            successor = await stage.leader()
            await stage.sent(successor, 2)
            leader.start()
            leader = successor
        if is_new:
            stage.coordination.forget()
        else:
            stage.coordination.restore()
        await asyncio.sleep(10)
        await stage.settled()

        assert stage.record.served == sorted(set(stage.record.served))
        assert len(stage.record.served) >= 4

    story()


@staged
async def test_a_leader_that_reaches_no_peer_gives_up_the_key_and_rests(stage: Stage) -> None:
    """Rule 27."""
    leader = await stage.leader()
    stage.cut_off(leader)
    stage.append(leader)
    begun = stage.coordination.now()

    await stage.until(lambda: not leader.serves)
    gave_up = stage.coordination.now()
    await stage.leader(but=leader)
    served = stage.coordination.now()

    assert 2.0 <= gave_up - begun < 2.5
    assert served - gave_up < 3.0, "the lease need not run out"
    stage.heal()
    stage.only(leader)
    for other in stage.others(leader):
        other.crash(is_power_loss=False)
        other.start()
    await stage.until(lambda: leader.serves)
    assert stage.coordination.now() - gave_up > stage.timing.rest_s
    stage.heal()
    await stage.settled()


@staged
async def test_a_leader_whose_reads_are_not_confirmed_gives_up(stage: Stage) -> None:
    """Rule 27: however many more of them come."""
    leader = await stage.leader()
    await stage.settled()
    stage.cut_off(leader)
    reads = []
    for _ in range(6):
        reads.append(asyncio.create_task(stage.read(leader)))
        await asyncio.sleep(0.5)

    assert not leader.serves
    assert not any(await asyncio.gather(*reads))
    stage.heal()
    await stage.settled()


@staged
async def test_a_leader_whose_syncs_hang_gives_up(stage: Stage) -> None:
    """Rule 27."""
    leader = await stage.leader()
    leader.disk.sync_s = (100.0, 100.0)
    stage.append(leader)

    other = await stage.leader(but=leader)

    assert await stage.sent(other, 3)


@staged
async def test_a_leader_serves_on_while_coordination_is_away(stage: Stage) -> None:
    leader = await stage.leader()
    stage.coordination.be_away(30.0)
    await asyncio.sleep(20)

    assert leader.serves
    assert await stage.sent(leader, 3)
    assert await stage.read(leader)
    assert len(stage.record.served) == 1


@staged
async def test_a_candidate_adopts_the_log_that_a_majority_may_have_committed(stage: Stage) -> None:
    """Rule 26: the host with the short log is the only one that can take the key."""
    leader = await stage.leader()
    behind, fresh = stage.others(leader)
    stage.cut_off(behind)
    assert await stage.sent(leader, 4)
    leader.crash(is_power_loss=True)
    stage.heal()
    stage.only(behind)

    assert await stage.leader() is behind
    assert last_index(behind) > 4
    assert last_index(fresh) >= 4


@staged
async def test_a_longer_log_of_an_older_term_is_not_adopted(stage: Stage) -> None:
    """Rule 26: the highest term of a last Entry comes first."""
    old = await stage.leader()
    await stage.sent(old)
    stage.isolate(old)
    for _ in range(6):
        stage.append(old)
    new = await stage.leader(but=old)
    third = stage.others(old, new)[0]
    assert await stage.sent(new)
    assert last_index(old) > last_index(new)
    new.crash(is_power_loss=True)
    stage.heal()
    stage.only(third)

    await stage.leader(but=old)
    new.start()
    stage.heal()
    await stage.settled()

    assert last_index(old) == last_index(third)


@staged
async def test_entries_of_older_terms_are_committed_with_one_of_the_leaders_own(
    stage: Stage,
) -> None:
    """Rule 26: a majority has an old Entry, and still another log may be adopted."""
    leader = await stage.leader()
    await stage.sent(leader)
    replica = leader.replica
    assert replica is not None
    stage.drop(lambda sender, to, message: isinstance(message, Append))
    stage.append(leader)
    old = last_index(leader)
    await asyncio.sleep(0.5)
    leader.crash(is_power_loss=False)
    leader.start()
    replica = leader.replica
    assert replica is not None
    stage.only(leader)

    def has_own(sender: str, to: str, message: Message) -> bool:
        if not isinstance(message, Append):
            return False
        entries = [read_entry(record, 0, leader.seed) for record in message.records]
        return any(entry.term == message.term for entry in entries)  # type: ignore[union-attr]

    stage.drop(has_own)
    await stage.until(lambda: all(last_index(host) == old for host in stage.others(leader)))
    await asyncio.sleep(0.5)
    assert role_of(leader) is ReplicaRole.LEADER
    assert replica.commit < old

    stage.heal()
    await stage.until(lambda: leader.serves)
    assert replica.commit > old


# -- voters: rules 22, 23, 25 ----------------------------------------------------------------------


@staged
async def test_a_new_disk_under_an_old_name_does_not_count(stage: Stage) -> None:
    """Rule 22: A and B hold an Entry, C lags behind; B gets a new disk; A dies."""
    a = await stage.leader()
    b, c = stage.others(a)
    stage.cut_off(c)
    assert await stage.sent(a, 3)
    b.crash(is_power_loss=True)
    b.replace_disk()
    a.crash(is_power_loss=True)
    stage.heal()
    b.start()
    await asyncio.sleep(30)

    assert len(stage.record.served) == 1, "B and C elected"
    a.start()
    await stage.settled()
    record = stage.coordination.state().record
    assert record is not None
    assert record.voters[b.id_on_disk()] == b.name
    assert len(record.voters) == 3


@staged
async def test_learners_are_no_majority(stage: Stage) -> None:
    """Rule 22: they have all, and the voters are away."""
    leader = await stage.leader()
    for host in stage.others(leader):
        stage.cut_off(host)
    learners = [stage.join("h4"), stage.join("h5")]
    sent = asyncio.create_task(stage.sent(leader))
    await stage.until(lambda: all(last_index(host) == last_index(leader) for host in learners))

    assert not await sent
    stage.heal()
    await stage.settled()


@staged
async def test_a_learner_is_no_voter_before_it_has_what_was_committed(stage: Stage) -> None:
    """Rule 22: it promised, and no Entry has reached it yet."""
    leader = await stage.leader()
    await stage.settled()
    host = stage.others(leader)[0]
    host.crash(is_power_loss=True)
    host.replace_disk()
    stage.drop(lambda sender, to, message: to == host.name and isinstance(message, Append))
    host.start()
    await asyncio.sleep(10)

    assert not is_voter(stage, host)
    stage.heal()
    await stage.until(lambda: is_voter(stage, host))


@pytest.mark.parametrize("is_of_an_older_term", [False, True])
def test_an_older_copy_does_not_count_for_what_it_acknowledged(is_of_an_older_term: bool) -> None:
    """Rule 22: A and B hold Entries, C lags behind; B gets an older copy of its folder; A dies."""

    @staged
    async def story(stage: Stage) -> None:
        a = await stage.leader()
        b, c = stage.others(a)
        await stage.settled()
        copy, flushed = b.disk.copied(), b.flushed
        if is_of_an_older_term:
            a.crash(is_power_loss=False)
            stage.only(a)
            a.start()
            assert await stage.leader() is a
            stage.heal()
            await stage.settled()
        served = len(stage.record.served)
        stage.cut_off(c)
        assert await stage.sent(a)
        b.crash(is_power_loss=False)
        b.disk.put_back(copy)
        b.flushed = flushed
        b.start()
        stage.drop(lambda sender, to, message: to == b.name and isinstance(message, Append))
        await asyncio.sleep(2)
        a.crash(is_power_loss=True)
        stage.heal()
        await asyncio.sleep(30)

        assert len(stage.record.served) == served, "B and C elected"
        a.start()
        await stage.settled()

    story()


@pytest.mark.parametrize(
    ("apart_s", "has_new_disk"),
    [(0.0, False), (0.05, False), (0.3, False), (2.0, False), (2.0, True)],
)
def test_of_two_older_copies_one_counts_and_the_leader_goes_on(
    apart_s: float, has_new_disk: bool
) -> None:
    """Rule 22: B and C get older copies of their folders while A, which has all, leads; or B gets
    a new disk."""

    @staged
    async def story(stage: Stage) -> None:
        a = await stage.leader()
        others = stage.others(a)
        await stage.settled()
        copies = [(host.disk.copied(), host.flushed) for host in others]
        assert await stage.sent(a, 3)
        await stage.settled()
        for host in others:
            host.crash(is_power_loss=False)
        stage.drop(lambda sender, to, message: isinstance(message, Append))
        for host, (copy, flushed) in zip(others, copies, strict=True):
            if has_new_disk and host is others[0]:
                host.replace_disk()
            else:
                host.disk.put_back(copy)
                host.flushed = flushed
            host.start()
            await asyncio.sleep(apart_s)
        await asyncio.sleep(1)
        stage.heal()
        await asyncio.sleep(30)

        assert await stage.sent(await stage.leader(), 3)
        await stage.settled()

    story()


@pytest.mark.parametrize("later", [2, 12])
def test_entries_that_only_one_host_still_has_are_named_and_kept(later: int) -> None:
    """B gets an older copy of its folder while A is away, so no host can tell what it lacks. The
    new leader's log may be shorter than A's, or longer."""
    staged(partial(_lost_by_a_copy, later=later))()


class Lost(NamedTuple):
    """A host with Entries that the others lost."""

    host: Host
    leader: Host
    before: dict[Host, tuple[dict[Path, SimulatedFile], Position]]
    """Disks and rows of the others before they lost them."""


async def _one_host_with_entries_that_the_others_lost(stage: Stage, later: int = 2) -> Lost:
    """The host is down then, and a leader goes on without them."""
    a = await stage.leader()
    b, c = stage.others(a)
    await stage.settled()
    copy, flushed = b.disk.copied(), b.flushed
    stage.cut_off(c)
    assert await stage.sent(a, 4)
    await stage.until(lambda: b.applied == a.applied)
    a.crash(is_power_loss=False)
    b.crash(is_power_loss=False)
    before = {host: (host.disk.copied(), host.flushed) for host in (b, c)}
    b.disk.put_back(copy)
    b.flushed = flushed
    b.start()
    stage.heal()
    other = await stage.leader()
    await stage.sent(other, later)
    return Lost(a, other, before)


async def _lost_by_a_copy(stage: Stage, later: int) -> None:
    a, other, _ = await _one_host_with_entries_that_the_others_lost(stage, later)
    last = last_index(other)
    shipped: list[int] = []

    def count(sender: str, to: str, message: Message) -> bool:
        if to == a.name and isinstance(message, Append):
            shipped.append(len(message.records))
        return False

    with capture_logs() as logs:
        a.start()
        await asyncio.sleep(5)
        stage.drop(count)
        await asyncio.sleep(5)
        assert sum(shipped) == 0, "the leader sends no Entries that are not taken"
        stage.only(a)
        other.crash(is_power_loss=False)
        await asyncio.sleep(20)

    assert a.replica is not None
    assert a.replica.conflict == f"up to {last_index(a)}"
    assert last_index(a) >= 5, "what it knows to be committed is kept for the operator"
    assert [line["entries"] for line in logs if line["log_level"] == "error"] == [
        a.replica.conflict
    ]
    assert not any(host.serves for host in stage.hosts.values()), "it does not lead"
    stage.heal()
    other.start()
    a.crash(is_power_loss=False)
    a.replace_disk()
    a.start()
    await stage.settled()
    assert last_index(a) > last
    stage.record.findings.clear()  # they name what was lost


@staged
async def test_entries_that_only_one_host_has_outlive_its_restart_and_the_others_logs(
    stage: Stage,
) -> None:
    """No checkpoint replaces them, in whatever term."""
    a, other, _ = await _one_host_with_entries_that_the_others_lost(stage)
    a.start()
    await stage.until(lambda: a.replica is not None and bool(a.replica.conflict))
    last = last_index(a)
    a.crash(is_power_loss=True)
    assert other.replica is not None
    while other.replica.log.start.index <= last:
        await stage.sent(other, 5)
    with capture_logs() as logs:
        a.start()
        await asyncio.sleep(10)
        other.crash(is_power_loss=False)
        other.start()
        await asyncio.sleep(10)

    assert a.replica is not None
    assert (last_index(a), a.replica.conflict) == (last, f"up to {last}")
    assert stage.checkpoints == 0
    assert "acknowledged_entries_lost" in [line["event"] for line in logs]
    stage.record.findings.clear()  # they name what was lost


@staged
async def test_entries_that_a_leader_has_again_are_no_longer_kept_from_it(stage: Stage) -> None:
    """The folders that had them were found, and put back."""
    a, _, before = await _one_host_with_entries_that_the_others_lost(stage)
    stage.record.findings.clear()  # they name what was lost
    a.start()
    await stage.until(lambda: a.replica is not None and bool(a.replica.conflict))
    last = last_index(a)
    for host, (disk, flushed) in before.items():
        host.crash(is_power_loss=False)
        host.disk.put_back(disk)
        host.flushed = flushed
    for host in before:
        host.start()
    await stage.settled()

    assert a.replica is not None
    assert (last_index(a) > last, a.replica.conflict) == (True, "")
    a.crash(is_power_loss=True)
    a.start()
    assert a.replica is not None
    assert not a.replica.conflict
    stage.record.findings.clear()


@staged
async def test_a_term_that_a_peer_promised_to_another_is_given_up(stage: Stage) -> None:
    """Rule 24: coordination was restored, and two hosts took the same term."""
    leader = await stage.leader()
    await stage.settled()
    term = stage.record.served[-1]
    host = stage.others(leader)[0]
    host.crash(is_power_loss=False)
    file = PromiseFile(host.disk, host.folder)
    assert file.promise is not None
    file.write_now(msgspec.structs.replace(file.promise, leader=file.promise.replica_id))
    file.close()
    host.start()
    await asyncio.sleep(5)
    await stage.settled()

    assert stage.record.served[-1] > term


@pytest.mark.parametrize("slot", [0, 1])
def test_a_replica_whose_promise_cannot_be_read_is_a_learner(slot: int) -> None:
    """Rule 25: the slot may have held a later promise."""

    @staged
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        await stage.sent(leader, 3)
        host = stage.others(leader)[0]
        old_id = host.id_on_disk()
        host.crash(is_power_loss=False)
        at = FIRST_SLOT_AT + slot * PROMISE_SLOT_BYTES
        host.disk.flip(host.folder / PROMISE_FILE, at + 30)
        host.start()

        assert host.replica is not None
        assert host.replica.replica_id != old_id
        await stage.settled()

    story()


@staged
async def test_a_promise_that_the_journal_did_not_take_stands_in_no_way(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.settled()
    replica = stage.others(leader)[0].replica
    assert replica is not None
    promise = replica.journal.promise
    voters = VoterSet(promise.term + 1, promise.voters)
    too_long = {**voters.voters, "another": "n" * 20_000}
    given = asyncio.Event()

    with pytest.raises(AssertionError):
        replica.give(voters._replace(voters=too_long), leader.name, given.set)

    assert replica.give(voters, leader.name, given.set)
    async with asyncio.timeout(1):
        await given.wait()
    await stage.settled()


@staged
async def test_a_lost_entry_makes_a_learner_that_heals(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader, 5)
    await asyncio.sleep(1)
    host = stage.others(leader)[0]
    old_id = host.id_on_disk()
    host.crash(is_power_loss=False)
    assert stage.flip_a_bit(host)
    host.start()

    assert host.replica is not None
    assert host.replica.journal.damage
    assert host.replica.replica_id != old_id
    await stage.settled()


@staged
async def test_a_learner_that_comes_back_to_an_idle_leader_heals(stage: Stage) -> None:
    """Its promise is kept, so it takes the heartbeats, and no Entry comes that it would refuse."""
    leader = await stage.leader()
    await stage.sent(leader, 5)
    await stage.settled()
    host = stage.others(leader)[0]
    host.crash(is_power_loss=False)
    assert stage.flip_a_bit(host)
    host.start()
    last = last_index(leader)

    await stage.until(lambda: is_voter(stage, host))

    assert last_index(leader) <= last + 2, "only the first Entries of new terms"


def is_voter(stage: Stage, host: Host) -> bool:
    record = stage.coordination.state().record
    return record is not None and record.voters.get(host.id_on_disk()) == host.name


@staged
async def test_a_damaged_replica_still_tells_what_it_promised(stage: Stage) -> None:
    """Rule 23: a change of voters that is not finished stays one."""
    leader = await stage.leader()
    host = stage.others(leader)[0]
    await stage.settled()
    host.crash(is_power_loss=False)
    file = PromiseFile(host.disk, host.folder)
    assert file.promise is not None
    promise = msgspec.structs.replace(file.promise, term=7, old_voters=("gone",))
    file.write_now(promise)
    file.close()
    assert stage.flip_a_bit(host)
    host.start()

    assert host.replica is not None
    kept = host.replica.journal.promise
    assert kept.replica_id != promise.replica_id
    assert msgspec.structs.replace(kept, replica_id=promise.replica_id) == promise


@staged
async def test_a_change_of_voters_takes_a_new_term_and_drops_the_voters_before(
    stage: Stage,
) -> None:
    """Rule 23."""
    leader = await stage.leader()
    await stage.sent(leader)
    host = stage.others(leader)[0]
    old_id = host.id_on_disk()
    host.crash(is_power_loss=True)
    host.replace_disk()
    host.start()
    before = stage.coordination.state().record
    await stage.settled()

    after = stage.coordination.state().record
    assert before is not None
    assert after is not None
    assert after.term == before.term + 2, "one to drop the lost voter, one for the new one"
    assert not after.old_voters
    assert set(before.voters) - set(after.voters) == {old_id}
    assert leader.serves, "it leads on"


@staged
async def test_a_follower_that_comes_back_to_an_idle_leader_applies_all(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader, 3)
    await stage.settled()
    follower = stage.others(leader)[0]
    last = last_index(leader)

    follower.crash(is_power_loss=False)
    follower.start()
    await stage.until(lambda: follower.applied == leader.applied)

    assert last_index(leader) == last, "nothing was appended meanwhile"
