"""The rules of the log in a cluster, each as the story that breaks it without it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cluster.replication import NotServing, ReplicaRole
from cluster.replication.replica_messages import Alive, Append, Appended, Heartbeat, Message
from cluster.tests.replication.stage import Stage, last_index, role_of, staged
from storage.log import Position, entry
from storage.log.promise import PromiseFile


@staged
async def test_at_most_eight_entries_are_under_way(stage: Stage) -> None:
    leader = await stage.leader()
    stage.cut_off(leader)
    replica = leader.replica
    assert replica is not None

    for _ in range(8):
        stage.append(leader)

    assert replica.leading is not None
    assert not replica.leading.has_room
    with pytest.raises(NotServing):
        replica.leading.propose(b"one more")


@staged
async def test_a_leader_whose_sync_fails_gives_up_the_shard(stage: Stage) -> None:
    """Rule 9."""
    leader = await stage.leader()
    await stage.sent(leader)
    leader.disk.failing_syncs = 1

    assert not await stage.sent(leader)
    await stage.settled()

    assert len(stage.record.served) == 2


@staged
async def test_a_start_applies_what_is_known_to_be_committed(stage: Stage) -> None:
    """Rule 15: the rest waits for a leader."""
    leader = await stage.leader()
    await stage.sent(leader, 3)
    stage.cut_off(leader)
    stage.append(leader)
    await asyncio.sleep(0.5)
    applied, last = leader.applied.index, last_index(leader)
    leader.crash(is_power_loss=False)
    leader.start()

    assert leader.applied.index <= applied < last == last_index(leader)
    stage.heal()
    await stage.settled()


@staged
async def test_a_log_that_diverged_is_cut_back(stage: Stage) -> None:
    old = await stage.leader()
    await stage.sent(old)
    stage.isolate(old)
    for _ in range(5):
        stage.append(old)
    new = await stage.leader(but=old)
    assert await stage.sent(new, 2)
    stage.heal()
    await stage.settled()

    assert last_index(old) == last_index(new)
    old.crash(is_power_loss=True)
    old.start()
    assert old.replica is not None
    assert not old.replica.journal.damage


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_log_that_is_cut_back_while_a_sync_fails_has_lost_nothing(failing: int) -> None:
    """The next try must not miss the Entries that this one forgot."""

    @staged
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        assert await stage.sent(leader, 3)
        await stage.settled()
        stage.isolate(leader)
        for _ in range(3):
            stage.append(leader)
        await asyncio.sleep(0.5)
        assert await stage.sent(await stage.leader(but=leader), 2)
        assert leader.replica is not None
        replica_id = leader.replica.replica_id
        fdatasync, syncs = leader.disk.fdatasync, 0

        def fails_once(handle: int) -> None:
            nonlocal syncs
            if role_of(leader) is ReplicaRole.RECOVERING:
                syncs += 1
                leader.disk.failing_syncs = int(syncs == failing)
            fdatasync(handle)

        leader.disk.fdatasync = fails_once  # type: ignore[method-assign]
        stage.heal()
        await stage.settled()

        assert syncs > failing
        assert leader.replica.replica_id == replica_id

    story()


@staged
async def test_entries_of_another_leader_are_not_acknowledged_in_a_new_term(stage: Stage) -> None:
    """A follower has an Entry that its leader lost; the next leader has another one there."""
    leader = await stage.leader()
    await stage.sent(leader)
    follower, third = stage.others(leader)
    stage.cut_off(third)
    leader.disk.sync_s = (1.0, 1.0)
    before = last_index(leader)
    stage.append(leader)
    await stage.until(lambda: last_index(follower) == before + 1)
    await asyncio.sleep(0.01)
    follower.pause()
    leader.disk.forget_unsynced()
    leader.crash(is_power_loss=True)
    leader.disk.sync_s = follower.disk.sync_s
    stage.heal()
    leader.start()
    assert last_index(leader) == before, "the power was cut before its own sync"
    new = await stage.leader()
    assert await stage.sent(new)
    stage.drop(lambda sender, to, message: to == follower.name and isinstance(message, Append))
    follower.resume()
    await asyncio.sleep(2)
    assert follower.applied.index <= before, "it heard heartbeats only"
    replica, leading = follower.replica, new.replica
    assert replica is not None
    assert leading is not None
    told: list[int] = []

    def note(sender: str, to: str, message: Message) -> bool:
        told.extend([message.index] if isinstance(message, Appended) else [])
        return sender == new.name

    stage.drop(note)
    at = replica.log.position_at(before)
    assert at is not None
    replica.receive(new.name, Append(replica.journal.promise.term, leading.replica_id, at, [], 0))
    assert told == [before], "of the last one the leader has said nothing"
    stage.heal()
    await stage.settled()


@staged
async def test_entries_of_another_leader_are_not_committed_after_files_were_opened_anew(
    stage: Stage,
) -> None:
    """A promise was written while its callback was dropped."""
    leader = await stage.leader()
    await stage.sent(leader)
    await stage.settled()
    follower, third = stage.others(leader)
    before = last_index(leader)
    stage.cut_off(third)
    stage.drop(lambda sender, to, message: isinstance(message, Appended))
    stage.append(leader)
    await stage.until(lambda: last_index(follower) == before + 1)
    await asyncio.sleep(0.01)
    stage.cut_off(follower)
    replica = follower.replica
    assert replica is not None
    file = PromiseFile(follower.disk, follower.folder)
    assert file.promise is not None
    term, new_leader = file.promise.term + 1, third.id_on_disk()
    file.write_now(msgspec.structs.replace(file.promise, term=term, leader=new_leader))
    file.close()
    replica.fail("a sync failed")
    await stage.until(lambda: replica.journal.is_open)
    assert replica.journal.promise.term == term

    committed = Position(term, before + 3, 1)
    replica.receive(third.name, Heartbeat(term, new_leader, 1, committed.index, committed))

    assert replica.commit <= before
    stage.heal()
    await stage.settled()


@staged
async def test_an_entry_counts_where_it_is_durable(stage: Stage) -> None:
    leader = await stage.leader()
    follower, third = stage.others(leader)
    stage.cut_off(third)
    follower.disk.sync_s = (1.0, 1.0)

    first = asyncio.create_task(stage.sent(leader))
    await asyncio.sleep(0.4)
    second = asyncio.create_task(stage.sent(leader))
    await asyncio.sleep(0.1)
    assert last_index(follower) == last_index(leader)
    assert not first.done()

    assert await first
    await asyncio.sleep(0.5)
    assert not second.done(), "a sync that had begun before it came says nothing of it"
    assert await second


@staged
async def test_a_log_that_diverged_before_the_leaders_begins_is_cut_back(stage: Stage) -> None:
    """The leader no longer has the Entry from which on the logs differ."""
    old = await stage.leader()
    await stage.sent(old)
    stage.isolate(old)
    for _ in range(6):
        stage.append(old)
    new = await stage.leader(but=old)
    for _ in range(30):
        assert await stage.sent(new)
        new.flush()
    assert new.replica is not None
    assert new.replica.log.start.index > last_index(old)
    stage.heal()
    await stage.settled()

    assert stage.checkpoints == 1


@staged
async def test_a_follower_far_behind_needs_a_checkpoint(stage: Stage) -> None:
    leader = await stage.leader()
    follower = stage.others(leader)[0]
    follower.crash(is_power_loss=True)
    for _ in range(30):
        assert await stage.sent(leader, 2)
        leader.flush()
    assert leader.replica is not None
    log = leader.replica.log
    assert log.start.index > follower.flushed.index + 3
    kept_bytes = log.entries.bytes_above(log.start.index)
    assert kept_bytes >= stage.timing.retained_bytes, "others may lag a little"
    follower.start()

    await stage.until(lambda: follower.replica is not None and follower.replica.needs_checkpoint)
    assert role_of(follower) is ReplicaRole.FOLLOWER
    await stage.settled()

    assert stage.checkpoints == 1
    assert not follower.replica.needs_checkpoint  # type: ignore[union-attr]


@staged
async def test_one_heartbeat_confirms_the_term_for_all_that_wait(stage: Stage) -> None:
    """Rule 8."""
    leader = await stage.leader()
    replica = leader.replica
    assert replica is not None
    rounds: set[int] = set()

    def note(sender: str, to: str, message: Message) -> bool:
        if isinstance(message, Heartbeat):
            rounds.add(message.round)
        return False

    stage.drop(note)
    answers: list[bool] = []
    for _ in range(10):
        replica.confirm(answers.append)
    await stage.until(lambda: len(answers) == 10)

    assert all(answers)
    assert len(rounds) <= 2


@staged
async def test_a_heartbeat_that_was_sent_before_confirms_nothing(stage: Stage) -> None:
    """Rule 8: its answers are late, and one comes twice."""
    leader = await stage.leader()
    await stage.settled()
    replica = leader.replica
    assert replica is not None
    late: list[tuple[str, Message]] = []

    def hold(sender: str, to: str, message: Message) -> bool:
        late.extend([(sender, message)] if isinstance(message, Alive) else [])
        return isinstance(message, Alive)

    stage.drop(hold)
    await stage.until(lambda: len(late) == 2)
    before = late[:]
    answers: list[bool] = []
    replica.confirm(answers.append)
    for sender, message in before * 2:
        replica.receive(sender, message)

    assert not answers
    stage.heal()
    await stage.until(lambda: answers == [True])


@staged
async def test_what_was_acknowledged_above_a_checkpoint_stays(stage: Stage) -> None:
    """Rule 22: a voter's rows are damaged, and its log is longer than the checkpoint."""
    leader = await stage.leader()
    assert await stage.sent(leader, 5)
    behind, damaged = stage.others(leader)
    await stage.until(lambda: behind.applied == damaged.applied == leader.applied)
    stage.cut_off(behind)
    assert await stage.sent(leader, 5)

    assert damaged.take_rows(behind)

    assert last_index(damaged) >= behind.applied.index + 5
    leader.crash(is_power_loss=True)
    stage.heal()
    await stage.leader(but=leader)
    leader.start()
    await stage.settled()
    assert damaged.replica is not None
    assert not damaged.replica.journal.damage


