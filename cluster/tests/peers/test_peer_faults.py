"""Histories drawn from a seed: links fail in every way while requests are under way."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import TypeVar

import msgspec
import pytest

from cluster.peers.peer_outcomes import NotSent, Refused
from cluster.peers.peer_settings import ForwardingSettings
from cluster.tests.peers.peer_hosts import Cluster, Host, running
from cluster.tests.peers.peers import SETTINGS, AskedPeer, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, pass_time
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Content, Request
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageBatchResult, SendMessageResult
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import LEASE, MESSAGE, number_of
from visibility.tests import prepared

SEEDS = range(int(os.environ.get("PEER_SEEDS", "20")))
QUEUE = prepared.queue_named("q", 1)
FOR_EVER_S = 43_200
T = TypeVar("T")


def do_harm(network: SimulatedNetwork, chance: Random) -> None:
    """One fault, or its end."""
    ends = network.ends
    match chance.randrange(8):
        case 0:
            network.cut(*chance.sample("abc", 2))
        case 1 | 2:
            network.mend()
        case 3 if ends:
            chance.choice(ends).abort()
        case 4 if ends:
            chance.choice(ends).break_after = chance.randrange(60)
        case 5 if ends:
            chance.choice(ends).pause_reading()
        case 6:
            network.delay_s = chance.choice((0.0001, 0.01, 0.5))
            network.piece = chance.choice((0, 1, 7, 1000))
    for end in ends:
        if chance.randrange(3) == 0:
            end.resume_reading()


def heal(network: SimulatedNetwork) -> None:
    network.mend()
    network.delay_s = 0.001
    for end in network.ends:
        end.break_after = None
        end.resume_reading()


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_each_outcome_is_true(seed: int) -> None:
    chance = Random(seed)
    network = SimulatedNetwork()
    settings = msgspec.structs.replace(SETTINGS, outbox_max=3000, frame_max=2000, requests_max=20)
    a, b = Peer("a", network, settings), Peer("b", network, settings)
    await start([a, b])
    executed: Counter[bytes] = Counter()
    b.holds = True
    asked: dict[bytes, AskedPeer] = {}
    withdrawn: set[bytes] = set()

    for number in range(300):
        body = b"%d:" % number + bytes(chance.choice((0, 10, 900)))
        asked[body] = a.ask(b, body, timeout_s=chance.choice((0.5, 3.0, 30.0)))
        if chance.randrange(4) == 0:
            await pass_time(chance.choice((0.0, 0.001, 0.1, 1.0)))
        if chance.randrange(10) == 0:
            do_harm(network, chance)
        if chance.randrange(30) == 0:
            renewing = chance.choice((a, b))
            renewing.network.has_new_certificates = True
            renewing.transport.reload()
        if chance.randrange(10) == 0:
            cancelled = chance.choice(list(asked))
            if asked[cancelled].cancel():
                withdrawn.add(cancelled)
        for call in b.calls:
            executed[call.body] += 1
            call.answer(b"done") if chance.randrange(3) else call.refuse("no")
        b.calls.clear()
    heal(network)
    await pass_time(60.0)
    for call in b.calls:
        executed[call.body] += 1
        call.answer(b"done")
    await pass_time(1.0)

    assert max(executed.values()) == 1
    kinds: Counter[str] = Counter()
    for body, each in asked.items():
        if body in withdrawn:
            assert (each.outcomes, executed[body]) == ([], 0)
            continue
        outcome = each.outcome
        kinds[type(outcome).__name__] += 1
        if isinstance(outcome, NotSent):
            assert executed[body] == 0
        elif isinstance(outcome, bytes) or outcome == Refused("no"):
            assert executed[body] == 1
    assert len(kinds) >= 3, kinds
    again = a.ask(b, b"again")
    await pass_time(0.1)
    b.calls.pop().answer(b"well")
    await pass_time(0.1)
    assert again.outcome == b"well"
    await asyncio.gather(a.transport.stop(), b.transport.stop())


def stored(host: Host, table: bytes, kind: type[T]) -> dict[int, T]:
    """The rows of a table by sequence."""
    rows = host.world.store.rows.items()
    return {number_of(row[0]): decode_row(kind, *row) for row in rows if row[0][8:9] == table}


def draw_request(chance: Random, number: int) -> Request:
    """A send with bodies of its own, or a receive that hides its messages for ever."""
    match chance.randrange(6):
        case 0:
            return prepared.receive(QUEUE, timeout_s=FOR_EVER_S, wait_s=chance.randrange(21))
        case 1:
            return prepared.receive(QUEUE, chance.randrange(1, 11), timeout_s=FOR_EVER_S)
        case 2:
            return prepared.send_batch(QUEUE, [f"{number}-{place}" for place in range(3)])
        case _:
            return prepared.send(QUEUE, f"{number}-0")


async def do_harm_to_leader(cluster: Cluster, leader: Host, chance: Random) -> Host:
    """The leader falls, with or without its last Entries, before it could say more."""
    if chance.randrange(2):
        cluster.store.commit_unnoticed()
    await leader.fall()
    leader = chance.choice([each for each in cluster.hosts if each is not leader])
    await leader.lead()
    return leader


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_nothing_is_lost_sent_or_received_twice_while_leaders_change(seed: int) -> None:
    chance = Random(seed)
    cluster = Cluster("abc", ForwardingSettings(hold_s=20.0, answer_s=3.0))
    cluster.define(prepared.send(QUEUE, ""))
    asked: list[tuple[Request, AskedShard]] = []
    async with running(cluster) as hosts:
        leader = hosts[1]
        for number in range(150):
            request = draw_request(chance, number)
            asked.append((request, chance.choice(hosts).ask(request)))
            if chance.randrange(3) == 0:
                await pass_time(chance.choice((0.0, 0.001, 0.1, 1.0)))
            if chance.randrange(8) == 0:
                do_harm(cluster.network, chance)
            if chance.randrange(4) == 0:
                cluster.store.auto_sync = not cluster.store.auto_sync
                if cluster.store.auto_sync:
                    cluster.store.sync_all()
            if chance.randrange(20) == 0:
                leader = await do_harm_to_leader(cluster, leader, chance)
            if chance.randrange(8) == 0:
                chance.choice(hosts).leaders.learn(chance.choice(("a", "b", "c", None)))
        heal(cluster.network)
        cluster.store.auto_sync = True
        cluster.store.sync_all()
        cluster.learn(leader.name)
        await pass_time(60.0)

        judge(asked, leader)
        assert {len(host.router.retries) for host in hosts} == {0}


def judge(asked: list[tuple[Request, AskedShard]], leader: Host) -> None:
    """Check every answer against what is stored. Nothing is deleted, and no lease ends."""
    messages = stored(leader, MESSAGE, StoredMessage)
    id_of = {message.data.decode(): message.message_id for message in messages.values()}
    assert len(id_of) == len(messages), "something was sent twice"
    delivered: Counter[str] = Counter()
    given_up = 0
    for request, each in asked:
        (answer,) = each.answers
        if isinstance(answer, ServiceUnavailable):
            given_up += 1
        elif isinstance(answer, Deliveries):
            delivered.update(each.bodies)
        else:
            bodies = [part.data.decode() for part in request.parts if isinstance(part, Content)]
            assert ids_in(answer) == [id_of.get(body) for body in bodies]
    assert not delivered or max(delivered.values()) == 1, "something was delivered twice"
    leases = stored(leader, LEASE, Lease)
    assert {lease.receive_count for lease in leases.values()} <= {1}
    received = {messages[sequence].data.decode() for sequence in leases}
    assert set(delivered) <= received
    if not given_up:
        assert set(delivered) == received, "something was received, and reached no client"


def ids_in(answer: object) -> list[str]:
    if isinstance(answer, SendMessageResult):
        return [answer.message_id]
    assert isinstance(answer, SendMessageBatchResult)
    return [entry.message_id for entry in answer.successful or ()]
