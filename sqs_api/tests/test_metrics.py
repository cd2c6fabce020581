"""The numbers of the metrics page match the requests that were made."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from cluster.clock import SystemClock
from cluster.shards.shard import Shard
from cluster.tests.world import state_of
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.metrics import Metrics
from sqs_api.tests.serving import ACCOUNT, REGION, Service, json_request, query_request, running
from visibility.state.ages import OldestMessages

Q = {"account": ACCOUNT, "region": REGION, "queue": "q"}


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with running() as parts:
        yield parts


async def _samples(service: Service) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families((await service.metrics.page()).decode()):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def _of_queue(service: Service, name: str = "q") -> dict[str, float]:
    labels = tuple(sorted((Q | {"queue": name}).items()))
    return {
        sample.removeprefix("holdfast_queue_").removesuffix("_total"): values[labels]
        for sample, values in (await _samples(service)).items()
        if labels in values
    }


async def test_what_happens_to_messages_is_counted(service: Service) -> None:
    url = await service.make_queue("q")
    for size in (1, 20, 300):
        await service.call("SendMessage", QueueUrl=url, MessageBody="x" * size)
    await service.call("SendMessage", QueueUrl=url, MessageBody="later", DelaySeconds=900)
    received = await service.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=2)
    handle = received["Messages"][0]["ReceiptHandle"]
    await service.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    await service.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    for _ in range(3):
        await service.call("ReceiveMessage", QueueUrl=url)

    seen = await _of_queue(service)
    expected = {
        "messages_sent": 4,
        "sent_bytes": 326,
        "messages_received": 3,
        "messages_deleted": 1,
        "empty_receives": 3,
        "messages_visible": 0,
        "messages_not_visible": 2,
        "messages_delayed": 1,
        "messages_purged": 0,
        "messages_expired": 0,
    }
    assert {name: seen[name] for name in expected} == expected

    await service.call("PurgeQueue", QueueUrl=url)
    assert (await _of_queue(service))["messages_purged"] == 3


async def test_dead_letters_are_counted_at_both_ends(service: Service) -> None:
    dead = await service.make_queue("dead")
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = await service.make_queue("q", RedrivePolicy=policy, VisibilityTimeout="0")
    await service.call("SendMessage", QueueUrl=url, MessageBody="x")
    for _ in range(2):
        await service.call("ReceiveMessage", QueueUrl=url)

    source, target = await _of_queue(service), await _of_queue(service, "dead")
    assert source["messages_moved_out"] == target["messages_moved_in"] == 1
    assert "dead_letters" not in source
    assert target["dead_letters"] == 1
    deaths = (await _samples(service))["holdfast_queue_messages_dead_lettered_total"]
    labels = Q | {"queue": "dead", "cause": "max-receives"}
    assert deaths == {tuple(sorted(labels.items())): 1}
    assert dead


async def test_clocks_ahead_are_counted_by_sender(service: Service) -> None:
    url = await service.make_queue("q")
    order = {"holdfast:order": "sender-clock", "holdfast:order-window": "5"}
    await service.call("TagQueue", QueueUrl=url, Tags=order)
    sent = {"holdfast.sent-at": {"DataType": "Number", "StringValue": str(10**15)}}
    await service.call("SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=sent)

    ahead = (await _samples(service))["holdfast_queue_sender_clocks_ahead_total"]

    labels = Q | {"sender": f"arn:aws:iam::{ACCOUNT}:root"}
    assert ahead == {tuple(sorted(labels.items())): 1}


async def test_duplicates_are_counted_and_answered_as_the_first(service: Service) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sent: dict[str, Any] = {"MessageBody": "a", "MessageGroupId": "g"}
    entries = [{"Id": "1", **sent}, {"Id": "2", **sent, "MessageBody": "b"}, {"Id": "3", **sent}]

    first = await service.call("SendMessage", QueueUrl=url, **sent)
    assert (await _of_queue(service, "q.fifo"))["messages_deduplicated"] == 0
    again = await service.call("SendMessage", QueueUrl=url, **sent)
    batch = await service.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    form = query_request("SendMessage", QueueUrl=url, **sent)

    assert first == again
    ids = [entry["MessageId"] for entry in batch["Successful"]]
    assert (ids[0], ids[2]) == (first["MessageId"],) * 2
    assert first["MessageId"].encode() in (await service.ask(form)).body
    seen = await _of_queue(service, "q.fifo")
    assert (seen["messages_sent"], seen["messages_deduplicated"]) == (2, 4)


async def test_the_time_from_a_send_to_its_first_receive_is_counted_once(service: Service) -> None:
    url = await service.make_queue("q", VisibilityTimeout="0")
    now_s = SystemClock().monotonic_s
    began_s = now_s()
    for number in range(3):
        await service.call("SendMessage", QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        await service.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    passed_s = now_s() - began_s
    await service.call("SendMessage", QueueUrl=url, MessageBody="not received")

    samples = await _samples(service)
    labels = tuple(sorted(Q.items()))
    assert samples["holdfast_queue_send_to_receive_seconds_count"][labels] == 3
    total_s = samples["holdfast_queue_send_to_receive_seconds_sum"][labels]
    assert samples["holdfast_send_to_receive_seconds_count"] == {(): 3}
    assert samples["holdfast_send_to_receive_seconds_sum"] == {(): pytest.approx(total_s)}
    # However slow the machine: no message waited longer than its send and receive took together.
    # A shard's clock may run 5 % faster, and its instants are whole milliseconds.
    assert 0 <= total_s <= 3 * (passed_s * 1.1 + 0.002)


def oldest(shard: Shard, queue_id: int = 1) -> OldestMessages | None:
    """Instants of the queue's oldest messages."""
    (report,) = shard.queues([queue_id], detailed_ids=[queue_id])
    return report.oldest