@staged
async def test_a_log_that_lost_committed_entries_while_it_ran_is_replaced(stage: Stage) -> None:
    leader = await stage.leader()
    assert await stage.sent(leader, 40)
    host = stage.others(leader)[0]
    await stage.until(lambda: host.applied == leader.applied)
    replica = host.replica
    assert replica is not None
    leader.flush()
    assert leader.replica is not None
    start = leader.replica.log.start.index
    assert host.flushed.index < start - 5
    host.disk.flip_in(host.folder, replica.log.entries.recent(start - 5, 0)[0], 100)

    replica.fail("a sync failed")
    await stage.until(lambda: "is lost" in replica.journal.damage)

    assert last_index(host) < start < replica.commit
    await stage.settled()
    assert stage.checkpoints == 1


@staged
async def test_entries_of_a_later_version_wait_until_a_majority_reads_them(stage: Stage) -> None:
    """Rule 33: a host that does not know their format neither takes nor damages anything."""
    leader = await stage.leader()
    await stage.sent(leader)
    before = {host: last_index(host) for host in stage.others(leader)}
    assert leader.replica is not None
    leader.replica.journal.written_as = lambda: 2

    assert not await stage.sent(leader)

    for host, last in before.items():
        assert last_index(host) == last
        assert host.replica is not None
        assert host.replica.replica_id in host.replica.journal.promise.voters, "it still counts"
    with pytest.MonkeyPatch.context() as later:
        later.setattr(entry, "NEWEST_FORMAT", 2)  # all hosts have the later version now
        await stage.settled()


@staged
async def test_heartbeats_are_fewer_while_all_hosts_know_all(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.settled()
    one, other = stage.others(leader)
    beats: list[str] = []

    def count(sender: str, to: str, message: Message) -> bool:
        if isinstance(message, Heartbeat) and to == one.name:
            beats.append(to)
        return False

    async def beats_in(seconds: float) -> int:
        beats.clear()
        await asyncio.sleep(seconds)
        return len(beats)

    stage.drop(count)
    await asyncio.sleep(1)
    quiet = await beats_in(30)
    stage.cut_off(other)
    await asyncio.sleep(1)
    assert await beats_in(30) > 1.2 * quiet, "a host that comes back is heard soon"
    stage.heal()
    stage.drop(count)
    await stage.settled()
    await asyncio.sleep(1)
    assert await beats_in(30) < 1.1 * quiet
