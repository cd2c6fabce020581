"""A new leader learns before it decides, and a leader that cannot continue gives up."""

from __future__ import annotations

import asyncio

import msgspec
from structlog.testing import capture_logs

from cluster.shards.shard_report import Phase
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost, fetching, restart
from cluster.tests.replication.test_shards import Q, bodies, received, sent, staged
from cluster.tests.shard_pair import in_shard
from cluster.tests.world import lead_of, state_of
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters
from visibility.contract.outcomes import Answer, Deliveries
from visibility.contract.queue_parts import Part
from visibility.contract.results import SendMessageResult
from visibility.rows.row_keys import message_key
from visibility.rules.noted_parts import NoteParts
from visibility.rules.pulse import STEP_MESSAGES
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

ORDERS = prepared.queue_named("orders", 2)


async def restore_etcd(cluster: ShardCluster) -> None:
    """Stop all hosts, and start them over a catalog that is older than ORDERS."""
    cluster.queues.define(ORDERS)
    leader = await cluster.leader()
    answer = await cluster.answer(leader, prepared.send(ORDERS, "an order"))
    assert isinstance(answer, SendMessageResult)
    for host in cluster.hosts.values():
        await host.stop()
    cluster.queues = KnownQueues(Q)
    for host in cluster.hosts.values():
        host.start()


@staged
async def test_a_queue_made_after_a_restore_of_etcd_has_an_id_that_no_shard_knows(
    cluster: ShardCluster,
) -> None:
    with capture_logs() as lines:
        await restore_etcd(cluster)
        leader = await cluster.leader()

    audit = cluster.queues.define(prepared.queue_named("audit", cluster.highest_queue_id + 1))
    answer = await cluster.answer(leader, prepared.receive(audit, 10))
    assert isinstance(answer, Deliveries)
    assert bodies(answer) == [], "an order of another account"
    (line,) = [line for line in lines if line["event"] == "queue_ids_raised"]
    assert (line["log_level"], line["shard"], line["queue_ids"]) == ("error", 0, [2])
    assert (line["queues"], line["issued"]) == (1, 1)
    await sent(cluster, leader, "a")
    assert bodies(await received(cluster, leader)) == ["a"], "other queues are served"


@staged
async def test_an_id_of_a_queue_that_messages_are_on_their_way_to_is_not_issued_again(
    cluster: ShardCluster,
) -> None:
    letters = in_shard(1, prepared.queue_named("letters", 7))
    source = prepared.queue_named("q", 1, dead_letters_to=letters, VisibilityTimeout="0")
    for queue in (letters, source):
        cluster.queues.define(queue)
    leader = await cluster.leader()
    await sent(cluster, leader, "a dead letter")
    for _ in range(2):
        await cluster.answer(leader, prepared.receive(source, 10, dead_letter_queue=letters))
    assert state_of(leader.shard).outbox.by_target == {letters.queue_id: 1}
    for host in cluster.hosts.values():
        await host.stop()

    cluster.queues = KnownQueues(Q)
    for host in cluster.hosts.values():
        host.start()
    await cluster.leader()

    assert cluster.highest_queue_id == letters.queue_id


@staged
async def test_ids_are_raised_once(cluster: ShardCluster) -> None:
    await restore_etcd(cluster)
    old = await cluster.leader()
    raised: list[int] = []
    cluster.queues.issued += 5

    async def note(at_least: int) -> None:
        raised.append(at_least)

    cluster.raise_ids = note  # type: ignore[method-assign]
    old.crash(is_power_loss=True)
    await cluster.leader()

    assert raised == []


@staged
async def test_no_shard_leads_while_the_ids_of_its_queues_could_be_issued_again(
    cluster: ShardCluster,
) -> None:
    cluster.is_catalog_away = True
    with capture_logs() as lines:
        await restore_etcd(cluster)
        await asyncio.sleep(60)
        assert cluster.leading() is None

    refusals = [line for line in lines if line["event"] == "shard_not_loaded"]
    assert len({line["error"] for line in refusals}) == 1
    assert "holds queue 2" in refusals[0]["error"]
    cluster.is_catalog_away = False
    await cluster.leader()
    assert cluster.highest_queue_id == ORDERS.queue_id


