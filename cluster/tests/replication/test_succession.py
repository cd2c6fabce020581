"""The next leader where several could lead, and voters of hosts that were removed."""

from __future__ import annotations

import asyncio

from cluster.replication.replica_messages import Append
from cluster.tests.replication.stage import Stage, staged


@staged
async def test_a_leader_hands_over_without_losing_or_refusing_what_is_under_way(
    stage: Stage,
) -> None:
    leader = await stage.leader()
    await stage.sent(leader, 3)
    heir = stage.others(leader)[1]
    assert leader.replica is not None
    await stage.until(lambda: heir.name in leader.replica.caught_up)  # type: ignore[union-attr]
    answers = [asyncio.create_task(stage.send(leader, 600)) for _ in range(5)]
    await asyncio.sleep(0)
    begun_s = asyncio.get_running_loop().time()

    leader.replica.hand_over(heir.name)
    successor = await stage.leader(but=leader)

    assert successor is heir
    assert asyncio.get_running_loop().time() - begun_s < stage.timing.silence_s
    assert all(await asyncio.gather(*answers))
    await stage.settled()


@staged
async def test_a_shard_is_led_again_soon_if_the_heir_dies(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    heir, other = stage.others(leader)
    assert leader.replica is not None

    heir.crash(is_power_loss=True)
    leader.replica.hand_over(heir.name)
    successor = await stage.leader(but=leader)

    assert successor is other
    heir.start()
    await stage.settled()


@staged
async def test_a_leader_that_cannot_hand_over_in_time_leads_on(stage: Stage) -> None:
    leader = await stage.leader()
    assert leader.replica is not None
    stage.drop(lambda sender, to, message: isinstance(message, Append))
    stage.append(leader)

    leader.replica.hand_over(stage.others(leader)[0].name)
    assert not leader.replica.has_room
    await stage.until(lambda: leader.replica.has_room)  # type: ignore[union-attr]
    stage.heal()

    assert leader.serves
    await stage.sent(leader)
    await stage.settled()


@staged
async def test_a_reluctant_replica_leads_only_if_no_other_does(stage: Stage) -> None:
    first, *others = stage.hosts.values()
    for host in (first, others[0]):
        assert host.replica is not None
        host.replica.key.reluctance_s = lambda: 10.0

    leader = await stage.leader()
    assert leader is others[1]
    leader.crash(is_power_loss=True)
    crashed_s = asyncio.get_running_loop().time()
    await stage.leader(but=leader)

    assert asyncio.get_running_loop().time() - crashed_s > 10.0
    leader.start()
    await stage.settled()


@staged
async def test_a_leader_that_alone_lost_coordination_is_replaced(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader, 3)

    stage.coordination.unreachable.add(leader.name)
    successor = await stage.leader(but=leader)

    await stage.until(lambda: not leader.serves)
    held = stage.coordination.state().holder
    assert held is not None
    assert held.name == successor.name
    assert await stage.sent(successor, 3)
    stage.heal()
    await stage.settled()


@staged
async def test_a_leader_stays_while_coordination_is_away_from_all(stage: Stage) -> None:
    leader = await stage.leader()
    assert leader.replica is not None
    term = leader.replica.journal.promise.term

    stage.coordination.be_away(30)
    await asyncio.sleep(25)

    assert leader.serves
    assert leader.replica.journal.promise.term == term
    await stage.settled()


@staged
async def test_the_voter_of_a_removed_host_is_dropped(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    removed, other = stage.others(leader)

    removed.crash(is_power_loss=False)
    for host, peer in ((leader, other), (other, leader)):
        assert host.replica is not None
        host.replica.peers = [peer.name]

    def is_dropped() -> bool:
        record = stage.coordination.state().record
        return record is not None and set(record.voters.values()) == {leader.name, other.name}

    await stage.until(is_dropped)
    serving = await stage.leader()
    assert await stage.sent(serving, 3)


@staged
async def test_a_leader_hands_over_only_to_hosts_with_space(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    first, second = stage.others(leader)
    assert leader.replica is not None
    assert first.replica is not None
    first.replica.has_space = lambda: False

    await stage.until(lambda: leader.replica.caught_up == [second.name])  # type: ignore[union-attr]
    first.replica.has_space = lambda: True
    await stage.until(lambda: len(leader.replica.caught_up) == 2)  # type: ignore[union-attr]
    await stage.settled()
