"""Rates count for the right account and queue, refuse as AWS does, and free their memory."""

from __future__ import annotations

from typing import Any

import pytest

from auth.caller import Caller
from sqs_api.gateway.rates import Rates
from sqs_api.tests.serving import json_request, query_request, running
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.errors import RequestThrottled
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import (
    DeleteMessage,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)


class Seconds:
    """A clock."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def rates(seconds: Seconds, **given: Any) -> Rates:
    return Rates(
        seconds, **{"account_rate": None, "queue_rate": None, "fifo_quotas": False, **given}
    )


def queue(queue_id: int, **given: str) -> QueueDefinition:
    name = "q.fifo" if given else "q"
    attributes = initial_attributes(name, given)
    settings = settings_of(attributes)
    return QueueDefinition(
        queue_id, "0" * 12, "us-east-1", name, 1, 0, 0, 0, b"", attributes, {}, settings
    )


def caller(account: str) -> Caller:
    return Caller(account, "us-east-1", "AIDA")


def allowed(hit: Any, *arguments: Any, times: int) -> int:
    """The number of calls that pass."""
    passed = 0
    for _ in range(times):
        try:
            hit(*arguments)
        except RequestThrottled:
            continue
        passed += 1
    return passed


def test_nothing_is_limited_unless_it_is_configured() -> None:
    free = rates(Seconds())

    assert not free.is_needed
    assert allowed(free.check_account, caller("1"), times=1000) == 1000


def test_each_account_has_its_own_rate_and_gets_it_anew() -> None:
    seconds = Seconds()
    limited = rates(seconds, account_rate="5/second")

    for _ in range(3):
        assert allowed(limited.check_account, caller("1"), times=9) == 5
        assert allowed(limited.check_account, caller("2"), times=9) == 5
        seconds.now_s += 1.0
    assert limited.throttled == {"account": 24, "queue": 0, "fifo": 0}


def test_a_door_of_many_lets_something_pass() -> None:
    limited = rates(Seconds(), account_rate="5/second")
    limited.share_among(6)

    assert allowed(limited.check_account, caller("1"), times=9) == 1


def test_each_queue_has_its_own_rate() -> None:
    limited = rates(Seconds(), queue_rate="5/minute")

    for queue_id in (1, 2):
        assert allowed(limited.check_queue, SendMessage(), queue(queue_id), times=9) == 5


def test_fifo_quotas_are_for_each_action_of_a_fifo_queue_and_batches_count_once() -> None:
    limited = rates(Seconds(), fifo_quotas=True)
    fifo = queue(1, FifoQueue="true")

    assert allowed(limited.check_queue, SendMessage(), queue(2), times=999) == 999
    assert allowed(limited.check_queue, SendMessage(), fifo, times=200) == 200
    assert allowed(limited.check_queue, SendMessageBatch(), fifo, times=200) == 100
    assert allowed(limited.check_queue, ReceiveMessage(), fifo, times=400) == 300
    assert allowed(limited.check_queue, DeleteMessage(), fifo, times=400) == 300
    assert limited.throttled["fifo"] == 300


def test_high_throughput_counts_message_groups_instead() -> None:
    limited = rates(Seconds(), fifo_quotas=True)
    fast = queue(
        1,
        FifoQueue="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    one, other = (Content(b"", 1, "", group=bytes([number]) * 16) for number in (1, 2))

    assert allowed(limited.check_queue, SendMessage(), fast, times=999) == 999
    assert allowed(limited.check_groups, fast, [one], times=400) == 300
    assert allowed(limited.check_groups, fast, [other, other], times=200) == 200
    assert allowed(limited.check_groups, fast, [other, one], times=10) == 0
    assert allowed(limited.check_groups, queue(2, FifoQueue="true"), [one], times=999) == 999


def test_a_million_groups_leave_nothing_behind() -> None:
    seconds = Seconds()
    limited = rates(seconds, queue_rate="5/second")
    base = queue(1)
    for queue_id in range(20_000):
        seconds.now_s += 0.001
        limited.check_queue(SendMessage(), QueueDefinition(queue_id, *_rest(base)))

    assert len(limited._windows) <= 2_001


def test_groups_that_no_lender_hears_of_leave_nothing_behind() -> None:
    seconds = Seconds()
    limited = rates(seconds, queue_rate="5/second")
    base = queue(1)
    for queue_id in range(1_000):
        told = limited.take_news(1_000)
        seconds.now_s += 2.5
        limited.check_queue(SendMessage(), QueueDefinition(queue_id, *_rest(base)))
        limited.hear_again(told)

    assert len(limited._windows.news) <= 2


def _rest(base: QueueDefinition) -> tuple[Any, ...]:
    return tuple(getattr(base, name) for name in base.__struct_fields__[1:])


@pytest.mark.parametrize("text", ["", "fast", "5", "5/fortnight", "-5/second"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        rates(Seconds(), account_rate=text)


async def test_both_protocols_answer_what_clients_back_off_for() -> None:
    seconds = Seconds()
    limited = rates(seconds, queue_rate="1/second", account_rate="3/second")
    async with running(rates=limited) as service:
        url = await service.make_queue("q")
        seconds.now_s += 1.0
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")

        for make in (json_request, query_request):
            answer = await service.ask(make("SendMessage", QueueUrl=url, MessageBody="x"))
            assert answer.status == 403
            assert b"RequestThrottled" in answer.body
            assert b"Rate exceeded" in answer.body
        listed = await service.ask(json_request("ListQueues"))
        assert listed.headers["x-amzn-query-error"] == "RequestThrottled;Sender"
        assert limited.throttled == {"account": 1, "queue": 2, "fifo": 0}
