"""Faults of ours: each request gets an answer in its own protocol, and the log one line that names
it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import structlog
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser

from auth.caller import Caller
from cluster.shards.answers import answer_all
from cluster.shards.shard_parts import OpenStore
from cluster.tests.world import state_of
from sqs_api.tests.serving import (
    Answer,
    Service,
    json_request,
    query_request,
    running,
    settled,
    until,
)
from storage.engines.store import StoreFailed
from storage.tests.memory_store import MemoryStore

Log = list[Any]
SEND = {
    "json": json_request("SendMessage", QueueUrl="q", MessageBody="x"),
    "query": query_request("SendMessage", QueueUrl="q", MessageBody="x"),
    "query, JSON answer": query_request(
        "SendMessage", QueueUrl="q", MessageBody="x", headers={"Accept": "application/json"}
    ),
}
PORTS = ("port", "aiohttp_port")


@pytest.fixture
def log() -> Iterator[Log]:
    """The lines of the log."""
    with structlog.testing.capture_logs() as lines:
        yield lines


class FailingStore(MemoryStore):
    """A disk that fails on command."""

    def __init__(self) -> None:
        super().__init__()
        self.is_failing = False

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        if self.is_failing:
            raise StoreFailed("no space left on device")
        super().append(body, queue_ids)


def _opening(stores: list[FailingStore]) -> OpenStore:
    async def open_store() -> FailingStore:
        stores.append(FailingStore())
        return stores[-1]

    return open_store


def _parsed(answer: Answer, protocol: str) -> Any:
    """The answer as boto3 reads it."""
    name = "query" if protocol == "query" else "json"
    model = ServiceModel(Loader().load_service_model("sqs", "service-2"))
    shape = model.operation_model("SendMessage").output_shape
    headers = {name.lower(): value for name, value in answer.headers.items()}
    response = {"status_code": answer.status, "headers": headers, "body": answer.body}
    return create_parser(name).parse(response, shape)


def _code(answer: Answer, protocol: str) -> str:
    if protocol == "json":
        return answer.headers["x-amzn-query-error"].split(";")[0]
    if protocol == "query":
        namespace = {"": "http://queue.amazonaws.com/doc/2012-11-05/"}
        return ElementTree.fromstring(answer.body).findtext("Error/Code", "", namespace)
    code: str = answer.json["Error"]["Code"]
    return code


async def _ask(service: Service, request: bytes, port: str = "port") -> Answer:
    client = await service.connect(getattr(service, port))
    return await client.ask(request)


@pytest.mark.parametrize("protocol", SEND)
async def test_failing_shard_is_503_with_one_line_each_for_shard_and_request(
    protocol: str, log: Log
) -> None:
    stores: list[FailingStore] = []
    async with running(open_store=_opening(stores)) as service:
        await service.make_queue()
        stores[0].is_failing = True
        failed = await _ask(service, SEND[protocol])
        while_away = await _ask(service, SEND[protocol])

    for answer in (failed, while_away):
        assert answer.status == 503
        assert _code(answer, protocol) == "ServiceUnavailable"
        request_id = answer.headers["x-amzn-RequestId"]
        (line,) = [line for line in log if line.get("request_id") == request_id]
        assert line["event"] == "unavailable"
    assert len([line for line in log if line["event"] == "store_failed"]) == 1


@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_5xx_are_errors_to_boto3(protocol: str) -> None:
    async with running() as service:
        await service.make_queue()
        await service.shard.stop()
        answer = await _ask(service, SEND[protocol])

    parsed = _parsed(answer, protocol)

    assert parsed["Error"]["Code"].startswith("ServiceUnavailable")
    assert parsed["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert parsed["ResponseMetadata"]["RequestId"] == answer.headers["x-amzn-RequestId"]


def _broken_authenticate(
    method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> Caller:
    raise RuntimeError("a bug of ours")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("protocol", SEND)
async def test_bug_on_the_way_down_is_500_in_the_requests_protocol(
    protocol: str, port: str, log: Log
) -> None:
    async with running(authenticate=_broken_authenticate) as service:
        answer = await _ask(service, SEND[protocol], port)

    assert answer.status == 500
    (line,) = [line for line in log if line["log_level"] == "error"]
    assert line["request_id"] == answer.headers["x-amzn-RequestId"]
    assert _code(answer, protocol) == "InternalFailure"


@pytest.mark.parametrize("port", PORTS)
async def test_bug_on_the_way_up_is_500_and_leaves_nothing_outstanding(port: str, log: Log) -> None:
    async with running() as service:
        url = await service.make_queue()
        client = await service.connect(getattr(service, port))
        await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
        await until(lambda: service.gateway.outstanding == 1)
        await settled()
        (ticket,) = state_of(service.shard).waits.take_all()

        # A shard whose answer is not an answer.
        answer_all(structlog.get_logger("shard"), [(ticket, SimpleNamespace())])  # type: ignore[list-item]

        answer = await client.answer()
        assert answer.status == 500
        assert service.gateway.outstanding == 0
        assert answer.headers["x-amzn-RequestId"] in str(log)


async def test_bug_in_a_queue_action_is_500(
    service: Service, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(*given: object) -> None:
        raise LookupError

    monkeypatch.setattr(service.catalog, "create_queue", bug)

    answer = await service.ask(json_request("CreateQueue", QueueName="q"))

    assert (answer.status, _code(answer, "json")) == (500, "InternalFailure")
    assert service.gateway.outstanding == 0
    (line,) = [line for line in log if line["log_level"] == "error"]
    assert line["request_id"] == answer.headers["x-amzn-RequestId"]


@pytest.mark.parametrize("port", PORTS)
async def test_long_polls_are_answered_once_when_the_shard_fails(port: str) -> None:
    stores: list[FailingStore] = []
    async with running(open_store=_opening(stores)) as service:
        await service.make_queue()
        url = await service.make_queue("another")
        client = await service.connect(getattr(service, port))
        await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
        await until(lambda: service.gateway.outstanding == 1)
        await settled()
        stores[0].is_failing = True
        await _ask(service, SEND["json"])

        assert (await client.answer()).status == 503
        assert service.gateway.outstanding == 0


async def test_stop_ends_although_a_shard_failed_with_long_polls_parked() -> None:
    stores: list[FailingStore] = []
    async with running(open_store=_opening(stores)) as service:
        await service.make_queue()
        url = await service.make_queue("another")
        client = await service.connect()
        await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
        await until(lambda: service.gateway.outstanding == 1)
        await settled()
        stores[0].is_failing = True
        await _ask(service, SEND["json"])

        service.shard.end_long_polls()
        ended = True
        try:
            async with asyncio.timeout(10):
                await service.gateway.drain()
                await service.shard.stop()
        except TimeoutError:
            ended = False
        assert ended, "the shard waits for answers that nobody will give"
        assert service.gateway.outstanding == 0


async def test_answers_that_nobody_waits_for_do_not_count_twice(service: Service) -> None:
    url = await service.make_queue()
    client = await service.connect()
    await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await until(lambda: service.gateway.outstanding == 1)
    await settled()
    await client.close()
    await until(lambda: service.gateway.outstanding == 0)

    service.shard.end_long_polls()
    await settled()

    assert service.gateway.outstanding == 0