async def test_ages_are_those_of_the_oldest_messages(service: Service) -> None:
    url = await service.make_queue("q")
    assert "oldest_message_age_seconds" not in await _of_queue(service)
    await service.call("SendMessage", QueueUrl=url, MessageBody="first")
    await service.call("SendMessage", QueueUrl=url, MessageBody="second")
    shard = service.shard
    state = state_of(shard).queues.get(1)
    assert state is not None
    (first, second) = [message.sent_at_ms for _, message in state.window]

    assert oldest(shard) == OldestMessages(first, first, first)
    await service.call("ReceiveMessage", QueueUrl=url)
    assert oldest(shard) == OldestMessages(first, second, first)
    await service.call("ReceiveMessage", QueueUrl=url)
    assert oldest(shard) == OldestMessages(first, 0, first)
    ages = await _of_queue(service)
    assert 0 <= ages["oldest_message_age_seconds"] < 60
    assert ages["oldest_receivable_message_age_seconds"] == 0
    await service.call("PurgeQueue", QueueUrl=url)
    assert oldest(shard, 2) == OldestMessages(0, 0, 0)


async def test_ages_of_a_fifo_queue_look_at_the_groups(service: Service) -> None:
    url = await service.make_queue("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for group in ("a", "b"):
        await service.call("SendMessage", QueueUrl=url, MessageBody=group, MessageGroupId=group)
    shard = service.shard
    before = oldest(shard)
    await service.call("ReceiveMessage", QueueUrl=url)
    after = oldest(shard)

    assert before is not None
    assert after is not None
    assert before.stored_ms == before.receivable_ms == after.stored_ms
    assert after.receivable_ms >= before.receivable_ms > 0


async def test_queues_beyond_the_cap_are_summed_up_and_the_fullest_are_shown(
    service: Service,
) -> None:
    for number in range(6):
        url = await service.make_queue(f"q{number}")
        for _ in range(number + 1):
            await service.call("SendMessage", QueueUrl=url, MessageBody="x")
    service.metrics = Metrics(Accounting(), [service.queue_metrics(2)])

    visible = (await _samples(service))["holdfast_queue_messages_visible"]

    assert {dict(labels)["queue"]: value for labels, value in visible.items()} == {
        "q5": 6,
        "q4": 5,
        "(others)": 10,
    }


async def test_refusals_are_counted_by_code_and_strangers_make_no_series(service: Service) -> None:
    url = await service.make_queue("q")
    await service.call("DeleteQueue", QueueUrl=url)
    for _ in range(2):
        await service.ask(json_request("SendMessage", QueueUrl=url, MessageBody="x"))

    refusals = (await _samples(service))["holdfast_refusals_total"]
    assert refusals == {(("code", "AWS.SimpleQueueService.NonExistentQueue"),): 2}


async def test_what_comes_in_less_what_goes_out_is_there(service: Service) -> None:
    """The invariant of `Counts`, under all kinds of traffic."""
    chance = random.Random(7)
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
    await service.make_queue("dead")
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    url = await service.make_queue("q", RedrivePolicy=policy)
    handles: list[str] = []
    for _ in range(400):
        what = chance.choice(
            ["send", "send", "delay", "receive", "receive", "delete", "show", "purge"]
        )
        if what in ("send", "delay"):
            delay = 900 if what == "delay" else 0
            await service.call("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay)
        elif what == "receive":
            answer = await service.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=3)
            handles += [message["ReceiptHandle"] for message in answer.get("Messages", ())]
        elif what == "purge" and chance.random() < 0.1:
            await service.call("PurgeQueue", QueueUrl=url)
            handles.clear()
        elif handles and what == "delete":
            await service.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handles.pop())
        elif handles and what == "show":
            shown = {"QueueUrl": url, "ReceiptHandle": handles.pop(), "VisibilityTimeout": 0}
            await service.call("ChangeMessageVisibility", **shown)

    shard = service.shard
    moved_out = 0
    for queue in service.catalog:
        state = state_of(shard).queues[queue.queue_id]
        counts = state.counts
        assert counts.there == state.stored
        moved_out += counts.moved_out
    assert moved_out > 0
