"""Owners read the metrics of their own queues, from any host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from auth.signing import SigningKey, signed_headers
from cluster.clock import SystemClock
from cluster.peers.questions import Questions
from cluster.shards.shard_report import COUNTS, GAUGES, QueueReport
from cluster.tests.peers.peers import SETTINGS, Peer
from cluster.tests.peers.peers import start as start_peers
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.queue_samples import QueueSample, add_up, add_up_all
from sqs_api.admin.storage_metrics import bytes_in
from sqs_api.gateway.queue_counts import GatewayCounts, QueueCounts
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import add_user, keys_of
from sqs_api.tests.served import Served, page_request, serving
from visibility.contract.outcomes import Deliveries
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.state.ages import OldestMessages

TENANT = "2" * 12
READ = "holdfast:ReadMetrics"


@pytest_asyncio.fixture
async def queues(data: Path) -> Path:
    """Two queues with a message each, and one of another account, which signs in open mode with
    its number."""
    async with serving(data) as served:
        for name in ("orders", "bills"):
            await served.call("CreateQueue", QueueName=name)
            await served.send("x", queue=name)
        headers = {"host": "localhost", "x-amz-target": "AmazonSQS.CreateQueue"}
        body = b'{"QueueName": "theirs"}'
        claimed = SigningKey(TENANT, "any", "us-east-1")
        signed = signed_headers(claimed, "POST", "/", headers, body, SystemClock().wall_s())
        assert (await served.ask(page_request("POST", "/", signed, body))).status == 200
        await served.send("x", "y", queue=f"http://localhost/{TENANT}/theirs")
    return data


async def visible(served: Served, key: SigningKey | None) -> dict[str, float] | int:
    """Visible messages by queue, or the status of a refusal."""
    answer = await served.ask_page("GET", "queue-metrics", key=key)
    if answer.status != 200:
        return answer.status
    return {
        sample.labels["queue"]: sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.name == "holdfast_queue_messages_visible"
    }


async def test_each_key_reads_the_queues_that_it_may(queues: Path) -> None:
    root = keys_of(run("credentials", "--data", queues, "add"))
    tenant = keys_of(run("credentials", "--data", queues, "add", "--account", TENANT))
    one = add_user(queues, "one", READ, resource="arn:aws:sqs:us-east-1:000000000000:orders")
    none = add_user(queues, "none", "sqs:*")
    async with serving(queues, auth=AuthMode.SIGV4) as served:
        assert await visible(served, root) == {"orders": 1, "bills": 1}
        assert await visible(served, tenant) == {"theirs": 2}
        assert await visible(served, one) == {"orders": 1}
        assert await visible(served, none) == 403
        assert await visible(served, None) == 403
        assert await visible(served, root._replace(secret_access_key="x" * 40)) == 403
        other = await served.ask_page("POST", "queue-metrics", key=root)
        longer = await served.ask_page("GET", "queue-metrics-and-more", key=root)

    assert (other.status, longer.status) == (405, 404)


async def test_open_mode_shows_them_to_this_machine(queues: Path) -> None:
    async with serving(queues) as served:
        passed_on = {"x-forwarded-for": "10.0.0.1"}
        elsewhere = await served.ask_page("GET", "queue-metrics", more=passed_on)

        assert await visible(served, None) == {"orders": 1, "bills": 1}
        assert elsewhere.status == 403


async def test_the_command_prints_the_page(queues: Path) -> None:
    async with serving(queues) as served:
        printed = await asyncio.to_thread(run, "metrics", "--url", served.address)

    assert 'holdfast_queue_messages_visible{account="000000000000"' in printed.out
    refused = run("metrics", "--url", served.address)
    assert (refused.status, refused.out) == (2, "")


async def test_policy_check_knows_the_action(queues: Path) -> None:
    add_user(queues, "reader", READ)
    check = ("policy", "check", "--data", queues, "--user", "reader", "--action", READ)

    assert run(*check, "--queue", "orders").out.startswith("allowed: ")


def sample(queue_id: int, *, visible: int = 0, empty: int = 0) -> QueueSample:
    """The numbers of one host."""
    zeros: dict[str, Any] = dict.fromkeys((*GAUGES, *COUNTS), 0)
    report = QueueReport(queue_id, **zeros)
    return QueueSample(replace(report, visible=visible), GatewayCounts(empty_receives=empty))


def test_a_sum_has_the_oldest_ages_and_the_causes_of_all() -> None:
    ages = (None, OldestMessages(5, 0, 7), OldestMessages(3, 9, 0))
    causes: tuple[dict[str, int], ...] = ({}, {"max-receives": 2}, {"max-receives": 1, "hops": 1})
    samples = [
        replace(each, report=replace(each.report, oldest=oldest, deaths=deaths, rescued=1))
        for each, oldest, deaths in zip(
            [sample(1, visible=n, empty=n) for n in (1, 2, 4)], ages, causes, strict=True
        )
    ]

    whole = add_up(samples, 9)

    assert (whole.queue_id, whole.report.visible, whole.report.rescued) == (9, 7, 3)
    assert whole.gateway == GatewayCounts(empty_receives=7)
    assert whole.report.oldest == OldestMessages(3, 9, 7)
    assert whole.report.deaths == {"max-receives": 3, "hops": 1}
    assert add_up(samples[:1], 1) == samples[0]


@virtual
async def test_a_host_that_is_late_is_told_from_one_that_is_away() -> None:
    network = SimulatedNetwork()
    peers = [Peer(name, network, SETTINGS) for name in "abcd"]
    hosts = {peer.name: EveryHost(Questions(peer.transport)) for peer in peers}

    async def answer(body: bytes) -> bytes:
        return body

    async def answer_late(body: bytes) -> bytes:
        await asyncio.sleep(3)
        return body

    for name, host in hosts.items():
        if name != "d":  # of a version that does not know the question
            host.serve(READ, answer_late if name == "c" else answer)
    await start_peers(peers)
    await peers[0].transport.stop()

    heard = await hosts["b"].ask(READ, b"asked")

    assert (heard.parts, heard.missing, heard.late) == ([b"asked"], ["a", "c", "d"], ("c",))
    for peer in peers[1:]:
        await peer.transport.stop()


@virtual
async def test_a_host_adds_up_what_all_know_and_names_those_that_are_away() -> None:
    network = SimulatedNetwork()
    peers = [Peer(name, network, SETTINGS) for name in "abc"]
    known = {"a": [sample(1, visible=5, empty=1)], "b": [sample(1, empty=2)], "c": [sample(2)]}
    hosts: dict[str, EveryHost] = {}
    for peer in peers:
        hosts[peer.name] = host = EveryHost(Questions(peer.transport))

        async def answer(body: bytes, name: str = peer.name) -> bytes:
            assert body == b"asked"
            return msgspec.msgpack.encode(known[name])

        host.serve(READ, answer)
    await start_peers(peers)

    heard = await hosts["b"].ask(READ, b"asked")
    parts = [msgspec.msgpack.decode(part, type=list[QueueSample]) for part in heard.parts]
    await peers[0].transport.stop()
    alone = await hosts["b"].ask(READ, b"asked")

    assert heard.missing == []
    assert add_up_all(parts) == {1: sample(1, visible=5, empty=3), 2: sample(2)}
    assert alone.missing == ["a"]
    for peer in peers[1:]:
        await peer.transport.stop()


def test_only_the_first_receive_of_a_message_counts() -> None:
    counts = QueueCounts()
    leases = [
        Lease(1, 0, receive_count=1, base_count=0, first_received_at_ms=0, received_at_ms=5250),
        Lease(2, 0, receive_count=2, base_count=0, first_received_at_ms=0, received_at_ms=9000),
        Lease(3, 0, receive_count=1, base_count=0, first_received_at_ms=0, received_at_ms=4000),
    ]
    messages = [StoredMessage("m", sent_ms, 1, b"") for sent_ms in (5000, 0, 4000)]
    counts.received(7, Deliveries(leases, messages))

    assert counts.of(7) == GatewayCounts(first_receives=2, first_receive_ms=250)
    assert counts.send_to_receive_s.total == pytest.approx(0.25)
    counts.keep(lambda queue_id: queue_id != 7)
    assert counts.of(7) == GatewayCounts()


async def test_operators_see_the_bytes_that_rows_and_logs_take(queues: Path) -> None:
    async with serving(queues) as served:
        page = (await served.ask_page("GET", "metrics")).body.decode()

    sizes = {
        sample.labels["part"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "holdfast_shard_stored_bytes"
    }
    on_disk = {
        "rows": bytes_in(queues / "shard-0"),
        "log": bytes_in(queues / "shard-0.log"),
    }
    assert sizes.keys() == on_disk.keys()
    assert all(size > 0 for size in (*sizes.values(), *on_disk.values()))
    assert sizes["log"] == on_disk["log"]
