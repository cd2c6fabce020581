"""The disk of the leader counts: a host that only forwards may have a full one."""

from __future__ import annotations

import pytest

from cluster.tests.peers.peer_hosts import QUEUE, RECEIVE, SEND, Host, running, the_cluster
from cluster.tests.peers.test_unknown_outcomes import KINDS, losing
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, pass_time
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Receipt, Request
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageResult
from visibility.tests import prepared


async def _asked(host: Host, *requests: Request) -> list[AskedShard]:
    asked = [host.ask(request) for request in requests]
    await pass_time(0.01)
    return asked


@virtual
async def test_a_leader_with_a_short_disk_refuses_sends_of_all_hosts_and_serves_the_rest() -> None:
    async with running(the_cluster()) as (a, b):
        await _asked(b, SEND, SEND)
        b.disk_is_short = True

        for host in (a, b):
            (sent,) = await _asked(host, SEND)
            (refusal,) = sent.answers
            assert isinstance(refusal, ServiceUnavailable)
            assert refusal.message == "short"
            (received,) = await _asked(host, RECEIVE)
            (found,) = received.answers
            assert isinstance(found, Deliveries)
            (lease,) = found.leases
            receipt = Receipt(lease.sequence, lease.receive_count)
            (deleted,) = await _asked(host, prepared.delete(QUEUE, receipt))
            assert deleted.answers == [None]


@virtual
async def test_a_follower_with_a_short_disk_forwards_sends() -> None:
    async with running(the_cluster()) as (a, _):
        a.disk_is_short = True

        (sent,) = await _asked(a, SEND)

        assert sent.refusal is SendMessageResult


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_send_whose_answer_was_lost_is_answered_over_a_short_disk(kind: str) -> None:
    async with losing(kind) as lost:
        lost.c.disk_is_short = True

        sent = await lost.ask(SEND)

        (message,) = lost.messages
        (answer,) = sent.answers
        assert isinstance(answer, SendMessageResult)
        assert answer.message_id == message.message_id


@pytest.mark.parametrize("name", ["a", "b"], ids=["forwarded", "here"])
@virtual
async def test_a_clients_repetition_is_answered_over_a_short_disk_and_takes_no_space(
    name: str,
) -> None:
    async with running(the_cluster()) as hosts:
        host = next(each for each in hosts if each.name == name)
        first = host.ask(SEND, "once")
        await pass_time(0.01)
        hosts[1].disk_is_short = True
        again = host.ask(SEND, "once", age_ms=10)
        other = host.ask(SEND, "another", age_ms=10)
        await pass_time(0.01)

        assert again.answers == first.answers
        assert first.refusal is SendMessageResult
        (refusal,) = other.answers
        assert isinstance(refusal, ServiceUnavailable)
        assert refusal.message == "short"