@staged
async def test_a_host_whose_view_is_old_leaves_the_lead_to_another(cluster: ShardCluster) -> None:
    """Else sends to a queue that was purged would be lost, and its numbers given again."""
    old = await cluster.leader()
    await sent(cluster, old, "purged")
    asked: list[str] = []

    async def catch_up() -> bool:
        holder = cluster.coordination.state().holder
        assert holder is not None
        asked.append(holder.name)
        if len(asked) == 1:
            return False
        if not cluster.queues.purged:
            cluster.queues.purge(Q)
        return True

    cluster.catch_up = catch_up
    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert asked == [asked[0], new.name]
    assert asked[0] != new.name
    successor = cluster.queues.queues[Q.queue_id + 1_000]
    assert state_of(new.shard).queue(successor.queue_id).continues == Q.queue_id


@staged
async def test_the_last_host_tries_again_until_its_view_is_the_latest(
    cluster: ShardCluster,
) -> None:
    asked = 0

    async def catch_up() -> bool:
        nonlocal asked
        asked += 1
        return asked > 4

    cluster.catch_up = catch_up
    leader = await cluster.leader()

    assert asked == 5
    await sent(cluster, leader, "a")


@staged
async def test_a_request_of_an_earlier_turn_that_meets_damage_is_refused_by_a_follower(
    cluster: ShardCluster,
) -> None:
    """Then a router asks the next leader what became of it."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    assert bodies(await received(cluster, leader)) == ["a"]
    await cluster.alike()
    restart(cluster)  # the message is in no memory
    leader = await cluster.leader()
    await cluster.alike()
    fetching(cluster)
    leader.rows[message_key(1, 1)] = b"\x01rubbish"
    await asyncio.sleep(15)
    refused: list[tuple[type[Answer | QueueError], Phase]] = []

    def on_answer(answer: Answer | QueueError) -> None:
        refused.append((type(answer), leader.shard.phase))

    leader.shard.submit(prepared.receive(Q, wait_s=20), on_answer)
    await cluster.until(lambda: bool(refused))

    assert refused == [(ServiceUnavailable, Phase.FOLLOWING)]


@staged
async def test_what_a_bug_in_a_turn_refuses_is_refused_by_a_shard_that_has_failed(
    cluster: ShardCluster,
) -> None:
    leader = await cluster.leader()
    refused: list[tuple[type[Answer | QueueError], bool]] = []

    def on_answer(answer: Answer | QueueError) -> None:
        refused.append((type(answer), leader.shard.ready))

    lead_of(leader.shard)._rows.changes = None  # type: ignore[assignment]  # a bug: no Turn records
    leader.shard.submit(prepared.send(Q, "a"), on_answer)
    await cluster.until(lambda: bool(refused))

    assert refused == [(ServiceUnavailable, False)]
    await sent(cluster, await cluster.leader(but=leader), "b")


@staged
async def test_what_expired_while_no_host_led_is_not_received_from_the_next_leader(
    cluster: ShardCluster,
) -> None:
    """More of it than the pulses of a Turn remove; the clock is not trusted after so long."""
    short, fifo = (
        cluster.queues.define(prepared.queue_named(name, queue_id, MessageRetentionPeriod="60"))
        for queue_id, name in enumerate(("short", "short.fifo"), 3)
    )
    leader = await cluster.leader()
    for number in range(2 * STEP_MESSAGES):
        body = f"m{number}"
        asked = [prepared.send(short, body), prepared.send(fifo, body, group="g")]
        replies = [cluster.ask(leader, each) for each in asked]
    await cluster.until(lambda: all(reply.answers for reply in replies))
    await asyncio.sleep(50)
    for host in cluster.hosts.values():
        host.crash(is_power_loss=False)
    await asyncio.sleep(61)
    for host in cluster.hosts.values():
        host.start()

    leader = await cluster.leader()
    for queue in (short, fifo):
        answer = await cluster.answer(leader, prepared.receive(queue, 10))
        assert answer == Deliveries([], [])


WHOLE = prepared.queue_named("split", 5)
SPLIT = msgspec.structs.replace(
    WHOLE, version=2, parts=(Part(0, 5, 0), Part(16, 6, 0)), last_part=16
)


async def restore_etcd_of_before_a_split(cluster: ShardCluster) -> None:
    """Stop all hosts, and start them over a catalog that knows of no parts."""
    for part in SPLIT.all_parts():
        cluster.queues.define(part)
    old = await cluster.leader()
    assert (await cluster.answer(old, prepared.prepared(SPLIT, NoteParts()))) is None
    answer = await cluster.answer(old, prepared.send(SPLIT.all_parts()[1], "an order"))
    assert isinstance(answer, SendMessageResult)
    for host in cluster.hosts.values():
        await host.stop()
    cluster.queues = KnownQueues(Q, WHOLE)
    for host in cluster.hosts.values():
        host.start()


@staged
async def test_a_leader_has_later_parts_written_back_before_it_takes_requests(
    cluster: ShardCluster,
) -> None:
    with capture_logs() as lines:
        await restore_etcd_of_before_a_split(cluster)
        leader = await cluster.leader()

    part = cluster.queues.queues[6]
    assert part.parts == SPLIT.parts
    answer = await cluster.answer(leader, prepared.receive(part, 10))
    assert isinstance(answer, Deliveries)
    assert bodies(answer) == ["an order"]
    (line,) = [line for line in lines if line["event"] == "parts_written_back"]
    assert (line["log_level"], line["queue"], line["parts"]) == ("error", WHOLE.arn, [0, 16])
    assert not [line for line in lines if line["event"] == "queue_ids_raised"]
    assert leader.shard.report().parts_written_back == 1


@staged
async def test_no_shard_leads_while_its_later_parts_cannot_be_written_back(
    cluster: ShardCluster,
) -> None:
    await restore_etcd_of_before_a_split(cluster)
    cluster.is_catalog_away = True
    with capture_logs() as lines:
        await asyncio.sleep(60)
        assert cluster.leading() is None
    assert any("later parts" in line.get("error", "") for line in lines)

    cluster.is_catalog_away = False
    leader = await cluster.leader()
    assert leader.shard.report().parts_written_back == 1


async def restore_beside_running_hosts(cluster: ShardCluster) -> ShardHost:
    """The catalog forgets the parts while a host leads; returns that host."""
    for part in SPLIT.all_parts():
        cluster.queues.define(part)
    leader = await cluster.leader()
    assert (await cluster.answer(leader, prepared.prepared(SPLIT, NoteParts()))) is None
    answer = await cluster.answer(leader, prepared.send(SPLIT.all_parts()[1], "an order"))
    assert isinstance(answer, SendMessageResult)
    del cluster.queues.queues[6]
    cluster.queues.define(WHOLE)
    cluster.etcd_went_back()
    return leader


@staged
async def test_a_leader_that_goes_on_has_later_parts_written_back(cluster: ShardCluster) -> None:
    with capture_logs() as lines:
        leader = await restore_beside_running_hosts(cluster)
        assert await leader.shard.knows_all()

    part = cluster.queues.queues[6]
    assert part.parts == SPLIT.parts
    assert leader.leads
    answer = await cluster.answer(leader, prepared.receive(part, 10))
    assert isinstance(answer, Deliveries)
    assert bodies(answer) == ["an order"]
    assert [line["queue"] for line in lines if line["event"] == "parts_written_back"] == [WHOLE.arn]
    assert leader.shard.report().parts_written_back == 1


@staged
async def test_a_leader_that_goes_on_tries_until_the_parts_are_written_back(
    cluster: ShardCluster,
) -> None:
    cluster.is_catalog_away = True
    with capture_logs() as lines:
        leader = await restore_beside_running_hosts(cluster)
        assert not await leader.shard.knows_all()
        await asyncio.sleep(20)
    assert len([line for line in lines if line["event"] == "records_not_compared"]) == 1
    assert 6 not in cluster.queues.queues

    cluster.is_catalog_away = False
    await asyncio.sleep(2)
    assert cluster.queues.queues[6].parts == SPLIT.parts
    assert await leader.shard.knows_all()


@staged
async def test_a_leader_whose_view_lags_does_not_say_that_it_knows_all(
    cluster: ShardCluster,
) -> None:
    """etcd went back, and the watch has not said so yet."""

    async def lags() -> bool:
        return False

    leader = await cluster.leader()
    assert await leader.shard.knows_all()
    cluster.catch_up = lags
    assert not await leader.shard.knows_all()


@staged
async def test_what_became_due_while_a_part_was_unknown_is_done_after_it(
    cluster: ShardCluster,
) -> None:
    for part in SPLIT.all_parts():
        cluster.queues.define(part)
    leader, part = await cluster.leader(), SPLIT.all_parts()[1]
    assert (await cluster.answer(leader, prepared.prepared(SPLIT, NoteParts()))) is None
    await cluster.answer(leader, prepared.send(part, "an order"))
    received = await cluster.answer(leader, prepared.receive(part, 10))
    assert isinstance(received, Deliveries)
    cluster.queues.issued = 6
    cluster.is_catalog_away = True
    del cluster.queues.queues[6]
    cluster.queues.define(WHOLE)
    cluster.etcd_went_back()
    await asyncio.sleep(60)

    cluster.is_catalog_away = False
    await asyncio.sleep(2)
    counters = await cluster.answer(leader, prepared.counters(part))
    assert isinstance(counters, QueueCounters)
    assert (counters.visible, counters.in_flight) == (1, 0)
